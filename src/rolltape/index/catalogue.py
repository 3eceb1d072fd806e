"""The tables of `index.sqlite`: trajectories' rows, where their records lie, and how far the journal was read.

Nothing here reads the journal (`index/update.py` does), and nothing in a file of ours is believed that does not fit:
one of another version or another run, or one that SQLite calls damaged, is emptied and built again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from rolltape.errors import UsageError
from rolltape.index.marks import Mark, SegmentId, pack, unpack
from rolltape.index.rows import Row
from rolltape.journal import Damage

VERSION = 2
"""Of these tables and of everything packed in them. Another one is built again."""

QUIET_S = 60.0
"""A segment that has not grown for so long is synced and settled, whether or not its writer lives."""

BUSY_S = 30.0
"""How long to wait for another reader's slice. One takes a fraction of a second."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

_ROW_COLUMNS = Row.__struct_fields__

_SCHEMA = """
CREATE TABLE about (run TEXT NOT NULL);
CREATE TABLE cursor (
    epoch INTEGER, segment INTEGER, position INTEGER NOT NULL, finished INTEGER NOT NULL,
    settled INTEGER NOT NULL, size INTEGER NOT NULL, grown_s REAL NOT NULL, PRIMARY KEY (epoch, segment)
) WITHOUT ROWID;
CREATE TABLE damage (file TEXT, start INTEGER, end INTEGER, reason TEXT, PRIMARY KEY (file, start, end, reason))
    WITHOUT ROWID;
CREATE TABLE part (key TEXT, epoch INTEGER, segment INTEGER, marks BLOB NOT NULL, PRIMARY KEY (key, epoch, segment));
"""

_TRAJECTORY = """
CREATE {temp} TABLE {name} (
    key TEXT PRIMARY KEY, task TEXT NOT NULL, visit INTEGER NOT NULL, sample INTEGER NOT NULL, status TEXT NOT NULL,
    cause TEXT, reward REAL, attempts INTEGER NOT NULL, steps INTEGER NOT NULL, epoch INTEGER NOT NULL, started REAL,
    ended REAL, bytes INTEGER NOT NULL, policies TEXT NOT NULL, error TEXT NOT NULL, damage TEXT NOT NULL
) WITHOUT ROWID
"""

SORTS = {
    "started": "started",
    "ended": "ended",
    "key": "key",
    "task": "task",
    "status": "status",
    "reward": "reward",
    "attempts": "attempts",
    "steps": "steps",
    "duration": "ended - started",
    "bytes": "bytes",
}
"""What a list can be sorted by, and how SQL says it."""


