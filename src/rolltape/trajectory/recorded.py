"""One trajectory, attempt, step and record, as recorded. Values are read and decoded when they are asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from rolltape import records
from rolltape.errors import DamagedError
from rolltape.index import STEPS, Marked, Row
from rolltape.journal import Line, Lineage, Story, StoryValues
from rolltape.records import Point
from rolltape.values import Redactor, encode

if TYPE_CHECKING:
    from rolltape.trajectory.read import RecordedRun

ENDED = ("completed", "failed", "aborted", "cancelled")
"""The statuses of a trajectory that has an accepted outcome."""

_KEPT_MAX = 256
"""So many trajectories' places are kept while a whole run is read."""

_KINDS: dict[str, type[records.Record]] = {str(kind.__struct_config__.tag): kind for kind in records.ALL}
_NO_REDACTION = Redactor(names=frozenset())
_LINES_OWN = ("pack", "dur", "crc")
"""What the journal added to a record: about the line, not about what happened."""


class _Head(msgspec.Struct):
    type: str
    key: str = ""
    epoch: int = 0
    attempt: int = 0
    seq: int = -1
    unix_s: float = 0.0


class RecordedRecord:
    """One line of the journal. Its values are decoded when they are asked for, references put back in place."""

    def __init__(self, line: Line, values: Callable[[], StoryValues], *, stale: bool = False) -> None:
        head = line.decode(_Head)
        self.type = head.type
        self.key = head.key
        """Of its trajectory; "" for what belongs to the run."""
        self.point: Point = (head.epoch or line.epoch, head.attempt, head.seq)
        self.unix_s = head.unix_s
        self.bytes = len(line.raw)
        self.stale = stale
        """A newer attempt does not continue from it: it is shown, and never believed."""
        self._line = line
        self._values = values

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type} {self.key} {self.point}{' stale' if self.stale else ''}>"

    @cached_property
    def record(self) -> records.Record | None:
        """The record as `rolltape.records` has it, its values not decoded. None: a type that a newer version added."""
        kind = _KINDS.get(self.type)
        return None if kind is None else self._line.decode(kind)

    def value(self, field: str) -> Any:
        """Return a field that holds a user's value, decoded; None if the record has none."""
        raw = getattr(self.record, field, records.NOTHING)
        if not isinstance(raw, msgspec.Raw):
            return raw
        return self._values().decode(self._line, raw, foreign=True) if bytes(raw) else None

    def plain(self) -> dict[str, Any]:
        """Return the record as plain JSON: references put back, what is about the line left out.

        What JSON cannot say stays tagged (`docs/design/values.md`); large binary values stay named by their hash.
        """
        fields = self._line.decode(dict[str, msgspec.Raw])
        for name in _LINES_OWN:
            fields.pop(name, None)
        return {name: self._plain(raw) for name, raw in fields.items()}

    def _plain(self, raw: msgspec.Raw) -> Any:
        if b'"$' in bytes(raw):
            raw = msgspec.Raw(encode(self._values().decode(self._line, raw, foreign=True), redact=_NO_REDACTION).json)
        return msgspec.json.decode(raw)


class RecordedStep(RecordedRecord):
    """One finished step: a call that returned, raised or was cancelled."""

    @cached_property
    def _step(self) -> records.Done | records.Failed | records.Cancelled:
        record = self.record
        assert isinstance(record, (records.Done, records.Failed, records.Cancelled))
        return record

    @property
    def status(self) -> str:
        """`done`, `failed` or `cancelled`."""
        return self.type

    @property
    def path(self) -> str:
        """Where the call stands in the rollout: its scope and ordinal."""
        return self._step.path

    @property
    def name(self) -> str:
        return self._step.name

    @property
    def kind(self) -> str:
        return self._step.kind

    @property
    def took_s(self) -> float:
        return self._step.took_s

    @property
    def policy(self) -> tuple[str, int] | None:
        """(lineage, version) of the policy that answered, if one did."""
        return self._step.policy if isinstance(self._step, records.Done) else None

    @cached_property
    def call(self) -> Any:
        """What was passed: {"args": …, "kwargs": …}. None: it was not recorded."""
        return self.value("call")

    @cached_property
    def result(self) -> Any:
        """What it returned; None if it did not."""
        return _inner(self.value("result"))

    @cached_property
    def error(self) -> Any:
        """What it raised: {"type", "message", "traceback", …}; None if it did not."""
        return self.value("error")


