"""The writer: when it acknowledges, what it writes together, who waits for whom, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rolltape import records
from rolltape.errors import JournalClosed, JournalError, JournalFailed, LimitError, UsageError
from rolltape.journal import AttemptLog, Line, Reader, Writer, WriterConfig, open_writer
from rolltape.journal import format as fmt
from rolltape.journal.epochs import read_run
from rolltape.journal.verify import values_of
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk

HANG_S = 30.0
"""Whatever takes longer hangs. Nothing is timed by it."""

FOR_EVER_S = 10_000.0

T = TypeVar("T")


def on(disk: CrashDisk) -> LocalStore:
    return LocalStore("/run", fs=disk)


def lines_of(store: LocalStore) -> list[Line]:
    return list(Reader(store).scan(lambda damage: pytest.fail(str(damage))))


def lines_on(disk: CrashDisk) -> list[Line]:
    return lines_of(on(disk.process()))


def names_on(disk: CrashDisk) -> list[str]:
    """The names of the notes that a reader finds."""
    return [line.decode(records.Note).name for line in lines_on(disk) if line.envelope().type == "note"]


def types_in(lines: list[Line]) -> list[str]:
    return [line.envelope().type for line in lines]


def note(name: str, size: int = 0) -> records.Note:
    return records.Note(epoch=1, name=name + "x" * size, unix_s=0.0)


def body(name: str, size: int = 0) -> bytes:
    return fmt.encode_record(note(name, size))


async def soon(awaitable: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Await, and fail where that hangs."""
    return await asyncio.wait_for(awaitable, HANG_S)


async def settled(*tasks: asyncio.Future[Any]) -> list[Any]:
    """What became of each: its result or its exception."""
    return await soon(asyncio.gather(*tasks, return_exceptions=True))


async def ticks(count: int = 5) -> None:
    """Let the event loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


class Gate:
    """Stops the journal's thread before its next operation of a kind in `journal/`, until it is opened."""

    def __init__(self, disk: CrashDisk, op: str) -> None:
        self._op = op
        self._reached, self._opened = threading.Event(), threading.Event()
        disk.on_operation = self._stop

    def _stop(self, op: str, path: str) -> None:
        if op == self._op and "/journal/" in path and not self._opened.is_set():
            self._reached.set()
            assert self._opened.wait(HANG_S), "nobody opened the gate"

    def open(self) -> None:
        self._opened.set()

    def wait(self) -> None:
        assert self._reached.wait(HANG_S), "nobody came to the gate"

    async def reached(self) -> None:
        await asyncio.to_thread(self.wait)


@contextmanager
def gate(disk: CrashDisk, op: str) -> Iterator[Gate]:
    """A gate that is open at the end, whatever happens."""
    held = Gate(disk, op)
    try:
        yield held
    finally:
        held.open()


class Watch:
    """The operations that were done, each with the name that its file has in the run. Made before the writer is."""

    def __init__(self, disk: CrashDisk) -> None:
        self._done: list[tuple[str, str]] = []
        self._names: dict[str, str] = {}
        self._created = ""
        self._changed = threading.Condition()
        disk.on_done = self._see

    def _see(self, op: str, path: str) -> None:
        with self._changed:
            if op == "create":
                self._created = path
            elif op == "link":  # a file is created under another name, and linked to its own
                self._names[self._created] = path
            self._done.append((op, path))
            self._changed.notify_all()

    @property
    def done(self) -> list[tuple[str, str]]:
        with self._changed:
            return [(op, self._names.get(path, path).removeprefix("/run/")) for op, path in self._done]

    def count(self, op: str, ending: str = ".jsonl") -> int:
        return sum(kind == op and name.endswith(ending) for kind, name in self.done)

    def clear(self) -> None:
        with self._changed:
            self._done.clear()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, HANG_S), "it never came"


# ---- acknowledgements ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_what_was_acknowledged_survives_the_process(durability):
    """At both durabilities, each record at the moment when its waiter goes on."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(durability=durability))
        for number in range(5):
            await soon(writer.append(note(str(number))))
            assert names_on(disk.snapshot().kill()) == [str(n) for n in range(number + 1)]
        await soon(writer.aclose())

    asyncio.run(main())


def test_what_was_acknowledged_survives_a_power_cut():
    """At durability `disk`, each record at the moment when its waiter goes on, from a task and from a thread."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        for number in range(0, 6, 2):
            await soon(writer.append(note(str(number))))
            assert names_on(disk.snapshot().power_cut())[-1] == str(number)
            await soon(asyncio.to_thread(writer.append_from_thread, note(str(number + 1))))
            assert names_on(disk.snapshot().power_cut())[-1] == str(number + 1)
        await soon(writer.aclose())

    asyncio.run(main())


def test_nobody_is_told_before_the_sync():
    """The line is in the file already, and the waiter still waits: a power cut now would take it."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        with gate(disk, "fdatasync") as held:
            task = asyncio.ensure_future(writer.append(note("a")))
            await held.reached()
            await ticks()
            assert names_on(disk.snapshot()) == ["a"]
            assert names_on(disk.snapshot().power_cut()) == []
            assert not task.done()
            held.open()
            await soon(task)
        await soon(writer.aclose())

    asyncio.run(main())


def test_nobody_is_told_before_the_write():
    """Also at durability `os`: nothing of it is in the file yet."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(durability="os"))
        with gate(disk, "write") as held:
            task = asyncio.ensure_future(writer.append(note("a")))
            await held.reached()
            await ticks()
            assert names_on(disk.snapshot()) == []
            assert not task.done()
            held.open()
            await soon(task)
        await soon(writer.aclose())

    asyncio.run(main())


