"""Reading a run: its trajectories by filter or key, their steps lazily, live if you like, from any process.

    run = rolltape.read("runs/gsm8k")
    for trajectory in run.trajectories(status="failed", sort="-steps"):
        print(trajectory.key, trajectory.error)
    for step in run["17#0"].steps():
        print(step.path, step.name, step.took_s, step.result)

Nothing here writes to the run but its index, which may be deleted at any time. A run that is being written is read as
it was at the last `refresh()`; what one call returns is never a half-written record.
"""

from __future__ import annotations

import difflib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Any, TypeVar

import msgspec

from rolltape import records
from rolltape.errors import DamagedError, UsageError
from rolltape.index import SORTS, Catalogue, Marked, Query, Row, Updater, is_damaged, lineage_of, places
from rolltape.journal import Damage, Line, Lineage, StoryValues, open_reader
from rolltape.journal.epochs import epochs, provably_gone, read_claim, read_run, same_machine
from rolltape.records import Point
from rolltape.store import LocalStore
from rolltape.trajectory.live import OF_FILES, Live
from rolltape.trajectory.recorded import ENDED, RecordedRecord, RecordedTrajectory, ValuesByKey

STATUSES = (*ENDED, "parked", "running", "interrupted", "unresolved")
"""`running`: without an outcome, and the process that works on it lives. `interrupted`: that process is gone.
`unresolved`: any without an outcome; shown where nobody here can tell whether the process lives."""

T = TypeVar("T")


class RecordedProcess(msgspec.Struct, frozen=True):
    """Who opened the run for writing, once."""

    epoch: int
    host: str
    pid: int
    started: float
    durability: str
    alive: bool | None
    """Whether the process runs and has the run open. None: it is, or was, on another machine."""


