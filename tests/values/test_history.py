"""A history costs what it adds, and comes back as it was at each step."""

from __future__ import annotations

import copy
import json
import random
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.errors import DamagedError, EncodeError, LimitError
from rolltape.values import Memory, Recall, decode, encode, learn
from rolltape.values import history as bounds
from rolltape.values.recall import LINES_BYTES_MAX
from tests.values.kinds import Role
from tests.values.support import PLAIN, Tape, exact, hashables, values


def text(seed: Any, size: int = 2000) -> str:
    return "".join(random.Random(str(seed)).choices("abcdefghijklmnop qrstuvwxyz", k=size))


def message(seed: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text(seed)}


def conversation(turns: int, tape: Tape) -> tuple[list[Any], int]:
    """Record `turns` model calls: the whole history in, a reply out that becomes the next message."""
    messages: list[Any] = [message("system", "system")]
    logical = len(msgspec.json.encode(messages))
    for turn in range(turns):
        tape.record({"model": "m", "messages": messages})
        reply = {"role": "assistant", "content": text(("reply", turn))}
        tape.record({"id": f"r{turn}", "choices": [{"index": 0, "message": reply}]})
        tool = {"role": "tool", "tool_call_id": f"c{turn}", "content": text(("tool", turn))}
        messages += [reply, tool]
        logical += len(msgspec.json.encode([reply, tool]))
    return messages, logical


@pytest.mark.parametrize("turns", [50, 500])
def test_a_growing_history_takes_a_fifth_more_than_what_is_new(turns: int) -> None:
    tape = Tape()
    _, logical = conversation(turns, tape)
    assert tape.bytes() <= 1.2 * logical


