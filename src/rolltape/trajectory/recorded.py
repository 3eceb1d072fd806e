"""One record, one step, one attempt, as they were recorded. Values are read and decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec

from rolltape import records
from rolltape.journal import Line, StoryValues
from rolltape.records import Point
from rolltape.values import Redactor, encode

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
