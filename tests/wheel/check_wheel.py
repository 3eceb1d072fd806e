"""Check the built wheel from inside the fresh environment that it is installed in: `check_wheel.py WHEEL`.

Only the standard library is used here, since only Rolltape and what it needs is installed.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

DISTRIBUTIONS_MAX = 8
NOT_OURS = {"pip", "setuptools"}

# What importing Rolltape may load beside the standard library.
MODULES_ALLOWED = {"rolltape", "msgspec"}

# Runs in an interpreter of its own, where nothing else has been imported. The audit hook also sees what C code does.
IMPORT_PROBE = """
import json, os, signal, sys, threading

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
EVENTS = {
    "_thread.start_joinable_thread", "_thread.start_new_thread", "os.fork", "os.mkdir", "os.posix_spawn", "os.putenv",
    "os.remove", "os.rename", "socket.__new__", "sqlite3.connect", "subprocess.Popen",
}
effects = []

def watch(event, args):
    if event in EVENTS or (event == "open" and args[2] & WRITES):
        effects.append(f"{event} {args}")

def handlers():
    return {number: signal.getsignal(number) for number in signal.valid_signals()}

handlers_before = handlers()
modules_before = set(sys.modules)
sys.addaudithook(watch)
import rolltape
found = {
    "effects": list(effects),
    "threads": threading.active_count() - 1,
    "handlers": handlers() != handlers_before,
    "modules": sorted({name.partition(".")[0] for name in set(sys.modules) - modules_before} - sys.stdlib_module_names),
    "version": rolltape.__version__,
}
print(json.dumps(found))
"""


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def check_environment() -> None:
    names = {distribution.name.lower() for distribution in importlib.metadata.distributions()} - NOT_OURS
    assert "rolltape" in names, f"rolltape is not among the installed distributions: {sorted(names)}"
    assert len(names) <= DISTRIBUTIONS_MAX, f"{len(names)} distributions, {DISTRIBUTIONS_MAX} allowed: {sorted(names)}"


def check_import() -> str:
    """Check that importing Rolltape loads little and does nothing. Return its version."""
    # -B, because the interpreter's own bytecode cache is no doing of ours.
    child = run(["-B", "-c", IMPORT_PROBE])
    assert child.returncode == 0, f"import rolltape fails:\n{child.stderr}"
    *printed, report = (child.stderr + child.stdout).splitlines()
    assert not printed, f"import rolltape prints: {printed}"
    found = json.loads(report)
    assert not found["effects"], f"import rolltape has effects: {found['effects']}"
    assert not found["threads"], f"import rolltape starts {found['threads']} threads"
    assert not found["handlers"], "import rolltape installs a signal handler"
    strangers = set(found["modules"]) - MODULES_ALLOWED
    assert not strangers, f"import rolltape loads {sorted(strangers)}"
    return found["version"]


def check_contents(wheel: Path, version: str) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    dist_info = f"rolltape-{version}.dist-info"
    assert "rolltape/py.typed" in names, "the wheel has no py.typed: type checkers would ignore its annotations"
    assert f"{dist_info}/licenses/LICENSE" in names, "the wheel has no LICENSE"
    for name in names:
        parts = Path(name).parts
        assert parts[0] in {"rolltape", dist_info}, f"the wheel installs {name}, outside its own package"
        assert "tests" not in parts and not parts[-1].startswith(("test_", "conftest")), f"the wheel has a test: {name}"


def check_metadata(version: str) -> None:
    metadata = importlib.metadata.metadata("rolltape")
    assert metadata["Version"] == version, f"metadata says {metadata['Version']}, rolltape.__version__ {version}"
    assert metadata["Requires-Python"] == ">=3.11", metadata["Requires-Python"]
    assert metadata["License-Expression"] == "Apache-2.0", metadata["License-Expression"]
    assert metadata["Summary"], "no summary"
    required = {re.match(r"[\w.-]+", line)[0] for line in importlib.metadata.requires("rolltape")}
    assert required == {"backports-zstd", "click", "msgspec", "rich"}, required


def check_commands() -> None:
    """Check that what is installed works: write a small run, read it back, look at it."""
    with tempfile.TemporaryDirectory() as folder:
        size = ["--seed", "1", "--trajectories", "2", "--steps", "3"]
        for module, *command in (
            ("rolltape.testing", "torture-write", "--dir", f"{folder}/run", *size),
            ("rolltape.testing", "torture-read", "--dir", f"{folder}/run"),
            ("rolltape", "ls", f"{folder}/run"),
            ("rolltape", "compress", f"{folder}/run"),
            ("rolltape", "show", f"{folder}/run", "torture-0#0"),
        ):
            child = run(["-m", module, *command])
            assert child.returncode == 0, f"{command} ended with {child.returncode}:\n{child.stderr}{child.stdout}"
    script = Path(sys.executable).with_name("rolltape")
    version = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert version.split() == ["rolltape", importlib.metadata.version("rolltape")], version


def main() -> None:
    check_environment()
    version = check_import()
    check_contents(Path(sys.argv[1]), version)
    check_metadata(version)
    check_commands()
    print(f"wheel: rolltape {version} on Python {sys.version.partition(' ')[0]}: all checks passed")


if __name__ == "__main__":
    main()
