"""A rollout that is stopped from outside was in flight; one that handled a cancellation went on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import rolltape

HANG_S = 60.0
"""Whatever takes longer hangs. Nothing is timed by it."""

Rollout = Callable[[rolltape.Trajectory], Awaitable[Any]]


class World:
    """What was called, and whether the slow call is slow."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.slow = True
        self.begun = asyncio.Event()

    async def work(self) -> str:
        self.calls.append("work")
        self.begun.set()
        if self.slow:
            await asyncio.sleep(HANG_S)
        return "worked"

    async def clean_up(self) -> None:
        self.calls.append("clean up")

    async def go_on(self) -> None:
        self.calls.append("go on")


async def run(path: Path, rollout: Rollout) -> rolltape.Outcome | None:
    async with rolltape.open(path) as opened, opened.trajectory("q") as traj:
        traj.finish(await rollout(traj))
    return traj.outcome


async def stopped(path: Path, rollout: Rollout, when: asyncio.Event) -> None:
    """Run it, and stop it from outside."""
    task = asyncio.create_task(run(path, rollout))
    await when.wait()
    task.cancel()
    (error,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(error, asyncio.CancelledError)


def test_what_was_stopped_from_outside_is_called_again_although_it_cleaned_up(tmp_path):
    """The cleanup's record shows that something happened after the cancellation, not that the rollout went on."""

    async def main() -> None:
        world = World()

        async def rollout(traj: rolltape.Trajectory) -> str:
            try:
                return await traj.call(world.work)
            finally:
                await traj.call(world.clean_up)

        await stopped(tmp_path / "run", rollout, world.begun)
        assert world.calls == ["work", "clean up"]
        world.slow = False
        outcome = await asyncio.wait_for(run(tmp_path / "run", rollout), HANG_S)
        assert outcome is not None and outcome.result == "worked"
        assert world.calls == ["work", "clean up"] * 2

    asyncio.run(main())


def test_a_cancellation_that_the_rollout_handled_replays_and_its_cleanup_is_not_made_again(tmp_path):
    """A later step, of an attempt that was stopped later still, shows that it went on."""

    async def main() -> None:
        world = World()
        last = asyncio.Event()

        async def end() -> str:
            last.set()
            await asyncio.sleep(HANG_S if world.slow else 0)
            return "ended"

        async def rollout(traj: rolltape.Trajectory) -> str:
            try:
                async with asyncio.timeout(0.05):
                    try:
                        await traj.call(world.work)
                    finally:
                        await traj.call(world.clean_up)
            except TimeoutError:
                await traj.call(world.go_on)
            return await traj.call(end)

        await stopped(tmp_path / "run", rollout, last)
        assert world.calls == ["work", "clean up", "go on"]
        world.slow = False
        outcome = await asyncio.wait_for(run(tmp_path / "run", rollout), HANG_S)
        assert outcome is not None and outcome.result == "ended"
        assert world.calls == ["work", "clean up", "go on"]

    asyncio.run(main())
