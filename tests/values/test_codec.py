"""A value comes back equal and of the same types, or is refused with its place and what to do."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rolltape.errors import DamagedError, EncodeError, FormatError, LimitError, UsageError
from rolltape.values import DEPTH_MAX, INLINE_BYTES_MAX, INT_DIGITS_MAX, Memory, Recall, decode, encode
from tests.values.support import PLAIN, exact, there_and_back, values


@given(values)
@example([float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e22, 1e16, 5e-324, 1, True, 1.0, None])
@example({"a": {1: 2, True + 1: (3,), None: set(), (1, "x"): frozenset({1})}, "$dict": {"$dict": {}}, "": []})
@example(["\ud800", {"\udfff": "\ud83d\ude00"}, "\U0001f600", "\x00\x7f\u2028"])
@example([[0.5] * 20 + [float("nan")], [0.5] * 20 + [1e308, 1e308], [True] * 20 + [2]])
@example([10**4299, -(10**4299), 2**63, 2**64, -(2**63) - 1])
@settings(max_examples=300)
def test_every_value_comes_back_equal_and_of_the_same_types(value: Any) -> None:
    """Also where the walk looks at all items at once, which it does for longer lists."""
    assert exact(there_and_back(value)) == exact(value)
    assert exact(there_and_back([value] * 20)) == exact([value] * 20)


@given(values)
def test_the_text_is_one_line_of_json_that_others_can_read(value: Any) -> None:
    """Nothing but JSON, no newline in it, and no duplicate keys."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    def no_constant(text: str) -> None:
        raise AssertionError(text)

    text = encode(value, redact=PLAIN).json
    assert b"\n" not in text
    json.loads(text.decode(), object_pairs_hook=once, parse_constant=no_constant)


@given(values)
def test_encoding_leaves_the_value_as_it_was(value: Any) -> None:
    before = exact(value)
    encode(value, memory=Memory())
    assert exact(value) == before


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([float("nan"), float("inf"), float("-inf")], '[{"$float":"nan"},{"$float":"inf"},{"$float":"-inf"}]'),
        ([b"", b"\x00\xff"], '[{"$bytes":""},{"$bytes":"AP8="}]'),
        ("a\ud800", '{"$str":"Ye2ggA=="}'),
        ({1: "a", "b": None}, '{"$map":[[1,"a"],["b",null]]}'),
        ({"\ud800": 1}, '{"$map":[[{"$str":"7aCA"},1]]}'),
        ({"$ref": 1, "x": (2,)}, '{"$dict":{"$ref":1,"x":{"$tuple":[2]}}}'),
        (((), ((1,),)), '{"$tuple":[{"$tuple":[]},{"$tuple":[{"$tuple":[1]}]}]}'),
        ({3, 10, 2}, '{"$set":[10,2,3]}'),
        (frozenset({"b", "a"}), '{"$frozenset":["a","b"]}'),
        ([1, True, 1.0, -0.0, 1e22, 10**22], "[1,true,1.0,-0.0,1e22,10000000000000000000000]"),
    ],
)
def test_the_tags_are_the_file_format(value: Any, text: str) -> None:
    """What is written today is read for ever, so these texts never change."""
    assert encode(value).json.decode() == text
    assert exact(decode(text.encode())) == exact(value)


@pytest.mark.parametrize("size", [INLINE_BYTES_MAX - 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 10 * INLINE_BYTES_MAX])
def test_bytes_over_the_inline_bound_go_to_the_pack(size: int) -> None:
    """They are handed over by hash, and only they are."""
    data = bytes(i % 251 for i in range(size))
    encoded = encode({"image": data, "again": [data]})
    assert list(encoded.blobs.values()) == ([data] if size > INLINE_BYTES_MAX else [])
    assert (b'"$pack"' in encoded.json) == (size > INLINE_BYTES_MAX)
    assert there_and_back({"image": data, "again": [data]}) == {"image": data, "again": [data]}


