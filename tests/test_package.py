"""What `import rolltape` does: little, quickly, and nothing to the process that imports it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import rolltape

PACKAGE = Path(rolltape.__file__).parent
ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"
)


def python(code: str, cwd: Path | None = None) -> Any:
    """Run `code` in a fresh isolated interpreter that sees this package and installed ones; return what it prints."""
    preamble = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    command = [sys.executable, "-I", "-c", preamble + code]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return json.loads(done.stdout)


def test_the_root_names_are_sorted_few_and_there():
    """At most 20: what a user has to learn."""
    assert rolltape.__all__ == sorted(rolltape.__all__)
    assert len(rolltape.__all__) == len(set(rolltape.__all__)) <= 20
    assert all(hasattr(rolltape, name) for name in rolltape.__all__)
    assert all(not name.startswith("_") for name in rolltape.__all__)


def test_the_version_is_stated_once():
    """In code, in the project file, and where it is installed."""
    project = ROOT / "pyproject.toml"
    if project.exists():
        assert re.search(r'^version = "(.*)"$', project.read_text(), re.MULTILINE)[1] == rolltape.__version__
    try:
        installed = metadata.version("rolltape")
    except metadata.PackageNotFoundError:
        return
    assert installed == rolltape.__version__


def test_type_checkers_are_told_that_the_package_is_typed():
    """PEP 561."""
    assert (PACKAGE / "py.typed").exists()


def test_importing_loads_msgspec_and_the_standard_library_only():
    """Measured in a fresh interpreter, by what is new in sys.modules."""
    new = python("""
import json, msgspec  # msgspec may load typing_extensions where that is installed
before = set(sys.modules)
import rolltape
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
""")
    assert set(new) - set(sys.stdlib_module_names) <= {"rolltape", "msgspec"}


@pytest.mark.parametrize("module", MODULES)
def test_every_module_can_be_imported_alone_and_loads_no_more_than_it_declares(module):
    """Alone: so no cycle hides behind the order of somebody else's imports."""
    new = python(f"""
import json, msgspec  # msgspec may load typing_extensions where that is installed
before = set(sys.modules)
import {module}
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
""")
    declared = {"rolltape", "msgspec", *({"click", "rich"} if module.startswith("rolltape.cli") else ())}
    assert set(new) - set(sys.stdlib_module_names) <= declared


def test_importing_changes_nothing_in_the_process(tmp_path):
    """No thread, file, output, signal handler, exit hook, log handler, environment variable or warning filter."""
    before, after = python(
        f"""
import atexit, gc, json, logging, os, signal, threading, warnings
import msgspec, asyncio, ctypes, socket, queue, concurrent.futures.thread, logging.handlers  # their own effects

def state():
    return dict(
        threads=[thread.name for thread in threading.enumerate()],
        environ=dict(os.environ),
        signals={{str(s): repr(signal.getsignal(s)) for s in signal.valid_signals()}},
        exits=atexit._ncallbacks(),
        handlers=[repr(h) for h in logging.getLogger().handlers + logging.getLogger("rolltape").handlers],
        levels=[logging.getLogger().level, logging.getLogger("rolltape").level],
        filters=[repr(f) for f in warnings.filters],
        descriptors=os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else [],
        files=sorted(os.listdir(".")),
        hooks=[repr(sys.excepthook), repr(threading.excepthook), repr(sys.unraisablehook)],
        recursion=sys.getrecursionlimit(),
        switch=sys.getswitchinterval(),
        gc=gc.get_threshold(),
        umask=os.umask(os.umask(0o022) or 0o022),
    )

os.umask(0o022)
before = state()
for module in {MODULES!r}:
    __import__(module)
print(json.dumps([before, state()]))
""",
        cwd=tmp_path,
    )
    assert before == after
    assert list(tmp_path.iterdir()) == []
