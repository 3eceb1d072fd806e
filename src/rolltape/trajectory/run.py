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
import re
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from rolltape import records
from rolltape.errors import (
    DamagedError,
    DivergenceError,
    FormatError,
    InUseError,
    JournalClosed,
    JournalError,
    SupersededError,
    UsageError,
)
from rolltape.index import Catalogue, Marked, places
from rolltape.journal import AttemptLog, Reader, Story, StoryValues, Writer, WriterConfig, open_writer
from rolltape.journal.lineage import AttemptId
from rolltape.journal.writer import Durability
from rolltape.records import Point
from rolltape.store import LocalStore
from rolltape.store.protocol import FileSystem
from rolltape.trajectory import scope
from rolltape.trajectory.blocking import BlockingTrajectory, LoopThread
from rolltape.trajectory.outcome import Outcome
from rolltape.trajectory.points import reached
from rolltape.trajectory.replay import Past
from rolltape.trajectory.scope import here, leave
from rolltape.trajectory.taking import IN_MEMORY, MARGIN_S, Held, Judgement, Sight, Way, World
from rolltape.trajectory.trajectory import OnDivergence, Trajectory

logger = logging.getLogger("rolltape.run")

THREADS_MAX = 64

WAIT_S = 0.05
"""How long to wait, about, before looking again at what others do. Doubles, up to `WAIT_S_MAX`."""
WAIT_S_MAX = 2.0
WAIT_TOLD_AFTER_S, WAIT_TOLD_EVERY_S = 1.0, 10.0
"""When a wait first says in the log what it waits for (at once, if it may be for a lease), and how often then."""

_LEAVES_UNRESOLVED = (JournalError, DamagedError, FormatError, SupersededError, InUseError)
"""What ends a block without being the rollout's failure: opened again, the trajectory goes on."""