def calls_of(function: Callable[[], Any]) -> int:
    """How many functions of Python and of C are called: work, but not time."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    function()
    sys.setprofile(None)
    return calls


def test_a_step_takes_the_same_work_however_long_the_history() -> None:
    """Whether it only grows or, as agents do that keep only the last screenshots, an older message is elided each time;
    with numbers in the messages and without."""
    for elide in (False, True):
        for number in ({}, {"n": 1}):
            tape = Tape()
            messages: list[Any] = [message("system")]
            sizes, calls = [], []
            for turn in range(400):
                calls.append(calls_of(partial(tape.record, {"messages": messages})))
                sizes.append(len(tape.written[-1].json))
                messages += [{**message(turn), **number, "calls": [{"id": "1"}]}, {**message((turn, "tool")), **number}]
                if elide and turn > 4:
                    messages[-8] = {"role": "user", "content": "elided", **number}
            assert max(sizes[100:]) <= max(sizes[10:100]) + 10
            assert sorted(calls[300:])[50] <= sorted(calls[20:120])[50] + 20


def test_each_step_reads_back_as_the_history_was_then() -> None:
    """In order, in reverse order, and alone."""
    tape = Tape()
    then = []
    messages: list[Any] = [message(0)]
    for turn in range(40):
        tape.record(messages)
        then.append(copy.deepcopy(messages))
        messages.append({"role": "assistant", "content": text(turn), "calls": [{"id": turn}, {"args": {"x": [turn]}}]})
    recall = tape.recall()
    for seq in [*range(40), *reversed(range(40))]:
        assert exact(tape.read(seq, recall)) == exact(then[seq])
        assert exact(tape.read(seq)) == exact(then[seq])


def test_a_reply_that_comes_back_as_a_message_is_a_reference() -> None:
    tape = Tape()
    reply = message("reply", "assistant")
    tape.record({"choices": [{"message": reply}]})
    again = tape.record({"messages": [message("question"), reply, dict(reply)], "note": reply["content"]})
    tag = b'{"$ref":[1,1,0,"/result/choices/0/message/content"],"hash":'
    assert again.json.count(tag) == 3
    assert tape.read(1) == {"messages": [message("question"), reply, reply], "note": reply["content"]}


def test_a_record_never_refers_to_itself() -> None:
    """What it repeats, it writes twice: nobody could read it before it is there."""
    tape = Tape()
    history = [message(i) for i in range(5)]
    first = tape.record({"a": history, "b": history, "c": [history, history[0]["content"]]})
    assert b'"$list"' not in first.json and b'"$ref"' not in first.json
    second = tape.record({"a": history, "b": history})
    assert second.json.count(b'"$list"') == 2
    assert tape.read(1) == {"a": history, "b": history}


def test_two_values_of_one_record_do_not_refer_to_each_other() -> None:
    """Arguments and result may share a record: both are encoded before it is taken."""
    memory = Memory()
    history = [message(i) for i in range(5)]
    arguments = encode(history, where="/call/args", memory=memory)
    result = encode(history, where="/result", memory=memory)
    assert b'"$' not in arguments.json + result.json
    memory.commit((1, 1, 0), arguments.notes, result.notes)
    later = encode([*history, message("new")], where="/call/args", memory=memory)
    assert b'"$list":[1,1,0,"' in later.json and later.json.count(b'"role"') == 1
    line = b'{"call":{"args":%b},"result":%b}' % (arguments.json, result.json)
    assert decode(later.json, recall=Recall({(1, 1, 0): line}.get)) == [*history, message("new")]


def test_what_was_not_taken_leaves_no_trace() -> None:
    """A record that was refused, and an encode that failed, however far it had come."""
    memory, untouched = Memory(), Memory()
    history: list[Any] = [message(i) for i in range(4)]
    for one in (memory, untouched):
        one.commit((1, 1, 0), encode(history, memory=one).notes)
    encode([*history, message("refused")], memory=memory)
    with pytest.raises(EncodeError):
        encode([*history, message("failed"), {"content": text("long"), "bad": object()}], memory=memory)
    for after in ([*history, message("refused")], [*history, message("failed"), text("long")], [text("long")] * 2):
        assert encode(after, memory=memory).json == encode(after, memory=untouched).json


def test_a_message_that_was_changed_in_place_is_recorded_as_it_is() -> None:
    """At any depth, also where only a number's type or its sign changes, which `==` does not see."""

    def fresh() -> list[Any]:
        return [
            message("system"),
            {"role": "user", "n": 1, "ok": True, "x": 0.0, "parts": [{"type": "text", "n": [0, {"deep": 1}]}, 2]},
            {"a": None, "b": None, "c": {"p": [1], "q": [1]}, "t": (1, [2])},
            *[message(i) for i in range(5)],
            {"ok": True, "text": "x"},
            {"a": 1, "b": 2.0},
            {"a": 1, "b": True},
        ]

    changes: list[Any] = [
        lambda m: m[1].update(n=True),
        lambda m: m[1].update(n=1.0),
        lambda m: m[1].update(ok=1),
        lambda m: m[1].update(x=-0.0),
        lambda m: m[1].update(x=0),
        lambda m: m[1]["parts"][0].update(type="image"),
        lambda m: m[1]["parts"][0]["n"].append(1),
        lambda m: m[1]["parts"][0]["n"][1].update(deep=True),
        lambda m: m[1]["parts"].__setitem__(1, 2.0),
        lambda m: m[1].update(role=m[1].pop("role")),
        lambda m: m[2].update(a=m[2].pop("a")),
        lambda m: m[2].update(c={"q": [1], "p": [1]}),
        lambda m: m[2]["c"].update(p=m[2]["c"].pop("p")),
        lambda m: m[2].update(t=(True, [2])),
        lambda m: m[2].update(t=[1, [2]]),
        lambda m: m[2]["t"][1].append(3),
        lambda m: m[3].update({"extra": 1}),
        lambda m: m[3].pop("role"),
        lambda m: m[8].update(ok=1),
        lambda m: m.__setitem__(9, {"b": 2, "a": 1.0}),
        lambda m: m.__setitem__(10, {"b": 1, "a": True}),
        lambda m: m.reverse(),
        lambda m: m.__delitem__(4),
    ]
    for change in changes:
        tape = Tape()
        history = fresh()
        tape.record(history)
        history.append(message("one more"))
        tape.record(history)
        change(history)
        tape.record(history)
        tape.record([*history, message("and another")])
        assert exact(tape.read(2)) == exact(history)
        assert exact(tape.read(3)) == exact([*history, message("and another")])


def test_a_message_whose_keys_were_put_in_another_order_counts_as_the_same() -> None:
    """All but numbers is compared by `==`, which is what makes long histories cheap. What comes back equals it."""
    tape = Tape()
    history: list[Any] = [message(i) for i in range(4)]
    tape.record(history)
    history[1].update(role=history[1].pop("role"))
    tape.record([*history, message("new")])
    assert tape.read(1) == [*history, message("new")] and b'"$list"' in tape.written[1].json


def test_what_only_equals_the_recorded_message_is_written_again() -> None:
    """A string became a member of an enum, a dict an ordered one: what comes back is of the same type."""
    for change in (
        lambda m: m[1].update(role=Role.USER),
        lambda m: m[1].update({Role.USER: m[1].pop("role")}),
        lambda m: m.__setitem__(1, OrderedDict(m[1])),
    ):
        tape = Tape()
        history: list[Any] = [message(i) for i in range(4)]
        tape.record(history)
        change(history)
        for seq in (1, 2):
            tape.record([*history, message("new")])
            assert exact(tape.read(seq)) == exact([*history, message("new")])