def test_at_os_a_record_is_acknowledged_without_a_sync():
    """That is what `os` is for."""

    async def main() -> None:
        disk = CrashDisk()
        watch = Watch(disk)
        writer = open_writer(on(disk), WriterConfig(durability="os", background_sync_s=FOR_EVER_S))
        log = AttemptLog(writer, "k#0", 1)
        await soon(log.begin(None))
        watch.clear()
        for step in range(10):
            await soon(log.append(records.Done, path=str(step)))
        assert watch.count("fdatasync") == 0
        await soon(writer.aclose())

    asyncio.run(main())


DURABLE = {
    "take": lambda log: log.take(),
    "withdrawn": lambda log: log.withdraw(),
    "attempt": lambda log: log.begin(None),
    "intent": lambda log: log.append(records.Intent, path="0", fingerprint="", unix_s=0.0),
    "resource_opening": lambda log: log.append(records.ResourceOpening, path="0", recovery="reattach", unix_s=0.0),
    "outcome": lambda log: log.append(records.Outcome, status="completed", unix_s=0.0),
    "accepted": lambda log: log.append(records.Accepted, unix_s=0.0),
}


@pytest.mark.parametrize("kind", DURABLE)
def test_what_the_fencing_protocol_rests_on_is_synced_at_os_too(kind):
    """One sync for it, which covers what waited in the page cache before; and it survives a power cut."""

    async def main() -> None:
        disk = CrashDisk()
        watch = Watch(disk)
        writer = open_writer(on(disk), WriterConfig(durability="os", background_sync_s=FOR_EVER_S))
        await soon(writer.append(note("before")))
        assert watch.count("fdatasync") == 0
        await soon(DURABLE[kind](AttemptLog(writer, "k#0", 1)))
        assert watch.count("fdatasync") == 1
        assert types_in(lines_on(disk.snapshot().power_cut())) == ["segment", "note", kind]
        await soon(writer.aclose())

    asyncio.run(main())


def test_at_os_what_was_written_is_synced_in_the_background():
    """A record stays in the page cache only for no longer than `background_sync_s`."""

    async def main() -> None:
        disk = CrashDisk()
        watch = Watch(disk)
        writer = open_writer(on(disk), WriterConfig(durability="os", background_sync_s=0.01))
        await soon(writer.append(note("a")))
        await asyncio.to_thread(watch.wait, lambda: watch.count("fdatasync") >= 1)
        assert names_on(disk.snapshot().power_cut()) == ["a"]
        await soon(writer.append(note("b")))
        line = lines_on(disk)[-1]
        assert fmt.dur_of(line.raw) == line.offset
        await soon(writer.aclose())

    asyncio.run(main())


def test_at_os_a_writer_that_is_never_idle_syncs_in_the_background_too():
    """Each write puts the next record, so that there is always one waiting."""
    disk = CrashDisk()
    watch = Watch(disk)
    writer = open_writer(on(disk), WriterConfig(durability="os", background_sync_s=1e-6))
    left, syncs = 200, 0

    def another(op: str, path: str) -> None:
        nonlocal left, syncs
        if left > 0 and "/journal/" in path:
            left -= op == "write"
            syncs += op == "fdatasync"
            if op == "write" and left > 0:
                writer.put_from_thread(body(str(left)))

    disk.on_operation = another
    writer.put_from_thread(body("first"))
    watch.wait(lambda: left == 0)
    assert syncs > 0
    writer.close()


