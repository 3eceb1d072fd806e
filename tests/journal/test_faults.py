"""Every write, sync and create that can fail, does: once and for good, with EIO and with a full disk.

Whatever fails, what was acknowledged is there and counts once, whoever waited for the rest is told in words, no attempt
has a gap, and the writer can go on or be closed (`docs/design/journal.md`, "Failed writes").
"""

from __future__ import annotations

import asyncio
import errno
import pickle
import shutil
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rolltape import records
from rolltape.errors import (
    DiskFullError,
    JournalClosed,
    JournalError,
    JournalFailed,
    NotARunError,
    RolltapeError,
)
from rolltape.journal import (
    AttemptLog,
    Damage,
    Follower,
    Reader,
    Writer,
    WriterConfig,
    open_reader,
    open_writer,
    rely_on,
    story_of,
    survey,
    verify,
)
from rolltape.records import Point
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk
from tests.journal.runs import HANG_S, close, read, step

ROOT = "/scratch/run"
KEYS = ("a#0", "b#0", "c#0")

WRITING = ("write", "fsync", "fdatasync", "create", "link", "unlink", "open", "close")
"""The operations of a writer that is open."""
OPENING = (*WRITING, "mkdir", "pread", "listdir", "stat")
READING = ("open", "pread", "listdir", "stat", "close")

ADVICE = {
    errno.EIO: "check the disk",
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EROFS: "read-only",
    errno.ESTALE: "check the mount",
    errno.ENOENT: "directory is gone",
    errno.ENOTDIR: "A file lies where a directory should be",
}


# ---- some work, and what became of it --------------------------------------------------------------------------------


class Work:
    """Attempts that go on, a record each at a time, until they end or one of their records fails."""

    def __init__(self, disk: CrashDisk, **limits: Any) -> None:
        self.disk = disk
        self.acked: dict[tuple[str, Point], Any] = {}
        self.records: Counter[str] = Counter()
        """How many records of each attempt were acknowledged."""
        self.ended: set[str] = set()
        self.failed: dict[str, JournalError] = {}
        limits = {"lease_s": 3600, "background_sync_s": 3600, "segment_bytes_max": 700, **limits}
        self.config = WriterConfig(**limits)
        self.writer: Writer

    def open(self) -> Work:
        self.writer = open_writer(LocalStore(ROOT, fs=self.disk), self.config)
        return self

    async def run(self, *keys: str, together: bool = False) -> None:
        """Bring these attempts to their ends, in step: each record alone, or with those of the others in one group."""
        stages = {key: self._stages(AttemptLog(self.writer, key, 1)) for key in keys or KEYS}
        for stage in range(7):
            doing = [self._try(key, stages[key][stage]) for key in stages if key not in self.failed]
            if together:
                await asyncio.gather(*doing)
            else:
                for one in doing:
                    await one

    async def _try(self, key: str, stage: Callable[[], Awaitable[None]]) -> None:
        try:
            await asyncio.wait_for(stage(), HANG_S)
        except JournalError as error:
            self.failed[key] = error

    def _stages(self, log: AttemptLog) -> list[Callable[[], Awaitable[None]]]:
        async def begin() -> None:
            await log.begin(None)
            self.records[log.key] += 1

        async def returned(value: str | bytes) -> None:
            point = (self.writer.epoch, log.attempt, log.next_seq)
            await step(log, str(log.next_seq), value)
            self.records[log.key] += 1
            self.acked[log.key, point] = value

        async def end() -> None:
            await log.append(records.Outcome, status="completed", reward=1.0, unix_s=0.0)
            self.records[log.key] += 1

        async def accept() -> None:
            await log.append(records.Accepted, unix_s=0.0)
            self.records[log.key] += 1
            self.ended.add(log.key)

        return [
            log.take,
            begin,
            lambda: returned(f"{log.key} first"),
            lambda: returned(f"{log.key} packed".encode()),
            lambda: returned(f"{log.key} third"),
            end,
            accept,
        ]

    def close(self) -> None:
        close(self.writer)


def new_disk() -> CrashDisk:
    disk = CrashDisk()
    disk.write_file("/scratch/notes.txt", b"not ours")
    return disk


