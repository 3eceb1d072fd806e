"""What the public API says of its types, as a user's mypy understands it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rolltape


def test_a_users_type_checker_understands_the_api(tmp_path: Path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    api = Path(__file__).with_name("api.py")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", str(api)],
        cwd=tmp_path,
        env={"MYPYPATH": str(Path(rolltape.__file__).parent.parent)},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
