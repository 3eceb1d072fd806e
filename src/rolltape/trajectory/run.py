"""A run that is open for work: its journal in this process, and the trajectories that are being run.

    run = rolltape.open("runs/x")
    async with run, run.trajectory("q17", sample=5) as traj:
        traj.finish(await traj.call(answer, "…"))

Several processes may have one run open. A trajectory is worked on by one of them at a time; who comes second gets
`InUseError`, or waits until the first is known to be dead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from rolltape import records
from rolltape.errors import DamagedError, DivergenceError, InUseError, SupersededError, UsageError
from rolltape.index import Catalogue, Marked, places
from rolltape.journal import (
    AttemptLog,
    Reader,
    Story,
    StoryValues,
    Writer,
    WriterConfig,
    open_writer,
    rely_on,
)
from rolltape.journal.writer import Durability
from rolltape.store import LocalStore
from rolltape.trajectory import scope
from rolltape.trajectory.blocking import BlockingTrajectory, LoopThread
from rolltape.trajectory.replay import Past
from rolltape.trajectory.scope import here, leave
from rolltape.trajectory.taking import Sight, World
from rolltape.trajectory.trajectory import OnDivergence, Outcome, Trajectory

logger = logging.getLogger("rolltape.run")

THREADS_MAX = 64
YIELD_S = 0.05
"""After somebody newer took a trajectory: how long to wait, about, before looking again. Doubles."""


class Run:
    """A run open for work. Made by `rolltape.open`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "disk",
        lease_s: float = 30.0,
        take_over: bool = False,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._config = WriterConfig(durability=durability, lease_s=lease_s)
        self._store = LocalStore(self.path)
        self._writers: list[Writer] = [open_writer(LocalStore(self.path), self._config)]
        self._reader = Reader(self._store)
        self._world = World(self._reader, self._open_index, take_over=take_over)
        self._world.own.add(self._writers[0].epoch)
        self.loop_thread = LoopThread()
        self._threads = ThreadPoolExecutor(THREADS_MAX, "rolltape-step")
        self._checked: set[str] = set()
        self._busy: set[str] = set()
        self._worked_on: set[str] = set()
        self._lock = threading.Lock()

    # ---- opening and closing -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what waits, seal the journal, and stop. Trajectories that are unresolved can be opened again."""
        self.loop_thread.close()
        for writer in self._writers:
            writer.close()
        self._world.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    def _open_index(self) -> Catalogue:
        for path in places(self.path, self._reader.run):
            try:
                return Catalogue(path, self._reader.run)
            except sqlite3.Error:
                continue
        return Catalogue(":memory:", self._reader.run)

    # ---- trajectories ------------------------------------------------------------------------------------------------

    def trajectory(
        self, task: str, *, visit: int = 0, sample: int | None = None, on_divergence: OnDivergence = "park"
    ) -> _Opening:
        """Open one trajectory, new or unresolved, by task, visit and sample, or by its whole key.

        on_divergence  "park": where the rollout calls something else than was recorded, DivergenceError, and it waits
                       for somebody's decision. "truncate": what was recorded from there on is dropped, and called anew

        An async context manager. Leaving it normally completes the trajectory with the result that `finish` was given;
        an exception fails it; a cancellation leaves it unresolved. Where it had ended before, `outcome` is set.
        """
        if sample is None and "#" in task:
            key = task
        else:
            key = f"{task}@{visit}#{sample or 0}" if visit else f"{task}#{sample or 0}"
        return _Opening(self, key, task, visit, sample or 0, on_divergence)

    # ---- taking ------------------------------------------------------------------------------------------------------

    async def take(self, key: str) -> tuple[AttemptLog, Story[Marked]]:
        """Take a trajectory, so that nobody else works on it: its log, and what is to be replayed."""
        wait_s = YIELD_S
        while True:
            taken = await self._try_to_take(key)
            if taken is not None:
                return taken
            await asyncio.sleep(random.uniform(0.5, 1.5) * wait_s)
            wait_s = min(2.0, wait_s * 2)

    async def _try_to_take(self, key: str) -> tuple[AttemptLog, Story[Marked]] | None:
        own = key in self._worked_on
        seen = await self._world.look(key, own=own)
        top = max((*seen.lineage.attempts, *seen.lineage.takes), default=(0, 0))
        writer = await self._writer_above(top[0])
        self._worked_on.add(key)
        log = AttemptLog(writer, key, top[1] + 1)
        await log.take()
        me = (writer.epoch, log.attempt)
        seen = await self._world.look(key, own=own)
        lineage = seen.lineage
        if any(id > me for id in (*lineage.attempts, *lineage.takes)):
            await log.withdraw()
            return None
        story = lineage.story()
        if story.accepted:
            await log.withdraw()
        elif story.newest is not None and (judgement := seen.alive.get(story.newest[0])) is not None:
            await log.withdraw()
            if judgement.wait_s:
                logger.warning(
                    "waiting for %s: %s; %.0f s more until it counts as dead", key, judgement.why, judgement.wait_s
                )
                return None
            raise InUseError(f"{key} is being worked on: {judgement.why}")
        elif any(id != me and id[0] in seen.alive for id in lineage.takes):
            await log.withdraw()
            return None
        self._check(key, story, seen)
        await self._world.do(lambda: rely_on(self._store, {e.place.place[:2] for e in story.entries}))
        return log, story

    def _check(self, key: str, story: Story[Marked], seen: Sight) -> None:
        if story.gaps:
            raise DamagedError(f"{key} cannot be continued: {story.gaps[0]} (`rolltape verify` lists all damage)")
        if seen.damage and not story.accepted:
            raise DamagedError(
                f"{key} is not continued, since a finished step of it may be among what is damaged: {seen.damage[0]} "
                "(`rolltape verify` lists all)"
            )

    async def _writer_above(self, epoch: int) -> Writer:
        """Return a writer whose epoch is not below: a new one where another process opened the run later."""
        with self._lock:
            if self._writers[-1].epoch < epoch:
                writer = open_writer(LocalStore(self.path), self._config)
                self._world.own.add(writer.epoch)
                self._writers.append(writer)
            return self._writers[-1]

    async def open(self, key: str, task: str, visit: int, sample: int, on_divergence: OnDivergence) -> Trajectory:
        with self._lock:
            if key in self._busy:
                raise InUseError(f"{key} is open in this process already")
            self._busy.add(key)
        try:
            log, story = await self.take(key)
            past, outcome = await self._world.do(lambda: self._past(story))
            seed = f"{self._reader.run}/{key}"
            trajectory = Trajectory(
                log,
                past,
                task=task,
                visit=visit,
                sample=sample,
                seed=seed,
                threads=self._threads,
                checked=self._checked,
                on_divergence=on_divergence,
                outcome=outcome,
            )
            if outcome is None:
                await log.begin(story.last, task=task, visit=visit, sample=sample)
            return trajectory
        except BaseException:
            self.release(key)
            raise

    def release(self, key: str) -> None:
        with self._lock:
            self._busy.discard(key)

    def _past(self, story: Story[Marked]) -> tuple[Past, Outcome | None]:
        lines = self._reader.lines_at([entry.place.place for entry in story.entries])
        by_point = {entry.point: line for entry, line in zip(story.entries, lines, strict=True)}
        values = StoryValues(self._reader, by_point.get)
        past = Past(lines, lambda: values)
        outcome = None
        for entry, line in zip(story.entries, lines, strict=True):
            if entry.envelope.type == "outcome" and story.accepted:
                record = line.decode(records.Outcome)
                result = values.decode(line, record.result)["value"] if bytes(record.result) else None
                error = values.decode(line, record.error) if bytes(record.error) else None
                outcome = Outcome(record.status, result, record.reward, record.cause, error)
        return past, outcome

    async def end(self, trajectory: Trajectory, status: records.OutcomeStatus, error: Exception | None) -> None:
        """Write the outcome, see on disk that the trajectory is still ours, and let it stand."""
        outcome = await trajectory.end(status, error)
        await self._own(trajectory)
        await trajectory.accept(outcome)

    async def _own(self, trajectory: Trajectory) -> None:
        """Return once it is certain on disk that nobody newer has the trajectory. SupersededError: somebody has."""
        while True:
            standing = await self._world.standing(trajectory.key, trajectory.id)
            if standing == "go":
                return
            if standing == "stop":
                raise SupersededError(f"{trajectory.key} was taken over by another process, whose outcome counts")
            await asyncio.sleep(YIELD_S)


