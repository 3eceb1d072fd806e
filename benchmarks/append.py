"""Durable appends per second of 2 KB records, from many concurrent writers.

rolltape          tasks of one event loop, each appending one record after the other, waiting until it is on disk
bare              the same tasks and bytes with the least that does it: one thread, which writes and syncs whatever
                  waits, and wakes the loop once. No checksum, no limits, no errors, no segments: an upper bound
write, fdatasync  each record written and synced by itself, without asyncio
SQLite            WAL, synchronous=FULL, one table, without asyncio; with 64 records a transaction they are
                  acknowledged 64 at a time, so no writer waits for its own
JSONL, flush      what most loops do today. The records are in the page cache: a power cut loses them

The second table adds 2 ms to every flush, as on a network volume or a busier disk: a sleep before each fsync and
fdatasync of the process. SQLite syncs in C, so it sleeps before each commit instead (not at its checkpoints).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from _bare import Bare, Count
from _bench import Bench, Row

from rolltape.journal import WriterConfig, open_writer
from rolltape.store import LocalStore

WRITERS = (1, 16, 256, 1024)
LINE_BYTES = 2048
TAIL_BYTES = len(b',"dur":10000000,"crc":"9ae0daaf"}\n')
"""What the journal adds to a record; `bare` writes as many bytes without computing them."""
SLOWER_S = 0.002


def bodies(count: int) -> list[bytes]:
    """Records as steps have them, without the closing brace: what the journal's writer takes."""
    random = Random(1)
    found: list[bytes] = []
    for number in range(count):
        record: dict[str, Any] = {"type": "done", "key": f"q{number}#0", "epoch": 1, "attempt": 1, "seq": 7}
        record |= {"path": "/3", "name": "call_model", "result": {"value": ""}}
        short = LINE_BYTES - TAIL_BYTES - len(msgspec.json.encode(record)) + 1
        record["result"]["value"] = random.randbytes(LINE_BYTES).hex()[:short]
        found.append(msgspec.json.encode(record)[:-1])
    return found


BODIES = bodies(max(WRITERS))
LINES = [body + b"}".rjust(TAIL_BYTES - 1) + b"\n" for body in BODIES]


# ---- with an event loop ----------------------------------------------------------------------------------------------


class Clock:
    """How long the tasks of one round go on, and what they did."""

    def __init__(self) -> None:
        self.going = True
        self.records = 0

    async def run(self, task: Callable[[int], Coroutine[Any, Any, None]], writers: int, seconds: float) -> Count:
        """Run so many tasks at once until the time is up."""
        asyncio.get_running_loop().call_later(seconds, self._stop)
        wall, processor = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(task, range(writers)))
        return Count(self.records, time.perf_counter() - wall, time.process_time() - processor)

    def _stop(self) -> None:
        self.going = False


def rolltape(folder: Path, writers: int, seconds: float, config: WriterConfig | None = None) -> Count:
    return asyncio.run(_rolltape(folder, writers, seconds, config))


async def _rolltape(folder: Path, writers: int, seconds: float, config: WriterConfig | None) -> Count:
    clock = Clock()
    writer = open_writer(LocalStore(folder / "run"), config)

    async def task(number: int) -> None:
        body = BODIES[number]
        while clock.going:
            await writer.port().room()
            await writer.put(body)
            clock.records += 1

    try:
        return await clock.run(task, writers, seconds)
    finally:
        await writer.aclose()


def bare(folder: Path, writers: int, seconds: float, *, sync: bool = True) -> Count:
    return asyncio.run(_bare(folder, writers, seconds, sync))


async def _bare(folder: Path, writers: int, seconds: float, sync: bool) -> Count:
    clock = Clock()
    journal = Bare(folder / "bare.jsonl", sync=sync)
    append = journal.append

    async def task(number: int) -> None:
        line = LINES[number]
        while clock.going:
            await append(line)
            clock.records += 1

    try:
        return await clock.run(task, writers, seconds)
    finally:
        journal.close()


# ---- without one -----------------------------------------------------------------------------------------------------


def one_by_one(append: Callable[[bytes], Any], seconds: float, *, records: int = 1) -> Count:
    """Call `append`, which acknowledges so many records at a time, until the time is up."""
    done = 0
    wall, processor = time.perf_counter(), time.process_time()
    deadline = wall + seconds
    while time.perf_counter() < deadline:
        append(LINES[done % len(LINES)])
        done += records
    return Count(done, time.perf_counter() - wall, time.process_time() - processor)