def counts(doing: Callable[[CrashDisk], object], disk: CrashDisk) -> Counter[str]:
    """How often each operation happens where nothing fails."""
    seen: Counter[str] = Counter()
    disk.on_operation = lambda op, path: seen.update([op])
    doing(disk)
    disk.on_operation = None
    return seen


def healthy(together: bool = False) -> Counter[str]:
    """The operations of the work on an open writer."""
    work = Work(new_disk()).open()

    def doing(disk: CrashDisk) -> None:
        asyncio.run(work.run(together=together))
        work.close()

    return counts(doing, work.disk)


def check(work: Work, *, power_cuts: int = 0) -> None:
    """What was acknowledged is there and counts once; of a failed attempt nothing follows what failed; no damage."""
    work.disk.heal()
    damage: list[Damage] = []
    verify(LocalStore(ROOT, fs=work.disk.process()), damage.append)
    assert damage == []
    for disk in [work.disk.process(), *(work.disk.crash_states(power_cuts) if power_cuts else ())]:
        found = read(LocalStore(ROOT, fs=disk))
        assert found.damage == []
        assert work.acked.items() <= found.values.items()
        for key, story in found.stories.items():
            assert story.accepted or key not in work.ended
            assert work.records[key] <= len(story.entries) <= work.records[key] + (key in work.failed)
        assert set(work.records) <= found.stories.keys()
        assert max(lines_by_place(disk).values(), default=1) == 1
    for error in work.failed.values():
        check_error(error)


def lines_by_place(disk: CrashDisk) -> Counter[tuple[object, ...]]:
    """How often each record of an attempt is read."""
    found: Counter[tuple[object, ...]] = Counter()
    for line in Reader(LocalStore(ROOT, fs=disk)).scan(lambda damage: None):
        envelope = line.envelope()
        if envelope.seq >= 0:
            found[envelope.key, envelope.epoch, envelope.attempt, envelope.seq] += 1
    return found


