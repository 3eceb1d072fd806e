"""What `docs/commands.md` shows is what its commands print, of the run that `sample.py` makes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import HANG_S, environment, rolltape

PAGE = Path(__file__).parents[2] / "docs/commands.md"


def shown() -> list[tuple[str, str]]:
    """Each command of the page, with its output."""
    blocks = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    return blocks


def steady(out: str) -> str:
    """Leave out what is another each time: who wrote the run and when, how long a check took, the index's size."""
    out = re.sub(r"pid \d+ on \S+", "pid PID on HOST", out)
    out = re.sub(r" ─+( [^─\n]*)?$", " ──", out, flags=re.MULTILINE)
    out = re.sub(r"run [0-9a-f]{32}, created .*", "run", out)
    out = re.sub(r"opened .*|checked in .*|^/.*/runs|on disk .*", "", out, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in out.splitlines())


def output(command: str, folder: Path) -> str:
    env = environment(COLUMNS="80", PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    argv = ["bash", "-c", command]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=HANG_S).stdout


@pytest.mark.parametrize(("command", "out"), shown(), ids=lambda value: value.split("\n")[0][:40])
def test_the_page_on_the_commands_shows_what_they_print(sample, tmp_path, command, out):
    if "jq" in command and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/demo").symlink_to(sample)
    assert steady(output(command, tmp_path)) == steady(out)


def test_the_page_shows_what_polars_makes_of_the_records(sample, tmp_path):
    code, out = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "records.jsonl").write_text(rolltape("cat", sample).out)
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=HANG_S)
    assert done.stdout == out
