"""One run of many trajectories, as a Rolltape run, in SQLite, in LMDB, and in a JSONL file a trajectory.

Each store holds the same records: an attempt, its steps, an outcome, its acceptance. Each can be asked for the first
page of trajectories, for a page by filter and order, and for one trajectory, decoded.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import lmdb
import msgspec
from _bench import text

import rolltape
from rolltape import records
from rolltape.journal import WriterConfig, open_writer
from rolltape.journal import format as fmt
from rolltape.store import LocalStore

SIDE_BY_SIDE = 256
"""Trajectories that write at the same time, so that each one's records lie apart."""
PAGE = 50
RESULT_BYTES = 80
"""So that a step's line is 300 bytes."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


class Shape(NamedTuple):
    """How much of everything there is."""

    trajectories: int
    steps: int


class Listed(NamedTuple):
    """What a list shows of a trajectory."""

    key: str
    status: str
    steps: int


class Store(Protocol):
    """What is compared."""

    def write(self, shape: Shape) -> None: ...
    def first_page(self) -> list[Listed]: ...
    def failed_longest_first(self) -> list[Listed]: ...
    def trajectory(self, key: str) -> list[Any]:
        """The steps' results, decoded."""


def key_of(number: int) -> str:
    return f"task-{number // 4:07d}#{number % 4}"


def all_records(shape: Shape, epoch: int = 1) -> Iterator[tuple[str, int, bytes]]:
    """Key, place in the trajectory, and the record as JSON without its last brace, as the journal takes it."""
    results = [msgspec.Raw(_encode({"value": text(RESULT_BYTES, seed)})) for seed in range(97)]
    for first in range(0, shape.trajectories, SIDE_BY_SIDE):
        last = min(first + SIDE_BY_SIDE, shape.trajectories)
        for seq in range(shape.steps + 3):
            for number in range(first, last):
                key = key_of(number)
                record = _record(shape, number, seq, key, epoch, results)
                yield key, seq, fmt.encode_record(record)


def _record(shape: Shape, number: int, seq: int, key: str, epoch: int, results: list[msgspec.Raw]) -> records.Record:
    place = {"key": key, "epoch": epoch, "attempt": 1, "seq": seq}
    if seq == 0:
        return records.Attempt(**place, task=key[:-2], sample=number % 4, unix_s=time.time())
    if seq <= shape.steps:
        return records.Done(
            **place,
            path=f"/{seq}",
            name="call_model",
            kind="model",
            fingerprint="9f86d081884c7d659a2feaa0c55ad015",
            result=results[(number + seq) % len(results)],
            unix_s=time.time(),
            took_s=0.5,
        )
    if seq == shape.steps + 1:
        status: Any = "failed" if number % 10 == 0 else "completed"
        return records.Outcome(**place, status=status, reward=number % 7 / 7, unix_s=time.time())
    return records.Accepted(**place, unix_s=time.time())


# ---- ours ------------------------------------------------------------------------------------------------------------


class Run:
    """A Rolltape run, read with its index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: rolltape.trajectory.read.RecordedRun | None = None

    def write(self, shape: Shape) -> None:
        asyncio.run(self._write(shape))

    async def _write(self, shape: Shape) -> None:
        writer = open_writer(LocalStore(self.folder), WriterConfig(durability="os"))
        port = writer.port()
        for _, _, body in all_records(shape, writer.epoch):
            if port.full:
                await port.room()
            written = writer.put(body)
        await written
        await writer.aclose()

    def run(self) -> Any:
        """Opened once. Each question looks for what is new first, as a command would."""
        self.opened = self.opened or rolltape.read(self.folder)
        self.opened.refresh()
        return self.opened

    def first_page(self) -> list[Listed]:
        return [Listed(t.key, t.status, t.n_steps) for t in self.run().trajectories(limit=PAGE)]

    def failed_longest_first(self) -> list[Listed]:
        found = self.run().trajectories(status="failed", sort="-steps", limit=PAGE)
        return [Listed(t.key, t.status, t.n_steps) for t in found]

    def trajectory(self, key: str) -> list[Any]:
        return [step.result for step in self.run()[key].steps()]


# ---- the others ------------------------------------------------------------------------------------------------------


class SQLite:
    """A table of records by key and place. What it knows of a trajectory is what the records say."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.db = sqlite3.connect(folder / "records.sqlite", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=NORMAL")
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS record (key TEXT, seq INTEGER, body BLOB, PRIMARY KEY (key, seq)) WITHOUT ROWID"
        )

    def write(self, shape: Shape) -> None:
        self.db.execute("BEGIN")
        self.db.executemany("INSERT INTO record VALUES (?, ?, ?)", ((k, s, b + b"}") for k, s, b in all_records(shape)))
        self.db.execute("COMMIT")

    def first_page(self) -> list[Listed]:
        keys = self.db.execute("SELECT key FROM record WHERE seq = 0 ORDER BY key LIMIT ?", (PAGE,))
        return [self._listed(key) for (key,) in keys.fetchall()]

    def _listed(self, key: str) -> Listed:
        return _listed(key, [body for (body,) in self.db.execute(_OF_KEY, (key,))])

    def failed_longest_first(self) -> list[Listed]:
        rows = self.db.execute(
            "SELECT key, max(seq) - 2 FROM record GROUP BY key "
            "HAVING max(json_extract(CAST(body AS TEXT), '$.status')) = 'failed' ORDER BY 2 DESC LIMIT ?",
            (PAGE,),
        )
        return [Listed(key, "failed", steps) for key, steps in rows]

    def trajectory(self, key: str) -> list[Any]:
        return _results(body for (body,) in self.db.execute(_OF_KEY, (key,)))