def check_error(error: BaseException, advice: str = "") -> None:
    """It is of a stated type, pickles, and says where and what to do."""
    assert type(error) in (JournalFailed, DiskFullError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and again.args == error.args
    assert "/" in str(error) and any(known in str(error) for known in ([advice] if advice else ADVICE.values()))


async def until(condition: Callable[[], bool]) -> None:
    """Return when something that another thread does is so."""
    while not condition():  # noqa: ASYNC110 - that thread has no event of this loop to set
        await asyncio.sleep(0.002)


async def all_of(doing: list[Awaitable[None]]) -> None:
    """Many disks at once, since a full one makes its writer wait."""
    await asyncio.gather(*doing)


# ---- the nth operation fails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["disk", "os"])
@pytest.mark.parametrize("op", WRITING)
def test_one_failure_costs_one_attempt_and_the_others_go_on(op: str, durability: str) -> None:
    """Each call of each operation fails once with EIO. The records of other attempts go on in the next segment."""
    for nth in range(1, healthy()[op] + 1):
        work = Work(new_disk(), durability=durability).open()
        work.disk.fail(op, nth)
        asyncio.run(work.run())
        work.close()
        assert len(work.failed) <= 1 and work.ended | work.failed.keys() == {*KEYS}, nth
        check(work, power_cuts=2 if durability == "disk" else 0)


@pytest.mark.parametrize("op", ["write", "fdatasync"])
def test_one_failure_of_a_group_fails_all_that_were_in_it_and_nobody_else(op: str) -> None:
    """Whoever comes later is not concerned."""
    for nth in range(1, healthy(together=True)[op] + 1):
        work = Work(new_disk()).open()
        fault = work.disk.fail(op, nth)
        asyncio.run(work.run(together=True))
        assert work.failed.keys() in ({*KEYS}, set())
        if fault.fired:
            asyncio.run(work.run("later#0"))
            assert "later#0" in work.ended
        work.close()
        check(work, power_cuts=2)


def test_a_write_that_is_cut_short_is_finished_and_if_it_fails_then_given_up() -> None:
    """A short write is no failure. The next call tells whether there is one."""

    async def one(nth: int, error: int) -> None:
        work = Work(new_disk()).open()
        fault = work.disk.fail("write", nth, error, short=True)
        await work.run()
        await asyncio.to_thread(work.close)
        assert fault.fired == 2 and len(work.failed) <= (error == errno.EIO)
        check(work, power_cuts=2)

    asyncio.run(
        all_of([one(nth, error) for nth in range(1, healthy()["write"] + 1) for error in (errno.EIO, errno.ENOSPC)])
    )


def test_a_write_that_is_cut_short_again_and_again_is_finished() -> None:
    """Bytes are added where the last write stopped, never twice."""

    class Slow(CrashDisk):
        def write(self, fd: int, data: bytes | memoryview, /) -> int:
            return super().write(fd, memoryview(data)[:13])

    work = Work(Slow()).open()
    asyncio.run(work.run(together=True))
    work.close()
    assert work.ended == {*KEYS}
    check(work)


@pytest.mark.parametrize("op", WRITING)
def test_a_disk_that_fails_for_good_fails_everybody_in_words(op: str) -> None:
    """From the nth call on. Nobody waits for ever, and the writer can still be closed."""
    for nth in range(1, healthy()[op] + 1):
        error = (errno.EIO, errno.ESTALE)[nth % 2]
        work = Work(new_disk()).open()
        work.disk.fail(op, nth, error, forever=True)
        asyncio.run(work.run())
        work.close()
        assert work.ended | work.failed.keys() == {*KEYS}
        for failure in work.failed.values():
            check_error(failure, ADVICE[error])
        check(work, power_cuts=2)


@pytest.mark.parametrize("op", WRITING)
def test_a_disk_that_is_full_once_fails_nobody(op: str) -> None:
    """Each call of each operation says ENOSPC once: what was not acknowledged is written again, once."""

    async def one(nth: int) -> None:
        work = Work(new_disk()).open()
        work.disk.fail(op, nth, errno.ENOSPC if nth % 2 else errno.EDQUOT)
        await work.run()
        await asyncio.to_thread(work.close)
        assert work.failed == {} and work.ended == {*KEYS}, nth
        check(work, power_cuts=2)

    asyncio.run(all_of([one(nth) for nth in range(1, healthy()[op] + 1)]))


@pytest.mark.parametrize("op", ["write", "fsync", "fdatasync", "create", "link"])
def test_a_disk_that_stays_full_fails_everybody_in_words_and_goes_on_when_there_is_room(op: str) -> None:
    """With no time to wait, each waiter gets DiskFullError. The writer itself is not closed by it."""
    for nth in range(1, healthy()[op] + 1):
        work = Work(new_disk(), full_disk_wait_s=0).open()
        fault = work.disk.fail(op, nth, errno.ENOSPC, forever=True)
        asyncio.run(work.run())
        assert work.ended | work.failed.keys() == {*KEYS}
        for error in work.failed.values():
            assert isinstance(error, DiskFullError)
            check_error(error, ADVICE[errno.ENOSPC])
        work.disk.heal()
        if fault.fired:
            asyncio.run(work.run("later#0"))
            assert "later#0" in work.ended
        work.close()
        check(work, power_cuts=2)


@pytest.mark.torture
@pytest.mark.parametrize("first", WRITING)
@pytest.mark.parametrize("second", WRITING)
def test_two_failures_at_any_two_operations(first: str, second: str) -> None:
    """The second may meet the writer while it deals with the first."""
    for one in range(1, healthy()[first] + 1):
        for other in range(one, healthy()[second] + 2, 3):
            work = Work(new_disk()).open()
            work.disk.fail(first, one)
            work.disk.fail(second, other, forever=True)
            asyncio.run(work.run())
            work.close()
            assert work.ended | work.failed.keys() == {*KEYS}
            check(work, power_cuts=4)


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO])
def test_a_disk_that_goes_away_altogether_fails_everybody_in_words(error: int) -> None:
    """Everything fails from one moment on, closing files too, as on a network file system that lost the server."""
    for moment in range(1, sum(healthy().values()) + 1, 7):
        work = Work(new_disk()).open()
        begun = work.disk.operations

        def pull_the_plug(op: str, path: str, work: Work = work, last: int = begun + moment) -> None:
            if work.disk.operations == last:
                for known in OPENING:
                    work.disk.fail(known, error=error, forever=True)

        work.disk.on_operation = pull_the_plug
        asyncio.run(work.run())
        work.close()
        assert work.ended | work.failed.keys() == {*KEYS}
        for failure in work.failed.values():
            check_error(failure, ADVICE[error])
        work.disk.on_operation = None
        check(work, power_cuts=2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("op", ["write", "fdatasync", "create"])
def test_an_error_that_nobody_thought_of_fails_its_waiters_too(op: str) -> None:
    """Not an OSError: the writer stops, and says so to those in its hands and to all who come."""
    work = Work(new_disk()).open()
    work.disk.fail(op, 2, MemoryError("no memory for this"))
    asyncio.run(work.run())
    work.close()
    assert work.failed.keys() == {*KEYS}
    assert any("no memory for this" in str(error) for error in work.failed.values())
    work.failed.clear()
    assert work.acked.items() <= read(LocalStore(ROOT, fs=work.disk.process())).values.items()


# ---- a full disk -----------------------------------------------------------------------------------------------------


def bytes_needed() -> tuple[int, int]:
    """What is on the disk when the writer is open, and when the work is done."""
    work = Work(new_disk()).open()
    before = sum(map(len, work.disk.tree().values()))
    asyncio.run(work.run(together=True))
    work.close()
    return before, sum(map(len, work.disk.tree().values()))


async def fill_at(capacity: int, *, together: bool) -> None:
    """Let the disk hold so many bytes until the writer pauses, and then any number."""
    work = Work(new_disk(), full_disk_wait_s=HANG_S).open()
    work.disk.capacity = capacity
    working = asyncio.ensure_future(work.run(together=together))
    await until(lambda: work.writer.paused or working.done())
    work.disk.capacity = None
    await working
    await asyncio.to_thread(work.close)
    assert work.failed == {} and work.ended == {*KEYS}, capacity
    assert not work.writer.paused
    check(work, power_cuts=2)


@pytest.mark.parametrize("together", [True, False])
def test_a_disk_that_is_full_at_any_byte_pauses_the_writer_until_there_is_room(together: bool) -> None:
    """Nothing acknowledged is lost, nothing is there twice, and nobody notices but by the time that it took."""
    before, after = bytes_needed()
    asyncio.run(all_of([fill_at(size, together=together) for size in range(before, after + 90, 89)]))


@pytest.mark.torture
@pytest.mark.parametrize("together", [True, False])
def test_a_disk_that_is_full_at_every_single_byte(together: bool) -> None:
    """The same without leaving any out."""
    before, after = bytes_needed()
    for start in range(before, after, 100):
        asyncio.run(all_of([fill_at(size, together=together) for size in range(start, start + 100)]))


def test_a_disk_that_stays_full_at_any_byte_fails_its_waiters() -> None:
    """After `full_disk_wait_s`, with a clear error. When there is room again the same writer goes on."""
    before, after = bytes_needed()
    for size in range(before, after, 53):
        work = Work(new_disk(), full_disk_wait_s=0).open()
        work.disk.capacity = size
        asyncio.run(work.run(together=True))
        for error in work.failed.values():
            assert isinstance(error, DiskFullError)
            check_error(error, ADVICE[errno.ENOSPC])
        work.disk.capacity = None
        asyncio.run(work.run("later#0"))
        assert "later#0" in work.ended and (work.failed.keys() == {*KEYS} or work.ended >= {*KEYS})
        work.close()
        check(work, power_cuts=2)


def test_a_disk_without_room_for_another_file_pauses_the_writer_too() -> None:
    """The next segment and a pack each need one, and a name while they are made."""

    async def one(inodes: int) -> None:
        work = Work(new_disk(), full_disk_wait_s=HANG_S).open()
        work.disk.inodes = inodes
        working = asyncio.ensure_future(work.run())
        await until(lambda: work.writer.paused or working.done())
        work.disk.inodes = None
        await working
        await asyncio.to_thread(work.close)
        assert work.failed == {} and work.ended == {*KEYS}
        check(work)

    asyncio.run(all_of([one(inodes) for inodes in range(9, 20)]))


def test_records_that_were_queued_while_the_disk_was_full_are_told_what_to_do() -> None:
    """Those in the writer's hands and those behind them get the same error."""

    async def work() -> list[BaseException | None]:
        disk = new_disk()
        writer = open_writer(LocalStore(ROOT, fs=disk), WriterConfig(full_disk_wait_s=0.2))
        disk.capacity = 0
        first = asyncio.ensure_future(AttemptLog(writer, "a#0", 1).begin(None))
        await asyncio.wait_for(until(lambda: writer.paused), HANG_S)
        second = asyncio.ensure_future(AttemptLog(writer, "b#0", 1).begin(None))
        done = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), HANG_S)
        close(writer)
        return done

    for error in asyncio.run(work()):
        assert isinstance(error, DiskFullError)
        check_error(error, ADVICE[errno.ENOSPC])