def test_a_line_states_what_was_synced_before_it_and_no_more():
    """`dur` is what tells rot from a torn tail, so it may never promise too much."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(durability="os", background_sync_s=FOR_EVER_S))
        log = AttemptLog(writer, "k#0", 1)
        await soon(log.begin(None))
        for step in range(3):
            await soon(log.append(records.Done, path=str(step)))
        await soon(log.append(records.Intent, path="3", fingerprint="", unix_s=0.0))
        await soon(log.append(records.Done, path="3"))
        await soon(writer.aclose())
        header, attempt, first, second, third, intent, last, seal = lines_on(disk)
        assert fmt.dur_of(header.raw) == 0
        assert fmt.dur_of(attempt.raw) == attempt.offset
        assert {fmt.dur_of(line.raw) for line in (first, second, third, intent)} == {first.offset}
        assert fmt.dur_of(last.raw) == last.offset
        assert fmt.dur_of(seal.raw) == seal.offset

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_an_idle_writer_adds_heartbeats_that_prove_all_before_them(durability):
    """They say that it lives, and close the window in which rot of the last group reads as torn."""

    async def main() -> None:
        disk = CrashDisk()
        watch = Watch(disk)
        writer = open_writer(on(disk), WriterConfig(durability=durability, lease_s=0.05))
        await soon(writer.append(note("a")))
        await asyncio.to_thread(watch.wait, lambda: watch.count("write") >= 4)
        await soon(writer.aclose())
        lines = lines_on(disk)
        beats = [line for line in lines if line.envelope().type == "heartbeat"]
        assert len(beats) >= 2
        assert [fmt.dur_of(line.raw) for line in beats] == [line.offset for line in beats]

    asyncio.run(main())


# ---- group commit ----------------------------------------------------------------------------------------------------


def test_what_waits_together_costs_one_write_and_one_sync():
    """A thousand tasks, while the thread is busy with one record before them."""

    async def main() -> None:
        disk = CrashDisk()
        watch = Watch(disk)
        writer = open_writer(on(disk))
        watch.clear()
        with gate(disk, "fdatasync") as held:
            first = asyncio.ensure_future(writer.append(note("first")))
            await held.reached()
            others = [asyncio.ensure_future(writer.append(note(str(n)))) for n in range(1000)]
            await ticks()
            held.open()
            await settled(first, *others)
        assert (watch.count("write"), watch.count("fdatasync")) == (2, 2)
        assert names_on(disk) == ["first", *map(str, range(1000))]
        await soon(writer.aclose())

    asyncio.run(main())


def test_what_is_put_within_one_tick_is_written_together():
    """The thread is woken once a tick, not once a record."""

    async def main() -> None:
        disk = CrashDisk()
        watch = Watch(disk)
        writer = open_writer(on(disk))
        watch.clear()
        await settled(*(writer.put(body(str(n))) for n in range(300)))
        assert (watch.count("write"), watch.count("fdatasync")) == (1, 1)
        await soon(writer.aclose())

    asyncio.run(main())


def test_one_record_that_has_to_be_synced_takes_its_group_with_it():
    """At durability `os`, and everybody of the group is told after the sync."""

    async def main() -> None:
        disk = CrashDisk()
        watch = Watch(disk)
        writer = open_writer(on(disk), WriterConfig(durability="os", background_sync_s=FOR_EVER_S))
        plain = writer.put(body("plain"))
        fence = writer.put(body("fence"), sync=True)
        await settled(plain, fence)
        assert watch.count("fdatasync") == 1
        assert names_on(disk.snapshot().power_cut()) == ["plain", "fence"]
        await soon(writer.aclose())

    asyncio.run(main())


def test_tasks_of_several_loops_and_plain_threads_write_one_journal():
    """Two loops in two threads and four threads without one: all is there, once, each one's in its own order."""
    disk = CrashDisk()
    writer = open_writer(on(disk), WriterConfig(queue_bytes_max=2000))

    async def append_all(names: list[str]) -> None:
        for name in names:
            await soon(writer.append(note(name)))

    async def loop_main(loop: str) -> None:
        await asyncio.gather(*(append_all([f"{loop}.{task}.{n}" for n in range(20)]) for task in range(10)))

    def thread_main(thread: str) -> None:
        for n in range(50):
            writer.append_from_thread(note(f"{thread}.0.{n}"))

    failures: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    jobs: list[Callable[[], None]] = [lambda: asyncio.run(loop_main("loop1")), lambda: asyncio.run(loop_main("loop2"))]
    jobs += [lambda thread=thread: thread_main(thread) for thread in ("t1", "t2", "t3", "t4")]
    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive(), "it hangs"
    writer.close()
    assert failures == []
    found: dict[str, list[int]] = {}
    for name in names_on(disk):
        source, _, number = name.rpartition(".")
        found.setdefault(source, []).append(int(number))
    assert len(found) == 24
    assert all(numbers == list(range(len(numbers))) for numbers in found.values())
    assert sum(map(len, found.values())) == 2 * 10 * 20 + 4 * 50


def test_a_thousand_waiters_are_released_in_slices():
    """Between two slices the loop does other things: ten thousand waiters do not stall it. Counted, not timed."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        loop = asyncio.get_running_loop()
        futures = [writer.put(body(str(n))) for n in range(2000)]
        released = [0]

        def tick() -> None:
            released.append(sum(future.done() for future in futures))
            if released[-1] < len(futures):
                loop.call_soon(tick)

        tick()
        await settled(*futures)
        steps = [after - before for before, after in pairwise(released)]
        assert max(steps) <= 256
        await soon(writer.aclose())

    asyncio.run(main())


# ---- waiters that go away --------------------------------------------------------------------------------------------


def test_a_record_whose_waiter_is_cancelled_is_written_all_the_same():
    """Neither lost nor torn; the attempt's numbers have no gap; the task gets its CancelledError."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        log = AttemptLog(writer, "k#0", 1)
        await soon(log.begin(None))
        with gate(disk, "write") as held:
            early = asyncio.ensure_future(log.append(records.Done, path="0"))
            await held.reached()  # its group is being written
            late = [asyncio.ensure_future(log.append(records.Done, path=str(n))) for n in range(1, 5)]
            await ticks()  # theirs is queued
            for task in (early, *late[:2]):
                task.cancel()
            await ticks()
            assert early.cancelled() and late[0].cancelled() and late[1].cancelled()
            held.open()
            assert await settled(*late[2:]) == [None, None]
        await soon(log.append(records.Done, path="5"))
        await soon(writer.aclose())
        done = [line.decode(records.Done) for line in lines_on(disk) if line.envelope().type == "done"]
        assert [(record.seq, record.path) for record in done] == [(n + 1, str(n)) for n in range(6)]

    asyncio.run(main())


