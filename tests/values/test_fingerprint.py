"""Equal arguments have one fingerprint, in every process and however they are recorded; others have another."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.errors import EncodeError, LimitError
from rolltape.values import Foreign, Memory, Redactor, decode, difference, encode, fingerprint, learn
from tests.values.kinds import Colour, Frozen, Level, Message, Point
from tests.values.support import PLAIN, Tape, exact, objects, values
from tests.values.test_history import calls_of, edit, edits, items, message


def test_it_is_the_same_in_every_process() -> None:
    """Whatever the seed of the hashes, and the order in which a dict or a set was filled."""
    program = (
        "import sys\n"
        "from rolltape.values import fingerprint\n"
        "pairs = [(f'key {i}', {i: {f'{i}', i, (i,)}}) for i in range(40)]\n"
        "if sys.argv[1] == '1': pairs.reverse()\n"
        "print(fingerprint({'args': [dict(pairs), {1: 'a', 'b': 2} if pairs[0][0] == 'key 0' else {'b': 2, 1: 'a'}]}))"
    )
    prints = {
        subprocess.run(
            [sys.executable, "-c", program, seed],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "2")
    }
    assert prints == {
        fingerprint({"args": [{f"key {i}": {i: {f"{i}", i, (i,)}} for i in range(40)}, {"b": 2, 1: "a"}]})
    }


def test_these_fingerprints_are_in_journals() -> None:
    """So they never change: a run would diverge when it is resumed with a newer Rolltape."""
    call = {"args": [1, 2.5, "x"], "kwargs": {"messages": [{"role": "user", "content": "hi"}], "ids": [1] * 300}}
    assert fingerprint(None) == "941dffce4e4308ceb33e87326003257d"
    assert fingerprint(call) == "c113507dd98c32912419bb0bd1934e33"
    assert fingerprint([Message("user", "x"), Colour.RED, {"a": (1,)}]) == "51deb519836af54ed64c8fe10b9f65e9"


DIFFERENT: list[Any] = [
    1, True, 1.0, "1", b"1", 0, 0.0, -0.0, False, None, "", float("nan"), float("inf"), [], (), {}, set(), frozenset(),
    [1], (1,), {1}, [[1]], [1, 2], [2, 1], {"a": 1}, {"a": 1, "b": 2}, {"a": None}, {1: 2}, {"1": 2}, [{"a": 1}],
    [{"a": 1}, {}], [{}, {"a": 1}], ["x" * 100], ["x" * 100, "y"], ["x" * 99 + "y"], [["x" * 100]], [1] * 300,
    [1.0] * 300, [True] * 300, tuple([1] * 300), [-0.0] * 300, [0.0] * 300, [1] * 301, "\ud800", "\ud801",
    Colour.RED, Level.LOW, Message("a", "b"), Message("a", "c"), Point(1), Point(True), Frozen(1),
    OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), {"$chain": "0"}, [{"$chain": "0"}], bytes(40_000), bytes(40_001),
]  # fmt: skip


def test_different_values_have_different_fingerprints() -> None:
    """By type and sign too."""
    prints = [fingerprint(value) for value in DIFFERENT] + [fingerprint([{"k": value}, {}]) for value in DIFFERENT]
    assert len(set(prints)) == len(prints)
    for a in DIFFERENT:
        for b in DIFFERENT:
            assert (difference(a, b) is None) == (a is b), (a, b)


@given(st.one_of(values, objects))
@settings(max_examples=150, deadline=None)
def test_equal_values_have_equal_fingerprints(value: Any) -> None:
    """NaN with them, and a dict in another order."""

    def turned(part: Any) -> Any:
        if type(part) is dict:
            return {key: turned(item) for key, item in reversed(part.items())}
        return [turned(item) for item in part] if type(part) is list else part

    again = turned(copy.deepcopy(value))
    assert fingerprint(again, redact=PLAIN) == fingerprint(value, redact=PLAIN)
    assert difference(again, value, redact=PLAIN) is None


@given(st.one_of(values, objects), st.one_of(values, objects))
@settings(max_examples=100, deadline=None)
def test_fingerprints_differ_where_there_is_a_difference(one: Any, other: Any) -> None:
    same = fingerprint(one, redact=PLAIN) == fingerprint(other, redact=PLAIN)
    assert same == (difference(one, other, redact=PLAIN) is None)


@given(st.lists(items, max_size=4), edits, st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_history_has_the_same_fingerprint_whole_and_by_reference(
    live: list[Any], steps: list[Any], early: bool
) -> None:
    """In the process that writes, in one that resumes and learned what it read, and in one that knows nothing."""
    tape, again = Tape(), Memory()
    recall = tape.recall()
    for how, where, item in steps:
        live = edit(live, how, where, item, [])
        call = {"args": [live, item], "kwargs": {"messages": live}}
        whole = fingerprint(call, redact=PLAIN)
        if early:
            assert fingerprint(call, redact=PLAIN, memory=tape.memory) == whole
        record = tape.record(call)
        seq = len(tape.lines) - 1
        learn(again, (1, 1, seq), [("/result", tape.read(seq, recall), record.json)], redact=PLAIN)
        assert fingerprint(call, redact=PLAIN, memory=tape.memory) == whole
        assert fingerprint(call, redact=PLAIN, memory=again) == whole
        assert fingerprint(tape.read(seq, recall), redact=PLAIN, memory=again) == whole


@pytest.mark.parametrize("make", [message, lambda seed: Message("user", message(seed)["content"])])
def test_a_growing_history_has_the_same_fingerprint_with_a_memory(make: Any) -> None:
    """Of dicts and of objects."""
    tape = Tape()
    history: list[Any] = [message("system")]
    for turn in range(20):
        history.append(make(turn) if turn % 3 else message(turn))
        tape.record({"messages": history})
        assert fingerprint({"messages": history}, memory=tape.memory) == fingerprint({"messages": history})
    history[3] = {"role": "user", "content": "elided"}
    assert fingerprint({"messages": history}, memory=tape.memory) == fingerprint({"messages": history})


def test_a_growing_history_costs_what_is_new() -> None:
    """The same work at the 400th turn as at the 20th."""
    tape = Tape()
    history: list[Any] = [message("system")]
    calls = []
    for turn in range(300):
        history += [message(turn), message((turn, "tool"))]
        calls.append(calls_of(partial(fingerprint, {"messages": history}, memory=tape.memory)))
        tape.record({"messages": history})
    assert sorted(calls[250:])[25] <= sorted(calls[20:70])[25] + 20


def test_a_secret_is_no_part_of_it() -> None:
    """It is not recorded either, and a new key is no other call."""
    assert fingerprint({"api_key": "one"}) == fingerprint({"api_key": "two"}) != fingerprint({"api_key": None})
    assert difference({"api_key": "one"}, {"api_key": "two"}) is None
    redact = Redactor(frozenset())
    assert fingerprint({"api_key": "one"}, redact=redact) != fingerprint({"api_key": "two"}, redact=redact)


def test_what_cannot_be_recorded_has_none() -> None:
    with pytest.raises(EncodeError, match=r"^/a/1/b: a value of type builtins.object"):
        fingerprint({"a": [{}, {"b": object()}]})
    circle: list[Any] = [{}]
    circle.append(circle)
    for memory in (None, Memory()):
        with pytest.raises(LimitError, match="200 levels"):
            fingerprint(circle, memory=memory)


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        ([{}, {"content": "in paris"}], [{}, {"content": "in london"}],
         '[1].content: "in paris" was recorded, "in london" is passed now'),
        ({"messages": [{"content": "x" * 80 + "paris"}]}, {"messages": [{"content": "x" * 80 + "london"}]},
         'messages[0].content: "…xxxxxxxxxxxxparis" was recorded, "…xxxxxxxxxxxxlondon" is passed now'),
        ("a" * 99, "b" * 99, f'the value: "{"a" * 60}…" was recorded, "{"b" * 60}…" is passed now'),
        ({"n": 1}, {"n": True}, "n: 1 was recorded, true is passed now"),
        ({"n": 0.0}, {"n": -0.0}, "n: 0.0 was recorded, -0.0 is passed now"),
        ({"a": 1}, {"a": 1, "b": [2]}, "b: nothing was recorded, [2] is passed now"),
        ({"a": 1, "b": "\n"}, {"a": 1}, 'b: "\\n" was recorded, nothing is passed now'),
        ({"l": [1, 2]}, {"l": [1]}, "l[1]: 2 was recorded, nothing is passed now"),
        ({"l": [1]}, {"l": [1, {"k": "v" * 99}]}, f'l[1]: nothing was recorded, {{"k":"{"v" * 54}… is passed now'),
        ((1, [2]), (1, [3]), "[1][0]: 2 was recorded, 3 is passed now"),
        ({"$a": {"$ref": 1}}, {"$a": {"$ref": 2}}, "$a.$ref: 1 was recorded, 2 is passed now"),
        ([1], (1,), 'the value: [1] was recorded, {"$tuple":[1]} is passed now'),
        ([7] * 300, [7] * 299 + [8], "[299]: 7 was recorded, 8 is passed now"),
        ({"m": Message("user", "x")}, {"m": Message("user", "y")}, 'm.content: "x" was recorded, "y" is passed now'),
        (Foreign("$dataclass", "gone:M", {"fields": {"x": 1}}), Foreign("$dataclass", "gone:M", {"fields": {"x": 2}}),
         "x: 1 was recorded, 2 is passed now"),
        ({"m": Point(1)}, {"m": Frozen(1)},
         'm: {"$struct":"tests.values.kinds:Point","fields":{"x":1,"y":nu… was recorded, '
         '{"$dataclass":"tests.values.kinds:Frozen","fields":{"x":1,"t… is passed now'),
    ],
)  # fmt: skip
def test_a_difference_is_said_with_its_place_and_both_sides(then: Any, now: Any, words: str) -> None:
    assert difference(then, now) == words
    assert difference(then, decode(encode(then).json, foreign=True)) is None
    assert exact(1) == exact(1)