def test_a_writer_that_waits_for_room_can_be_closed() -> None:
    """Its waiters are told that the disk was full."""

    async def work() -> BaseException | None:
        disk = new_disk()
        writer = open_writer(LocalStore(ROOT, fs=disk), WriterConfig(full_disk_wait_s=3600))
        disk.capacity = 0
        waiting = asyncio.ensure_future(AttemptLog(writer, "a#0", 1).begin(None))
        await asyncio.wait_for(until(lambda: writer.paused), HANG_S)
        await asyncio.wait_for(asyncio.to_thread(close, writer), HANG_S)
        return (await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), HANG_S))[0]

    error = asyncio.run(work())
    assert isinstance(error, DiskFullError)
    check_error(error, ADVICE[errno.ENOSPC])


def test_a_full_disk_is_waited_for_by_all_and_written_in_order() -> None:
    """What is put while the writer waits comes after what it has in its hands."""

    async def work() -> None:
        disk = new_disk()
        writer = open_writer(LocalStore(ROOT, fs=disk), WriterConfig())
        log = AttemptLog(writer, "a#0", 1)
        await log.begin(None)
        disk.capacity = 0
        waiting = [log.put(records.Begun, path="0", unix_s=0.0)]
        await asyncio.wait_for(until(lambda: writer.paused), HANG_S)
        waiting += [log.put(records.Begun, path=str(n), unix_s=0.0) for n in range(1, 50)]
        disk.capacity = None
        await asyncio.wait_for(asyncio.gather(*waiting), HANG_S)
        close(writer)
        found = read(LocalStore(ROOT, fs=disk))
        assert found.damage == [] and [e.point[2] for e in found.stories["a#0"].entries] == [*range(51)]
        assert max(lines_by_place(disk).values()) == 1

    asyncio.run(work())


