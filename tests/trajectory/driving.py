"""Runs rollouts that stop in the middle, and runs them again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import rolltape
from rolltape import Trajectory

Rollout = Callable[[Trajectory], Awaitable[Any]]


class Stopped(BaseException):
    """Leaves a trajectory unresolved, as the death of its process does."""


async def attempt(path: Path, rollout: Rollout, *, stop: bool = True, key: str = "q#0", **options: Any) -> Trajectory:
    """Run `rollout` in a new attempt, and stop before its end. What it returned is `saw` of the trajectory."""
    try:
        async with rolltape.open(path, durability="os") as run, run.trajectory(key, **options) as traj:
            traj.saw = await rollout(traj)  # type: ignore[attr-defined]
            if stop:
                raise Stopped
    except Stopped:
        pass
    return traj


def begin(path: Path, rollout: Rollout, **options: Any) -> Any:
    """Run `rollout` live until it stops before its end, and return what it saw."""
    traj = asyncio.run(attempt(path, rollout, **options))
    return traj.saw  # type: ignore[attr-defined]


def replay(path: Path, rollout: Rollout, *, live: int = 0, **options: Any) -> Any:
    """Run it again, to its end. It makes `live` calls; what it saw is returned."""
    traj = asyncio.run(attempt(path, rollout, stop=False, **options))
    assert traj.live_calls == live
    assert traj.outcome is not None and traj.outcome.status == "completed"
    return traj.saw  # type: ignore[attr-defined]


def there_and_back(path: Path, rollout: Rollout) -> Any:
    """Run it live, then from the journal alone: it sees the same. Returns that."""
    live = begin(path, rollout)
    assert replay(path, rollout) == live
    return live


def journal(path: Path) -> list[dict[str, Any]]:
    """Return every record that was written, in order."""
    segments = sorted(path.glob("journal/*/*.jsonl"))
    return [json.loads(line) for segment in segments for line in segment.read_text().splitlines()]


def steps(path: Path, *types: str) -> dict[str, str]:
    """Return the names of what was recorded, by path."""
    return {line["path"]: line["name"] for line in journal(path) if line["type"] in (types or ("done",))}
