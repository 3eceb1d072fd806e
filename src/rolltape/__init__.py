"""Rolltape makes agent rollouts durable.

Kill any part of a rollout at any moment, and it carries on from the last finished step.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rolltape.errors import RolltapeError

if TYPE_CHECKING:
    from rolltape.trajectory.read import RecordedRun

__version__ = "0.1.0"

__all__ = ["RolltapeError", "read"]


def read(path: str | os.PathLike[str]) -> RecordedRun:
    """Open the run in the directory `path` for reading: its trajectories, their steps, live or finished.

    NotARunError: there is none. FormatError: a newer Rolltape wrote it.
    """
    from rolltape.trajectory.read import RecordedRun

    return RecordedRun(path)