def test_a_number_that_changed_its_type_is_where_a_list_is_cut() -> None:
    """What is recorded of the list before it still serves."""
    tape = Tape()
    history: list[Any] = []
    for i in range(20):
        history.append({"n": 1, **message(i)})
        tape.record(history)
    history[12]["n"] = True
    assert b'"$list":[1,1,11,"/result"],"n":12' in tape.record(history).json
    assert exact(tape.read(20)) == exact(history)


def test_bytes_are_not_the_same_as_what_only_equals_them() -> None:
    memory = Memory()
    history: list[Any] = [{"image": b"png"}, message(0)]
    memory.commit((1, 1, 0), encode(history, memory=memory).notes)
    history[0]["image"] = bytearray(b"png")
    assert b'{"$bytearray":{"$bytes":"cG5n"}}' in encode(history, memory=memory).json


def test_numbers_that_are_equal_are_not_the_same() -> None:
    """Token ids, flags and scores in long lists, which are compared all at once."""
    same = [[1] * 80, [True] * 80, [1.0] * 80, [0] * 80, [False] * 80, [0.0] * 80, [-0.0] * 80, [10**30] * 80]
    for base in same:
        for other in same:
            tape = Tape()
            tape.record(base)
            longer = tape.record([*other, 7])
            assert exact(tape.read(1)) == exact([*other, 7])
            assert (b"$list" in longer.json) == (exact(base) == exact(other))


def test_a_history_that_is_built_anew_at_each_step_is_still_a_reference() -> None:
    """As many clients do: other dicts, and other strings, of the same content."""
    tape = Tape()
    for turn in range(1, 30):
        messages = [{"role": "user", "content": text(i), "calls": [{"id": i}, {"id": -i}]} for i in range(turn)]
        tape.record(messages)
        assert tape.read(turn - 1) == messages
    assert tape.bytes() < 30 * 2300


def test_branches_of_one_history_each_cost_what_they_add() -> None:
    """A tree search: every branch extends the common part, none sees another's messages."""
    tape = Tape()
    trunk = [message(i) for i in range(20)]
    tape.record(trunk)
    branches = [[*trunk] for _ in range(bounds.LISTS_ALIKE_MAX - 1)]
    live = []
    for turn in range(10):
        for number, branch in enumerate(branches):
            branch.append(message((turn, number)))
            tape.record(branch)
            live.append([*branch])
    recall = tape.recall()
    for seq, value in enumerate(live):
        assert tape.read(seq + 1, recall) == value
    assert tape.bytes() < 2100 * (20 + len(live)) * 1.2


def test_a_history_that_a_record_holds_twice_takes_no_branchs_place() -> None:
    """As a step's arguments may: only other histories count as branches."""
    tape = Tape()
    trunk = [message(i) for i in range(3)]
    one, other = [*trunk], [*trunk]
    for turn in range(40):
        one.append(message((1, turn)))
        tape.record({"messages": one, "state": {"messages": one}})
        if turn % 8 == 0:
            other.append(message((2, turn)))
            assert len(tape.record(other).json) < 2300
            assert tape.read(len(tape.lines) - 1) == other


def test_a_history_that_was_cut_or_edited_extends_what_is_left() -> None:
    """Rewound to an earlier step: by reference to that. Edited further back: whole, its long strings referred to."""
    tape = Tape()
    messages = [message("system")]
    for turn in range(20):
        messages.append(message(turn))
        tape.record(messages)
    rewound = [*messages[:11], message("another way")]
    assert b'"$list":[1,1,9,"/result"]' in tape.record(rewound).json
    assert len(tape.record([*messages[:1], messages[5], *messages[7:]]).json) < 20 * 200
    edited = [*messages[:3], {"role": "user", "content": "elided"}, *messages[4:]]
    assert len(tape.record(edited).json) < 20 * 200
    assert b'"$list":[1,1,22,"/result"]' in tape.record([*edited, message("on")]).json
    for seq, value in {20: rewound, 22: edited, 23: [*edited, message("on")]}.items():
        assert tape.read(seq) == value


