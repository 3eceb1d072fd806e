"""What the tests of values share: values to generate, and what "the same" means."""

from __future__ import annotations

import datetime as dt
import math
import pathlib
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from rolltape.values import Encoded, Memory, Recall, Redactor, decode, encode


def exact(value: Any) -> Any:
    """Return what two values have in common only if one can stand for the other: types, signs, orders and all."""
    kind = type(value)
    if kind is dict:
        return kind, [(exact(key), exact(item)) for key, item in value.items()]
    if kind in (list, tuple):
        return kind, [exact(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted((exact(item) for item in value), key=repr)
    if kind is float:
        return kind, repr(value), math.copysign(1, value) if value == value else 0
    if kind in (OrderedDict, Counter):
        return kind, exact(list(value.items()))
    if kind is defaultdict:
        return kind, value.default_factory, exact(list(value.items()))
    if kind is deque:
        return kind, value.maxlen, exact(list(value))
    if kind is complex:
        return kind, exact(value.real), exact(value.imag)
    if kind in (dt.datetime, dt.time):
        return kind, value.replace(tzinfo=None), value.fold, repr(value.tzinfo)
    if kind is Decimal:
        return kind, str(value)
    return kind, value


def there_and_back(value: Any) -> Any:
    encoded = encode(value, redact=PLAIN)
    return decode(encoded.json, blob=lambda name, size: encoded.blobs[name])


PLAIN = Redactor(frozenset())
"""Hypothesis takes words from our own source, names of secrets among them."""

any_text = st.text(st.characters(exclude_categories=())) | st.text('$\ud800é@B \\"/~', max_size=12)
numbers = st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.booleans() | st.none()
hashables = st.recursive(
    numbers | any_text | st.binary(max_size=20),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
keys = any_text | st.sampled_from(["$ref", "$", "$list", "role", "content", ""])
values = st.recursive(
    numbers | any_text | st.binary(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=3)
        | st.sets(hashables, max_size=4)
        | st.frozensets(hashables, max_size=4)
    ),
    max_leaves=25,
)
"""Any value that can be recorded."""

zones = (
    st.none()
    | st.sampled_from([dt.UTC, ZoneInfo("Europe/Paris"), ZoneInfo("America/New_York")])
    | st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)))
)
leaves = (
    st.datetimes(timezones=zones, allow_imaginary=True)
    | st.times(timezones=zones)
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.complex_numbers(allow_nan=False)
    | st.builds(range, st.integers(), st.integers(), st.integers(1))
    | st.text("ab/\\.$@:", max_size=12).map(pathlib.PurePosixPath)
)
"""Values of the standard library that hold no others, and can be keys."""
objects = st.recursive(
    leaves | st.binary(max_size=20).map(bytearray) | st.decimals() | st.complex_numbers() | numbers,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(leaves, inner, max_size=2)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(keys, inner, max_size=3).map(lambda items: defaultdict(list, items))
        | st.frozensets(leaves, max_size=3)
    ),
    max_leaves=12,
)
"""Values of the standard library that JSON and Python's literals do not have."""


class Tape:
    """A trajectory's records, as a journal would hold them: what is encoded, taken, learned and read back."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.lines: dict[tuple[int, int, int], bytes] = {}
        self.written: list[Encoded] = []

    def record(self, value: Any) -> Encoded:
        """Record `value` at /result, and return how."""
        encoded = encode(value, where="/result", memory=self.memory, redact=PLAIN)
        position = (1, 1, len(self.lines))
        self.memory.commit(position, encoded.notes)
        self.lines[position] = b'{"seq":%d,"result":%b}' % (len(self.lines), encoded.json)
        self.written.append(encoded)
        return encoded

    def recall(self) -> Recall:
        """Return a reader that fetches what it needs."""
        return Recall(missing=self.lines.get, blob=lambda position, name, size: self.blob(name, size))

    def blob(self, name: str, size: int) -> bytes:
        found = [encoded.blobs[name] for encoded in self.written if name in encoded.blobs]
        assert len(found[0]) == size
        return found[0]

    def read(self, seq: int, recall: Recall | None = None) -> Any:
        return decode(self.written[seq].json, blob=self.blob, recall=recall or self.recall())

    def bytes(self) -> int:
        return sum(map(len, self.lines.values()))