def _leaves_unresolved(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.subgroup(_LEAVES_UNRESOLVED) is not None
    return isinstance(error, _LEAVES_UNRESOLVED)


class _Found(NamedTuple):
    """What a look at the disk says of a trajectory."""

    way: Way
    who: Judgement | None
    top: AttemptId
    recorded: _Recorded | None = None
    """It may be continued from here, or has ended so."""


class _Recorded(NamedTuple):
    """What was recorded of a trajectory, on disk for good."""

    last: Point | None
    past: Past
    outcome: Outcome | None
    """Accepted or not."""


class _Taken(NamedTuple):
    """A trajectory that this process may run, or that has ended."""

    log: AttemptLog
    held: Held | None
    """None: it has ended."""
    recorded: _Recorded


class Run:
    """A run open for work. Made by `rolltape.open`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "disk",
        lease_s: float = 30.0,
        take_over: bool = False,
        fs: FileSystem = os,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._fs = fs
        self._pid = os.getpid()
        self._closed = False
        self._config = WriterConfig(durability=durability, lease_s=lease_s)
        self._store = LocalStore(self.path, fs=fs)
        self._writers: list[Writer] = [self._open_writer()]
        """The last one has the highest epoch. The others serve the trajectories that were taken with them."""
        try:
            self._reader = Reader(self._store)
            self._world = World(self._reader, self._writers[0].epoch, self._open_index, take_over=take_over)
        except BaseException:
            self._writers[0].close()
            raise
        self.loop_thread = LoopThread()
        self._threads = ThreadPoolExecutor(THREADS_MAX, "rolltape-step")
        self._checked: set[str] = set()
        self._busy: set[str] = set()
        self._attempts: dict[str, int] = {}
        """The last attempt of this process at each trajectory, withdrawn ones too: no number is used twice."""
        self._lock = threading.Lock()

    # ---- opening and closing -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_ours():
            self._closed = True
            for writer in self._writers:
                await writer.aclose()  # with what this loop has put and not handed over yet
            await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what waits, seal the journal, and stop. Trajectories that are unresolved can be opened again.

        Safe to call twice. In a forked child it does nothing: the run is its parent's.
        """
        if not self._is_ours():
            return
        self._closed = True
        if self._busy:
            logger.warning("%s is closed with %d open trajectories, which stay unresolved", self.path, len(self._busy))
        self.loop_thread.close()
        for writer in self._writers:
            writer.close()
        self._world.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    def _is_ours(self) -> bool:
        return os.getpid() == self._pid

    def check_open(self) -> None:
        """Raise JournalClosed if nothing can be done with the run here."""
        if not self._is_ours():
            raise JournalClosed(
                f"{self.path} was opened by the process that this one was forked from: open it in this process"
            )
        if self._closed:
            raise JournalClosed(f"{self.path} is closed: open it again")

    def _open_writer(self) -> Writer:
        return open_writer(LocalStore(self.path, fs=self._fs), self._config)

    def _open_index(self) -> Catalogue:
        for path in places(self.path, self._reader.run) if self._fs is os else ():
            with suppress(sqlite3.Error):
                return Catalogue(path, self._reader.run)
        return Catalogue(IN_MEMORY, self._reader.run)

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
        if sample is None and (whole := _KEY.fullmatch(task)) is not None:
            task, visit, sample = whole[1], int(whole[2] or 0), int(whole[3])
        key = f"{task}@{visit}#{sample or 0}" if visit else f"{task}#{sample or 0}"
        return _Opening(self, key, task, visit, sample or 0, on_divergence)

    # ---- taking ------------------------------------------------------------------------------------------------------

    async def open(
        self, key: str, task: str, visit: int, sample: int, on_divergence: OnDivergence
    ) -> tuple[Trajectory, Held | None]:
        """Take a trajectory and begin the next attempt at it, or return it with its outcome.

        Whoever gets the trajectory gives it back with `release`.
        """
        self._claim(key)
        held: Held | None = None
        log: AttemptLog | None = None
        try:
            log, held, recorded = await self._take(key)
            trajectory = Trajectory(
                log,
                recorded.past,
                task=task,
                visit=visit,
                sample=sample,
                seed=f"{self._reader.run}/{key}",
                threads=self._threads,
                checked=self._checked,
                on_divergence=on_divergence,
                outcome=recorded.outcome if held is None else None,
            )
            if held is not None:
                held.on_lost = lambda: _tell(trajectory)
                await log.begin(recorded.last, task=task, visit=visit, sample=sample)
                reached("attempt", key)
                if recorded.outcome is not None:  # on disk, and nobody was told: it is taken over as it stands
                    await self._let_stand(trajectory, held, recorded.outcome)
            return trajectory, held
        except BaseException:
            if log is not None and held is not None and not log.next_seq:
                log.give_up()
            self.release(key, held)
            raise

    def _claim(self, key: str) -> None:
        self.check_open()
        with self._lock:
            if key in self._busy:
                raise InUseError(f"{key} is open in this process already")
            self._busy.add(key)

    def release(self, key: str, held: Held | None) -> None:
        """Let another task of this process, or another attempt, have the trajectory."""
        if held is not None:
            self._world.let_go(held)
        with self._lock:
            self._busy.discard(key)

    async def _take(self, key: str) -> _Taken:
        """Take a trajectory, so that nobody else works on it. Waits, visibly, while nobody can say who has it."""
        patience = _Patience(key, self._config.lease_s)
        while True:
            own = key in self._attempts
            found = await self._world.look(key, lambda sight: self._found(key, sight, None), own=own)
            if found.way == "ended" and found.recorded is not None:
                return self._ended(key, found.recorded)
            if found.way == "free":
                taken = await self._take_now(key, found.top, patience)
                if taken is not None:
                    return taken
            else:
                await patience.wait(found)

    async def _take_now(self, key: str, top: AttemptId, patience: _Patience) -> _Taken | None:
        """Take what looked free, then look again, and only then have it. None: look again from the start."""
        own = key in self._attempts
        if self._writers[-1].epoch < top[0]:
            await self._world.do(lambda: self._open_writer_above(top[0]))
        attempt = self._attempts[key] = max(top[1], self._attempts.get(key, 0)) + 1
        log = AttemptLog(self._writers[-1], key, attempt)
        me = (log.epoch, attempt)
        held = self._world.hold(key, me)
        try:
            await log.take()
            reached("take", key)
            while True:
                found = await self._world.look(key, lambda sight: self._found(key, sight, me), own=own)
                if found.way != "undecided":
                    break
                await patience.wait(found)
            if found.way == "free" and found.recorded is not None:
                return _Taken(log, held, found.recorded)
            await log.withdraw()
        except BaseException:
            log.give_up()
            self._world.let_go(held)
            raise
        self._world.let_go(held)
        if found.way == "ended" and found.recorded is not None:
            return self._ended(key, found.recorded)
        await patience.wait(found)
        return None

    def _ended(self, key: str, recorded: _Recorded) -> _Taken:
        log = AttemptLog(self._writers[-1], key, 0 if recorded.last is None else recorded.last[1])
        log.error = UsageError(f"{key} has ended, and nothing more is recorded: see its `outcome`")
        return _Taken(log, None, recorded)

    def _found(self, key: str, sight: Sight, me: AttemptId | None) -> _Found:
        """Say what to do about a trajectory. What is returned or continued is made durable first."""
        way, who = sight.way(me)
        if way != "ended" and (way != "free" or me is None):
            return _Found(way, who, sight.top)
        sight.check(key)
        reached("read", key)
        self._world.rely_on(sight.story.entries)
        return _Found(way, who, sight.top, self._recorded(sight.story))

    def _open_writer_above(self, epoch: int) -> None:
        """Get a newer epoch: another process opened the run later, and what we write must count over what it wrote."""
        if self._writers[-1].epoch < epoch:
            writer = self._open_writer()
            self._world.add_own(writer.epoch)
            self._writers.append(writer)

    def _recorded(self, story: Story[Marked]) -> _Recorded:
        lines = self._reader.lines_at([entry.place.place for entry in story.entries])
        by_point = {entry.point: line for entry, line in zip(story.entries, lines, strict=True)}
        values = StoryValues(self._reader, by_point.get)
        outcome = None
        for entry, line in zip(story.entries, lines, strict=True):
            if entry.envelope.type == "outcome":
                record = line.decode(records.Outcome)
                result = values.decode(line, record.result)["value"] if bytes(record.result) else None
                error = values.decode(line, record.error, foreign=True) if bytes(record.error) else None
                outcome = Outcome(record.status, result, record.reward, record.cause, error)
        return _Recorded(story.last, Past(lines, lambda: values), outcome)

    # ---- ending ------------------------------------------------------------------------------------------------------

    async def end(
        self, trajectory: Trajectory, held: Held, status: records.OutcomeStatus, error: Exception | None
    ) -> None:
        """Write the outcome, see on disk that the trajectory is still ours, and let it stand."""
        outcome = await trajectory.end(status, error)
        reached("outcome", trajectory.key)
        await self._let_stand(trajectory, held, outcome)

    async def _let_stand(self, trajectory: Trajectory, held: Held, outcome: Outcome) -> None:
        """Accept an outcome that is on disk, once it is certain there that nobody newer has the trajectory."""
        patience = _Patience(trajectory.key, self._config.lease_s)
        while (standing := await self._world.standing(held)) != "go":
            if standing == "stop":
                raise SupersededError(
                    f"{trajectory.key} was taken by another attempt. The outcome is on disk but does not count yet: "
                    "open the trajectory again to see which one does"
                )
            await patience.wait(_Found("undecided", None, held.id))
        reached("check", trajectory.key)
        await trajectory.accept(outcome)
        reached("accepted", trajectory.key)


_KEY = re.compile(r"(.*?)(?:@(\d{1,18}))?#(\d{1,18})", re.DOTALL)


def _tell(trajectory: Trajectory) -> None:
    trajectory.over = SupersededError(
        f"{trajectory.key} was taken over by another process: what this one does does not count any more"
    )


class _Patience:
    """How somebody waits for a trajectory: a little longer each time, visibly, and not for ever."""

    def __init__(self, key: str, lease_s: float) -> None:
        self._key = key
        self._limit_s = lease_s + MARGIN_S
        self._began = time.monotonic()
        self._tell_at = self._began + WAIT_TOLD_AFTER_S
        self._wait_s = WAIT_S

    async def wait(self, found: _Found) -> None:
        """Sleep before the next look. InUseError: it is in use, or whoever is about to begin does not."""
        who = "another process" if found.who is None else found.who.who
        now = time.monotonic()
        if found.way == "in use":
            raise InUseError(
                f"{self._key} is being worked on by {who}. If that is certainly over, "
                "rolltape.open(…, take_over=True) takes it over"
            )
        if found.way != "unknown" and now - self._began > self._limit_s:
            raise InUseError(
                f"{self._key} was taken by {who}, which lives and does not begin: let it go on, or end it "
                f"(waited for {now - self._began:.0f} s)"
            )
        if (found.way == "unknown" and self._wait_s == WAIT_S) or now >= self._tell_at:
            self._tell_at = now + WAIT_TOLD_EVERY_S
            until = f", which counts as dead in {found.who.wait_s:.0f} s" if found.who and found.who.wait_s else ""
            logger.warning("waiting for %s: %s has it%s", self._key, who, until)
        await asyncio.sleep(random.uniform(0.5, 1.5) * self._wait_s)
        self._wait_s = min(WAIT_S_MAX, self._wait_s * 2)


class _Opening:
    """`async with run.trajectory(…) as traj`, or `with` in code without an event loop."""

    def __init__(self, run: Run, key: str, task: str, visit: int, sample: int, on_divergence: OnDivergence) -> None:
        self._run = run
        self._identity = (key, task, visit, sample, on_divergence)
        self._trajectory: Trajectory | None = None
        self._held: Held | None = None

    async def __aenter__(self) -> Trajectory:
        trajectory = await self._open()
        scope.install(asyncio.get_running_loop())
        self._token = here.set(trajectory.home)
        return trajectory

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        leave(self._token)
        try:
            scope.uninstall(asyncio.get_running_loop())
        finally:
            await self._leave(error)

    def __enter__(self) -> BlockingTrajectory:
        if _in_a_loop():
            raise UsageError("inside an event loop write `async with run.trajectory(…)`")
        thread = self._run.loop_thread
        try:
            trajectory = thread.run(self._open())
        except Exception:
            raise
        except BaseException:
            thread.start(self._abandon())  # interrupted here; there it may just have been done
            raise
        blocking = BlockingTrajectory(trajectory, thread)
        self._token = here.set(trajectory.home)
        return blocking

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        leave(self._token)
        self._run.loop_thread.run(self._leave(error))

    async def _open(self) -> Trajectory:
        if self._trajectory is not None:
            raise UsageError("one run.trajectory(…) is one block: call it again for the next")
        self._trajectory, self._held = await self._run.open(*self._identity)
        return self._trajectory

    async def _abandon(self) -> None:
        if self._trajectory is not None:
            self._release(self._trajectory)

    async def _leave(self, error: BaseException | None) -> None:
        trajectory, held = self._trajectory, self._held
        assert trajectory is not None
        try:
            if held is None or trajectory.outcome is not None:
                return
            diverged = trajectory.over  # also where the rollout, or a group of its tasks, has made another error of it
            if isinstance(diverged, DivergenceError) and (error is None or isinstance(error, Exception)):
                await trajectory.park("divergence", diverged)
                if error is None:
                    raise diverged
            elif error is None:
                await self._complete(trajectory, held)
            elif isinstance(error, Exception) and not _leaves_unresolved(error):
                await self._run.end(trajectory, held, "failed", error)
        finally:
            self._release(trajectory)

    async def _complete(self, trajectory: Trajectory, held: Held) -> None:
        try:
            await self._run.end(trajectory, held, "completed", None)
        except DivergenceError as error:
            await trajectory.park("divergence", error)
            raise

    def _release(self, trajectory: Trajectory) -> None:
        """A task or thread that the block has left behind is stopped at its next call, as one of another process is."""
        if trajectory.over is None:
            trajectory.over = UsageError(f"the block of {trajectory.key} has ended: open it again")
        self._run.release(trajectory.key, self._held)


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