def test_a_history_whose_old_messages_are_elided_costs_what_is_new() -> None:
    """As agents do that keep only the last screenshots: each step adds at the end, and changes an item further back."""
    for number in ({}, {"n": 1}):
        tape = Tape()
        messages: list[Any] = []
        then = []
        for turn in range(120):
            messages += [{**message((turn, 0)), **number}, {**message((turn, 1)), **number}]
            if turn > 4:
                messages[-8] = {"role": "user", "content": "elided"}
            tape.record(messages)
            then.append([*messages])
        assert tape.bytes() < 1.4 * 120 * 2 * 2040
        recall = tape.recall()
        assert [tape.read(seq, recall) for seq in range(120)] == then


def test_a_window_that_slides_costs_references_only() -> None:
    """Whoever drops the oldest message at each step shares no beginning with the step before."""
    tape = Tape()
    messages = [message(i) for i in range(60)]
    for turn in range(40):
        tape.record(messages[turn : turn + 20])
        assert tape.read(turn) == messages[turn : turn + 20]
    assert tape.bytes() < 60 * 2050 + 40 * 20 * 150


def test_short_lists_and_strings_are_written_again() -> None:
    """A reference would be longer."""
    tape = Tape()
    small = {"box": [1, 2, 3, 4], "names": ["a", "b"], "calls": [{"id": 1}, {"id": 2}], "text": "x" * 70}
    for _ in range(3):
        assert tape.record(small).json == encode(small).json


def test_a_place_inside_a_tag_can_be_referred_to() -> None:
    """Also where the walk had to begin again, because a later key asked for the tag."""
    tape = Tape()
    tape.record({"first": text(1), "list": [message(2), message(3)], "$x": (text(4), {"a/b~1": text(5)}), 7: [text(6)]})
    tape.record({"first": text(7), "list": [message(8), message(9)], "$x": (text(10), {"a/b~1": text(11)})})
    lists = [[message(i), message(i + 1), message(i + 20)] for i in (2, 8)]
    again = {"texts": [text(i) for i in (1, 4, 5, 6, 7, 10, 11)], "lists": lists}
    encoded = tape.record(again)
    assert encoded.json.count(b'"$ref"') == 7 and encoded.json.count(b'"$list"') == 2
    assert tape.read(2) == again


def test_keys_that_look_like_references_are_keys() -> None:
    """Anywhere in what is referred to, also where a reader looks for what a list builds on."""
    tape = Tape()
    fake = {"$list": [1, 1, 0, "/result"], "n": 2, "add": [], "hash": "0"}
    history: list[Any] = [message(0), {"x": fake, "$dict": {"$list": None}, "$ref": [fake]}]
    for turn in range(4):
        history.append({"role": "user", "content": text(turn), "x": {"$list": turn, "y": fake}})
        tape.record(history)
        assert tape.read(turn) == history
    assert b'{"$list":[1,1,2,"/result"]' in tape.written[3].json


def test_an_error_in_a_long_history_names_the_index_that_its_author_knows() -> None:
    """Not the one in what is written."""
    tape = Tape()
    history: list[Any] = [message(i) for i in range(8)]
    tape.record(history)
    for wrong, place in (
        ({"x": [object()]}, "/result/9/x/0"),
        ([[{1: object()}]], "/result/9/0/0/1"),
        (object(), "/result/9"),
    ):
        with pytest.raises(EncodeError, match=f"^{place}: "):
            tape.record([*history, message("fine"), wrong])


def test_a_list_that_nests_deeper_at_each_step_ends_at_the_bound() -> None:
    """Though each record adds one level only."""
    tape = Tape()
    live: list[Any] = [text("a"), text("b")]
    with pytest.raises(LimitError, match="200 levels"):
        for i in range(300):
            live = [text(i), live]
            tape.record(live)
    assert 150 < len(tape.lines) < 200
    recall = tape.recall()
    for seq in range(len(tape.lines)):
        value = tape.read(seq, recall)
    assert value == live[1]


def test_a_list_inside_a_remembered_list_is_copied_once() -> None:
    """Arguments may be a list that holds the history, which is then inside two lists that are remembered."""
    tape = Tape()
    task = {"id": 1, "question": text("question")}
    messages: list[Any] = [message("system")]
    live = []
    for turn in range(30):
        messages.append(message(turn))
        tape.record([task, messages, [[messages, messages], turn]])
        live.append(copy.deepcopy([task, messages, [[messages, messages], turn]]))
    recall = tape.recall()
    for seq, value in enumerate(live):
        assert tape.read(seq, recall) == value
    assert len(tape.written[-1].json) < 3 * 2300


