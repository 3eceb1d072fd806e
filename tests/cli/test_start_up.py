"""The command starts quickly since it loads what it needs. What is loaded is tested; nothing is timed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rolltape
from tests.cli import support

LOADED = """
import sys
from rolltape.cli import main
try:
    main({argv!r})
except SystemExit as exit:
    assert exit.code == 0, exit.code
print(*sorted(sys.modules), file=sys.stderr)
"""


def loaded(*argv: str) -> set[str]:
    code = LOADED.format(argv=list(argv))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=support.HANG_S)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("argv", [["--version"], ["-V"]])
def test_the_version_loads_click_only(argv):
    assert {"msgspec", "rich", "sqlite3", "asyncio"} & loaded(*argv) == set()


def test_a_list_loads_no_rich_where_there_is_ascii_only(tmp_path):
    from tests.cli.test_terminal import write

    write(tmp_path / "run", "plain#0")
    assert {"rich", "rich.console", "rich.progress"} & loaded("ls", str(tmp_path / "run")) == set()


def test_the_module_is_the_command():
    done = subprocess.run([*support.COMMAND, "--version"], capture_output=True, text=True, timeout=support.HANG_S)
    assert (done.returncode, done.stdout) == (0, f"rolltape {rolltape.__version__}\n")


def test_the_help_names_every_command():
    out = support.rolltape("--help").out
    for name in ("ls", "show", "tail", "cat", "stats", "verify", "index", "compress"):
        assert f"\n  {name} " in out
        assert support.rolltape(name, "--help").code == 0