def test_a_record_whose_waiter_is_cancelled_before_it_is_handed_over_is_written_all_the_same():
    """The cancellation comes in the same tick, before the journal's thread knows of the record: it has its number."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        log = AttemptLog(writer, "k#0", 1)
        await soon(log.begin(None))
        task = asyncio.ensure_future(log.append(records.Done, path="0"))
        asyncio.get_running_loop().call_soon(task.cancel)
        assert isinstance((await settled(task))[0], asyncio.CancelledError)
        assert log.next_seq == 2
        await soon(log.append(records.Done, path="1"))
        await soon(writer.aclose())
        assert [line.envelope().seq for line in lines_on(disk)][1:-1] == [0, 1, 2]

    asyncio.run(main())


def test_a_thread_that_cancels_what_it_put_changes_nothing_for_anybody():
    """A `concurrent.futures.Future` may be cancelled, as `asyncio.wrap_future` does: the record is written."""
    disk = CrashDisk()
    writer = open_writer(on(disk))
    with gate(disk, "fdatasync") as held:
        first = writer.put_from_thread(body("first"))
        held.wait()
        second = writer.put_from_thread(body("second"))
        third = writer.put_from_thread(body("third"))
        first.cancel()
        second.cancel()
        held.open()
        third.result(HANG_S)
    writer.append_from_thread(note("fourth"))
    writer.close()
    assert names_on(disk) == ["first", "second", "third", "fourth"]


def test_a_timeout_around_an_append_is_an_ordinary_timeout():
    """`asyncio.timeout` cancels the waiter; the record stays."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        with gate(disk, "fdatasync") as held:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await writer.append(note("a"))
            await held.reached()
            held.open()
        await soon(writer.append(note("b")))
        assert names_on(disk) == ["a", "b"]
        await soon(writer.aclose())

    asyncio.run(main())


def test_a_record_is_written_although_its_loop_ended_before_it_was_handed_over():
    """It was put, so it is written, also when somebody runs another loop before the journal is closed."""
    disk = CrashDisk()
    writer = open_writer(on(disk))
    loop = asyncio.new_event_loop()

    def put_and_stop() -> None:
        writer.put(body("first"))
        loop.stop()

    loop.call_soon(put_and_stop)
    loop.run_forever()
    loop.close()
    asyncio.run(writer.append(note("second")))
    writer.close()
    assert sorted(names_on(disk)) == ["first", "second"]


def test_a_loop_that_is_closed_while_its_records_are_written_harms_nobody():
    """There is nobody left to tell; the records are there, and the journal goes on."""
    disk = CrashDisk()
    writer = open_writer(on(disk))
    loop = asyncio.new_event_loop()

    async def put() -> None:
        writer.put(body("first"))
        await ticks()

    with gate(disk, "fdatasync") as held:
        loop.run_until_complete(put())
        held.wait()
        loop.close()
        other = writer.put_from_thread(body("second"))
        held.open()
        other.result(HANG_S)
    asyncio.run(writer.append(note("third")))
    writer.close()
    assert names_on(disk) == ["first", "second", "third"]


class Nosy(asyncio.SelectorEventLoop):
    """A loop whose `is_closed`, once armed, lets another thread run first: what a thread switch there would do."""

    meanwhile: Callable[[], None] | None = None

    def is_closed(self) -> bool:
        if self.meanwhile is not None and threading.current_thread() is threading.main_thread():
            act, self.meanwhile = self.meanwhile, None
            act()
        return super().is_closed()


def test_two_loops_may_come_to_a_writer_at_once():
    """Each of two threads makes its loop's side of the writer, and one is interrupted in the middle of it."""
    disk = CrashDisk()
    writer = open_writer(on(disk))
    known = Nosy()
    known.run_until_complete(writer.append(note("known")))

    def other_thread() -> None:
        thread = threading.Thread(target=lambda: asyncio.run(writer.append(note("other"))))
        thread.start()
        thread.join(HANG_S)

    known.meanwhile = other_thread
    asyncio.run(writer.append(note("mine")))
    assert known.meanwhile is None
    known.close()
    writer.close()
    assert sorted(names_on(disk)) == ["known", "mine", "other"]


# ---- attempts --------------------------------------------------------------------------------------------------------


def test_an_attempt_numbers_its_records_whoever_puts_them():
    """Several tasks of one attempt: numbers without gaps, in the order of the lines."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        log = AttemptLog(writer, "k#0", 3)
        await soon(log.take())
        await soon(log.begin((1, 2, 7), task="k", visit=0, sample=0))
        await settled(*(asyncio.ensure_future(log.append(records.Done, path=str(n))) for n in range(50)))
        await soon(writer.aclose())
        header, take, attempt, *steps, seal = [line.envelope() for line in lines_on(disk)]
        assert (header.type, take.type, take.seq, seal.type) == ("segment", "take", -1, "seal")
        assert (attempt.type, attempt.seq, attempt.continues) == ("attempt", 0, (1, 2, 7))
        assert {(e.key, e.epoch, e.attempt) for e in (take, attempt, *steps)} == {("k#0", 1, 3)}
        assert [e.seq for e in steps] == list(range(1, 51))

    asyncio.run(main())


def test_a_refused_record_leaves_no_gap():
    """A limit that was hit is the call's failure, not the attempt's."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(record_bytes_max=500, value_bytes_max=1000))
        log = AttemptLog(writer, "k#0", 1)
        await soon(log.begin(None))
        with pytest.raises(LimitError):
            await soon(log.append(records.Done, path="x" * 500))
        with pytest.raises(LimitError):
            await soon(log.append(records.Done, path="0", blobs={"00": bytes(1001)}))
        await soon(log.append(records.Done, path="0"))
        await soon(writer.aclose())
        assert [line.envelope().seq for line in lines_on(disk)][1:-1] == [0, 1]

    asyncio.run(main())


