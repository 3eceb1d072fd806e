"""`docs/design/values.md` is enough to write a reader: this one uses nothing of ours, and reads what we write."""

from __future__ import annotations

import base64
import builtins
import collections
import copy
import datetime
import decimal
import hashlib
import json
import pathlib
import struct
import uuid
import zoneinfo
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.values import kinds
from tests.values.support import Tape, exact, objects, values
from tests.values.test_history import edit, edits, items


class Reader:
    """A reader by the book: slow, recursive, and complete."""

    def __init__(self, lines: dict[tuple[int, int, int], bytes], packs: dict[str, bytes]) -> None:
        self.lines = lines
        self.packs = packs

    def value(self, node: Any, text: str) -> Any:
        """`text` is what `node` was parsed from: hashes are over text."""
        if isinstance(node, list):
            return [self.value(item, part) for item, part in zip(node, parts(text), strict=True)]
        if not isinstance(node, dict):
            return node
        tag = next(iter(node), "")
        inside = dict(zip(node, parts(text), strict=True))
        if not tag.startswith("$"):
            return {key: self.value(item, inside[key]) for key, item in node.items()}
        held, within = node[tag], inside[tag]
        match tag:
            case "$float":
                return float(held)
            case "$bytes":
                return base64.b64decode(held)
            case "$str":
                return base64.b64decode(held).decode("utf-8", "surrogatepass")
            case "$pack":
                data = self.packs[held]
                assert len(data) == node["bytes"] and hashlib.blake2b(data, digest_size=16).hexdigest() == held
                return data
            case "$tuple":
                return tuple(self.value(held, within))
            case "$set":
                return set(self.value(held, within))
            case "$frozenset":
                return frozenset(self.value(held, within))
            case "$dict":
                return {key: self.value(held[key], part) for key, part in zip(held, parts(within), strict=True)}
            case "$map":
                return {key: value for key, value in self.value(held, within)}
            case "$ref":
                string = self.value(*self.target(held))
                assert hash8(string.encode("utf-8", "surrogatepass")).hex() == node["hash"]
                return string
            case "$list":
                base, base_text = self.target(held)
                assert self.list_hash(node, text).hex() == node["hash"]
                whole = self.value(base, base_text)
                assert len(whole) >= node["n"]
                return whole[: node["n"]] + self.value(node["add"], inside["add"])
            case "$ints" | "$floats":
                width = int(held[1:])
                kind = {"u": "BHIQ", "i": "bhiq", "f": "...d"}[held[0]][width.bit_length() - 1]
                data = self.value(node["data"], inside["data"])
                return list(struct.unpack(f"<{len(data) // width}{kind}", data))
            case "$complex":
                return complex(*self.value(held, within))
            case "$bytearray":
                return bytearray(self.value(held, within))
            case "$range":
                return range(*held)
            case "$decimal":
                return decimal.Decimal(held)
            case "$uuid":
                return uuid.UUID(held)
            case "$path":
                return getattr(pathlib, held)(self.value(node["path"], inside["path"]))
            case "$date":
                return datetime.date.fromisoformat(held)
            case "$timedelta":
                return datetime.timedelta(*held)
            case "$timezone":
                return datetime.timezone(datetime.timedelta(*held), *([node["name"]] if "name" in node else []))
            case "$zoneinfo":
                return zoneinfo.ZoneInfo(held)
            case "$datetime" | "$time":
                zone = self.value(node["zone"], inside["zone"]) if "zone" in node else None
                moment = getattr(datetime, tag[1:]).fromisoformat(held)
                return moment.replace(tzinfo=zone, fold=node.get("fold", 0))
            case "$deque":
                return collections.deque(self.value(held, within), node.get("maxlen"))
            case "$counter":
                return collections.Counter(self.value(held, within))
            case "$ordereddict":
                return collections.OrderedDict(self.value(held, within))
            case "$defaultdict":
                factory = getattr(builtins, node["factory"]) if "factory" in node else None
                return collections.defaultdict(factory, self.value(held, within))
            case "$array" | "$scalar" | "$tensor" | "$dataclass" | "$struct" | "$model" | "$namedtuple" | "$enum":
                parts_of = {name: self.value(node[name], inside[name]) for name in node if name != tag}
                return Thing(tag, held, parts_of)
            case "$flag" | "$exception" | "$type" | "$unrecorded" | "$constant":
                parts_of = {name: self.value(node[name], inside[name]) for name in node if name != tag}
                return Thing(tag, held, parts_of)
        raise AssertionError(tag)

    def list_hash(self, node: Any, text: str) -> bytes:
        if isinstance(node, list) or "$list" not in node:
            return hash8(text.encode())
        base = self.list_hash(*self.target(node["$list"]))
        return hash8(base + str(node["n"]).encode() + dict(zip(node, parts(text), strict=True))["add"].encode())

    def target(self, reference: list[Any]) -> tuple[Any, str]:
        epoch, attempt, seq, pointer = reference
        text = self.lines[epoch, attempt, seq].decode()
        node = json.loads(text)
        for token in pointer.split("/")[1:]:
            token = token.replace("~1", "/").replace("~0", "~")
            key = int(token) if isinstance(node, list) else token
            text = parts(text)[key if isinstance(key, int) else list(node).index(key)]
            node = node[key]
        return node, text


