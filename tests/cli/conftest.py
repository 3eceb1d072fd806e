"""The run that most tests look at, and a clock on the wall that shows UTC."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import HANG_S


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="session")
def _sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sample") / "run"
    for part in ("1", "2"):
        command = [sys.executable, str(Path(__file__).with_name("sample.py")), str(directory), part]
        subprocess.run(command, check=True, timeout=HANG_S)
    return directory


@pytest.fixture
def sample(_sample: Path, tmp_path: Path) -> Path:
    """A copy of the run of `sample.py`, to do with as one likes."""
    return Path(shutil.copytree(_sample, tmp_path / "run"))