def _inner(value: Any) -> Any:
    return value.get("value") if isinstance(value, dict) else value


class RecordedAttempt(msgspec.Struct, frozen=True):
    """One try at a trajectory."""

    epoch: int
    attempt: int
    continues: Point | None
    """The last record of an earlier attempt that it goes on from. None: it began afresh."""
    steps: int
    """Finished steps of its own, stale ones included."""
    stale_steps: int
    """Those of them that nobody goes on from."""
    started: float | None
    ended: float | None
    """When its last record was made."""
    end: str
    """`accepted`, `parked`, `superseded` (another attempt came after it), `running`, `interrupted`, or `unresolved`."""


_COLUMNS = {
    **{name: name for name in ("key", "task", "visit", "sample", "status", "cause", "reward")},
    "attempts": "n_attempts",
    "steps": "n_steps",
    **{name: name for name in ("started", "ended", "duration_s", "bytes", "policies", "error", "damage")},
}


class RecordedTrajectory:
    """One trajectory as it was recorded. What is in the list costs nothing more; the rest is read when asked for."""

    key: str
    task: str
    visit: int
    sample: int
    cause: str | None
    """Of its failure: `policy`, `task`, `infrastructure`, `unknown`."""
    reward: float | None
    n_attempts: int
    """How many tries there were."""
    n_steps: int
    """Finished steps that count: returned, raised or cancelled."""
    started: float | None
    ended: float | None
    """When the last record that counts was made, in seconds since 1970; `started`: the first."""
    bytes: int
    """Of all its lines, stale ones included."""
    policies: list[tuple[str, int]]
    """(lineage, version) of each policy that took part."""
    error: str
    """In one line: the outcome's error, or why it is parked."""
    damage: str
    """What is missing of it, if something is: then it must not be believed."""

    def __init__(self, run: RecordedRun, row: Row, state_of: Callable[[int], str] | None = None) -> None:
        self.run = run
        self.key, self.task, self.visit, self.sample = row.key, row.task, row.visit, row.sample
        self.cause, self.reward, self.n_attempts, self.n_steps = row.cause, row.reward, row.attempts, row.steps
        self.started, self.ended, self.bytes = row.started, row.ended, row.bytes
        self.policies, self.error, self.damage = row.policies, row.error, row.damage
        self.status = (state_of or run.state_of)(row.epoch) if row.status == "unresolved" else row.status
        """One of `STATUSES`."""

    def __repr__(self) -> str:
        return f"<trajectory {self.key}: {self.status}, {self.n_steps} steps, {self.n_attempts} attempts>"

    @property
    def duration_s(self) -> float | None:
        """From the first attempt's beginning to the last record that counts."""
        return None if self.started is None or self.ended is None else self.ended - self.started

    def row(self) -> dict[str, Any]:
        """Return what a list shows as a plain dict, for a data frame or JSON."""
        return {name: getattr(self, attribute) for name, attribute in _COLUMNS.items()}

    # ---- its records -------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[RecordedStep]:
        """Yield the finished steps that count, first to last."""
        for entry in self._story.entries:
            if entry.envelope.type in STEPS:
                yield RecordedStep(self.run.line(entry.place), self._values)

    def step(self, path: str) -> RecordedStep:
        """Return the newest finished step at `path` that counts."""
        for entry in reversed(self._story.entries):
            if entry.envelope.type in STEPS:
                step = RecordedStep(self.run.line(entry.place), self._values)
                if step.path == path:
                    return step
        raise KeyError(f"no step {path!r} in {self.key}")

    def records(
        self, *, stale: bool = False, on_damage: Callable[[DamagedError], None] | None = None
    ) -> Iterator[RecordedRecord]:
        """Yield the records that count, first to last; with `stale` all records, attempt by attempt.

        DamagedError: one cannot be read. With `on_damage` the error is handed there, and the others are read.
        """
        story = self._story
        believed = {entry.point for entry in story.entries}
        entries = sorted([*story.entries, *story.stale], key=lambda e: e.point) if stale else story.entries
        for entry in entries:
            kind = RecordedStep if entry.envelope.type in STEPS else RecordedRecord
            try:
                line = self.run.line(entry.place)
            except DamagedError as error:
                if on_damage is None:
                    raise
                on_damage(error)
            else:
                yield kind(line, self._values, stale=entry.point not in believed)

    def attempts(self) -> list[RecordedAttempt]:
        """Return every attempt, first to last, with what each continued and how each ended."""
        lineage, story = self._lineage, self._story
        believed = {entry.point for entry in story.entries}
        tries = []
        for id, attempt in sorted(lineage.attempts.items()):
            entries = [attempt.entries[seq] for seq in sorted(attempt.entries)]
            steps = [entry for entry in entries if entry.envelope.type in STEPS]
            times = [ms / 1000 for entry in entries if (ms := entry.place.mark.unix_ms)]
            if attempt.accepted:
                end = "accepted"
            elif id != story.newest:
                end = "superseded"
            else:
                end = self.status if self.status not in ENDED else "unresolved"
            stale = sum(entry.point not in believed for entry in steps)
            started, ended = (min(times), max(times)) if times else (None, None)
            tries.append(RecordedAttempt(*id, attempt.continues, len(steps), stale, started, ended, end))
        return tries

    @cached_property
    def result(self) -> Any:
        """What the rollout returned; None if it has not."""
        value = self._last_value("outcome", "result")
        return value.get("value") if isinstance(value, dict) else value

    @cached_property
    def failure(self) -> Any:
        """What ended it: {"type", "message", "traceback", …}; None if nothing did."""
        return self._last_value("outcome", "error")

    @cached_property
    def inputs(self) -> Any:
        """The task's own content, as the first attempt recorded it."""
        begun = (entry for entry in self._story.entries if entry.envelope.type == "attempt")
        found = (RecordedRecord(self.run.line(entry.place), self._values) for entry in begun)
        said = (r for r in found if isinstance(r.record, records.Attempt) and bytes(r.record.inputs))
        return next((r.value("inputs") for r in said), None)

    def _last_value(self, type: str, field: str) -> Any:
        entry = next((e for e in reversed(self._story.entries) if e.envelope.type == type), None)
        return None if entry is None else RecordedRecord(self.run.line(entry.place), self._values).value(field)

    @cached_property
    def _lineage(self) -> Lineage[Marked]:
        return self.run.lineage(self.key)

    @cached_property
    def _story(self) -> Story[Marked]:
        return self._lineage.story()

    @cached_property
    def _stored_values(self) -> _Values:
        return _Values(self.run, self.key, self._lineage)

    def _values(self) -> StoryValues:
        return self._stored_values.values


class _Values:
    """The values of one trajectory, stale ones too."""

    def __init__(self, run: RecordedRun, key: str, lineage: Lineage[Marked] | None = None) -> None:
        self._run, self._key = run, key
        self._lineage = lineage or run.lineage(key)
        self.values = run.story_values(self._line)

    def _line(self, point: Point) -> Line | None:
        marked = self._find(point)
        if marked is None:  # it is newer than what was known
            self._run.refresh()
            self._lineage = self._run.lineage(self._key)
            marked = self._find(point)
        return None if marked is None else self._run.line(marked)

    def _find(self, point: Point) -> Marked | None:
        attempt = self._lineage.attempts.get(point[:2])
        entry = None if attempt is None else attempt.entries.get(point[2])
        return None if entry is None else entry.place


class ValuesByKey:
    """The values of the trajectories that came last, so that a whole run is read in bounded memory."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._kept: OrderedDict[str, _Values] = OrderedDict()

    def record(self, line: Line) -> RecordedRecord:
        key = line.envelope().key
        return RecordedRecord(line, lambda: self._values_of(key).values)

    def _values_of(self, key: str) -> _Values:
        if (values := self._kept.get(key)) is None:
            values = self._kept[key] = _Values(self._run, key)
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return values