class Thing(NamedTuple):
    """What only Python can make again, as another language would show it: its class, and what it holds."""

    tag: str
    kind: Any
    parts: dict[str, Any]


def hash8(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def parts(text: str) -> list[str]:
    """The texts of an array's items, or of an object's values."""
    decoder = json.JSONDecoder()
    found, i = [], 1
    while text[i] not in "]}":
        if text[0] == "{":
            _, i = decoder.raw_decode(text, i)
            i += 1
        _, end = decoder.raw_decode(text, i)
        found.append(text[i:end])
        i = end + (text[end] == ",")
    return found


@given(st.lists(items | objects, max_size=3), edits, values | objects)
@settings(max_examples=60, deadline=None)
def test_a_reader_by_the_book_reads_what_is_written(live: list[Any], steps: list[Any], extra: Any) -> None:
    tape = Tape()
    then = []
    for how, where, item in steps:
        live = edit(live, how, where, item, then)
        then.append(copy.deepcopy({"live": live, "item": (item, {0: live})}))
        tape.record({"live": live, "item": (item, {0: live})})
    tape.record([extra, bytes(40_000), live])
    reader = Reader(tape.lines, {name: data for encoded in tape.written for name, data in encoded.blobs.items()})
    for seq, value in enumerate([*then, [extra, bytes(40_000), live]]):
        text = tape.written[seq].json.decode()
        assert exact(reader.value(json.loads(text), text)) == exact(value)


def test_a_reader_by_the_book_sees_what_an_object_holds() -> None:
    """In another language too."""
    value = [
        kinds.Message("user", "x" * 200),
        kinds.Colour.RED,
        kinds.Point(1, (2,)),
        kinds.Refused(1, detail="d"),
        int,
    ]
    tape = Tape()
    tape.record([*value, kinds.Pair(1, [2.5] * 300)])
    tape.record([*value, kinds.Pair(1, [2.5] * 300), kinds.Message("user", "y")])
    reader = Reader(tape.lines, {name: data for encoded in tape.written for name, data in encoded.blobs.items()})
    text = tape.written[1].json.decode()
    name = "tests.values.kinds:"
    seen = [
        Thing("$dataclass", name + "Message", {"fields": {"role": "user", "content": "x" * 200, "tool_calls": None}}),
        Thing("$enum", name + "Colour", {"name": "RED", "value": 1}),
        Thing("$struct", name + "Point", {"fields": {"x": 1, "y": (2,)}}),
        Thing("$exception", name + "Refused", {"args": ["1: d"], "attributes": {"code": 1, "detail": "d"}}),
        Thing("$type", "builtins:int", {}),
        Thing("$namedtuple", name + "Pair", {"fields": {"a": 1, "b": [2.5] * 300}}),
        Thing("$dataclass", name + "Message", {"fields": {"role": "user", "content": "y", "tool_calls": None}}),
    ]
    assert reader.value(json.loads(text), text) == seen
    del value[3]
    for turn in range(2):
        tape.record([*value, turn])
    text = tape.written[3].json.decode()
    assert '"$list"' in text and reader.value(json.loads(text), text) == [*seen[:3], seen[4], 1]
