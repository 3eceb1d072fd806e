"""Reading a run: all of it, and one page or one trajectory of a hundred thousand.

All of it: every line, its checksum verified, beside a plain loop over the same files that verifies nothing.

scan              the journal's reader: each line with its place, checked against its checksum
scan, decoded     the same, each line decoded by msgspec
survey            which records count, for each trajectory: what resuming and the catalogue read
lines             `for line in file`, and nothing else
lines, msgspec    the same, each line decoded by msgspec, into dicts and lists
lines, json       the same, each line decoded by the standard library

Then 100,000 trajectories of 10 steps (with --full: of 100), 300 bytes a step, beside SQLite, LMDB and a JSONL file a
trajectory with the same records. Ours looks for what is new before each answer, and reads what it answers from with
checksums; SQLite and LMDB hold one row a record, and no index but the key.

Everything is in the page cache, so this is processor time. Memory is what a fresh process needs on top of what it had
before it began to read, at its peak.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import NoReturn

import msgspec
from _bench import Bench, Row, peak_rss_bytes, text
from _stores import PAGE, STORES, Shape, Store, key_of

import rolltape
from rolltape import records
from rolltape.journal import Reader, WriterConfig, open_writer, survey
from rolltape.journal import format as fmt
from rolltape.store import LocalStore

STEPS = 200
"""Records of each trajectory."""
SIDE_BY_SIDE = 64
"""Trajectories that write at the same time, so that each one's lines lie apart."""
RESULT_BYTES = 1850
"""So that a line is 2 KB."""


def make_run(folder: Path, count: int) -> None:
    """Write a run of so many records."""
    asyncio.run(_write(folder, count))


async def _write(folder: Path, count: int) -> None:
    writer = open_writer(LocalStore(folder), WriterConfig(durability="os"))
    port = writer.port()
    for body in _bodies(count, writer.epoch):
        if port.full:
            await port.room()
        written = writer.put(body)
    await written
    await writer.aclose()


