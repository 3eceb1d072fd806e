"""Values of the standard library come back as they were, and long lists of numbers take few bytes."""

from __future__ import annotations

import datetime as dt
import math
import pathlib
import struct
import sys
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rolltape.errors import EncodeError, FormatError
from rolltape.values import REDACTED, Foreign, decode, encode
from rolltape.values.packed import PACKED_ITEMS_MIN
from tests.values.support import PLAIN, Tape, any_text, exact, hashables, objects, there_and_back, values

PARIS = ZoneInfo("Europe/Paris")

GOLDEN = [
    (dt.datetime(2026, 11, 20, 1, 2, 3, 4), '{"$datetime":"2026-11-20T01:02:03.000004"}'),
    (
        dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=PARIS),
        '{"$datetime":"2026-10-25T02:30:00","fold":1,"zone":{"$zoneinfo":"Europe/Paris"}}',
    ),
    (dt.datetime(1, 1, 1, tzinfo=dt.UTC), '{"$datetime":"0001-01-01T00:00:00","zone":{"$timezone":[0,0,0]}}'),
    (
        dt.time(1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-1, microseconds=1), "X")),
        '{"$time":"01:02:00","zone":{"$timezone":[-1,82800,1],"name":"X"}}',
    ),
    (dt.date(2026, 11, 20), '{"$date":"2026-11-20"}'),
    (dt.timedelta(-3, 1, 2), '{"$timedelta":[-3,1,2]}'),
    (Decimal("-1.10"), '{"$decimal":"-1.10"}'),
    (Decimal("1E+400"), '{"$decimal":"1E+400"}'),
    (
        uuid.UUID("12345678-1234-5678-1234-567812345678"),
        '{"$uuid":"12345678-1234-5678-1234-567812345678"}',
    ),
    (pathlib.PurePosixPath("/a/b"), '{"$path":"PurePosixPath","path":"/a/b"}'),
    (pathlib.PureWindowsPath("C:/a"), '{"$path":"PureWindowsPath","path":"C:\\\\a"}'),
    (pathlib.PosixPath("a\udcff"), '{"$path":"PosixPath","path":{"$str":"Ye2zvw=="}}'),
    (complex(-0.0, math.inf), '{"$complex":[-0.0,{"$float":"inf"}]}'),
    (bytearray(b"\0"), '{"$bytearray":{"$bytes":"AA=="}}'),
    (range(1, 10, 3), '{"$range":[1,10,3]}'),
    (deque([1, (2,)], 3), '{"$deque":[1,{"$tuple":[2]}],"maxlen":3}'),
    (deque(), '{"$deque":[]}'),
    (Counter("aab"), '{"$counter":{"a":2,"b":1}}'),
    (OrderedDict([(1, 2), ("a", [])]), '{"$ordereddict":[[1,2],["a",[]]]}'),
    (defaultdict(list, {"$a": [1]}), '{"$defaultdict":{"$dict":{"$a":[1]}},"factory":"list"}'),
    (defaultdict(None, {1: 2}), '{"$defaultdict":{"$map":[[1,2]]}}'),
    (..., '{"$constant":"builtins:Ellipsis"}'),
    (NotImplemented, '{"$constant":"builtins:NotImplemented"}'),
    (msgspec.UNSET, '{"$constant":"msgspec:UNSET"}'),
    (int, '{"$type":"builtins:int"}'),
    ([-1] * 256, '{"$ints":"i1","data":{"$bytes":"' + "////" * 85 + '/w=="}}'),
    ([65535, 0] * 128, '{"$ints":"u2","data":{"$bytes":"' + "//8AAP//AAD//wAA" * 42 + '//8AAP//AAA="}}'),
    ((0.0,) * 256, '{"$tuple":{"$floats":"f8","data":{"$bytes":"' + "A" * 2731 + '="}}}'),
]


@pytest.mark.parametrize(("value", "text"), GOLDEN, ids=lambda item: str(item)[:40])
def test_these_tags_are_the_file_format(value: Any, text: str) -> None:
    """What is written today is read for ever, so these texts never change."""
    assert encode(value).json.decode() == text
    assert exact(decode(text.encode())) == exact(value)


@given(objects)
@example([Decimal("sNaN12"), Decimal("-0"), Decimal("Infinity"), complex(math.nan, -0.0)])
@settings(max_examples=200, deadline=None)
def test_they_come_back_equal_of_the_same_types_and_in_any_company(value: Any) -> None:
    """In lists and dicts, in sets, as keys, inside one another."""
    assert exact(there_and_back(value)) == exact(value)
    assert encode(there_and_back(value), redact=PLAIN).json == encode(value, redact=PLAIN).json


@given(st.lists(objects, max_size=3), hashables, any_text)
def test_collections_hold_anything(inside: list[Any], key: Any, text: str) -> None:
    for value in (
        deque(inside),
        Counter({key: 1, text: inside}),
        OrderedDict({key: inside, text: 1}),
        defaultdict(dict, {key: inside, text: 1}),
    ):
        assert exact(there_and_back(value)) == exact(value)