class RecordedRun:
    """A run, for reading only. Cheap to make; `rolltape.read` does."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._store = LocalStore(self.path)
        self._opening_damage: list[Damage] = []
        self._reader = open_reader(self._store, self._opening_damage.append)
        self.id = self._reader.run
        """32 hexadecimal digits, made when the run was."""
        self._places = places(self.path, self.id)
        self._fresh = self._emptied = False
        self._open_index()

    def __enter__(self) -> RecordedRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index. Nothing is lost without it."""
        self._catalogue.close()

    def __repr__(self) -> str:
        return f"<run {self.path}: {len(self)} trajectories>"

    # ---- the index ---------------------------------------------------------------------------------------------------

    def refresh(self, budget_s: float | None = None) -> bool:
        """Look at what was written since. Returns whether that was all: with `budget_s` it may take several calls."""
        while True:
            try:
                self._updater.update(budget_s)
                break
            except sqlite3.DatabaseError as error:
                self._open_another(error)
        self._fresh = True
        return self._updater.complete

    def rebuild_index(self, budget_s: float | None = None) -> bool:
        """Empty the index and build it again from the journal, as `refresh` does."""
        try:
            self._catalogue.rebuild()
        except sqlite3.DatabaseError as error:
            self._open_another(error)
        return self.refresh(budget_s)

    @property
    def indexed(self) -> float:
        """How much of the journal the last refresh has covered, 0 to 1."""
        self._ensure_fresh()
        updater = self._updater
        return 1.0 if updater.complete else updater.done_bytes / max(updater.all_bytes, 1)

    @property
    def journal_bytes(self) -> int:
        """How long the journal's segments are, compressed ones as if they were not; packs not included."""
        self._ensure_fresh()
        return self._updater.all_bytes

    @property
    def index_path(self) -> str:
        """Where the index lies."""
        return self._catalogue.path

    def _open_index(self) -> None:
        for path in self._places:
            try:
                return self._use(Catalogue(path, self._reader.run))
            except sqlite3.Error:
                if path == ":memory:":
                    raise

    def _open_another(self, error: sqlite3.DatabaseError) -> None:
        """Go on with another index: the same one built again if it is damaged, else one that lies elsewhere."""
        path = self.index_path
        if path == ":memory:" or isinstance(error, sqlite3.ProgrammingError):
            raise error
        self._catalogue.close()
        self._fresh = False
        if is_damaged(error) and not self._emptied:
            self._emptied = True
            try:
                return self._use(Catalogue(path, self._reader.run, emptied=True))
            except sqlite3.Error:
                pass  # then elsewhere
        self._open_index()

    def _use(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._updater = Updater(catalogue, self._reader)

    def _ask(self, ask: Callable[[Catalogue], T]) -> T:
        """Return what the index says: once it is up to date, and whole while it is asked."""
        while True:
            self._ensure_fresh()
            try:
                answer = ask(self._catalogue)
                if self._catalogue.made() == self._updater.made:
                    return answer
                self._fresh = False  # another reader has emptied it
            except sqlite3.DatabaseError as error:
                self._open_another(error)

    def _ensure_fresh(self) -> None:
        if not self._fresh:
            self.refresh()

    # ---- trajectories ------------------------------------------------------------------------------------------------

    def trajectories(
        self,
        *,
        status: str | tuple[str, ...] | None = None,
        task: str | None = None,
        text: str | None = None,
        sort: str = "started",
        limit: int | None = None,
        offset: int = 0,
    ) -> Iterator[RecordedTrajectory]:
        """Yield the trajectories that match: by status, by task, by a part of the key or of the error.

        `sort` is one of `rolltape.trajectory.read.SORTS`, with a minus for the other direction.
        """
        query = self._query(status=status, task=task, text=text, sort=sort, limit=limit, offset=offset)
        state_of = cache(self.state_of)  # one look at each process, however many trajectories it has
        for row in self._ask(lambda catalogue: list(catalogue.rows(query))):
            yield RecordedTrajectory(self, row, state_of)

    def count(
        self, *, status: str | tuple[str, ...] | None = None, task: str | None = None, text: str | None = None
    ) -> int:
        """Return how many trajectories match."""
        query = self._query(status=status, task=task, text=text)
        return self._ask(lambda catalogue: catalogue.count(query))

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[RecordedTrajectory]:
        return self.trajectories()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._row(key) is not None

    def __getitem__(self, key: str) -> RecordedTrajectory:
        """Return one trajectory by its key, `task#sample` or `task@visit#sample`."""
        row = self._row(key)
        if row is None:
            raise KeyError(f"no trajectory {key!r} in {self.path}{self._near(key)}")
        return RecordedTrajectory(self, row)

    def _row(self, key: str) -> Row | None:
        row = self._ask(lambda catalogue: catalogue.row(key))
        if row is None and not self._updater.complete:
            self.refresh()
            row = self._ask(lambda catalogue: catalogue.row(key))
        return row

    def _near(self, key: str) -> str:
        task = key.partition("#")[0]
        like = Query(text=task, limit=1000)
        keys = self._ask(lambda catalogue: [row.key for row in catalogue.rows(like)]) if task else []
        near = difflib.get_close_matches(key, keys, 3, 0) if keys else []
        return f": did you mean {' or '.join(near)}?" if near else ""

    def totals(self) -> list[dict[str, Any]]:
        """Sum the trajectories up by status: how many, their attempts, steps, bytes, rewards and times."""
        return self._ask(lambda catalogue: catalogue.totals(Query()))

    def _query(
        self,
        *,
        status: str | tuple[str, ...] | None,
        task: str | None,
        text: str | None,
        sort: str = "started",
        limit: int | None = None,
        offset: int = 0,
    ) -> Query:
        statuses = (status,) if isinstance(status, str) else status
        for name in statuses or ():
            if name not in STATUSES:
                raise UsageError(f"no status is {name!r}: use one of {', '.join(STATUSES)}")
        wanted: set[int] = set()
        if statuses and {"running", "interrupted"} & set(statuses):
            states = {epoch: self.state_of(epoch) for epoch in self._ask(Catalogue.unresolved_epochs)}
            wanted = {epoch for epoch, state in states.items() if state in statuses}
        if sort.removeprefix("-") not in SORTS:
            raise UsageError(
                f"nothing is sorted by {sort!r}: use one of {', '.join(sorted(SORTS))}, with a minus to turn it"
            )
        return Query(
            statuses=statuses,
            unresolved_of=tuple(sorted(wanted)),
            task=task,
            text=text,
            sort=sort.removeprefix("-"),
            descending=sort.startswith("-"),
            limit=-1 if limit is None else limit,
            offset=offset,
        )

    # ---- the run as a whole ------------------------------------------------------------------------------------------

    @cached_property
    def created(self) -> records.RunCreated | None:
        """The run's own record: when it was created, its first configuration. None: it is damaged."""
        try:
            return read_run(self._store)
        except DamagedError:
            return None

    @property
    def damage(self) -> list[Damage]:
        """What was met that is not as it was written. `rolltape verify` looks at everything."""
        return [*self._opening_damage, *self._ask(Catalogue.damage), *self._updater.damage]

    def processes(self) -> list[RecordedProcess]:
        """Return who opened the run for writing, in order."""
        return [found for epoch in epochs(self._store) if (found := self._process(epoch)) is not None]

    def _process(self, epoch: int) -> RecordedProcess | None:
        claim = self._claim(epoch)
        if claim is None:
            return None
        alive = None
        if provably_gone(claim) or self._is_closed(epoch):
            alive = False
        elif same_machine(claim):
            alive = True
        return RecordedProcess(epoch, claim.host, claim.pid, claim.unix_s, claim.durability, alive)

    def _is_closed(self, epoch: int) -> bool:
        try:
            return self._reader.is_closed(epoch)
        except OSError:
            return False

    def _claim(self, epoch: int) -> records.Claim | None:
        try:
            return read_claim(self._store, self.id, epoch)
        except (DamagedError, OSError):
            return None

    def state_of(self, epoch: int) -> str:
        """Say what an unresolved trajectory is whose newest attempt is of `epoch`: one of `STATUSES`."""
        process = self._process(epoch)
        if process is None or process.alive is None:
            return "unresolved"
        return "running" if process.alive else "interrupted"

    def records(self) -> Iterator[RecordedRecord]:
        """Yield every record of the run, epoch by epoch, in the order in which each was written."""
        values = ValuesByKey(self)
        for line in self._reader.scan(_not_shown):
            record = values.record(line)
            if record.type not in OF_FILES:
                yield record

    def follow(
        self, *, last: int = 10, poll_s: float = 0.2, on_wait: Callable[[], None] | None = None
    ) -> Iterator[RecordedRecord]:
        """Yield the last records, in the order of the times that they state, then each new one as it comes, for ever.

        Several processes' records come as each is met; within one they are in order. `on_wait` is called whenever
        there is nothing new; what it raises ends it.
        """
        values = ValuesByKey(self)
        live = Live(self._reader, self._updater.is_gone, last)
        lines = live.last()
        while True:
            for line in lines:
                record = values.record(line)
                if record.type not in OF_FILES:
                    yield record
            lines = live.new()
            if not lines:
                if on_wait is not None:
                    on_wait()
                time.sleep(poll_s)

    def last(self, number: int = 10) -> list[RecordedRecord]:
        """Return the last records of the run, in the order of the times that they state."""
        values = ValuesByKey(self)
        return [values.record(line) for line in Live(self._reader, self._updater.is_gone, number).last()]

    def lineage(self, key: str) -> Lineage[Marked]:
        """Return everything that was recorded of one trajectory, by place, for the reading rule to judge."""
        return lineage_of(key, self._ask(lambda _: self._updater.parts(key)))

    def story_values(self, fetch: Callable[[Point], Line | None]) -> StoryValues:
        """Return what decodes the values of one trajectory, whose lines `fetch` finds."""
        return StoryValues(self._reader, fetch)

    def line(self, marked: Marked) -> Line:
        """Read one line again. DamagedError: it is not as it was written."""
        return self._reader.line_at(*marked.place)


def _not_shown(damage: Damage) -> None:
    """`RecordedRun.damage` and `rolltape verify` tell it; what can be read is read all the same."""
