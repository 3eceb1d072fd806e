"""Rolltape makes agent rollouts durable.

Kill any part of a rollout at any moment, and it carries on from the last finished step.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rolltape.errors import DivergenceError, RolltapeError

if TYPE_CHECKING:
    from rolltape.trajectory.outcome import Outcome as Outcome
    from rolltape.trajectory.read import RecordedRun as RecordedRun
    from rolltape.trajectory.retry import Retry as Retry
    from rolltape.trajectory.run import Run as Run
    from rolltape.trajectory.run import open as open
    from rolltape.trajectory.step import step as step
    from rolltape.trajectory.trajectory import Trajectory as Trajectory
    from rolltape.trajectory.trajectory import current as current

__version__ = "0.1.0"

__all__ = [
    "DivergenceError",
    "Outcome",
    "Retry",
    "RolltapeError",
    "Run",
    "Trajectory",
    "current",
    "open",
    "read",
    "step",
]

_HOMES = {
    "Outcome": "outcome",
    "Retry": "retry",
    "Run": "run",
    "Trajectory": "trajectory",
    "current": "trajectory",
    "open": "run",
    "step": "step",
}


def read(path: str | os.PathLike[str]) -> RecordedRun:
    """Open the run in the directory `path` for reading: its trajectories, their steps, live or finished.

    NotARunError: there is none. FormatError: a newer Rolltape wrote it.
    """
    from rolltape.trajectory.read import RecordedRun

    return RecordedRun(path)


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is asked for: `import rolltape` itself stays quick."""
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'rolltape' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"rolltape.trajectory.{home}"), name)
    globals()[name] = value
    return value