class Cursor(NamedTuple):
    """How far a segment is indexed."""

    position: int = 0
    finished: bool = False
    """Nothing more will come, and everything that counts is indexed."""
    settled: bool = False
    """Everything that is sound is indexed as long as the file is not longer than `size`."""
    size: int = -1
    """The file's length when it was last looked at, and since when (wall time) it has been that."""
    grown_s: float = 0.0

    def covers(self, size: int, is_newest: bool) -> bool:
        """Say whether there is nothing new in a file of this size. One that is not the newest has a last word coming:
        how much of it counts, which its successor states."""
        return self.finished or (self.settled and self.size == size and is_newest)

    def is_quiet(self, size: int) -> bool:
        """Say whether the file has not grown for a while."""
        return self.size == size and time.time() - self.grown_s > QUIET_S


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which trajectories, in which order."""

    statuses: tuple[str, ...] | None = None
    task: str | None = None
    text: str | None = None
    """A part of the key or of the error."""
    unresolved_of: tuple[int, ...] = ()
    """Besides `statuses`: those that are unresolved, and whose newest attempt is of one of these epochs."""
    damaged: bool = False
    sort: str = "started"
    descending: bool = False
    limit: int = -1
    offset: int = 0


class Catalogue:
    """One connection to an index, for one thread."""

    def __init__(self, path: str, run: str, *, emptied: bool = False) -> None:
        """`emptied`: it was found damaged, and is to be built again."""
        self.path = path
        self._run = run
        if emptied:
            self._empty_damaged()
        self._open()
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            self._db.close()
            if not is_damaged(error):
                raise
            self._empty_damaged()
            self._open()
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        self._db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)

    def close(self) -> None:
        self._db.close()

    def __del__(self) -> None:
        # A run that is only read needs no `with`; newer Pythons warn of connections that nobody closed.
        if hasattr(self, "_db"):
            self._db.close()

    def _prepare(self) -> None:
        self._use_log()
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA temp_store=MEMORY")
        self._db.execute("PRAGMA cache_size=-32768")
        if not self._is_ours():
            with self.writing():
                if not self._is_ours():  # else another reader was quicker, and has begun to fill it
                    self._rebuild()
        self._db.execute(_TRAJECTORY.format(temp="TEMP", name="tail"))

    def _use_log(self) -> None:
        """Write ahead. Of several that are the first to say so, SQLite refuses all but one at once, without waiting."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _is_ours(self) -> bool:
        if self._db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            return False
        return [run for (run,) in self._db.execute("SELECT run FROM about")] == [self._run]

    def _empty_damaged(self) -> None:
        """Make it a database without tables: in place, under SQLite's locks, for somebody may still have it open."""
        with closing(sqlite3.connect(":memory:")) as empty, closing(sqlite3.connect(self.path)) as damaged:
            empty.execute("PRAGMA user_version=0")
            try:
                empty.backup(damaged)
                return
            except sqlite3.DatabaseError as error:
                if not is_damaged(error):
                    raise
        for suffix in ("", "-wal", "-shm"):  # not even its first page is one, so nobody reads it
            with suppress(FileNotFoundError):
                os.unlink(self.path + suffix)

    def rebuild(self) -> None:
        """Empty it, in one transaction: other readers see all of the old or none of it."""
        with self.writing():
            self._rebuild()

    def _rebuild(self) -> None:
        names = self._db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            self._db.execute(f'DROP TABLE main."{name}"')
        for statement in _SCHEMA.split(";\n"):
            self._db.execute(statement)
        self._db.execute(_TRAJECTORY.format(temp="", name="trajectory"))
        self._db.execute("CREATE INDEX by_start ON trajectory (started, key)")
        self._db.execute("INSERT INTO about VALUES (?)", (self._run,))
        self._db.execute(f"PRAGMA user_version={VERSION}")

    def made(self) -> int:
        """Return a number that changes when it is built again, by whomever."""
        if not self._is_ours():
            raise sqlite3.DatabaseError(f"{self.path} was taken over by another version")
        number: int = self._db.execute("PRAGMA main.schema_version").fetchone()[0]
        return number

    # ---- writing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction: all of it, or none of it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a full disk, say, has undone it already
                self._db.execute("ROLLBACK")
            raise

    def others_wrote(self) -> int:
        """Return a number that changes when another connection has written."""
        version: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return version

    def put_part(self, key: str, id: SegmentId, marks: Iterable[Mark]) -> None:
        """Store all marks of one trajectory in one segment."""
        self._db.execute("INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?)", (key, *id, pack(marks)))

    def put_rows(self, rows: Iterable[Row]) -> None:
        self._put_rows("main.trajectory", rows)

    def _put_rows(self, table: str, rows: Iterable[Row]) -> None:
        marks = ", ".join("?" * len(_ROW_COLUMNS))
        insert = f"INSERT OR REPLACE INTO {table} ({', '.join(_ROW_COLUMNS)}) VALUES ({marks})"
        self._db.executemany(insert, map(_to_sql, rows))

    def add_damage(self, found: Iterable[Damage]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO damage VALUES (?, ?, ?, ?)", map(msgspec.structs.astuple, found))

    def put_cursor(self, id: SegmentId, cursor: Cursor) -> None:
        self._db.execute("INSERT OR REPLACE INTO cursor VALUES (?, ?, ?, ?, ?, ?, ?)", (*id, *cursor))

    def lay_over(self, rows: Iterable[Row]) -> None:
        """Let these rows stand in place of the stored ones, for this connection."""
        self._db.execute("DELETE FROM temp.tail")
        self._put_rows("temp.tail", rows)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def cursors(self) -> dict[SegmentId, Cursor]:
        rows = self._db.execute("SELECT epoch, segment, position, finished, settled, size, grown_s FROM cursor")
        return {
            (epoch, segment): Cursor(position, bool(finished), bool(settled), size, grown_s)
            for epoch, segment, position, finished, settled, size, grown_s in rows
        }

    def damage(self) -> list[Damage]:
        return [Damage(*row) for row in self._db.execute("SELECT file, start, end, reason FROM damage")]

    def parts(self, key: str) -> dict[SegmentId, list[Mark]]:
        """Return the marks of one trajectory, by segment. None known: empty."""
        rows = self._db.execute("SELECT epoch, segment, marks FROM part WHERE key = ?", (key,))
        try:
            return {(epoch, segment): unpack(marks) for epoch, segment, marks in rows}
        except (msgspec.DecodeError, LookupError) as error:
            damaged = sqlite3.DatabaseError(f"what {self.path} says of {key!r} is not as it was written: {error}")
            damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damaged from error

    def rows(self, query: Query) -> Iterator[Row]:
        """Yield the rows that `query` asks for."""
        where, values = _where(query)
        if query.sort not in SORTS:
            raise UsageError(f"nothing is sorted by {query.sort!r}: use one of {', '.join(sorted(SORTS))}")
        way = "DESC" if query.descending else "ASC"
        sql = f"""
            SELECT * FROM ({self._all()}) WHERE {where}
            ORDER BY {SORTS[query.sort]} {way} NULLS LAST, key {way} LIMIT ? OFFSET ?
        """
        for row in self._db.execute(sql, (*values, query.limit, query.offset)):
            yield _from_sql(row)

    def row(self, key: str) -> Row | None:
        if not _can_be_recorded(key):
            return None
        for table in ("temp.tail", "main.trajectory"):
            sql = f"SELECT {', '.join(_ROW_COLUMNS)} FROM {table} WHERE key = ?"
            if (row := self._db.execute(sql, (key,)).fetchone()) is not None:
                return _from_sql(row)
        return None

    def count(self, query: Query) -> int:
        """Return how many trajectories `query` asks for, its page aside."""
        where, values = _where(query)
        number: int = self._db.execute(f"SELECT count(*) FROM ({self._all()}) WHERE {where}", values).fetchone()[0]
        return number

    def unresolved_epochs(self) -> list[int]:
        """Return the epochs of the newest attempts at what is unresolved."""
        return [e for (e,) in self._db.execute(f"SELECT DISTINCT epoch FROM ({self._all()}) WHERE status='unresolved'")]

    def totals(self, query: Query) -> list[dict[str, Any]]:
        """Sum up what `query` asks for, by status."""
        where, values = _where(query)
        sums = "count(*), sum(attempts), sum(steps), sum(bytes), count(reward), sum(reward), min(started), max(ended)"
        names = ["status", "trajectories", "attempts", "steps", "bytes", "rewards", "reward_sum", "started", "ended"]
        sql = f"SELECT status, {sums} FROM ({self._all()}) WHERE {where} GROUP BY status"
        return [dict(zip(names, row, strict=True)) for row in self._db.execute(sql, values)]

    def _all(self) -> str:
        columns = ", ".join(_ROW_COLUMNS)
        if self._db.execute("SELECT 1 FROM temp.tail LIMIT 1").fetchone() is None:
            return f"SELECT {columns} FROM main.trajectory"
        return (
            f"SELECT {columns} FROM main.trajectory WHERE key NOT IN (SELECT key FROM temp.tail) "
            f"UNION ALL SELECT {columns} FROM temp.tail"
        )


def is_damaged(error: sqlite3.Error) -> bool:
    """Say whether the file is at fault, and not the moment, the disk or the call."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _where(query: Query) -> tuple[str, list[Any]]:
    terms, values = ["1"], list[Any]()
    if query.statuses is not None:
        epochs = ", ".join(map(str, query.unresolved_of))
        marks = ", ".join("?" * len(query.statuses))
        terms.append(f"(status IN ({marks}) OR (status = 'unresolved' AND epoch IN ({epochs})))")
        values += query.statuses
    if query.task is not None:
        terms.append("task = ?")
        values.append(query.task)
    if query.text is not None:
        terms.append("(instr(key, ?) OR instr(error, ?))")
        values += (query.text, query.text)
    if query.damaged:
        terms.append("damage != ''")
    if not all(map(_can_be_recorded, (query.task or "", query.text or ""))):
        return "0", []
    return " AND ".join(terms), values


def _can_be_recorded(text: str) -> bool:
    """Say whether a key can be this. What came from outside may hold lone surrogates, and JSON in UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _to_sql(row: Row) -> Sequence[Any]:
    values = list(msgspec.structs.astuple(row))
    values[_POLICIES] = msgspec.json.encode(values[_POLICIES]).decode()
    return values


def _from_sql(values: Sequence[Any]) -> Row:
    policies = [(lineage, version) for lineage, version in msgspec.json.decode(values[_POLICIES])]
    return Row(**dict(zip(_ROW_COLUMNS, (*values[:_POLICIES], policies, *values[_POLICIES + 1 :]), strict=True)))


_POLICIES = _ROW_COLUMNS.index("policies")