# ---- failed attempts and closed writers ------------------------------------------------------------------------------


def test_no_record_follows_a_failed_one_in_the_same_attempt() -> None:
    """Also none that was queued already: on disk, an attempt has no holes (invariant 5)."""

    async def work() -> None:
        disk = new_disk()
        writer = open_writer(LocalStore(ROOT, fs=disk), WriterConfig())
        one, other = AttemptLog(writer, "a#0", 1), AttemptLog(writer, "b#0", 1)
        await asyncio.gather(one.begin(None), other.begin(None))
        failing, held = threading.Event(), threading.Event()

        def hold(op: str, path: str) -> None:
            if op == "fdatasync" and not failing.is_set():
                failing.set()
                held.wait(HANG_S)

        disk.fail("fdatasync")
        disk.on_operation = hold
        first = one.put(records.Begun, path="0", unix_s=0.0)
        await asyncio.to_thread(failing.wait, HANG_S)
        queued = [one.put(records.Begun, path="1", unix_s=0.0), other.put(records.Begun, path="0", unix_s=0.0)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        held.set()
        done = await asyncio.wait_for(asyncio.gather(first, *queued, return_exceptions=True), HANG_S)
        assert [type(error) for error in done] == [JournalFailed, JournalFailed, type(None)]
        with pytest.raises(JournalFailed, match="check the disk"):
            one.put(records.Begun, path="2", unix_s=0.0)
        await asyncio.wait_for(other.append(records.Begun, path="1", unix_s=0.0), HANG_S)
        close(writer)
        found = read(LocalStore(ROOT, fs=disk))
        assert found.damage == []
        assert len(found.stories["a#0"].entries) == 1 and len(found.stories["b#0"].entries) == 3

    asyncio.run(work())


def test_a_failed_attempt_is_continued_by_the_next_one() -> None:
    """It failed, not the trajectory: a new attempt in the same epoch goes on from what was acknowledged."""

    async def work() -> None:
        disk = new_disk()
        writer = open_writer(LocalStore(ROOT, fs=disk), WriterConfig())
        log = AttemptLog(writer, "a#0", 1)
        await log.begin(None)
        await step(log, "0", "zero")
        disk.fail("fdatasync")
        with pytest.raises(JournalFailed):
            await step(log, "1", "one")
        again = AttemptLog(writer, "a#0", 2)
        await again.begin((1, 1, 1))
        await step(again, "1", "one, again")
        close(writer)
        found = read(LocalStore(ROOT, fs=disk))
        assert found.damage == []
        assert list(found.values.values()) == ["zero", "one, again"]

    asyncio.run(work())


def test_whoever_comes_after_a_close_is_told_so() -> None:
    """At once, and in words."""

    async def work() -> None:
        writer = open_writer(LocalStore(ROOT, fs=new_disk()), WriterConfig())
        log = AttemptLog(writer, "a#0", 1)
        await log.begin(None)
        close(writer)
        with pytest.raises(JournalClosed, match="open the run again"):
            await asyncio.wait_for(step(log, "0", "zero"), HANG_S)
        close(writer)

    asyncio.run(work())


def test_a_seal_that_fails_loses_nothing_and_fails_nobody() -> None:
    """At a close and at a roll: only the proof of the segment's length is missing."""
    for op in ("write", "fdatasync", "close"):
        work = Work(new_disk(), segment_bytes_max=1 << 20).open()
        asyncio.run(work.run())
        work.disk.fail(op, forever=True)
        work.close()
        assert work.ended == {*KEYS} and work.failed == {}
        check(work, power_cuts=8)


@pytest.mark.parametrize("op", ["write", "fdatasync", "create"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_heartbeat_that_fails_costs_nobody_anything(op: str, error: int) -> None:
    """An idle writer gives the segment up, and the next record goes into a new one."""

    async def work() -> None:
        work = Work(new_disk(), lease_s=0.06, full_disk_wait_s=HANG_S).open()
        if op == "create":
            work.disk.fail("write", error=error)
        fault = work.disk.fail(op, error=error)
        await asyncio.wait_for(until(lambda: fault.fired == 1), HANG_S)
        await work.run()
        await asyncio.to_thread(work.close)
        assert work.failed == {} and work.ended == {*KEYS}
        check(work, power_cuts=4)

    asyncio.run(work())


def test_a_sync_in_the_background_that_fails_loses_nothing_to_a_kill() -> None:
    """Durability "os": what was acknowledged stays in the page cache, and the next record goes into a new segment."""

    async def work() -> None:
        work = Work(new_disk(), durability="os", background_sync_s=0.02, segment_bytes_max=1 << 20).open()
        log = AttemptLog(work.writer, "z#0", 1)
        await log.begin(None)
        fault = work.disk.fail("fdatasync")
        await step(log, "0", "zero")
        await asyncio.wait_for(until(lambda: fault.fired == 1), HANG_S)
        await step(log, "1", "one")
        await work.run()
        survivor = work.disk.kill()
        await asyncio.to_thread(work.close)
        found = read(LocalStore(ROOT, fs=survivor))
        assert found.damage == [] and work.ended == {*KEYS}
        assert work.acked.items() <= found.values.items()
        assert [value for (key, _), value in found.values.items() if key == "z#0"] == ["zero", "one"]
        assert sum(name.endswith(".jsonl") for name in survivor.tree()) == 2

    asyncio.run(work())


# ---- opening ---------------------------------------------------------------------------------------------------------


def opens(disk: CrashDisk) -> None:
    Work(disk).open().close()


@pytest.mark.parametrize("op", OPENING)
def test_an_open_that_fails_says_why_and_the_next_one_succeeds(op: str) -> None:
    """Each operation of an open fails once: on an empty disk, and where there is a run."""
    with_a_run = new_disk()
    opens(with_a_run)
    for disk in (new_disk(), with_a_run):
        for nth in range(1, counts(opens, disk.snapshot())[op] + 1):
            error = (errno.EIO, errno.ENOSPC, errno.EDQUOT)[nth % 3]
            there = disk.snapshot()
            process = there.process()
            process.fail(op, nth, error)
            try:
                opens(process)
            except JournalError as failure:
                check_error(failure, ADVICE[error])
            work = Work(there).open()
            asyncio.run(work.run())
            work.close()
            assert work.ended == {*KEYS}
            check(work)


def test_a_read_only_file_system_is_named() -> None:
    """Where nothing can be created or written."""
    for there in (False, True):
        disk = new_disk()
        if there:
            opens(disk)
        before = disk.tree()
        for op in ("create", "write", "mkdir", "link", "unlink"):
            disk.fail(op, error=errno.EROFS, forever=True)
        with pytest.raises(JournalError) as failure:
            open_writer(LocalStore(ROOT, fs=disk))
        check_error(failure.value, ADVICE[errno.EROFS])
        assert disk.tree() == before


def test_a_run_is_read_on_a_read_only_file_system() -> None:
    """Reading writes nothing, so it needs nothing."""
    work = Work(new_disk()).open()
    asyncio.run(work.run())
    work.close()
    for op in ("create", "write", "mkdir", "link", "unlink", "fsync", "fdatasync"):
        work.disk.fail(op, error=errno.EROFS, forever=True)
    assert read(LocalStore(ROOT, fs=work.disk)).values == work.acked


def test_a_file_where_the_directory_should_be_is_named(tmp_path: Path) -> None:
    """At each level: the run's directory, one above it, and those in it."""
    (tmp_path / "taken").write_bytes(b"a file")
    for directory in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(JournalError) as failure:
            open_writer(LocalStore(directory))
        check_error(failure.value, ADVICE[errno.ENOTDIR])
        with pytest.raises(NotARunError, match="no run here"):
            Reader(LocalStore(directory))
    for name in ("claims", "journal"):
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_bytes(b"a file")
        with pytest.raises(JournalError) as failure:
            open_writer(LocalStore(tmp_path / "run"))
        check_error(failure.value, ADVICE[errno.ENOTDIR])
        (tmp_path / "run" / name).unlink()
    assert (tmp_path / "taken").read_bytes() == b"a file"


def test_a_missing_directory_is_made_for_a_writer_and_named_to_a_reader(tmp_path: Path) -> None:
    """With all directories above it."""
    directory = tmp_path / "some" / "where" / "else"
    with pytest.raises(NotARunError, match=r"check the path"):
        Reader(LocalStore(directory))
    assert not (tmp_path / "some").exists()
    close(open_writer(LocalStore(directory)))
    assert (directory / "run.json").exists()


def test_a_directory_that_was_deleted_under_a_writer_is_named(tmp_path: Path) -> None:
    """At the latest when the next segment is created."""

    async def work() -> None:
        writer = open_writer(LocalStore(tmp_path / "run"), WriterConfig(segment_bytes_max=200))
        log = AttemptLog(writer, "a#0", 1)
        await log.begin(None)
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(JournalFailed) as failure:
            for n in range(3):
                await asyncio.wait_for(step(log, str(n), "x" * 200), HANG_S)
        check_error(failure.value, ADVICE[errno.ENOENT])
        close(writer)

    asyncio.run(work())


# ---- reading ---------------------------------------------------------------------------------------------------------


def scan(store: LocalStore, on_damage: Callable[[Damage], None]) -> list[object]:
    return [line.raw for line in open_reader(store, on_damage).scan(on_damage)]


def surveyed(store: LocalStore, on_damage: Callable[[Damage], None]) -> list[object]:
    return sorted(
        (key, entry.point, entry.place)
        for key, lineage in survey(open_reader(store, on_damage), on_damage).items()
        for entry in (*lineage.story().entries, *lineage.story().stale)
    )


def verified(store: LocalStore, on_damage: Callable[[Damage], None]) -> list[object]:
    return sorted((key, lineage.story().last) for key, lineage in verify(store, on_damage).items())


def told(store: LocalStore, on_damage: Callable[[Damage], None]) -> list[object]:
    reader = open_reader(store, on_damage)
    return [entry.place.raw for key in KEYS for entry in story_of(reader, key, on_damage).entries]


def read_values(store: LocalStore, on_damage: Callable[[Damage], None]) -> list[object]:
    found = read(store)
    for damage in found.damage:
        on_damage(damage)
    return list(found.values.items())


def followed(store: LocalStore, on_damage: Callable[[Damage], None]) -> list[object]:
    return [line.raw for line in Follower(open_reader(store, on_damage), on_damage).poll()]


@pytest.mark.parametrize("missing", [None, "00000002.jsonl"])
@pytest.mark.parametrize("op", READING)
@pytest.mark.parametrize("reading", [scan, surveyed, verified, told, read_values, followed])
def test_what_cannot_be_read_is_an_error_and_never_nothing_there(
    reading: Callable[..., list[object]], op: str, missing: str | None
) -> None:
    """Each operation of a reader fails once: it says so, or the answer is whole. Nothing else ever comes back."""
    work = Work(new_disk()).open()
    work.disk.fail("fdatasync", 8, errno.ENOSPC)
    asyncio.run(work.run(together=True))
    work.close()
    if missing is not None:
        work.disk.unlink(f"{ROOT}/journal/00000001/{missing}")
    known: list[Damage] = []
    whole = reading(LocalStore(ROOT, fs=work.disk.process()), known.append)
    assert whole
    nth, fired = 0, True
    while fired:
        nth += 1
        error = (errno.EIO, errno.ESTALE)[nth % 2]
        disk = work.disk.process()
        fault = disk.fail(op, nth, error)
        damage: list[Damage] = []
        try:
            found = reading(LocalStore(ROOT, fs=disk), damage.append)
        except RolltapeError as failure:
            assert ROOT in str(failure) or "journal" in str(failure) or "claims" in str(failure)
        else:
            assert (found, damage) == (whole, known) or set(damage) - set(known), (op, nth)
            assert reading is verified or all(one in whole for one in found), (op, nth)
        fired = bool(fault.fired)


@pytest.mark.parametrize("reading", [scan, surveyed, verified, told, read_values, followed])
def test_a_run_file_that_cannot_be_read_is_no_missing_run(reading: Callable[..., list[object]]) -> None:
    """To nobody: a reader would report nothing there, and a writer would begin another run."""
    work = Work(new_disk()).open()
    asyncio.run(work.run())
    work.close()
    work.disk.fail("open", error=errno.ESTALE, path="run.json", forever=True)
    before = work.disk.tree()
    for doing in (lambda: reading(LocalStore(ROOT, fs=work.disk), print), lambda: opens(work.disk)):
        with pytest.raises(JournalError) as failure:
            doing()
        check_error(failure.value, ADVICE[errno.ESTALE])
    assert work.disk.tree() == before


@pytest.mark.parametrize("op", ["open", "fsync"])
def test_a_directory_that_cannot_be_synced_stops_who_relies_on_it(op: str) -> None:
    """Whoever continues what it cannot make sure of must not record that it does."""
    work = Work(new_disk()).open()
    asyncio.run(work.run())
    work.close()
    relied_on = {(1, 1), (1, 2)}
    syncs = counts(lambda disk: rely_on(LocalStore(ROOT, fs=disk), relied_on), work.disk.snapshot())
    assert syncs[op] >= 3 * 4  # the claim, the segments, and each directory on the way to each of them
    for nth in range(1, syncs[op] + 1):
        disk = work.disk.process()
        disk.fail(op, nth)
        with pytest.raises((OSError, JournalError)):
            rely_on(LocalStore(ROOT, fs=disk), relied_on)