# ---- closing ---------------------------------------------------------------------------------------------------------


def test_close_writes_what_waits_and_seals():
    """Also what was put in this very tick, by the loop that calls it."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        before = [writer.put(body(str(n))) for n in range(3)]
        writer.close()
        assert [future.done() for future in before] == [False] * 3  # the loop was not running meanwhile
        assert await settled(*before) == [None] * 3
        *lines, seal = lines_on(disk.snapshot().power_cut())
        assert names_on(disk) == ["0", "1", "2"]
        assert seal.decode(records.Seal).records == len(lines) - 1 == 3

    asyncio.run(main())


def test_close_while_tasks_wait_leaves_nobody_waiting():
    """Those whose records were queued get their acknowledgement, those who waited for room an error."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(queue_bytes_max=1000))
        with gate(disk, "fdatasync") as held:
            tasks = [asyncio.ensure_future(writer.append(note(f"{n:02}", size=200))) for n in range(20)]
            await held.reached()
            await ticks()
            closing = asyncio.ensure_future(writer.aclose())
            await ticks()
            held.open()
            results = await settled(*tasks)
            await soon(closing)
        acknowledged = [f"{n:02}" for n, result in enumerate(results) if result is None]
        assert acknowledged
        assert [name[:2] for name in names_on(disk)] == acknowledged
        assert {type(result) for result in results if result is not None} == {JournalClosed}
        assert types_in(lines_on(disk))[-1] == "seal"

    asyncio.run(main())


def test_aclose_does_not_hold_up_the_loop():
    """The loop goes round while the thread waits for the disk."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        with gate(disk, "fdatasync") as held:
            task = asyncio.ensure_future(writer.append(note("a")))
            await held.reached()
            closing = asyncio.ensure_future(writer.aclose())
            await ticks(100)
            assert not closing.done()
            held.open()
            await soon(closing)
        assert await settled(task) == [None]
        assert types_in(lines_on(disk)) == ["segment", "note", "seal"]

    asyncio.run(main())


def test_closing_twice_or_from_several_threads_is_closing_once():
    """One seal, and nobody hangs."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        await soon(writer.append(note("a")))
        await settled(writer.aclose(), writer.aclose(), asyncio.to_thread(writer.close))
        writer.close()
        await soon(writer.aclose())
        assert types_in(lines_on(disk)) == ["segment", "note", "seal"]

    asyncio.run(main())


def test_nothing_is_taken_after_close():
    """From a task, from a thread, for an attempt: a clear error, and not a byte."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk))
        log = AttemptLog(writer, "k#0", 1)
        await soon(log.begin(None))
        await soon(writer.aclose())
        before = disk.tree()
        with pytest.raises(JournalClosed, match="epoch 1 is closed: open the run again"):
            writer.put(body("a"))
        with pytest.raises(JournalClosed):
            await soon(writer.append(note("a")))
        with pytest.raises(JournalClosed):
            await soon(asyncio.to_thread(writer.append_from_thread, note("a")))
        with pytest.raises(JournalClosed):
            await soon(log.append(records.Done, path="0"))
        with pytest.raises(JournalClosed):
            await soon(log.take())
        assert disk.tree() == before

    asyncio.run(main())


def test_a_writer_that_wrote_nothing_closes_cleanly():
    """A header and a seal: an epoch that did nothing."""
    disk = CrashDisk()
    before = set(threading.enumerate())
    writer = open_writer(on(disk))
    assert len(set(threading.enumerate()) - before) == 1
    writer.close()
    assert types_in(lines_on(disk)) == ["segment", "seal"]
    assert set(threading.enumerate()) <= before


def test_threads_that_wait_for_room_are_not_left_behind_by_close():
    """Each gets its acknowledgement or an error."""
    disk = CrashDisk()
    writer = open_writer(on(disk), WriterConfig(queue_bytes_max=1))
    results: list[object] = []

    def append(name: str) -> None:
        try:
            results.append(writer.append_from_thread(note(name)))
        except JournalError as error:
            results.append(error)

    with gate(disk, "fdatasync") as held:
        threads = [threading.Thread(target=append, args=(str(n),), daemon=True) for n in range(8)]
        for thread in threads:
            thread.start()
        held.wait()
        closing = threading.Thread(target=writer.close, daemon=True)
        closing.start()
        held.open()
        for thread in (*threads, closing):
            thread.join(HANG_S)
            assert not thread.is_alive(), "it hangs"
    assert len(results) == 8
    assert results.count(None) == len(names_on(disk)) >= 1
    assert all(isinstance(result, JournalClosed) for result in results if result is not None)


# ---- the thread dies -------------------------------------------------------------------------------------------------


@pytest.fixture
def silent_threads(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What threads died of, instead of a report of it."""
    died: list[BaseException] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: died.append(args.exc_value))
    return died


