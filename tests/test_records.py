"""What a run's files can hold: one JSON type for each field name, fences that are synced, room for later versions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rolltape import records

FENCES = {"take", "withdrawn", "attempt", "intent", "resource_opening", "outcome", "accepted"}
"""What the fencing protocol rests on (docs/design.md §6, "Acting" and "Taking"), and what an orphan is found by."""


def tag(kind: type[records.Record]) -> str:
    return str(kind.__struct_config__.tag)


def least(kind: type[records.Record]) -> records.Record:
    """The smallest record of a kind: what has a default is left at it."""
    samples: dict[Any, Any] = {"str": "x", "int": 1, "float": 0.5, "list": ["x"], "raw": msgspec.Raw(b'{"value":1}')}
    given = {
        field.name: samples[_json_type(field.type) if not isinstance(field.type, msgspec.inspect.RawType) else "raw"]
        for field in msgspec.inspect.type_info(kind).fields
        if field.required
    }
    if kind is records.Outcome:
        given["status"] = "completed"
    if kind is records.Resampled:
        given["back_to"] = (1, 1, 1)
    return kind(**given)


def _json_type(type: msgspec.inspect.Type) -> str:
    """Name the one JSON type of a field; a field that may be absent has the type of its value."""
    inspect = msgspec.inspect
    if isinstance(type, inspect.UnionType):
        names = {_json_type(part) for part in type.types if not isinstance(part, inspect.NoneType)}
        assert len(names) == 1, type
        return names.pop()
    if isinstance(type, inspect.LiteralType):
        return "str"
    for name, kinds in {
        "str": inspect.StrType,
        "int": inspect.IntType,
        "float": inspect.FloatType,
        "list": (inspect.ListType, inspect.TupleType, inspect.VarTupleType),
        "raw": inspect.RawType,
        "bool": inspect.BoolType,
    }.items():
        if isinstance(type, kinds):
            return name
    raise AssertionError(f"a field of {type}")


def test_every_record_type_is_listed_once_and_has_its_own_tag():
    """`ALL` is what the golden files and the recipes go by."""
    found: set[type[records.Record]] = set()
    todo = [records.Record]
    while todo:
        kind = todo.pop()
        ours = [
            known for known in kind.__subclasses__() if known.__module__ == records.__name__
        ]  # tests make their own
        todo += ours
        if not ours:
            found.add(kind)
    assert set(records.ALL) == found
    assert len(records.ALL) == len(found) == len({tag(kind) for kind in records.ALL})
    assert all(tag(kind) == tag(kind).lower() for kind in records.ALL)


def test_a_field_name_has_one_json_type_whatever_the_record():
    """So that DuckDB, polars and jq see columns, not a mixture."""
    types: dict[str, dict[str, list[str]]] = {}
    for kind in records.ALL:
        for field in msgspec.inspect.type_info(kind).fields:
            types.setdefault(field.name, {}).setdefault(_json_type(field.type), []).append(tag(kind))
    assert {name: by_type for name, by_type in types.items() if len(by_type) > 1} == {}


def test_no_record_has_a_field_that_the_journal_adds_itself():
    """`pack`, `dur` and `crc` close each line, `type` opens it."""
    names = {field for kind in records.ALL for field in kind.__struct_fields__}
    assert names.isdisjoint({"type", "pack", "dur", "crc"})


@pytest.mark.parametrize("kind", records.ALL, ids=tag)
def test_a_record_comes_back_equal_and_its_defaults_take_no_room(kind):
    """And it says what it is first, so that a line can be told by its beginning."""
    record = least(kind)
    line = msgspec.json.encode(record)
    assert line.startswith(b'{"type":"%b"' % tag(kind).encode())
    required = {field.name for field in msgspec.inspect.type_info(kind).fields if field.required}
    assert set(json.loads(line)) == {"type", *required}
    again = msgspec.json.decode(line, type=kind)
    assert msgspec.json.encode(again) == line
    assert all(_plain(getattr(again, name)) == _plain(getattr(record, name)) for name in kind.__struct_fields__)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, msgspec.Raw) else value


@pytest.mark.parametrize("kind", records.ALL, ids=tag)
def test_a_field_of_a_later_version_is_skipped(kind):
    """Adding one is a minor change: whoever does not know it reads the rest."""
    line = msgspec.json.encode(least(kind))
    newer = line[:-1] + b',"of_a_later_version":{"anything":[1,null,"x"]},"dur":1,"crc":"00000000"}'
    assert msgspec.json.encode(msgspec.json.decode(newer, type=kind)) == line
    assert msgspec.json.decode(newer, type=records.Envelope) == msgspec.json.decode(line, type=records.Envelope)


@pytest.mark.parametrize("kind", records.ALL, ids=tag)
def test_an_envelope_says_of_any_line_what_the_reading_rule_needs(kind):
    """It is decoded for every line of a run, so every record has to fit into it."""
    record = least(kind)
    envelope = msgspec.json.decode(msgspec.json.encode(record), type=records.Envelope)
    assert envelope.type == tag(kind)
    for name in ("key", "epoch", "attempt", "seq"):
        if name in kind.__struct_fields__:
            assert getattr(envelope, name) == getattr(record, name)
    assert bool(envelope.key) == issubclass(kind, records.OfTrajectory)
    assert (envelope.seq >= 0) == issubclass(kind, records.InOrder)


def test_an_envelope_says_what_an_attempt_continues():
    """The one link between attempts."""
    attempt = records.Attempt(key="q1#0", epoch=3, attempt=2, seq=0, continues=(1, 1, 7), fork_of="q0#0", unix_s=0.0)
    envelope = msgspec.json.decode(msgspec.json.encode(attempt), type=records.Envelope)
    assert (envelope.continues, envelope.fork_of) == ((1, 1, 7), "q0#0")


def test_what_the_fencing_protocol_rests_on_is_synced_at_every_durability():
    """A take, an attempt, an intent or an outcome in the page cache only would be no fence after a power cut."""
    assert {tag(kind) for kind in records.ALL if kind.durable} == FENCES


def test_a_value_that_was_left_out_is_told_from_null():
    """`None` is a value: a step may return it."""
    point = {"key": "k#0", "epoch": 1, "attempt": 1, "seq": 1, "path": "0"}
    nothing = msgspec.json.decode(msgspec.json.encode(records.Done(**point)), type=records.Done)
    null = msgspec.json.encode(records.Done(**point, result=msgspec.Raw(b'{"value":null}')))
    assert bytes(nothing.result) == b""
    assert bytes(msgspec.json.decode(null, type=records.Done).result) == b'{"value":null}'
