"""Steps with made-up values to put into a journal, and what a reader makes of one."""

from __future__ import annotations

import threading
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from rolltape import records
from rolltape.errors import DamagedError
from rolltape.journal import (
    AttemptLog,
    Damage,
    Line,
    Place,
    Reader,
    Story,
    Writer,
    open_reader,
    survey,
    verify_claims,
)
from rolltape.records import Point
from rolltape.store import Store

HANG_S = 20.0
"""Whatever takes longer hangs. Nothing is timed by it."""


class Found(NamedTuple):
    """What a run says."""

    stories: dict[str, Story[Place]]
    values: dict[tuple[str, Point], Any]
    """What each step that counts returned, by key and place."""
    damage: list[Damage]


async def step(log: AttemptLog, path: str, value: str | bytes) -> None:
    """Record that the step at `path` returned `value`. Bytes go to the pack."""
    if isinstance(value, bytes):
        digest = blake2b(value, digest_size=16).hexdigest()
        named = msgspec.json.encode({"value": {"$pack": digest, "bytes": len(value)}})
        await log.append(records.Done, path=path, blobs={digest: value}, result=msgspec.Raw(named))
    else:
        await log.append(records.Done, path=path, result=msgspec.Raw(msgspec.json.encode({"value": value})))


def value_of(reader: Reader, line: Line) -> Any:
    """Return what the step of a `done` line returned."""
    value = msgspec.json.decode(line.decode(records.Done).result)["value"]
    return reader.value(line, value["$pack"]) if isinstance(value, dict) else value


def read(store: Store) -> Found:
    """Read a run as `torture-read` does: every step that counts, through its line and its value, and every damage."""
    damage: list[Damage] = []
    reader = open_reader(store, damage.append)
    verify_claims(reader, damage.append)
    stories = {key: lineage.story() for key, lineage in survey(reader, damage.append).items()}
    values: dict[tuple[str, Point], Any] = {}
    for key, story in stories.items():
        damage += [Damage("journal", 0, 0, f"{key}: {gap}") for gap in story.gaps]
        for entry in story.entries:
            if entry.envelope.type == "done":
                try:
                    values[key, entry.point] = value_of(reader, reader.line_at(*entry.place))
                except DamagedError as error:
                    damage.append(Damage("journal", 0, 0, f"{key}: {error}"))
    return Found(stories, values, damage)


def close(writer: Writer) -> None:
    """Close a writer that nobody waits for, and fail where that hangs."""
    closing = threading.Thread(target=writer.close, daemon=True)
    closing.start()
    closing.join(HANG_S)
    assert not closing.is_alive(), "the writer can't be closed"
