"""Resuming: from `rolltape.open` to the first step that is really made, after `kill -9`; and how fast steps replay.

500 steps        a trajectory of 500 steps of 2 KB
500-turn history the argument of each step is the whole list of messages, to which its result is added: 2 KB each
fresh process    the same in a process that has done nothing before; its imports are not counted
DBOS             500 steps of 2 KB on SQLite, in a fresh process, imports not counted

Each round resumes a fresh copy of the run as the killed process left it, without an index. Parts, by what ends them:
`rolltape.open` returns; the take is on disk, after a look at who else works on it, which reads the journals; they have
been looked at again; the trajectory's lines are read, and the attempt is on disk; all 500 are replayed.

Then 8 trajectories of 2,000 steps of 2 KB, one after the other: in memory is what lies between the opened trajectory
and its last replayed step, from disk the opening of the trajectories too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import _rivals
from _bench import Bench, Rounds, Row
from steps import message, rollouts, tool

import rolltape
from rolltape import Trajectory
from rolltape.trajectory import points

STEPS = 500
PARTS = ("opened", "taken", "looked again", "read and begun", "replayed")


class Rollout:
    """So many steps, then one more, which says when it was made."""

    def __init__(self, steps: int, *, growing: bool) -> None:
        self._steps, self._growing = steps, growing
        self.made_at = 0.0

    async def __call__(self, traj: Trajectory, number: int) -> None:
        await (self._history(traj, number) if self._growing else self._plain(traj))
        await traj.call(self._last)

    async def _plain(self, traj: Trajectory) -> None:
        for step in range(self._steps):
            await traj.call(tool, step, "what is it")

    async def _history(self, traj: Trajectory, number: int) -> None:
        messages = [{"role": "user", "content": "what is it"}]
        for _ in range(self._steps):
            messages.append(await traj.call(model, messages, number))

    async def _last(self) -> None:
        self.made_at = time.perf_counter()


async def model(messages: list[dict[str, str]], number: int) -> dict[str, Any]:
    return message(number, len(messages))


class Killed(Rollout):
    """Kills its process once so many trajectories have come to their last step."""

    def __init__(self, steps: int, *, growing: bool, trajectories: int) -> None:
        super().__init__(steps, growing=growing)
        self._left = trajectories

    async def _last(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()


def make(folder: Path, trajectories: int, steps: int, growing: bool) -> None:
    asyncio.run(rollouts(folder, trajectories, Killed(steps, growing=growing, trajectories=trajectories)))


def killed_run(bench: Bench, folder: Path, *, trajectories: int = 1, steps: int = STEPS, growing: bool = False) -> None:
    """Make a run whose process was killed in the last step of each trajectory."""
    with suppress(BrokenProcessPool):
        bench.in_child(make, folder, trajectories, steps, growing)


# ---- resuming --------------------------------------------------------------------------------------------------------


def resume(folder: Path, growing: bool) -> list[float]:
    """Return when each part ended, in ms from the beginning."""
    return asyncio.run(_resume(folder, growing))


async def _resume(folder: Path, growing: bool) -> list[float]:
    rollout = Rollout(STEPS, growing=growing)
    reached: dict[str, float] = {}
    points.on_point = lambda point, _: reached.setdefault(point, time.perf_counter()) and None
    try:
        start = time.perf_counter()
        async with rolltape.open(folder / "run") as run:
            opened = time.perf_counter()
            async with run.trajectory("q0") as traj:
                await rollout(traj, 0)
                assert (traj.replayed_calls, traj.live_calls) == (STEPS, 1)
    finally:
        points.on_point = None
    ends = (opened, reached["take"], reached["read"], reached["attempt"], rollout.made_at)
    return [(end - start) * 1e3 for end in ends]


def measure_resume(bench: Bench) -> None:
    ends: dict[str, list[list[float]]] = {}
    with bench.folder() as plain, bench.folder() as growing, bench.folder() as dbos:
        killed_run(bench, plain)
        killed_run(bench, growing, growing=True)

        def milliseconds(name: str, left: Path, grows: bool, fresh: bool) -> float:
            with bench.folder() as folder:
                shutil.copytree(left / "run", folder / "run")
                found = bench.in_child(resume, folder, grows) if fresh else resume(folder, grows)
            ends.setdefault(name, []).append(found)
            return found[-1]

        contenders = {
            name: partial(milliseconds, name, left, grows, fresh)
            for name, left, grows, fresh in (
                ("500 steps", plain, False, False),
                ("500-turn history", growing, True, False),
                ("500 steps, fresh process", plain, False, True),
                ("500-turn history, fresh process", growing, True, True),
            )
        }
        ours = list(contenders)
        if _rivals.installed(bench):
            _rivals.killed(_rivals.DBOS, dbos, STEPS)
            contenders["DBOS"] = partial(resumed_ms, bench, dbos)
        rounds = bench.rounds(contenders, count=9)
    rivals = {"DBOS": "DBOS"} if "DBOS" in contenders else {}
    bench.table("resumed", "ms", [rounds.row(name, rivals if name in ours else None) for name in contenders])
    for name in ours:
        show_parts(bench, name, ends[name][1:])
    bench.goal("ms to resume 500 steps", rounds.median("500 steps"), at_most=10)
    bench.goal("ms to resume a 500-turn history", rounds.median("500-turn history"), at_most=25)


def show_parts(bench: Bench, name: str, ends: list[list[float]]) -> None:
    took = [[end - start for start, end in zip((0.0, *each), each, strict=False)] for each in ends]
    parts = Rounds(dict(zip(PARTS, zip(*took, strict=True), strict=True)))
    bench.table(f"{name}: until", "ms", [parts.row(part) for part in PARTS])


def resumed_ms(bench: Bench, left: Path) -> float:
    with bench.folder() as folder:
        shutil.copytree(left, folder, dirs_exist_ok=True)
        return _rivals.run(_rivals.DBOS, "resume", folder, 1, STEPS).wall_s * 1e3


# ---- how fast --------------------------------------------------------------------------------------------------------


def replay(folder: Path, trajectories: int, steps: int) -> tuple[float, float]:
    """Return the steps per second in memory and from disk."""
    return asyncio.run(_replay(folder, trajectories, steps))


async def _replay(folder: Path, trajectories: int, steps: int) -> tuple[float, float]:
    rollout = Rollout(steps, growing=False)
    from_disk = in_memory = 0.0
    async with rolltape.open(folder / "run", durability="os") as run:
        for number in range(trajectories):
            start = time.perf_counter()
            async with run.trajectory(f"q{number}") as traj:
                opened = time.perf_counter()
                await rollout(traj, number)
                from_disk += rollout.made_at - start
                in_memory += rollout.made_at - opened
    count = trajectories * steps
    return count / in_memory, count / from_disk


def measure_replay(bench: Bench) -> None:
    shape = (4, 500) if bench.quick else (8, 2000)
    rates: list[tuple[float, float]] = []
    with bench.folder() as left:
        killed_run(bench, left, trajectories=shape[0], steps=shape[1])

        def per_second() -> float:
            with bench.folder() as folder:
                shutil.copytree(left / "run", folder / "run")
                rates.append(replay(folder, *shape))
            return rates[-1][0]

        bench.rounds({"replay": per_second}, count=5)
    in_memory, from_disk = (statistics.median(rate) for rate in zip(*rates[1:], strict=True))
    title = f"{shape[0]} trajectories of {shape[1]:,} steps of 2 KB replayed"
    bench.table(title, "steps/s", [Row("in memory", in_memory, {}), Row("from disk", from_disk, {})])
    bench.goal("steps/s replayed in memory", in_memory, at_least=200_000)
    bench.goal("steps/s replayed from disk", from_disk, at_least=80_000)


def main() -> None:
    with Bench(__doc__) as bench:
        measure_resume(bench)
        measure_replay(bench)


if __name__ == "__main__":
    main()