def test_a_pack_that_holds_other_bytes_is_damage() -> None:
    """Whether they are others or too few."""
    text = encode(bytes(40_000)).json
    for wrong in (bytes(39_999), bytes(39_999) + b"x"):
        with pytest.raises(DamagedError, match="the pack holds other bytes"):
            decode(text, blob=lambda name, size, wrong=wrong: wrong)
    with pytest.raises(UsageError, match="blob="):
        decode(text)


def test_encoding_is_the_same_in_every_process() -> None:
    """Sets are written in the order of their text, not of their hashes, which differ from process to process."""
    program = (
        "from rolltape.values import encode\n"
        "value = [{f'item {i}' for i in range(50)}, frozenset({(1, 'a'), (2, 'b'), None}), {'z': 1, 'a': {2: 3}}]\n"
        "print(encode(value).json.decode())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": path()}, capture_output=True,
            text=True, check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }  # fmt: skip
    assert len(texts) == 1 and "item 49" in texts.pop()


def path() -> str:
    return ":".join(sys.path)


class Count(int):
    pass


class Name(str):
    pass


class Pair(tuple[int, int]):
    pass


class Fields(dict[str, int]):
    pass


class Plain:
    pass


PLAIN_ONE = Plain()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, Count(1)]}, "/a/1: a value of type tests.values.test_codec.Count .* pass int"),
        ([{"role": Name("a")}], "/0/role: a value of type tests.values.test_codec.Name .* pass str"),
        ({"a/b~c": object()}, "/a~1b~0c: a value of type builtins.object"),
        ({Name("a"): 1}, "/<Name>: a value of type tests.values.test_codec.Name"),
        ({1: {"x": Plain()}}, "/1/x: a value of type tests.values.test_codec.Plain .* make it a dataclass"),
        ([(0, Pair())], "/0/1: a value of type tests.values.test_codec.Pair .* pass tuple"),
        ({"$x": {"a": Fields(b=1)}}, r"/\$x/a: a value of type tests.values.test_codec.Fields .* pass dict"),
        ([memoryview(b"1")], "/0: a value of type builtins.memoryview .* pass bytes"),
        ({"s": {1, Plain()}}, r"/s/\*: a value of type tests.values.test_codec.Plain"),
        (PLAIN_ONE, "the value: a value of type tests.values.test_codec.Plain"),
        ([0.5] * 30 + [PLAIN_ONE], "/30: a value of type tests.values.test_codec.Plain"),
    ],
)
def test_what_cannot_be_recorded_is_refused_with_its_place_its_type_and_what_to_do(value: Any, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        encode(value)
    with pytest.raises(EncodeError, match=message.replace("the value", "").replace("/", "/call/args/", 1)):
        encode([value] if value is PLAIN_ONE else value, where="/call/args", memory=Memory())


def nested(levels: int, wrap: Any) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPPERS = {
    "list": (1, lambda value: [value]),
    "dict": (1, lambda value: {"k": value}),
    "pair": (1, lambda value: [0, value]),
    "tuple": (2, lambda value: (value,)),
    "escaped": (2, lambda value: {"$": value}),
    "frozenset": (2, lambda value: frozenset([value])),
    "map": (3, lambda value: {1: value}),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_value_may_nest_to_the_bound_and_no_deeper(name: str) -> None:
    """The bound is on the arrays and objects that are written, so that every reader can keep it."""
    levels, wrap = WRAPPERS[name]
    most = DEPTH_MAX // levels
    for memory in (None, Memory()):
        text = encode(nested(most, wrap), memory=memory).json
        assert exact(decode(text)) == exact(nested(most, wrap))
        with pytest.raises(LimitError, match=f"{DEPTH_MAX} levels"):
            encode(nested(most + 1, wrap), where="/result", memory=memory)


def test_a_value_that_holds_itself_ends_at_the_bound() -> None:
    """With a memory too, and through a list that the memory knows."""
    circle: list[Any] = [{"role": "user", "content": "x" * 200}, {"role": "user", "content": "y" * 200}]
    memory = Memory()
    memory.commit((1, 1, 0), encode(circle, memory=memory).notes)
    circle.append({"content": circle})
    for remembered in (None, memory, Memory()):
        with pytest.raises(LimitError, match=r"^/(2|0)?.*holds itself"):
            encode(circle, memory=remembered)


def test_a_nested_text_never_exhausts_the_stack_of_its_reader() -> None:
    """With tags in it, it is damage from the bound on; without, it is read as far as the parser goes."""
    for text in (b"[" * 100_000 + b"]" * 100_000, b'{"k":' * 5000 + b"1" + b"}" * 5000):
        with contextlib.suppress(DamagedError):
            decode(text)
    for levels, start, end in (
        (300, b'{"$tuple":[', b"]}"),
        (300, b'{"k":', b"}"),
        (300, b"[", b"]"),
        (9000, b"[", b"]"),
    ):
        with pytest.raises(DamagedError):
            decode(start * levels + b'{"$bytes":""}' + end * levels)


def test_a_stack_that_ends_first_is_named_as_the_reason() -> None:
    """Never as a RecursionError. (Python 3.13 does not count every frame.)"""

    def fall(frames: int) -> bytes:
        return fall(frames - 1) if frames else encode(nested(DEPTH_MAX, WRAPPERS["dict"][1])).json

    try:
        text = fall(sys.getrecursionlimit() - 150)
    except LimitError as error:
        assert "stack" in str(error)
    else:
        assert decode(text) == nested(DEPTH_MAX, WRAPPERS["dict"][1])


def test_an_integer_may_have_as_many_digits_as_python_reads() -> None:
    """The bound is Python's default one, whatever this process has set."""
    most = 10**INT_DIGITS_MAX - 1
    for value in (most, -most):
        assert there_and_back({"n": [value]}) == {"n": [value]}
    for value in (most + 1, -most - 1):
        with pytest.raises(LimitError, match=r"^/n/0: an integer may have 4300 digits"):
            encode({"n": [value]})
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(0)
        with pytest.raises(LimitError, match=r"^/n/0: "):
            encode({"n": [most + 1]})
        sys.set_int_max_str_digits(1000)
        with pytest.raises(LimitError, match=r"^/n/0: an integer may have 1000 digits"):
            encode({"n": [10**1000]})
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"nul",
        b'"\xff"',
        b"[1e400]",
        b'{"$float":"1.5"}',
        b'{"$float":1}',
        b'{"$float":"nan","x":1}',
        b'{"$bytes":"?"}',
        b'{"$bytes":"YQ"}',
        b'{"$str":"/w=="}',
        b'{"$str":"Y?Q=="}',
        b'{"$tuple":1}',
        b'{"$set":[[]]}',
        b'{"$frozenset":[{}]}',
        b'{"$map":[[1]]}',
        b'{"$map":[[[],1]]}',
        b'{"$map":{"a":1}}',
        b'{"$dict":[]}',
        b'{"$ref":[1,1,0],"hash":""}',
        b'{"$list":[1,1,0,"/a"],"n":"1","add":[],"hash":""}',
    ],
)
def test_a_text_that_is_no_value_is_damage(text: bytes) -> None:
    """Whatever is wrong with it, no other error comes out."""
    with pytest.raises(DamagedError):
        decode(text, recall=Recall())


@given(st.binary(max_size=60) | st.text('[]{}"$:,1e-map', max_size=40).map(str.encode))
def test_any_other_bytes_are_a_value_or_damage_and_nothing_else(text: bytes) -> None:
    with contextlib.suppress(DamagedError, FormatError, UsageError):
        decode(text)


def test_an_unknown_tag_asks_for_a_newer_version() -> None:
    with pytest.raises(FormatError, match=r"/a: unknown tag '\$newer'.*Upgrade"):
        decode(b'{"a":{"$newer":[1]}}')


def test_what_refers_to_other_records_asks_for_them() -> None:
    with pytest.raises(UsageError, match="recall="):
        decode(b'{"$ref":[1,1,0,"/a"],"hash":"0123456789abcdef"}')


def test_a_decoded_value_is_the_callers_to_change() -> None:
    text = encode({"a": [1, {"b": (2, [3])}], "c": {4}}).json
    first = decode(text)
    first["a"][1]["b"][1].append(5)
    first["c"].add(6)
    assert decode(text) == {"a": [1, {"b": (2, [3])}], "c": {4}}
    assert decode(msgspec.Raw(text)) == decode(text)
