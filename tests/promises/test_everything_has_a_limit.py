"""Promise 9: everything has a limit.

Memory grows with what is active, not with what is done; records, segments and queues are bounded, and a bound that is
hit is a clear error or a wait that ends.
"""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from rolltape import records
from rolltape.errors import LimitError
from rolltape.journal import AttemptLog, Damage, Reader, Writer, WriterConfig, open_writer
from rolltape.journal import format as fmt
from rolltape.journal.waiters import LoopPort
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk

HANG_S = 30.0
"""Whatever takes longer hangs. Nothing is timed by it."""

MIB = 1 << 20

T = TypeVar("T")


def on(disk: CrashDisk) -> LocalStore:
    return LocalStore("/run", fs=disk)


def body(name: str, size: int = 0) -> bytes:
    return fmt.encode_record(records.Note(epoch=1, name=name + "x" * size, unix_s=0.0))


def note(name: str, size: int = 0) -> records.Note:
    return records.Note(epoch=1, name=name + "x" * size, unix_s=0.0)


def names_on(store: LocalStore) -> list[str]:
    lines = Reader(store).scan(lambda damage: pytest.fail(str(damage)))
    return [line.decode(records.Note).name for line in lines if line.envelope().type == "note"]


async def soon(awaitable: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    return await asyncio.wait_for(awaitable, HANG_S)


async def ticks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@contextmanager
def stopped_disk(disk: CrashDisk) -> Iterator[Callable[[], None]]:
    """The journal's thread stops before its next write, until what this gives is called."""
    opened = threading.Event()

    def stop(op: str, path: str) -> None:
        if op == "write" and "/journal/" in path:
            assert opened.wait(HANG_S), "nobody let the disk go on"

    disk.on_operation = stop
    try:
        yield opened.set
    finally:
        opened.set()


# ---- records and values ----------------------------------------------------------------------------------------------


def test_a_record_over_its_limit_is_refused_and_the_attempt_goes_on():
    """The error names the limit, the size and what to do; at the limit itself all is well; no number is used up."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(record_bytes_max=1000))
        log = AttemptLog(writer, "k#0", 1)
        await soon(log.begin(None))
        with pytest.raises(LimitError) as refused:
            await soon(log.append(records.Done, path="x" * 2000))
        said = str(refused.value)
        assert "2,0" in said and "record_bytes_max=1,000" in said and "raise it" in said and "pack" in said
        exactly = 1000 - len(fmt.encode_record(records.Done(key="k#0", epoch=1, attempt=1, seq=1, path="")))
        with pytest.raises(LimitError):
            await soon(log.append(records.Done, path="x" * (exactly + 1)))
        await soon(log.append(records.Done, path="x" * exactly))
        await soon(log.append(records.Outcome, status="completed", unix_s=0.0))
        await soon(writer.aclose())
        lines = list(Reader(on(disk)).scan(lambda damage: pytest.fail(str(damage))))
        assert [line.envelope().seq for line in lines[1:-1]] == [0, 1, 2]

    asyncio.run(main())


def test_the_values_of_a_record_over_their_limit_are_refused_and_the_attempt_goes_on():
    """Together, not each for itself."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(value_bytes_max=100_000))
        log = AttemptLog(writer, "k#0", 1)
        await soon(log.begin(None))
        values = {blake2b(data, digest_size=16).hexdigest(): data for data in (bytes(60_000), bytes(60_001))}
        with pytest.raises(LimitError, match=r"120,001 bytes.*value_bytes_max=100,000.*raise it"):
            await soon(log.append(records.Done, path="0", blobs=values))
        assert not any(path.endswith(".pack") for path in disk.tree())
        await soon(log.append(records.Done, path="0", blobs=dict(list(values.items())[:1])))
        await soon(writer.aclose())
        lines = list(Reader(on(disk)).scan(lambda damage: pytest.fail(str(damage))))
        assert [line.envelope().seq for line in lines[1:-1]] == [0, 1]

    asyncio.run(main())


def test_threads_meet_the_same_limits():
    """`LimitError` at the call, with nothing queued."""
    disk = CrashDisk()
    writer = open_writer(on(disk), WriterConfig(record_bytes_max=1000, value_bytes_max=1000))
    with pytest.raises(LimitError, match="record_bytes_max"):
        writer.append_from_thread(note("a", size=1000))
    with pytest.raises(LimitError, match="value_bytes_max"):
        writer.put_from_thread(body("a"), {"00": bytes(1001)})
    writer.append_from_thread(note("b"))
    writer.close()
    assert names_on(on(disk)) == ["b"]


def test_whatever_a_writer_takes_a_reader_can_read():
    """The longest record that any configuration allows, naming a hundred values: its line is within the format's."""
    disk = CrashDisk()
    most = fmt.LINE_BYTES_MAX - 4096
    writer = open_writer(on(disk), WriterConfig(record_bytes_max=most, segment_bytes_max=1 << 40))
    values = {blake2b(data, digest_size=16).hexdigest(): data for data in (bytes([n]) * 32 for n in range(100))}
    try:
        writer.put_from_thread(body("a", most - len(body("a"))), values).result(HANG_S)
    except LimitError:
        pass  # also a way to keep the promise
    else:
        path = "/run/journal/00000001/00000001.jsonl"
        assert max(map(len, disk.tree()[path].splitlines(keepends=True))) <= fmt.LINE_BYTES_MAX
    writer.append_from_thread(note("b"))
    writer.close()
    assert names_on(on(disk))[-1] == "b"


def test_a_record_of_the_longest_kind_is_written_and_read_back(tmp_path):
    """16 MiB, the default limit, through the real file system."""
    writer = open_writer(LocalStore(tmp_path))
    size = WriterConfig().record_bytes_max - len(body("a"))
    writer.append_from_thread(note("a", size=size))
    writer.close()
    (name,) = names_on(LocalStore(tmp_path))
    assert len(name) == size + 1


# ---- the queue -------------------------------------------------------------------------------------------------------


def test_what_waits_in_a_loop_is_bounded_in_bytes():
    """While the disk stands still, two hundred tasks queue ten records of a kilobyte and one more, and then wait."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(queue_bytes_max=10_000))
        futures: list[asyncio.Future[None]] = []
        most = 0

        async def append(name: str) -> None:
            nonlocal most
            await writer.port().room()
            futures.append(writer.put(body(name, size=1000 - len(body("000")))))
            most = max(most, 1000 * sum(not future.done() for future in futures))
            await futures[-1]

        with stopped_disk(disk) as let_go:
            tasks = [asyncio.ensure_future(append(f"{n:03}")) for n in range(200)]
            await ticks()
            assert 10 <= len(futures) <= 11
            assert writer.port().full
            let_go()
            await soon(asyncio.gather(*tasks))
        assert most <= 11_000
        assert not writer.port().full
        assert sorted(name[:3] for name in names_on(on(disk))) == [f"{n:03}" for n in range(200)]
        await soon(writer.aclose())

    asyncio.run(main())


def test_what_waits_in_threads_is_bounded_in_bytes():
    """The same for all threads without a loop together."""
    disk = CrashDisk()
    writer = open_writer(on(disk), WriterConfig(queue_bytes_max=10_000))
    size = 1000 - len(body("00"))
    lock, past_the_bound, futures = threading.Lock(), threading.Event(), []

    def put(name: str) -> None:
        future = writer.put_from_thread(body(name, size=size))
        with lock:
            futures.append(future)
            if len(futures) > 11:
                past_the_bound.set()

    threads = [threading.Thread(target=put, args=(f"{n:02}",), daemon=True) for n in range(40)]
    with stopped_disk(disk) as let_go:
        for thread in threads:
            thread.start()
        # Not a synchronisation: a bound that does not hold is seen at once, one that holds costs this moment.
        assert not past_the_bound.wait(0.2)
        assert len(futures) <= 11
        let_go()
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive(), "it hangs"
    for future in futures:
        future.result(HANG_S)
    writer.close()
    assert sorted(name[:2] for name in names_on(on(disk))) == [f"{n:02}" for n in range(40)]


def test_values_count_towards_what_waits():
    """A small line with a large value is not small."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(queue_bytes_max=100_000))
        with stopped_disk(disk) as let_go:
            future = writer.put(body("a"), {"00" * 16: bytes(100_000)})
            waiting = asyncio.ensure_future(writer.port().room())
            await ticks()
            assert writer.port().full and not waiting.done()
            let_go()
            await soon(future)
            await soon(waiting)
        await soon(writer.aclose())

    asyncio.run(main())


def test_a_record_larger_than_the_queue_passes_when_the_queue_is_empty():
    """The bound is soft by one record, so that none waits for ever."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(queue_bytes_max=10))
        await soon(asyncio.gather(*(writer.append(note(str(n), size=1000)) for n in range(20))))
        await soon(asyncio.to_thread(writer.append_from_thread, note("thread", size=1000)))
        await soon(writer.aclose())
        assert len(names_on(on(disk))) == 21

    asyncio.run(main())


def test_nobody_starves_while_another_keeps_the_queue_full():
    """Whoever waits for room gets it before those that came later, however greedy they are."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(queue_bytes_max=1))
        got = {"a": 0, "b": 0, "c": 0}

        async def greedy(who: str) -> None:
            while sum(got.values()) < 300:
                await writer.append(note(who))
                got[who] += 1

        await soon(asyncio.gather(*map(greedy, got)))
        assert min(got.values()) >= 50, got
        await soon(writer.aclose())

    asyncio.run(main())


def test_cancelled_waiters_for_room_hold_up_nobody():
    """They go away without a record, and the next one in the line gets the room."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk), WriterConfig(queue_bytes_max=1))
        with stopped_disk(disk) as let_go:
            first = asyncio.ensure_future(writer.append(note("first")))
            await ticks()
            waiting = [asyncio.ensure_future(writer.append(note(str(n)))) for n in range(10)]
            await ticks()
            for task in waiting[:9]:
                task.cancel()
            let_go()
            await soon(first)
            await soon(waiting[9])
        assert [task.cancelled() for task in waiting] == [True] * 9 + [False]
        assert names_on(on(disk)) == ["first", "9"]
        await soon(writer.aclose())

    asyncio.run(main())


def test_room_that_was_given_to_a_task_that_is_cancelled_in_the_same_tick_goes_to_the_next():
    """The cancellation comes after its turn was given and before it could take it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        batches: list[Any] = []
        port = LoopPort(loop, batches.append, bytes_max=1)
        port.put(b"{", None, None, False)
        waiting = [asyncio.ensure_future(port.room()) for _ in range(3)]
        await ticks()
        (batch,) = batches
        port.settle(batch)  # gives the first one its turn in the next tick …
        loop.call_soon(waiting[0].cancel)  # … in which it is cancelled, before it runs
        await soon(asyncio.wait(waiting))
        assert waiting[0].cancelled()
        assert [task.exception() for task in waiting[1:]] == [None, None]

    asyncio.run(main())


# ---- memory ----------------------------------------------------------------------------------------------------------


def peak_mib_of(function: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


def count_lines(reader: Reader) -> int:
    return sum(1 for _ in reader.scan(lambda damage: None))


def segment_with_a_tail(root: Path, tail: str, size_mib: int) -> None:
    """A run whose only segment ends, after its header, in `size_mib` that nobody wrote."""
    open_writer(LocalStore(root)).close()
    path = root / "journal" / "00000001" / "00000001.jsonl"
    header = path.read_bytes().splitlines(keepends=True)[0]
    with path.open("wb") as file:
        file.write(header)
        if tail == "zeros":
            file.truncate(size_mib * MIB)
        for _ in range(0 if tail == "zeros" else size_mib):
            file.write(b"x" * MIB)


TAILS = pytest.mark.parametrize("tail", ["zeros", "one endless line"])


@TAILS
def test_reading_takes_memory_for_lines_however_long_the_file_is(tail, tmp_path, monkeypatch):
    """A file system may leave a file of zeros behind; nobody dies of opening it. (The longest line: 2 MiB here.)"""
    segment_with_a_tail(tmp_path, tail, size_mib=64)
    monkeypatch.setattr(fmt, "LINE_BYTES_MAX", 2 * MIB)
    reader = Reader(LocalStore(tmp_path))
    assert peak_mib_of(lambda: count_lines(reader)) < 16
    assert count_lines(reader) == 1


@pytest.mark.torture
@TAILS
def test_reading_takes_memory_for_a_few_of_the_longest_lines_however_long_the_file_is(tail, tmp_path):
    """The same with the format's own limit, 64 MiB."""
    segment_with_a_tail(tmp_path, tail, size_mib=1024)
    reader = Reader(LocalStore(tmp_path))
    assert peak_mib_of(lambda: count_lines(reader)) < 4 * fmt.LINE_BYTES_MAX / MIB
    assert count_lines(reader) == 1


def test_reading_takes_no_more_memory_for_a_longer_run(tmp_path):
    """Lines are handed out one by one, and segments read in pieces."""
    writer = open_writer(LocalStore(tmp_path), WriterConfig(segment_bytes_max=4 * MIB))
    for _ in range(40):
        for future in [writer.put_from_thread(body("a", size=10_000)) for _ in range(50)]:
            future.result(HANG_S)
    writer.close()
    reader = Reader(LocalStore(tmp_path))
    assert peak_mib_of(lambda: count_lines(reader)) < 6
    assert count_lines(reader) > 2000


def test_a_writer_holds_nothing_of_what_is_done(tmp_path):
    """Ten thousand records later it is as small as after a thousand, but for the hashes of one segment's values."""
    writer = open_writer(LocalStore(tmp_path), WriterConfig(durability="os", segment_bytes_max=MIB))

    def write(count: int) -> None:
        for _ in range(count // 100):
            for future in [writer.put_from_thread(body("a", size=1000)) for _ in range(100)]:
                future.result(HANG_S)

    write(1000)
    tracemalloc.start()
    try:
        write(1000)
        before = tracemalloc.get_traced_memory()[0]
        write(10_000)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        writer.close()
    assert after - before < 200_000


def test_loops_that_are_gone_are_forgotten():
    """A service that runs a loop a request does not collect them."""
    disk = CrashDisk()
    writer: Writer = open_writer(on(disk))
    asyncio.run(writer.append(note("0")))
    tracemalloc.start()
    try:
        asyncio.run(writer.append(note("1")))
        before = tracemalloc.get_traced_memory()[0]
        for number in range(50):
            asyncio.run(writer.append(note(str(number))))
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    writer.close()
    assert after - before < 50 * 2000


# ---- segments --------------------------------------------------------------------------------------------------------


def test_segments_end_at_their_limit():
    """One group of records may exceed it, so a segment is at most that much longer."""
    disk = CrashDisk()
    writer = open_writer(on(disk), WriterConfig(segment_bytes_max=5000))
    for number in range(100):
        writer.append_from_thread(note(str(number), size=500))
    writer.close()
    sizes = on(disk).list("journal/00000001")
    assert len(sizes) > 5
    assert all(5000 <= size < 6000 for name, size in sizes.items() if name != max(sizes))


def test_a_value_and_a_damage_that_a_reader_reports_are_bounded_too():
    """A line that claims a value of a terabyte makes no reader ask for a terabyte: a read ends where the file does."""
    disk = CrashDisk()
    writer = open_writer(on(disk))
    data = bytes(40_000)
    digest = blake2b(data, digest_size=16).hexdigest()
    writer.put_from_thread(body("a"), {digest: data}).result(HANG_S)
    writer.close()
    reader = Reader(on(disk))
    damages: list[Damage] = []
    line = next(line for line in reader.scan(damages.append) if line.envelope().type == "note")
    huge = msgspec.json.encode([[digest, 100, 1 << 40]])
    forged = line._replace(raw=body("a") + b',"pack":' + huge + b',"dur":0,"crc":"00000000"}\n')
    with pytest.raises(Exception, match="not as it was written"):
        reader.value(forged, digest)
    assert damages == []