def test_redacted_histories_are_references_too() -> None:
    """What was hidden is hidden before it is compared; and no secret is written on the way."""
    memory = Memory()
    lines = {}
    messages: list[Any] = [{"role": "user", "content": text(0), "headers": {"authorization": "s3cret-0"}}, message(1)]
    for seq in range(10):
        encoded = encode(messages, where="/result", memory=memory)
        memory.commit((1, 1, seq), encoded.notes)
        lines[1, 1, seq] = b'{"result":%b}' % encoded.json
        assert b"s3cret" not in encoded.json
        assert (b'"$list"' in encoded.json) == (seq > 0)
        messages[0]["headers"]["authorization"] = f"s3cret-{seq}"
        messages.append({"role": "user", "content": text(seq), "headers": {"cookie": f"s3cret-{seq}"}})
    read = decode(encoded.json, recall=Recall(lines.get))
    assert [m.get("headers") for m in read[2:]] == [{"cookie": "[redacted]"}] * 9
    assert read[0]["headers"] == {"authorization": "[redacted]"}


def test_a_value_that_cannot_be_compared_is_refused_like_any_other() -> None:
    """Comparing calls the values' own methods, which may raise anything (as a numpy array's do)."""

    class Awkward:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth value is ambiguous")

        __hash__ = None  # type: ignore[assignment]

    memory = Memory()
    history: list[Any] = [message(i) for i in range(3)]
    memory.commit((1, 1, 0), encode(history, memory=memory).notes)
    other = Awkward()
    for wrong in ([history[0], other, history[2]], [*history[:2], {"role": "user", "content": other}], [other, 1, []]):
        with pytest.raises(EncodeError, match="Awkward"):
            encode(wrong, memory=memory)


# ---- any history ----------------------------------------------------------------------------------------------------

items = (
    st.builds(message, st.integers(0, 9))
    | values
    | st.dictionaries(st.sampled_from(["role", "content", "$ref", "n"]), values, max_size=3)
    | st.text("ab$\ud800", min_size=60, max_size=140)
)
edits = st.lists(
    st.tuples(
        st.sampled_from(["append", "extend", "cut", "set", "nest", "put", "same", "other"]), st.integers(0, 30), items
    ),
    min_size=1,
    max_size=14,
)


def edit(live: list[Any], how: str, where: int, item: Any, results: list[Any]) -> list[Any]:
    """Do to a history what a rollout may do to it between two steps."""
    if how == "append":
        live.append(item)
    elif how == "extend":
        live += [*copy.deepcopy(live[:2]), item, item]
    elif how == "cut":
        del live[where % (len(live) + 1) :]
    elif how == "set" and live:
        live[where % len(live)] = item
    elif how == "nest":
        live.append([live[-1] if live else item, item, [item]])
    elif how == "put" and results:
        live.append(copy.deepcopy(results[where % len(results)]))
    elif how == "flip":
        flip(live)
    elif how == "other":
        live = [item, *live[where % 3 :]]
    return live


def flip(value: Any) -> None:
    """Turn every 0 and 1 in it, in place, into an equal number of another type."""
    for place, item in list(value.items() if type(value) is dict else enumerate(value)):
        if type(item) in (dict, list):
            flip(item)
        elif type(item) in (int, bool, float) and item in (0, 1):
            value[place] = {int: bool, bool: float, float: int}[type(item)](item)


@given(st.lists(items, max_size=4), edits)
@settings(max_examples=150, deadline=None)
def test_any_history_reads_back_as_it_was_at_each_step(live: list[Any], steps: list[Any]) -> None:
    """Whatever was done to it: grown, cut, edited, nested in itself, started anew, with results put in."""
    tape = Tape()
    then: list[Any] = []
    for how, where, item in steps:
        live = edit(live, how, where, item, then)
        then.append(copy.deepcopy({"args": [live, item], "kw": {"messages": live}}))
        tape.record({"args": [live, item], "kw": {"messages": live}})
    recall = tape.recall()
    for seq in [*range(len(then)), 0]:
        assert exact(tape.read(seq, recall)) == exact(then[seq])
    assert exact(tape.read(len(then) - 1)) == exact(then[-1])