@pytest.mark.parametrize("op", ["write", "fdatasync"])
def test_when_the_thread_dies_unexpectedly_everybody_who_waits_is_told(op, silent_threads):
    """Those being written, those queued, those who wait for room, and those who come later: none of them hangs."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(queue_bytes_max=2000))
        with gate(disk, op) as held:
            tasks = [asyncio.ensure_future(writer.append(note("first")))]
            await held.reached()
            tasks += [asyncio.ensure_future(writer.append(note(str(n), size=200))) for n in range(20)]
            thread = asyncio.ensure_future(asyncio.to_thread(writer.append_from_thread, note("thread")))
            await ticks()
            disk.fail(op, error=ZeroDivisionError("a bug"), path="/journal/")
            held.open()
            done, waiting = await asyncio.wait([*tasks, thread], timeout=HANG_S / 3)
        for task in waiting:
            task.cancel()
        told = [task.exception() for task in done]
        with pytest.raises(JournalFailed, match=r"ZeroDivisionError.*a bug"):
            writer.put(body("later"))
        await soon(asyncio.to_thread(writer.close))
        assert [type(error) for error in told] == [JournalFailed] * 22
        assert [repr(error) for error in silent_threads] == ["ZeroDivisionError('a bug')"]

    asyncio.run(main())


def test_a_thread_that_waits_is_told_when_the_journal_dies(silent_threads):
    """A plain thread has no timeout of its own: it must not wait for ever."""
    disk = CrashDisk()
    writer = open_writer(on(disk))
    told: list[BaseException] = []

    def append() -> None:
        try:
            writer.append_from_thread(note("a"))
        except JournalFailed as error:
            told.append(error)

    disk.fail("write", error=ZeroDivisionError("a bug"), path="/journal/")
    thread = threading.Thread(target=append, daemon=True)
    thread.start()
    thread.join(HANG_S / 3)
    assert not thread.is_alive(), "it hangs"
    assert len(told) == 1


# ---- exit and fork ---------------------------------------------------------------------------------------------------


def run_child(code: str, *arguments: object) -> list[str]:
    """Run a program with this package in a fresh interpreter, warnings about forks with threads aside."""
    preamble = f"import sys; sys.path[:0] = {[part for part in sys.path if part]!r}\n{COMMON}\n"
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", preamble + code, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=HANG_S, check=False)
    assert done.returncode == 0
    return done.stdout.decode().splitlines()


COMMON = """
import asyncio, os, threading
from rolltape import records
from rolltape.errors import JournalClosed
from rolltape.journal import WriterConfig, open_writer, AttemptLog
from rolltape.journal import format as fmt
from rolltape.store import LocalStore

def note(name):
    return records.Note(epoch=1, name=name, unix_s=0.0)

def body(name):
    return fmt.encode_record(note(name))

store = LocalStore(sys.argv[1])
"""

ENDINGS = {
    "the end of the program": "asyncio.run(put())",
    "a thread's records": "[writer.put_from_thread(body(str(n))) for n in range(300)]",
    "a loop that never ran again": """
loop = asyncio.new_event_loop()
loop.call_soon(lambda: ([writer.put(body(str(n))) for n in range(300)], loop.stop()))
loop.run_forever()""",
    "sys.exit in a task": "main = put; exit = sys.exit\nasyncio.run(put(lambda: exit(0)))",
    "an exception that nobody catches": """
sys.excepthook = lambda *args: os.write(1, b"died\\n")
import atexit
atexit.register(lambda: None)
try:
    asyncio.run(put(lambda: 1 / 0))
except ZeroDivisionError:
    pass""",
}


@pytest.mark.parametrize("durability", ["disk", "os"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_that_never_closes_its_journal_loses_nothing(ending, durability, tmp_path):
    """At interpreter exit what was put is written and the segment sealed."""
    code = """
async def put(then=lambda: None):
    for n in range(300):
        writer.put(body(str(n)))
    then()

writer = open_writer(store, WriterConfig(durability=sys.argv[2]))
"""
    run_child(code + ENDINGS[ending], tmp_path / "run", durability)
    lines = lines_of(LocalStore(tmp_path / "run"))
    names = [line.decode(records.Note).name for line in lines if line.envelope().type == "note"]
    assert names == [str(n) for n in range(300)]
    assert types_in(lines)[-1] == "seal"


FORKS = {
    "os.fork and os._exit": """
if (pid := os.fork()) == 0:
    child()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
    "os.fork and an ordinary exit": """
if (pid := os.fork()) == 0:
    child()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
    "multiprocessing": """
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
assert process.exitcode == 0
""",
    "concurrent.futures": """
import concurrent.futures, multiprocessing
with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
    pool.submit(child).result()
""",
}


@pytest.mark.parametrize("fork", FORKS)
def test_a_forked_child_writes_nothing_into_its_parents_journal(fork, tmp_path):
    """Put, close, exit: the parent's segment gets no byte from the child, and the parent goes on."""
    code = """
writer = open_writer(store)
log = AttemptLog(writer, "k#0", 1)
asyncio.run(log.begin(None))
path = os.path.join(sys.argv[1], "journal", "00000001", "00000001.jsonl")
before = open(path, "rb").read()

def refused(function):
    try:
        function()
    except JournalClosed as error:
        assert "forked from: open the run in this process" in str(error), error
    else:
        raise AssertionError("it was taken")

async def put():
    writer.put(body("child"))

def child():
    refused(lambda: asyncio.run(put()))
    refused(lambda: asyncio.run(writer.append(note("child"))))
    refused(lambda: asyncio.run(log.append(records.Done, path="child")))
    refused(lambda: writer.append_from_thread(note("child")))
    writer.close()
    asyncio.run(writer.aclose())
    assert open(path, "rb").read() == before
"""
    after = """
assert open(path, "rb").read() == before
writer.append_from_thread(note("parent"))
writer.close()
"""
    run_child(code + FORKS[fork] + after, tmp_path / "run")
    assert types_in(lines_of(LocalStore(tmp_path / "run"))) == ["segment", "attempt", "note", "seal"]