def _bodies(count: int, epoch: int) -> Iterator[bytes]:
    results = [msgspec.Raw(msgspec.json.encode({"value": text(RESULT_BYTES, seed)})) for seed in range(97)]
    for first in range(0, count // STEPS, SIDE_BY_SIDE):
        trajectories = range(first, min(first + SIDE_BY_SIDE, count // STEPS))
        for seq in range(STEPS):
            for number in trajectories:
                record: records.Record
                if seq == 0:
                    record = records.Attempt(key=f"q{number}#0", epoch=epoch, attempt=1, seq=0, unix_s=time.time())
                else:
                    record = records.Done(
                        key=f"q{number}#0",
                        epoch=epoch,
                        attempt=1,
                        seq=seq,
                        path=f"/{seq}",
                        name="call_model",
                        kind="model",
                        fingerprint="9f86d081884c7d659a2feaa0c55ad015",
                        result=results[(number + seq) % len(results)],
                        unix_s=time.time(),
                    )
                yield fmt.encode_record(record)


# ---- ways to read it -------------------------------------------------------------------------------------------------


def scan(folder: Path) -> int:
    return sum(1 for _ in Reader(LocalStore(folder)).scan(fail))


def scan_decoded(folder: Path) -> int:
    decode = msgspec.json.decode
    return sum(1 for line in Reader(LocalStore(folder)).scan(fail) if decode(line.raw))


def survey_all(folder: Path) -> int:
    found = survey(Reader(LocalStore(folder)), fail)
    return sum(len(attempt.entries) for lineage in found.values() for attempt in lineage.attempts.values())


def lines(folder: Path) -> int:
    return sum(1 for path in segments(folder) for _ in open(path, "rb"))


def lines_decoded(folder: Path, decode: Callable[[bytes], object]) -> int:
    return sum(1 for path in segments(folder) for line in open(path, "rb") if decode(line))


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("journal/*/*.jsonl"))


def fail(damage: object) -> NoReturn:
    raise AssertionError(f"the run that was just written is damaged: {damage}")


# ---- what is compared ------------------------------------------------------------------------------------------------


def measure(bench: Bench, folder: Path) -> None:
    contenders: dict[str, Callable[[Path], int]] = {
        "scan": scan,
        "scan, decoded": scan_decoded,
        "survey": survey_all,
        "lines": lines,
        "lines, msgspec": partial(lines_decoded, decode=msgspec.json.decode),
        "lines, json": partial(lines_decoded, decode=json.loads),
    }
    size_mb = sum(path.stat().st_size for path in segments(folder)) / 1e6

    def per_second(read: Callable[[Path], int]) -> float:
        start = time.perf_counter()
        return read(folder) / (time.perf_counter() - start)

    rounds = bench.rounds({name: partial(per_second, read) for name, read in contenders.items()}, count=5)
    decoding = {"lines, msgspec": "lines, msgspec", "lines, json": "lines, json"}
    bench.table(
        "one process",
        "records/s",
        [
            rounds.row("scan", {"lines": "lines"}),
            rounds.row("scan, decoded", decoding),
            rounds.row("survey", decoding),
            *map(rounds.row, ("lines", "lines, msgspec", "lines, json")),
        ],
    )
    record_mb = size_mb / lines(folder)
    bench.table("one process", "MB/s", [Row(name, rounds.median(name) * record_mb, {}) for name in contenders])


def grown_mb(read: Callable[[Path], int], folder: Path) -> float:
    """In a child: how much more memory this process has had at once since it began to read."""
    before = peak_rss_bytes()
    read(folder)
    return (peak_rss_bytes() - before) / 1e6


def measure_memory(bench: Bench, runs: dict[int, Path]) -> None:
    rows: list[Row] = []
    for name, read in (("scan", scan), ("survey", survey_all)):
        for count, folder in runs.items():
            rows.append(Row(f"{name}, {count:,} records", bench.in_child(grown_mb, read, folder), {}))
    bench.table("memory that reading takes", "MB", rows)


# ---- many trajectories -----------------------------------------------------------------------------------------------


def milliseconds(question: Callable[[], object]) -> float:
    start = time.perf_counter()
    assert question()
    return (time.perf_counter() - start) * 1e3


def measure_many(bench: Bench, shape: Shape) -> None:
    """All stores side by side; with --full one at a time, since they are large."""
    groups = [[name] for name in STORES] if bench.full else [list(STORES)]
    for names in groups:
        with bench.folder() as folder:
            stores = {name: STORES[name](folder / name) for name in names}
            wrote_s = {name: milliseconds(partial(written, store, shape)) / 1e3 for name, store in stores.items()}
            if "rolltape" in stores:
                measure_index(bench, folder / "rolltape", shape)
            measure_questions(bench, stores, shape)
            sizes = {name: sum(f.stat().st_blocks * 512 for f in (folder / name).rglob("*")) / 1e6 for name in names}
            bench.table("on disk, index included", "MB", [Row(name, sizes[name], {}) for name in names])
            bench.table("written in", "s", [Row(name, wrote_s[name], {}) for name in names])


def written(store: Store, shape: Shape) -> bool:
    store.write(shape)
    return True


def measure_questions(bench: Bench, stores: Mapping[str, Store], shape: Shape) -> None:
    keys = [key_of(Random(number).randrange(shape.trajectories)) for number in range(100)]
    many = f"{shape.trajectories:,} trajectories of {shape.steps} steps"
    questions: dict[str, Callable[[Store], object]] = {
        "a page": lambda store: store.first_page(),
        "the failed, longest first": lambda store: store.failed_longest_first(),
        "one trajectory": lambda store: [store.trajectory(key) for key in keys],
    }
    for question, ask in questions.items():
        contenders = {name: partial(milliseconds, partial(ask, store)) for name, store in stores.items()}
        rounds = bench.rounds(contenders, count=5)
        each = len(keys) if question == "one trajectory" else 1
        rivals = {name: name for name in stores if name != "rolltape"}
        rows = [rounds.row(name, rivals if name == "rolltape" else None) for name in stores]
        bench.table(f"{many}: {question}", "ms", [row._replace(value=row.value / each) for row in rows])
        if "rolltape" in stores and question != "the failed, longest first":
            value = rounds.median("rolltape") / each
            bench.goal(f"ms for {question}", value, at_most=100 if question == "a page" else 10)


def measure_index(bench: Bench, folder: Path, shape: Shape) -> None:
    """In fresh processes: the first page of a run that nobody has indexed, then the rest, then a page."""
    count = shape.trajectories * (shape.steps + 3)
    first_s, share = bench.in_child(first_page_unindexed, folder)
    build_s, built_mb = bench.in_child(build_index, folder)
    page_s = bench.in_child(page_in_fresh_process, folder)
    size_mb = (folder / "index.sqlite").stat().st_size / 1e6
    journal_mb = sum(path.stat().st_size for path in segments(folder)) / 1e6
    bench.table(
        f"{count:,} records, in a fresh process",
        "",
        [
            Row("first page while the index is built, s", first_s, {}),
            Row("of the journal it covers", share, {}),
            Row("index built from nothing, s", build_s, {}),
            Row("index built, records/s", count / build_s, {}),
            Row("memory that building takes, MB", built_mb, {}),
            Row("index size, MB", size_mb, {}),
            Row("index size / journal", size_mb / journal_mb, {}),
            Row("opened and a page listed, ms", page_s * 1e3, {}),
        ],
    )
    bench.goal("s to the first page while the index is built", first_s, at_most=1.0)
    bench.goal("ms to open and list a page", page_s * 1e3, at_most=100)


def first_page_unindexed(folder: Path) -> tuple[float, float]:
    start = time.perf_counter()
    with rolltape.read(folder) as run:
        run.refresh(budget_s=0.6)
        assert len(list(run.trajectories(limit=PAGE))) == PAGE
        return time.perf_counter() - start, run.indexed


def build_index(folder: Path) -> tuple[float, float]:
    before, start = peak_rss_bytes(), time.perf_counter()
    with rolltape.read(folder) as run:
        run.rebuild_index()
        return time.perf_counter() - start, (peak_rss_bytes() - before) / 1e6


def page_in_fresh_process(folder: Path) -> float:
    start = time.perf_counter()
    with rolltape.read(folder) as run:
        assert len(list(run.trajectories(limit=PAGE))) == PAGE
        return time.perf_counter() - start


def main() -> None:
    with Bench(__doc__, full="10 million steps, and one store at a time") as bench:
        measure_scan(bench)
        measure_many(bench, Shape(100_000, 100) if bench.full else Shape(10_000 if bench.quick else 100_000, 10))


def measure_scan(bench: Bench) -> None:
    with bench.folder() as short, bench.folder() as long:
        count = 20_000 if bench.quick else 200_000
        make_run(short, count)
        make_run(long, 4 * count)
        measure(bench, short)
        measure_memory(bench, {count: short, 4 * count: long})


if __name__ == "__main__":
    main()