_OF_KEY = "SELECT body FROM record WHERE key = ? ORDER BY seq"


class LMDB:
    """Records by key and place."""

    def __init__(self, folder: Path) -> None:
        self.env = lmdb.open(str(folder), map_size=1 << 36, sync=False)

    def write(self, shape: Shape) -> None:
        found = iter(all_records(shape))
        while chunk := [record for _, record in zip(range(100_000), found, strict=False)]:
            with self.env.begin(write=True) as transaction:
                for key, seq, body in chunk:
                    transaction.put(b"%b/%08d" % (key.encode(), seq), body + b"}")
        self.env.sync(True)

    def first_page(self) -> list[Listed]:
        found: list[Listed] = []
        with self.env.begin() as transaction:
            for key, bodies in _grouped(transaction.cursor()):
                found.append(_listed(key, bodies))
                if len(found) == PAGE:
                    break
        return found

    def failed_longest_first(self) -> list[Listed]:
        with self.env.begin() as transaction:
            listed = [_listed(key, bodies) for key, bodies in _grouped(transaction.cursor())]
        return _failed_longest_first(listed)

    def trajectory(self, key: str) -> list[Any]:
        prefix = key.encode() + b"/"
        bodies: list[bytes] = []
        with self.env.begin() as transaction:
            cursor = transaction.cursor()
            cursor.set_range(prefix)
            for name, body in cursor:
                if not name.startswith(prefix):
                    break
                bodies.append(body)
        return _results(bodies)


def _grouped(cursor: Any) -> Iterator[tuple[str, list[bytes]]]:
    key, bodies = b"", list[bytes]()
    for name, body in cursor:
        mine = name[:-9]
        if mine != key and bodies:
            yield key.decode(), bodies
            bodies = []
        key = mine
        bodies.append(body)
    if bodies:
        yield key.decode(), bodies


class Files:
    """A JSONL file a trajectory, as most frameworks keep them; a thousand to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, key: str) -> Path:
        return self.folder / key[:9] / f"{key}.jsonl"

    def write(self, shape: Shape) -> None:
        lines: dict[str, list[bytes]] = {}
        for key, seq, body in all_records(shape):
            lines.setdefault(key, []).append(body + b"}\n")
            if seq == shape.steps + 2:
                path = self._path(key)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"".join(lines.pop(key)))

    def first_page(self) -> list[Listed]:
        found: list[Listed] = []
        for folder in sorted(os.listdir(self.folder)):
            for name in sorted(os.listdir(self.folder / folder)):
                found.append(self._listed(folder, name))
                if len(found) == PAGE:
                    return found
        return found

    def _listed(self, folder: str, name: str) -> Listed:
        return _listed(name.removesuffix(".jsonl"), (self.folder / folder / name).read_bytes().splitlines())

    def failed_longest_first(self) -> list[Listed]:
        folders = os.listdir(self.folder)
        return _failed_longest_first([self._listed(f, name) for f in folders for name in os.listdir(self.folder / f)])

    def trajectory(self, key: str) -> list[Any]:
        return _results(self._path(key).read_bytes().splitlines())


class _Glance(msgspec.Struct):
    type: str
    status: str = ""


_glance = msgspec.json.Decoder(_Glance)


def _listed(key: str, bodies: list[bytes]) -> Listed:
    glances = [_glance.decode(body) for body in bodies]
    status = next((glance.status for glance in glances if glance.type == "outcome"), "unresolved")
    return Listed(key, status, sum(glance.type == "done" for glance in glances))


def _failed_longest_first(listed: list[Listed]) -> list[Listed]:
    return sorted((one for one in listed if one.status == "failed"), key=lambda one: (-one.steps, one.key))[:PAGE]


def _results(bodies: Any) -> list[Any]:
    return [tree["result"]["value"] for body in bodies if (tree := _decode(body))["type"] == "done"]


STORES: dict[str, type[Run] | type[SQLite] | type[LMDB] | type[Files]] = {
    "rolltape": Run,
    "SQLite": SQLite,
    "LMDB": LMDB,
    "a JSONL file a trajectory": Files,
}