def test_a_forked_child_that_forks_in_the_middle_of_a_put_writes_nothing(tmp_path):
    """The record waits in the parent's memory, of which the child has a copy: only the parent writes it."""
    code = """
async def main():
    writer.put(body("once"))
    if (pid := os.fork()) == 0:
        await asyncio.sleep(0)  # the loop would hand it over now
        os.register_at_fork  # and an ordinary exit would flush it
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    await asyncio.sleep(0)

writer = open_writer(store)
try:
    asyncio.run(main())
finally:
    writer.close()
"""
    run_child(code, tmp_path / "run")
    assert types_in(lines_of(LocalStore(tmp_path / "run"))) == ["segment", "note", "seal"]


def test_a_forked_child_may_open_the_run_for_itself(tmp_path):
    """Under an epoch of its own; both go on side by side, and both are sealed at exit."""
    code = """
writer = open_writer(store)
writer.append_from_thread(note("parent"))
if (pid := os.fork()) == 0:
    mine = open_writer(LocalStore(sys.argv[1]))
    assert mine.epoch == 2
    mine.append_from_thread(note("child"))
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
writer.append_from_thread(note("parent"))
"""
    run_child(code, tmp_path / "run")
    lines = lines_of(LocalStore(tmp_path / "run"))
    assert [(line.epoch, line.envelope().type) for line in lines] == [
        *((1, kind) for kind in ("segment", "note", "note", "seal")),
        *((2, kind) for kind in ("segment", "note", "seal")),
    ]


# ---- segments and packs ----------------------------------------------------------------------------------------------


def test_a_segment_is_sealed_once_it_is_large_and_the_next_one_states_its_length():
    """Nothing is lost between two, and each finished one can be read alone."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(segment_bytes_max=1000))
        for number in range(40):
            await soon(writer.append(note(f"{number:02}", size=100)))
        await soon(writer.aclose())
        reader = Reader(on(disk))
        numbers = reader.segments(1)
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 4
        sizes, before = on(disk).list("journal/00000001"), 0
        for number in numbers:
            lines = [line for line in lines_on(disk) if line.segment == number]
            header, seal = lines[0].decode(records.Segment), lines[-1].decode(records.Seal)
            size = sizes[f"{number:08}.jsonl"]
            assert (header.epoch, header.segment, header.run) == (1, number, writer.run)
            assert header.previous == ([(number - 1, before, before)] if number > 1 else [])
            assert seal.records == len(lines) - 2
            assert lines[-1].offset + len(lines[-1].raw) == size
            assert size < 1000 + 2 * len(lines[-2].raw)
            before = size
        assert [name[:2] for name in names_on(disk)] == [f"{n:02}" for n in range(40)]

    asyncio.run(main())


def test_a_segment_that_follows_another_is_begun_only_after_that_one_is_sealed_and_synced():
    """So that its header never states what a power cut could still take."""

    async def main() -> None:
        disk = CrashDisk()
        watch = Watch(disk)
        writer = open_writer(
            on(disk), WriterConfig(durability="os", segment_bytes_max=500, background_sync_s=FOR_EVER_S)
        )
        for number in range(10):
            await soon(writer.append(note(str(number), size=100)))
        second = watch.done.index(("link", "journal/00000001/00000002.jsonl"))
        before = [op for op, name in watch.done[:second] if name == "journal/00000001/00000001.jsonl" and op != "close"]
        assert before[-2:] == ["write", "fdatasync"]
        await soon(writer.aclose())

    asyncio.run(main())


def value(text: str, size: int = 40_000) -> tuple[str, bytes]:
    data = text.encode() * (size // len(text))
    return blake2b(data, digest_size=16).hexdigest(), data


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_a_large_value_is_in_the_pack_and_synced_before_its_line_is_written(durability):
    """At both durabilities: no line ever names what is not on disk."""

    async def main() -> None:
        disk = CrashDisk()
        watch = Watch(disk)
        writer = open_writer(on(disk), WriterConfig(durability=durability, background_sync_s=FOR_EVER_S))
        log = AttemptLog(writer, "k#0", 1)
        await soon(log.begin(None))
        watch.clear()
        digest, data = value("a")
        await soon(log.append(records.Done, path="0", blobs={digest: data}))
        pack, segment = "journal/00000001/00000001.pack", "journal/00000001/00000001.jsonl"
        seen = [(op, name) for op, name in watch.done if op in ("write", "fdatasync")]
        assert seen[:4] == [("write", pack), ("write", pack), ("fdatasync", pack), ("write", segment)]
        await soon(writer.aclose())
        line = lines_on(disk)[2]
        assert values_of(line.raw) == [digest]
        assert Reader(on(disk)).value(line, digest) == data

    asyncio.run(main())


def test_a_value_is_in_the_pack_once_per_content_and_segment():
    """Named again by later lines, of other trajectories too; the next segment has its own copy."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(segment_bytes_max=200_000))
        values = dict(value(letter) for letter in "abc")
        first, second, third = values
        logs = [AttemptLog(writer, f"k{n}#0", 1) for n in range(2)]
        for log in logs:
            await soon(log.begin(None))
        together = [
            asyncio.ensure_future(log.append(records.Done, path="0", blobs={d: values[d] for d in (first, second)}))
            for log in logs
        ]
        await settled(*together)
        await soon(logs[0].append(records.Done, path="1", blobs={second: values[second], third: values[third]}))
        for _ in range(2, 6):  # until the segment is full: lines alone don't fill it
            await soon(logs[0].append(records.Done, path="x" * 20_000))
        await soon(logs[1].append(records.Done, path="1", blobs={first: values[first]}))
        await soon(writer.aclose())

        tree = disk.tree()
        packs = {int(path[-13:-5]): data for path, data in tree.items() if path.endswith(".pack")}
        assert {number: [data.count(blob) for blob in values.values()] for number, data in packs.items()} == {
            1: [1, 1, 1],
            2: [1, 0, 0],
        }
        reader, seals = Reader(on(disk)), {}
        for line in lines_on(disk):
            for digest in values_of(line.raw):
                assert reader.value(line, digest) == values[digest]
            if line.envelope().type == "seal":
                seals[line.segment] = line.decode(records.Seal).pack_bytes
        assert seals == {number: len(data) for number, data in packs.items()}

    asyncio.run(main())


