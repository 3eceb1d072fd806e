"""What the index keeps of a record: where it lies, and what the reading rule and a trajectory's row need of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import msgspec

from rolltape import records
from rolltape.journal import Line, Lineage, Place
from rolltape.records import Envelope, Point

TYPES = tuple(str(kind.__struct_config__.tag) for kind in records.ALL)
"""A record's type is kept as its place in here. Another order or number is another version of the index."""

_NUMBERS = {tag: number for number, tag in enumerate(TYPES)}
_UNKNOWN = len(TYPES)

ERROR_CHARACTERS_MAX = 200

SegmentId = tuple[int, int]
"""(epoch, segment)."""


_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What SQLite holds. Beyond it, a line is no record of ours."""


class _Fields(Envelope):
    epoch: _Int64 = 0
    attempt: _Int64 = 0
    seq: _Int64 = -1
    unix_s: Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)] = 0.0
    policy: tuple[str, _Int64] | None = None
    task: str = ""
    visit: _Int64 = 0
    sample: _Int64 = 0
    cause: str | None = None
    reward: float | None = None
    error: msgspec.Raw = records.NOTHING


_fields = msgspec.json.Decoder(_Fields)


class Fact(msgspec.Struct, omit_defaults=True, frozen=True):
    """What the few records that decide about a trajectory say."""

    continues: Point | None = None
    task: str = ""
    visit: int = 0
    sample: int = 0
    status: str = ""
    cause: str | None = None
    reward: float | None = None
    error: str = ""
    back_to: Point | None = None
    kept: tuple[Point, ...] = ()


class Mark(NamedTuple):
    """One record."""

    type: int
    attempt: int
    seq: int
    offset: int
    size: int
    unix_ms: int
    policy: tuple[str, int] | None
    fact: Fact | None


class Packed(msgspec.Struct, array_like=True):
    """The marks of one trajectory in one segment, as the index holds them: about 20 bytes each."""

    base_ms: int
    policies: list[tuple[str, int]]
    marks: list[tuple[int, int, int, int, int, int, int]]
    """A mark's fields; its time less `base_ms`, its policy as a place in `policies`, counted from 1."""
    facts: dict[int, Fact]
    """By the mark's place in `marks`."""


_packed = msgspec.msgpack.Decoder(Packed)


def mark_of(line: Line) -> tuple[str, Mark] | None:
    """Return a line's trajectory and mark; None if it belongs to none. DecodeError: it is no record."""
    fields = _fields.decode(line.raw)
    if not fields.key:
        return None
    mark = Mark(
        _NUMBERS.get(fields.type, _UNKNOWN),
        fields.attempt,
        fields.seq,
        line.offset,
        len(line.raw),
        round(fields.unix_s * 1000),
        fields.policy,
        _fact_of(fields),
    )
    return fields.key, mark


def _fact_of(fields: _Fields) -> Fact | None:
    match fields.type:
        case "attempt":
            return Fact(fields.continues, fields.task, fields.visit, fields.sample)
        case "outcome":
            reward = fields.reward
            return Fact(status=fields.status, cause=fields.cause, reward=reward, error=first_line(fields.error))
        case "resampled":
            return Fact(back_to=fields.back_to, kept=tuple(fields.kept))
        case "parked":
            return Fact(error=fields.reason[:ERROR_CHARACTERS_MAX])
    return None


def first_line(error: msgspec.Raw) -> str:
    """Return a recorded error in one line: its type, and the first line of its message if that is plain text."""
    try:
        tree = msgspec.json.decode(error)
    except msgspec.DecodeError:
        return ""
    if not isinstance(tree, Mapping):
        return ""
    words = [part for part in (tree.get("type"), tree.get("message")) if isinstance(part, str) and part]
    lines = ": ".join(words).splitlines()
    return lines[0][:ERROR_CHARACTERS_MAX] if lines else ""


def pack(marks: Iterable[Mark]) -> bytes:
    """Pack the marks of one trajectory in one segment."""
    marks = list(marks)
    base_ms = marks[0].unix_ms if marks else 0
    policies: dict[tuple[str, int], int] = {}
    rows = []
    for type, attempt, seq, offset, size, unix_ms, policy, _ in marks:
        number = 0 if policy is None else policies.setdefault(policy, len(policies) + 1)
        rows.append((type, attempt, seq, offset, size, unix_ms - base_ms, number))
    facts = {place: mark.fact for place, mark in enumerate(marks) if mark.fact is not None}
    return msgspec.msgpack.encode(Packed(base_ms, list(policies), rows, facts))


def unpack(data: bytes) -> list[Mark]:
    """Return what `pack` was given."""
    packed = _packed.decode(data)
    base_ms, facts = packed.base_ms, packed.facts
    policies = [None, *packed.policies]
    return [
        Mark(type, attempt, seq, offset, size, ms + base_ms, policies[policy], facts.get(place))
        for place, (type, attempt, seq, offset, size, ms, policy) in enumerate(packed.marks)
    ]


class Marked(NamedTuple):
    """What a story built from the index carries with each of its records."""

    place: Place
    mark: Mark


def lineage_of(key: str, parts: Mapping[SegmentId, Iterable[Mark]]) -> Lineage[Marked]:
    """Build what the reading rule judges, epochs and segments in the order of `survey`. Marks may be given twice."""
    lineage: Lineage[Marked] = Lineage()
    for (epoch, segment), marks in sorted(parts.items(), key=lambda part: (-part[0][0], part[0][1])):
        for mark in marks:
            fact = mark.fact
            envelope = Envelope(
                TYPES[mark.type] if mark.type < _UNKNOWN else "",
                key,
                epoch,
                mark.attempt,
                mark.seq,
            )
            if fact is not None:
                envelope.continues, envelope.back_to, envelope.kept = fact.continues, fact.back_to, list(fact.kept)
            lineage.add(envelope, Marked(Place(epoch, segment, mark.offset, mark.size), mark))
    return lineage