def test_a_moment_in_a_fold_is_the_same_instant_when_it_comes_back() -> None:
    for fold in (0, 1):
        moment = dt.datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=PARIS)
        assert there_and_back(moment).utcoffset() == moment.utcoffset() == dt.timedelta(hours=2 - fold)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (defaultdict(lambda: 1), "default_factory is code: pass dict"),
        ([memoryview(b"1")], "/0: a value of type builtins.memoryview .* pass bytes"),
        ({"f": len}, "/f: a value of type builtins.builtin_function_or_method .* is code: pass its name"),
        ([object()], "/0: a value of type builtins.object cannot be recorded. Pass what it holds"),
        (dt.datetime(2026, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {})()), "/zone: a value of type .*Zone"),
        (type(None), "the class builtins.NoneType cannot be recorded"),
    ],
)
def test_the_rest_is_refused_with_its_place_its_type_and_what_to_do(value: Any, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        encode(value)


def test_a_zone_that_was_read_from_a_file_is_refused() -> None:
    """It has no name to be found by."""
    import io

    data = b"TZif" + b"\0" * 16 + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + b"\0" * 6 + b"UTC\0"
    with pytest.raises(EncodeError, match=r"use ZoneInfo\(name\)"):
        encode(ZoneInfo.from_file(io.BytesIO(data)))


def test_a_zone_that_this_machine_lacks_is_named() -> None:
    text = b'{"$datetime":"2026-01-01T00:00:00","zone":{"$zoneinfo":"Mars/Olympus"}}'
    with pytest.raises(FormatError, match=r"no time zone 'Mars/Olympus'. Install"):
        decode(text)
    assert decode(b'{"$zoneinfo":"Mars/Olympus"}', foreign=True) == Foreign("$zoneinfo", "Mars/Olympus", {})


@pytest.mark.skipif(sys.platform == "win32", reason="there it can be made")
def test_a_path_of_another_system_is_named() -> None:
    text = b'{"$path":"WindowsPath","path":"C:\\\\a"}'
    with pytest.raises(FormatError, match="a WindowsPath cannot be made on"):
        decode(text)
    assert decode(text, foreign=True).parts == {"path": "C:\\a"}


def test_secrets_in_them_are_hidden() -> None:
    """As in dicts, bytes and strings."""
    secret = "c4n4ry"
    for value in (
        OrderedDict({"api_key": secret}),
        defaultdict(str, {"password": secret}),
        bytearray(b"Bearer c4n4ry"),
        deque([{"cookie": secret}]),
        pathlib.PurePosixPath("Bearer c4n4ry"),
    ):
        assert secret not in repr(decode(encode(value).json))
    assert decode(encode(OrderedDict({"api_key": secret})).json) == OrderedDict({"api_key": REDACTED})


# ---- long lists of numbers ------------------------------------------------------------------------------------------

WIDTHS = [0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 70]


@given(
    st.lists(st.sampled_from([s * (2**w + d) for w in WIDTHS for d in (-1, 0, 1) for s in (1, -1)]), min_size=1),
    st.integers(PACKED_ITEMS_MIN - 2, PACKED_ITEMS_MIN + 300),
)
def test_a_long_list_of_integers_comes_back_exactly(numbers: list[int], size: int) -> None:
    """In the narrowest width that holds them all; beyond 64 bits as text."""
    value = (numbers * size)[:size]
    assert exact(there_and_back([value, tuple(value)])) == exact([value, tuple(value)])
    fits = any(lo <= min(value) and max(value) < hi for lo, hi in ((0, 2**64), (-(2**63), 2**63)))
    assert (b"$ints" in encode(value).json) == (size >= PACKED_ITEMS_MIN and fits)


@given(st.lists(st.floats(), min_size=1), st.booleans())
def test_a_long_list_of_floats_comes_back_exactly(numbers: list[float], mixed: bool) -> None:
    """NaN, infinities and signs of zero with it. One integer among them, and it is text."""
    value: list[Any] = numbers * 300 + [1] * mixed
    assert exact(there_and_back(value)) == exact(value)
    assert (b"$floats" in encode(value).json) == (not mixed)


def test_token_ids_take_four_bytes_each_and_logprobs_eight() -> None:
    ids = [(i * 7919) % 150_000 for i in range(16_384)]
    for value, size in ((ids, 4), ([-i / 7 for i in ids], 8)):
        encoded = encode(value)
        assert len(encoded.json) + sum(map(len, encoded.blobs.values())) < size * len(value) + 100


def test_a_growing_list_of_token_ids_costs_what_is_new() -> None:
    """By reference, packed or not, in the line or in the pack; and an item changed further back is found out."""
    tape = Tape()
    ids: list[int] = []
    then = []
    for turn in range(12):
        ids += [(turn * 1000 + i * 7919) % 150_000 for i in range(2000 if turn % 2 else 100)]
        tape.record({"prompt_token_ids": ids})
        then.append([*ids])
    ids[5] = 7
    tape.record({"prompt_token_ids": ids})
    assert sum(len(e.json) + sum(map(len, e.blobs.values())) for e in tape.written[:-1]) < 1.5 * 4 * len(ids)
    recall = tape.recall()
    for seq, value in enumerate([*then, ids]):
        assert exact(tape.read(seq, recall)) == exact({"prompt_token_ids": value})


@given(st.lists(objects, min_size=2, max_size=4), values)
@settings(max_examples=50, deadline=None)
def test_histories_with_such_values_are_references_and_come_back_exactly(items: list[Any], extra: Any) -> None:
    tape = Tape()
    history: list[Any] = [{"role": "user", "content": "x" * 500}, *items]
    for turn in range(3):
        history.append({"role": "user", "content": f"{turn}" * 300})
        tape.record({"messages": history, "extra": extra})
        assert exact(tape.read(turn)) == exact({"messages": history, "extra": extra})