class _Opening:
    """`async with run.trajectory(…) as traj`, or `with` in code without an event loop."""

    def __init__(self, run: Run, key: str, task: str, visit: int, sample: int, on_divergence: OnDivergence) -> None:
        self._run = run
        self._identity = (key, task, visit, sample, on_divergence)
        self._trajectory: Trajectory

    async def __aenter__(self) -> Trajectory:
        self._trajectory = await self._run.open(*self._identity)
        scope.install(asyncio.get_running_loop())
        self._token = here.set(self._trajectory.home)
        return self._trajectory

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        leave(self._token)
        scope.uninstall(asyncio.get_running_loop())
        await self._leave(error)

    def __enter__(self) -> BlockingTrajectory:
        if _in_a_loop():
            raise UsageError("inside an event loop write `async with run.trajectory(…)`")
        self._trajectory = self._run.loop_thread.run(self._run.open(*self._identity))
        blocking = BlockingTrajectory(self._trajectory, self._run.loop_thread)
        self._token = here.set(self._trajectory.home)
        return blocking

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        leave(self._token)
        self._run.loop_thread.run(self._leave(error))

    async def _leave(self, error: BaseException | None) -> None:
        trajectory = self._trajectory
        try:
            if trajectory.outcome is not None:
                return
            if error is None:
                await self._complete(trajectory)
            elif isinstance(error, DivergenceError):
                await trajectory.park("divergence", error)
            elif isinstance(error, Exception) and not isinstance(error, SupersededError):
                await self._run.end(trajectory, "failed", error)
        finally:
            self._run.release(trajectory.key)

    async def _complete(self, trajectory: Trajectory) -> None:
        try:
            await self._run.end(trajectory, "completed", None)
        except DivergenceError as error:
            await trajectory.park("divergence", error)
            raise


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def open(
    path: str | os.PathLike[str], *, durability: Durability = "disk", lease_s: float = 30.0, take_over: bool = False
) -> Run:
    """Open the run in the directory `path` for work, creating it if need be. Use it in a `with` or `async with` block.

    durability  "disk": what was acknowledged survives power loss. "os": it survives the process
    lease_s     how long this process may be silent before others take it for dead
    take_over   take what other processes work on for abandoned, without waiting for their leases
    """
    return Run(path, durability=durability, lease_s=lease_s, take_over=take_over)
