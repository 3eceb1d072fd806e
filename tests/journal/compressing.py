"""A run with sealed and open segments to compress, and all that a reader can say of it."""

from __future__ import annotations

import asyncio
import functools
from typing import NamedTuple

import pytest

from rolltape.journal import AttemptLog, Damage, Reader, WriterConfig, open_writer, story_of
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk
from tests.journal.runs import Found, close, read, step

ROOT = "/run"
SEALED = [f"journal/{epoch:08d}/{segment:08d}.jsonl" for epoch, segment in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]]
OPEN = "journal/00000002/00000003.jsonl"


@functools.cache
def tree() -> dict[str, bytes]:
    """Two trajectories in two epochs: one closed, one killed, which left a torn line."""
    disk = CrashDisk()
    asyncio.run(_write(disk))
    files = {path.removeprefix(f"{ROOT}/"): data for path, data in disk.tree().items()}
    files[OPEN] += b'{"type":"done","ke'
    return files


async def _write(disk: CrashDisk) -> None:
    writer = open_writer(LocalStore(ROOT, fs=disk), WriterConfig(segment_bytes_max=480))
    a, b = AttemptLog(writer, "a#0", 1), AttemptLog(writer, "b#0", 1)
    await a.begin(None)
    await b.begin(None)
    await asyncio.gather(step(a, "0", "a0"), step(b, "0", "b0"))
    await step(a, "1", b"tensors, or a screenshot")
    await asyncio.gather(step(a, "2", "a2"), step(b, "1", "b1"))
    await step(b, "2", "b2")
    close(writer)
    process = disk.process()
    writer = open_writer(LocalStore(ROOT, fs=process), WriterConfig(segment_bytes_max=480))
    a = AttemptLog(writer, "a#0", 2)
    await a.begin((1, 1, 3))
    await step(a, "3", "a3" * 60)
    await step(a, "4", b"another screenshot")
    await step(a, "5", "a5")
    process.kill()
    close(writer)


def new_disk(**changed: bytes) -> CrashDisk:
    """A disk with that run, all of it durable."""
    disk = CrashDisk()
    for name, data in {**tree(), **changed}.items():
        disk.write_file(f"{ROOT}/{name}", data)
    return disk


def on(disk: CrashDisk) -> LocalStore:
    return LocalStore(ROOT, fs=disk)


def no_damage(damage: Damage) -> None:
    pytest.fail(f"reported as damage: {damage}")


class Said(NamedTuple):
    """What a run says, in every way in which it can be asked."""

    lines: list[tuple[int, int, int, bytes]]
    found: Found
    stories: dict[str, list[bytes]]


def said(store: LocalStore) -> Said:
    reader = Reader(store)
    found = read(store)
    assert found.damage == []
    stories = {key: [entry.place.raw for entry in story_of(reader, key, no_damage).entries] for key in ("a#0", "b#0")}
    return Said([tuple(line) for line in reader.scan(no_damage)], found, stories)


@functools.cache
def said_before() -> Said:
    """What it says while nothing is compressed."""
    return said(on(new_disk()))


def names(disk: CrashDisk) -> set[str]:
    return {path.removeprefix(f"{ROOT}/") for path in disk.tree()}