@given(st.lists(items, max_size=4), edits)
@settings(deadline=None)
def test_a_memory_that_learned_writes_what_the_one_that_wrote_would(live: list[Any], steps: list[Any]) -> None:
    """So a resumed process goes on as the one before would have: byte by byte the same."""
    tape = Tape()
    again = Memory()
    recall = tape.recall()
    for how, where, item in steps:
        live = edit(live, how, where, item, [])
        record = tape.record(live)
        position = (1, 1, len(tape.lines) - 1)
        value = tape.read(len(tape.lines) - 1, recall)
        if not any(item != item for item in flat(live)):  # a NaN that was read equals no other
            assert learn(again, position, [("/result", value, record.json)], redact=PLAIN)
            after = [*live, text("after")]
            assert (
                encode(after, where="/result", memory=again, redact=PLAIN).json
                == encode(after, where="/result", memory=tape.memory, redact=PLAIN).json
            )
        else:
            return


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for pair in value.items() for item in pair for leaf in flat(item)]
    if isinstance(value, list | tuple | set | frozenset):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def test_a_record_that_would_be_written_otherwise_is_not_learned() -> None:
    """Of another version, or of another redactor: it is never referred to, and that costs one list."""
    memory = Memory()
    history = [message(i) for i in range(3)]
    raw = encode(history).json
    assert not learn(memory, (1, 1, 0), [("/result", history, raw.replace(b'":', b'": '))])
    assert encode(history, memory=memory).json == raw
    assert learn(memory, (1, 1, 1), [("/result", history, msgspec.Raw(raw))])
    assert b'"$list":[1,1,1,"/result"]' in encode(history, memory=memory).json


# ---- bounds ---------------------------------------------------------------------------------------------------------


def test_a_memory_forgets_the_oldest_and_what_it_forgot_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings by number and by size, lists by number, by likeness and by size."""
    monkeypatch.setattr(bounds, "STRINGS_MAX", 10)
    tape = Tape()
    for i in range(20):
        tape.record(text(i))
    assert b"$ref" in tape.record(text(19)).json and b"$ref" not in tape.record(text(3)).json
    monkeypatch.setattr(bounds, "STRING_CHARS_MAX", 6000)
    for i in range(20):
        tape.record(text(i))
    assert b"$ref" in tape.record(text(18)).json and b"$ref" not in tape.record(text(15)).json

    def rows(name: str, i: int) -> list[Any]:
        return [{name: i, "n": n, "pad": "x" * 60} for n in range(8)]

    for i in range(bounds.LISTS_ALIKE_MAX + 2):
        tape.record(rows("row", i))
    assert b"$list" in tape.record(rows("row", 3)).json and b"$list" not in tape.record(rows("row", 1)).json
    for i in range(bounds.LISTS_MAX + 10):
        tape.record(rows(f"row {i}", 0))
    assert b"$list" in tape.record(rows("row 40", 0)).json and b"$list" not in tape.record(rows("row 2", 0)).json
    monkeypatch.setattr(bounds, "LIST_VALUES_MAX", 100_000)
    for i in range(4):
        tape.record([i] * 40_000)
    assert b"$list" in tape.record([3] * 40_000).json and b"$list" not in tape.record([1] * 40_000).json
    tape.record([9] * 150_000)
    assert b"$list" not in tape.record([9] * 150_000).json
    assert tape.read(len(tape.lines) - 1) == [9] * 150_000


def test_what_is_used_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference counts as use."""
    monkeypatch.setattr(bounds, "STRINGS_MAX", 10)
    tape = Tape()
    tape.record(text("kept"))
    for i in range(30):
        tape.record(text(i))
        assert b"$ref" in tape.record(text("kept")).json