def write_and_sync(folder: Path, seconds: float) -> Count:
    fd = os.open(folder / "lines.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append(line: bytes) -> None:
        os.write(fd, line)
        os.fdatasync(fd)

    try:
        return one_by_one(append, seconds)
    finally:
        os.close(fd)


def jsonl_flush(folder: Path, seconds: float) -> Count:
    with open(folder / "lines.jsonl", "ab") as file:

        def append(line: bytes) -> None:
            file.write(line)
            file.flush()

        return one_by_one(append, seconds)


def sqlite(folder: Path, seconds: float, *, records: int, added_s: float) -> Count:
    connection = sqlite3.connect(folder / "lines.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE lines (id INTEGER PRIMARY KEY, line BLOB)")

    def append(line: bytes) -> None:
        connection.execute("BEGIN")
        for _ in range(records):
            connection.execute("INSERT INTO lines (line) VALUES (?)", (line,))
        if added_s:
            time.sleep(added_s)
        connection.execute("COMMIT")

    try:
        return one_by_one(append, seconds, records=records)
    finally:
        connection.close()


@contextmanager
def slower_flushes(added_s: float) -> Iterator[None]:
    """Make each fsync and fdatasync of this process take so much longer."""
    before = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def slowed(flush: Callable[[int], None]) -> Callable[[int], None]:
        def flush_slowly(fd: int) -> None:
            time.sleep(added_s)
            flush(fd)

        return flush_slowly

    for name, flush in before.items():
        setattr(os, name, slowed(flush) if added_s else flush)
    try:
        yield
    finally:
        for name, flush in before.items():
            setattr(os, name, flush)


# ---- what is compared ------------------------------------------------------------------------------------------------

Round = Callable[[Path], Count]

FSYNC_PER_RECORD = "write, fdatasync"


def measure(bench: Bench, title: str, added_s: float) -> dict[str, Row]:
    """Everybody on one disk."""
    seconds = 0.1 if bench.quick else 0.25
    contenders: dict[str, Round] = {}
    for writers in WRITERS:
        contenders[f"rolltape, {named(writers)}"] = partial(rolltape, writers=writers, seconds=seconds)
        contenders[f"bare, {named(writers)}"] = partial(bare, writers=writers, seconds=seconds)
    contenders[FSYNC_PER_RECORD] = partial(write_and_sync, seconds=seconds)
    contenders["SQLite, 1 a transaction"] = partial(sqlite, seconds=seconds, records=1, added_s=added_s)
    contenders["SQLite, 64 a transaction"] = partial(sqlite, seconds=seconds, records=64, added_s=added_s)
    contenders["JSONL, flush (not on disk)"] = partial(jsonl_flush, seconds=seconds)

    def per_second(run: Round) -> float:
        with bench.folder() as folder:
            return run(folder).per_second

    with slower_flushes(added_s):
        rounds = bench.rounds({name: partial(per_second, run) for name, run in contenders.items()}, count=15)
    rows: list[Row] = []
    for name in contenders:
        rivals = {"fsync per record": FSYNC_PER_RECORD}
        if name.startswith("rolltape"):
            rivals = {"bare": name.replace("rolltape", "bare")} | rivals
        rows.append(rounds.row(name, rivals))
    bench.table(title, "records/s", rows)
    return {row.name: row for row in rows}


def measure_processor(bench: Bench) -> float:
    """Processor time of the whole process, I/O thread included, when nothing is synced."""
    seconds = 0.1 if bench.quick else 0.25
    config = WriterConfig(durability="os", background_sync_s=1e9, segment_bytes_max=1 << 40)  # a seal would sync

    def processor_us(run: Round) -> float:
        with bench.folder() as folder:
            return run(folder).processor_us

    ours = partial(rolltape, writers=256, seconds=seconds, config=config)
    theirs = partial(bare, writers=256, seconds=seconds, sync=False)
    rounds = bench.rounds({"rolltape": partial(processor_us, ours), "bare": partial(processor_us, theirs)}, count=15)
    bench.table(
        "256 writers, nothing synced",
        "us of processor/record",
        [rounds.row("rolltape", {"bare": "bare"}), rounds.row("bare")],
    )
    return rounds.median("rolltape")


def named(writers: int) -> str:
    return f"{writers:,} writer{'s' if writers > 1 else ''}"


def main() -> None:
    with Bench(__doc__) as bench:
        here = measure(bench, "this disk", 0)
        slower = measure(bench, "2 ms more a flush", SLOWER_S)
        processor_us = measure_processor(bench)
        bench.note("\n256 writers:")
        name = "rolltape, 256 writers"
        bench.goal("of bare, on this disk", here[name].ratios["bare"], at_least=0.8)
        bench.goal("x fsync per record, at 2 ms more a flush", slower[name].ratios["fsync per record"], at_least=20)
        bench.goal("us of processor a record, nothing synced", processor_us, at_most=6)


if __name__ == "__main__":
    main()
