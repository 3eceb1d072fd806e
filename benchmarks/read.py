"""Reading a run: every line, its checksum verified, beside a plain loop over the same files that verifies nothing.

scan              the journal's reader: each line with its place, checked against its checksum
scan, decoded     the same, each line decoded by msgspec
survey            which records count, for each trajectory: what resuming and the catalogue read
lines             `for line in file`, and nothing else
lines, msgspec    the same, each line decoded by msgspec, into dicts and lists
lines, json       the same, each line decoded by the standard library

Everything is in the page cache, so this is processor time. Memory is what a fresh process needs on top of what it had
before it began to read, at its peak, for a run and for one four times as long.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
from _bench import Bench, Row, peak_rss_bytes, text

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


def main() -> None:
    with Bench(__doc__) as bench, bench.folder() as short, bench.folder() as long:
        count = 20_000 if bench.quick else 200_000
        make_run(short, count)
        make_run(long, 4 * count)
        measure(bench, short)
        measure_memory(bench, {count: short, 4 * count: long})


if __name__ == "__main__":
    main()