def test_what_was_forgotten_while_a_record_was_on_its_way_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of several branches are encoded and taken in any order."""
    monkeypatch.setattr(bounds, "STRINGS_MAX", 4)
    monkeypatch.setattr(bounds, "LISTS_MAX", 2)
    tape = Tape()
    history = [message("a"), message("b")]
    tape.record({"text": text("kept"), "list": history})
    value = {"text": text("kept"), "list": [*history, message("c")]}
    slow = encode(value, where="/result", memory=tape.memory, redact=PLAIN)
    assert b'"$ref":[1,1,0,"/result/text"]' in slow.json and b'"$list":[1,1,0,"/result/list"]' in slow.json
    for i in range(5):
        tape.record([{f"{i}": text(i)}, message(i)])
    tape.memory.commit((1, 1, len(tape.lines)), slow.notes)
    tape.lines[1, 1, len(tape.lines)] = b'{"result":%b}' % slow.json
    tape.written.append(slow)
    again = tape.record({"again": text("kept"), "list": [*history, message("c"), message("d")]})
    assert b'"$ref":[1,1,0,"/result/text"]' in again.json and b'"$list":[1,1,6,"/result/list"]' in again.json
    assert tape.read(6) == value
    assert tape.read(7) == {"again": text("kept"), "list": [*history, message("c"), message("d")]}


def test_branches_that_are_encoded_at_once_may_be_taken_in_any_order() -> None:
    """Each extends what the other extended meanwhile."""
    for swap in (False, True):
        tape = Tape()
        trunk = [message(i) for i in range(3)]
        tape.record(trunk)
        values = [[*trunk, message("x")], [*trunk, message("x"), message("y")], [*trunk, message("z")], [*trunk]]
        encoded = [encode(value, where="/result", memory=tape.memory, redact=PLAIN) for value in values]
        order = [*range(4)][:: -1 if swap else 1]
        for i in order:
            position = (1, 1, len(tape.lines))
            tape.memory.commit(position, encoded[i].notes)
            tape.lines[position] = b'{"result":%b}' % encoded[i].json
            tape.written.append(encoded[i])
        for i, value in enumerate(values):
            tape.record([*value, message("later")])
            assert tape.read(1 + order.index(i)) == value
            assert tape.read(5 + i) == [*value, message("later")]
            assert b'"$list"' in tape.written[-1].json


# ---- reading --------------------------------------------------------------------------------------------------------


def recorded(turns: int = 6) -> tuple[Tape, list[Any]]:
    tape = Tape()
    messages: list[Any] = [message("system")]
    for turn in range(turns):
        messages.append(message(turn))
        tape.record(messages)
    return tape, messages


def test_a_decoded_value_can_be_changed_without_changing_later_ones() -> None:
    """Each decoding hands out containers of its own."""
    tape = Tape()
    messages: list[Any] = [{"role": "user", "parts": [{"n": [1]}, {"t": (0, [2])}], "text": text(0)}, message(1)]
    for turn in range(5):
        messages.append({"role": "user", "parts": [{"n": [turn]}], "text": text(turn)})
        tape.record(messages)
    recall = tape.recall()
    for _ in range(2):
        for seq in (4, 2, 3, 4):
            value = tape.read(seq, recall)
            assert value == messages[: seq + 3]
            value[0]["parts"][0]["n"].append("spoiled")
            value[0]["parts"][1]["t"][1].clear()
            value[1]["role"] = "spoiled"
            value[-1]["parts"].clear()
            del value[0]["text"], value[2:]


def test_sets_in_what_is_referred_to_are_the_callers_to_change_too() -> None:
    """We never refer to a list with a set in it, but another writer may."""
    base = b'[{"$set":[1]},[{"$set":[2]}]]'
    lines = {(1, 1, 0): b'{"result":%b}' % base}
    hashed = blake2b(blake2b(base, digest_size=8).digest() + b"2[]", digest_size=8).hexdigest()
    recall = Recall(lines.get)
    for _ in range(2):
        value = decode(b'{"$list":[1,1,0,"/result"],"n":2,"add":[],"hash":"%b"}' % hashed.encode(), recall=recall)
        assert value == [{1}, [{2}]]
        value[0].add(3)
        value[1][0].clear()


def test_decoded_values_share_their_strings_and_no_container() -> None:
    """A long string is kept once, however often it comes back."""
    tape, _ = recorded()
    recall = tape.recall()
    first, second = tape.read(3, recall), tape.read(5, recall)
    assert first[1]["content"] is second[1]["content"]
    assert first[1] is not second[1]


@pytest.mark.parametrize("missing", range(5))
def test_a_base_that_is_missing_is_damage_with_its_place(missing: int) -> None:
    tape, messages = recorded()
    del tape.lines[1, 1, missing]
    with pytest.raises(DamagedError, match=rf"record \(1, 1, {missing}\) is missing"):
        tape.read(5)
    if missing:
        assert tape.read(missing - 1) == messages[: missing + 1]


def test_every_byte_of_a_base_counts() -> None:
    """A changed base is found out, and named, by whoever extends it; nothing else than what was recorded comes back."""
    tape, messages = recorded(4)
    sound = dict(tape.lines)
    found = 0
    for seq in range(3):
        line = sound[1, 1, seq]
        for i in range(line.index(b'"result":') + 9, len(line) - 1, 7):
            tape.lines[1, 1, seq] = line[:i] + bytes([line[i] ^ 1]) + line[i + 1 :]
            try:
                assert tape.read(3) == messages
            except DamagedError as error:
                found += 1
                assert "record (1, 1, " in str(error) or "extends" in str(error), error
        tape.lines[1, 1, seq] = line
    assert found > 500


def test_a_changed_string_is_damage_with_its_place() -> None:
    tape = Tape()
    tape.record({"a/b": [text("long")]})
    tape.record({"again": text("long")})
    tape.lines[1, 1, 0] = tape.lines[1, 1, 0].replace(text("long")[:20].encode(), b"y" * 20)
    with pytest.raises(DamagedError, match=r"record \(1, 1, 0\) .* /result/a~1b/0 "):
        tape.read(1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"n":3', b'"n":2'),
        (b'"n":3', b'"n":0'),
        (b'"hash":"', b'"hash":"0'),
        (b"/result", b"/results"),
        (b"/result", b"/result/0"),
        (b"/result", b"/result/add/x"),
        (b"/result", b"result"),
        (b"/result", b""),
        (b"/result", b"/"),
        (b"[1,1,1,", b"[1,1,2,"),
        (b"[1,1,1,", b"[1,1,3,"),
        (b"[1,1,1,", b"[1,1,0,"),
        (b"[1,1,1,", b"[1,true,1,"),
        (b'"add":[', b'"add":[1,'),
        (b'"add":[{', b'"add":[ {'),
    ],
)
def test_a_reference_that_does_not_lead_to_what_it_promises_is_damage(old: bytes, new: bytes) -> None:
    """Also one that leads to itself or to a later record."""
    tape, _ = recorded(4)
    line = tape.lines[1, 1, 2]
    assert old in line
    tape.lines[1, 1, 2] = line.replace(old, new, 1)
    with pytest.raises(DamagedError):
        tape.read(3)
    with pytest.raises(DamagedError):
        decode(json.dumps(json.loads(tape.lines[1, 1, 2])["result"]).encode(), recall=tape.recall())


def test_a_chain_of_three_thousand_references_is_read_without_recursion() -> None:
    """Each list extends the one before, and each is inside the next."""
    tape = Tape()
    live: list[Any] = [message(0), message(1)]
    for i in range(3_000):
        live.append(i)
        tape.record(live)
    assert tape.read(2_999) == live
    tape = Tape()
    nested: list[Any] = [text("a"), text("b")]
    for i in range(60):
        nested = [text(i), nested]
        tape.record(nested)
    assert tape.read(59) == nested


def test_a_reader_keeps_a_bounded_part_of_what_it_can_fetch_again() -> None:
    """What it was only given, it keeps."""
    line = b'{"result":"%b"}' % (b"x" * 4_000_000)
    again, given_only = Recall(missing=lambda position: line), Recall()
    for seq in range(20):
        again.learn((1, 1, seq), line)
        given_only.learn((1, 1, seq), line)
    assert sum(map(len, again._lines.values())) <= LINES_BYTES_MAX
    assert len(given_only._lines) == 20
    encoded = encode("x" * 4_000_000, where="/result", memory=(memory := Memory()))
    memory.commit((1, 1, 0), encoded.notes)
    assert decode(encode("x" * 4_000_000, memory=memory).json, recall=again) == "x" * 4_000_000


def test_records_may_be_given_as_lines_or_as_fields() -> None:
    tape, messages = recorded()
    fields, lines = Recall(), Recall()
    for position, line in tape.lines.items():
        fields.learn(position, msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
        lines.learn(position, line)
    for recall in (fields, lines):
        assert tape.read(5, recall) == messages
        tape.record(messages[0]["content"])
        assert tape.read(len(tape.lines) - 1, recall) == messages[0]["content"]


def test_packed_bytes_of_an_earlier_record_are_found_by_its_position() -> None:
    """Each segment has a pack of its own, so the hash alone does not say where to look."""
    tape = Tape()
    image = bytes(range(256)) * 200
    history = [{"role": "user", "image": image}, message(0)]
    tape.record(history)
    history.append(message(1))
    tape.record(history)
    assert not tape.written[1].blobs
    asked = []

    def blob(position: tuple[int, int, int], name: str, size: int) -> bytes:
        asked.append(position)
        return tape.blob(name, size)

    assert decode(tape.written[1].json, recall=Recall(tape.lines.get, blob)) == history
    assert asked == [(1, 1, 0)]


@given(st.lists(hashables, min_size=2, max_size=4), st.booleans())
def test_odd_values_in_a_history_come_back_whole(odd: list[Any], with_set: bool) -> None:
    """Sets and other keys than strings are never referred to; they are written again."""
    tape = Tape()
    history = [message(0), {"odd": set(odd) if with_set else dict.fromkeys([*odd, 1], 1)}, message(1)]
    for turn in range(3):
        history.append(message(turn))
        assert b'"$list"' not in tape.record(history).json
        assert exact(tape.read(turn)) == exact(history)