def test_the_bytes_of_a_pack_count_towards_its_segment():
    """A segment with small lines and large values is rolled too."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(segment_bytes_max=100_000))
        log = AttemptLog(writer, "k#0", 1)
        await soon(log.begin(None))
        for number in range(9):
            digest, data = value(f"{number}")
            await soon(log.append(records.Done, path="0", blobs={digest: data}))
        await soon(writer.aclose())
        assert Reader(on(disk)).segments(1) == [1, 2, 3]

    asyncio.run(main())


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077], ids=oct)
@pytest.mark.parametrize(("mode", "file_mode", "folder_mode"), [("private", 0o600, 0o700), ("group", 0o640, 0o750)])
def test_files_and_directories_have_their_modes_whatever_the_umask(mode, file_mode, folder_mode, umask, tmp_path):
    """What a model said may be private; a group that shares a run asked for it."""
    before = os.umask(umask)
    try:
        writer = open_writer(LocalStore(tmp_path / "runs" / "x", mode=mode), WriterConfig(segment_bytes_max=100))
        digest, data = value("a")
        for _ in range(2):
            writer.put_from_thread(body("a"), {digest: data}).result(HANG_S)
        writer.close()
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "runs" / "x").rglob("*")}
    modes[tmp_path / "runs" / "x"] = stat.S_IMODE((tmp_path / "runs" / "x").stat().st_mode)
    assert {path.suffix for path in modes} == {"", ".json", ".jsonl", ".pack"}
    wrong = {
        str(path): oct(found) for path, found in modes.items() if found != (folder_mode, file_mode)[path.is_file()]
    }
    assert wrong == {}


def test_nothing_is_left_beside_the_files_of_the_run(tmp_path):
    """No temporary files, no locks."""
    store = LocalStore(tmp_path)
    writer = open_writer(store)
    writer.append_from_thread(note("a"))
    writer.close()
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["claims/00000001.json", "journal/00000001/00000001.jsonl", "run.json"]
    assert read_run(store).run == writer.run


def test_a_writer_holds_as_few_descriptors_as_it_appends_to(tmp_path):
    """Rolling ten segments with packs leaves none behind."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    writer = open_writer(LocalStore(tmp_path), WriterConfig(segment_bytes_max=100))
    held = []
    for number in range(10):
        digest, data = value(str(number))
        writer.put_from_thread(body("a"), {digest: data}).result(HANG_S)
        held.append(sum(os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path)) for fd in _descriptors()))
    writer.close()
    assert max(held) <= 2
    assert not any(os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path)) for fd in _descriptors())


def _descriptors() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]


# ---- configuration ---------------------------------------------------------------------------------------------------


def test_a_configuration_is_a_frozen_value_that_travels():
    """It is compared, printed into the run's record, and sent to workers."""
    config = WriterConfig(durability="os", lease_s=5.0)
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(AttributeError):
        config.lease_s = 6.0
    assert "lease_s=5.0" in repr(config)


@pytest.mark.parametrize(
    "wrong",
    [
        {"durability": "memory"},
        {"record_bytes_max": 0},
        {"record_bytes_max": fmt.LINE_BYTES_MAX},
        {"queue_bytes_max": 0},
        {"lease_s": 0.0},
        {"lease_s": -1.0},
    ],
    ids=lambda wrong: "-".join(f"{name}={value}" for name, value in wrong.items()),
)
def test_a_configuration_that_could_never_work_is_refused(wrong):
    """Nobody could put a record into a queue of no bytes; a lease of no time is a heartbeat without a pause."""
    (name,) = wrong
    with pytest.raises(UsageError, match=name):
        WriterConfig(**wrong)


def test_a_run_that_cannot_be_opened_says_why(tmp_path):
    """A file lies where the run should be."""
    (tmp_path / "run").write_text("not a directory")
    with pytest.raises(JournalFailed, match=r"a file lies where a directory should be|Not a directory") as caught:
        open_writer(LocalStore(tmp_path / "run"))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOTDIR


def test_two_writers_of_one_process_have_epochs_of_their_own():
    """And their records do not mix."""

    async def main() -> None:
        disk = CrashDisk()
        writers: list[Writer] = [open_writer(on(disk.process())) for _ in range(2)]
        await settled(*(asyncio.ensure_future(w.append(note(f"{w.epoch}.{n}"))) for n in range(20) for w in writers))
        for writer in writers:
            await soon(writer.aclose())
        assert names_on(disk) == [f"{epoch}.{n}" for epoch in (1, 2) for n in range(20)]

    asyncio.run(main())
