"""Instances of the user's classes come back without a call of the class; a class that is not here is named."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import json
import subprocess
import sys
from typing import Annotated, Any

import msgspec
import pytest

from rolltape.errors import DamagedError, EncodeError, FormatError, LimitError
from rolltape.values import REDACTED, Foreign, Recall, decode, encode, learn
from rolltape.values.history import Memory
from tests.values import kinds
from tests.values.kinds import Access, Bits, Colour, Derived, Frozen, Level, Liar, Message, Named, Pair, Point, Role
from tests.values.kinds import Base as WithInit
from tests.values.support import Tape, there_and_back

K = "tests.values.kinds"
GOLDEN: list[tuple[Any, str]] = [
    (Colour.CRIMSON, f'{{"$enum":"{K}:Colour","name":"RED","value":1}}'),
    (Colour.PAIR, f'{{"$enum":"{K}:Colour","name":"PAIR"}}'),
    (Level.LOW, f'{{"$enum":"{K}:Level","name":"LOW","value":1}}'),
    (Role.USER, f'{{"$enum":"{K}:Role","name":"USER","value":"user"}}'),
    (kinds.Outer.Inner.A, f'{{"$enum":"{K}:Outer.Inner","name":"A","value":"a"}}'),
    (Access.READ | Access.WRITE, f'{{"$flag":"{K}:Access","names":["READ","WRITE"],"value":3}}'),
    (Access(0), f'{{"$flag":"{K}:Access","names":[],"value":0}}'),
    (Bits(9), f'{{"$flag":"{K}:Bits","names":["ONE"],"value":9}}'),
    (
        Message("user", "hi"),
        f'{{"$dataclass":"{K}:Message","fields":{{"role":"user","content":"hi","tool_calls":null}}}}',
    ),
    (
        Frozen(1, ("a",)),
        f'{{"$dataclass":"{K}:Frozen","fields":{{"x":1,"tags":{{"$tuple":["a"]}},"hashed":0}}}}',
    ),
    (Point(1, [2]), f'{{"$struct":"{K}:Point","fields":{{"x":1,"y":[2]}}}}'),
    (Pair(1, (2,)), f'{{"$namedtuple":"{K}:Pair","fields":{{"a":1,"b":{{"$tuple":[2]}}}}}}'),
    (Message, f'{{"$type":"{K}:Message"}}'),
    (Foreign("$dataclass", "gone:Gone", {"fields": {"x": 1}}), '{"$dataclass":"gone:Gone","fields":{"x":1}}'),
]


@pytest.mark.parametrize(("value", "text"), GOLDEN, ids=lambda item: str(item)[:40])
def test_these_tags_are_the_file_format(value: Any, text: str) -> None:
    """What is written today is read for ever, so these texts never change."""
    assert encode(value).json.decode() == text
    again = decode(text.encode(), foreign=True)
    assert type(again) is type(value) and again == value


def test_enum_members_are_the_very_same() -> None:
    for member in (*Colour, *Level, *Role, *Access, kinds.Outer.Inner.A):
        assert there_and_back([{member: member}, {member}]) == [{member: member}, {member}]
        assert there_and_back(member) is member


def test_an_instance_is_made_without_a_call_of_its_class() -> None:
    """No `__init__`, no `__post_init__`; what these had made comes back, what they had left out stays out."""
    value = Derived[int](1, seed=5, payload=7)
    structs = [kinds.Tagged(1), kinds.TaggedToo(x=2, note="n")]
    kinds.CALLED.clear()
    again = there_and_back(value)
    assert type(again) is Derived and vars(again) == {
        "x": 1,
        "made": [5],
        "payload": 7,
        "api_key": "",
        "extra": "no field",
    }
    assert not hasattr(again, "later")
    assert there_and_back(structs) == structs
    assert [type(made) for made in there_and_back(structs)] == [kinds.Tagged, kinds.TaggedToo]
    assert kinds.CALLED == []
    frozen = there_and_back(Frozen(1))
    assert frozen == Frozen(1) and hash(frozen) == hash(Frozen(1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.x = 2
    made = kinds.Open(1)
    made.__dict__["note"] = [1]
    assert there_and_back(made).note == [1]
    assert there_and_back(Named(1, [2]))._asdict() == {"a": 1, "b": [2]}


def test_they_hold_and_are_held_by_anything() -> None:
    value = {"a": [Point(1, Message("user", "x", [Pair(Role.USER, {1: Frozen(2)})]))], Frozen(3): {Frozen(4)}}
    assert there_and_back(value) == value
    assert type(there_and_back(value)["a"][0].y.tool_calls[0].b[1]) is Frozen


def test_secrets_in_fields_are_hidden() -> None:
    """A field's name is a key."""
    value = Derived(1, payload={"headers": {"authorization": "c4n4ry"}}, api_key="c4n4ry")
    assert b"c4n4ry" not in encode([value, Point(1, {"password": "c4n4ry"})], memory=Memory()).json
    assert there_and_back(value).payload == value.payload
    assert decode(encode(value).json).api_key == REDACTED


def test_an_error_names_the_field() -> None:
    with pytest.raises(EncodeError, match=r"^/args/0/content/1: a value of type builtins.object"):
        encode([Message("user", [1, object()])], where="/args")  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match=r"^/x/y/a: a value of type builtins.object"):
        encode({"x": Point(1, Pair(object(), 2))})


# ---- local classes, and classes that are not here --------------------------------------------------------------------


def local_classes() -> tuple[Any, Any, Any]:
    class Part(enum.Enum):
        A = 1

    @dataclasses.dataclass
    class Whole:
        part: Part
        more: list[Any] = dataclasses.field(default_factory=list)

    class Holder(msgspec.Struct):
        whole: Whole | None

    return Part, Whole, Holder


def test_a_local_class_is_refused_unless_returns_names_it() -> None:
    part, whole, holder = local_classes()
    value = [holder(whole(part.A, [part]))]
    with pytest.raises(
        EncodeError, match=r"^/0: .*Holder cannot be recorded.*name it in returns=, or define it in a mod"
    ):
        encode(value)
    named = Annotated[list[holder] | None, "and", (whole, part)], (whole, part)
    text = encode(value, returns=named).json
    assert decode(text, returns=named) == value
    with pytest.raises(FormatError, match=r"^the value/0|^/0.*Part is not here. Import .* or name it in returns="):
        decode(text)
    other = local_classes()
    with pytest.raises(EncodeError, match="Holder cannot be recorded"):
        encode(value, returns=other)
    assert type(decode(text, returns=other)[0]) is other[2]
    memory = Memory()
    assert learn(memory, (1, 1, 0), [("/result", decode(text, returns=named), text)], returns=named)


def test_returns_reaches_the_classes_of_the_fields() -> None:
    """As far as annotations can be evaluated: all the way where they are no strings."""
    part, whole, _ = local_classes()
    made = dataclasses.make_dataclass("Made", [("whole", whole), ("parts", dict[str, part])])
    made.__module__, made.__qualname__ = __name__, "somewhere.<locals>.Made"
    whole.__annotations__ = {"part": part, "more": list[Any]}
    value = made(whole(part.A), {"x": part.A})
    assert decode(encode(value, returns=list[made]).json, returns=made | None) == value


def test_a_class_that_is_not_the_one_under_its_name_is_refused() -> None:
    """A replay would make another."""
    again = dataclasses.make_dataclass("Message", ["role"])
    again.__module__ = K
    with pytest.raises(EncodeError, match=r"tests\.values\.kinds\.Message cannot be recorded"):
        encode(again("user"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"$dataclass":"gone.mod:C","fields":{}}', "^/a: the class gone.mod:C is not here. Import gone.mod first"),
        (f'{{"$model":"{K}:Gone","fields":{{}}}}', f"{K}:Gone is not here"),
        (f'{{"$model":"{K}:Message","fields":{{}}}}', "was recorded as a model, and is a dataclass now"),
        (f'{{"$struct":"{K}:CALLED","fields":{{}}}}', "was recorded as a struct, and is none now"),
        (f'{{"$struct":"{K}:Refused","fields":{{}}}}', "was recorded as a struct, and is none now"),
        ('{"$dataclass":"os:system","fields":{}}', "was recorded as a dataclass, and is none now"),
        (f'{{"$exception":"{K}:Message","args":[]}}', "was recorded as an exception, and is none now"),
        (f'{{"$enum":"{K}:Colour","name":"BLUE","value":3}}', "has no member 'BLUE'"),
        (f'{{"$enum":"{K}:Colour","name":"RED","value":2}}', "RED was 2, and is 1 now"),
        (f'{{"$enum":"{K}:Role","name":"USER","value":1}}', "USER was 1, and is 'user' now"),
        (f'{{"$flag":"{K}:Access","names":["EXECUTE"],"value":2}}', "2 was EXECUTE, and is not now"),
        (f'{{"$flag":"{K}:Access","names":["A","B"],"value":64}}', r"64 was A \| B, and is not now"),
        (f'{{"$struct":"{K}:Point","fields":{{"x":1,"z":2}}}}', "of its fields y came, z went"),
        (f'{{"$dataclass":"{K}:Message","missing":["role"],"fields":{{}}}}', "content came, tool_calls came"),
        (f'{{"$namedtuple":"{K}:Pair","fields":{{"a":1}}}}', "of its fields b came"),
        ('{"$type":"gone:C"}', "the class gone:C is not here"),
        ('{"$type":"sys:path"}', "was recorded as a type, and is none now"),
        ('{"$constant":"openai:omit"}', "the value is openai:omit, and openai is not imported"),
    ],
)
def test_a_class_that_is_not_here_or_has_changed_is_an_error_or_a_stand_in(text: str, message: str) -> None:
    """Never a guess. Who only looks gets what was recorded, and can write it again."""
    if "openai" in text and "openai" in sys.modules:
        pytest.skip("another test imported it")
    raw = b'{"a":%b}' % text.encode()
    with pytest.raises(FormatError, match=message):
        decode(raw)
    shown = decode(raw, foreign=True)
    assert type(shown["a"]) is Foreign and encode(shown).json == raw


def test_a_stand_in_shows_what_was_recorded() -> None:
    text = b'{"$dataclass":"gone:C","missing":["y"],"fields":{"x":[1,{"$enum":"gone:E","name":"A","value":1}]}}'
    shown = decode(text, foreign=True)
    assert shown.type == "gone:C" and shown.tag == "$dataclass" and shown.fields["x"][0] == 1
    assert repr(shown) == "<gone:C(x=[1, <gone:E(name='A', value=1), not imported>]), not imported>"
    assert decode(b'{"$set":[{"$enum":"gone:E","name":"A"}]}', foreign=True) == {
        Foreign("$enum", "gone:E", {"name": "A"})
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        shown.tag = "$struct"


@pytest.mark.parametrize(
    "text",
    [
        f'{{"$dataclass":"{K}:Message","fields":[]}}',
        f'{{"$dataclass":"{K}:Message"}}',
        f'{{"$dataclass":"{K}:Message","fields":{{}},"other":1}}',
        '{"$dataclass":1,"fields":{}}',
        '{"$datetime":"yesterday"}',
        '{"$datetime":"2026-01-01","fold":2}',
        '{"$timedelta":[1]}',
        '{"$timedelta":[99999999999,0,0]}',
        '{"$decimal":"x"}',
        '{"$uuid":"x"}',
        '{"$path":"Path","path":"a"}',
        '{"$path":"PurePosixPath","path":[]}',
        '{"$range":[1,2,0]}',
        '{"$complex":["a",1]}',
        '{"$counter":{"$tuple":[1]}}',
        '{"$deque":1}',
        '{"$defaultdict":{},"factory":"eval"}',
        '{"$constant":"sys:exit"}',
        '{"$ints":"u3","data":{"$bytes":""}}',
        '{"$ints":"u2","data":{"$bytes":"AA=="}}',
        '{"$floats":"f4","data":{"$bytes":""}}',
        '{"$tuple":{"a":1}}',
        '{"$exception":"builtins:OSError","args":{}}',
        '{"$type":""}x',
    ],
)
def test_a_tag_that_is_not_whole_is_damage(text: str) -> None:
    with pytest.raises(DamagedError):
        decode(text.encode())


def test_reading_imports_nothing_and_runs_no_code_of_the_classes() -> None:
    """Not even where a module would import more when asked for a name."""
    program = (
        "import sys, types\n"
        "from rolltape.values import decode\n"
        "lazy = types.ModuleType('lazy')\n"
        "def found(name): raise SystemExit('the module was asked')\n"
        "lazy.__getattr__ = found\n"
        "sys.modules['lazy'] = lazy\n"
        "before = set(sys.modules)\n"
        "for tag in ('dataclass', 'model', 'struct', 'namedtuple'):\n"
        "    for name in ('lazy:C', 'xml.dom:Node', 'this:s'):\n"
        '        decode(b\'{"$%s":"%s","fields":{}}\' % (tag.encode(), name.encode()), foreign=True)\n'
        'for text in (b\'{"$array":"<f4","shape":[0],"data":{"$bytes":""}}\',\n'
        '             b\'{"$tensor":"float32","shape":[0],"data":{"$bytes":""}}\'):\n'
        "    print(decode(text, foreign=True))\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]" and "<<f4(" in done.stdout


def test_another_process_reads_what_this_one_wrote() -> None:
    """It has imported the classes, and nothing else of this one."""
    value = [
        Message("user", "x"),
        Colour.RED,
        Point(1, Pair(1, 2)),
        Access.READ,
        {Frozen(1)},
        kinds.Refused(1, detail="d"),
    ]
    program = (
        "import sys, tests.values.kinds as k\n"
        "from rolltape.values import decode, encode\n"
        "text = sys.stdin.buffer.read()\n"
        "value = decode(text)\n"
        "assert value[1] is k.Colour.RED and type(value[5]) is k.Refused and value[5].detail == 'd'\n"
        "sys.stdout.buffer.write(encode(value).json)\n"
    )
    text = encode(value).json
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": ":".join([".", *sys.path])}, input=text, capture_output=True
    )
    assert done.stdout == text, done.stderr.decode()


def test_a_class_of_the_script_itself_is_found_when_it_runs_again(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import dataclasses, pathlib, sys\n"
        "from rolltape.values import decode, encode\n"
        "@dataclasses.dataclass\n"
        "class Mine: x: int\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "if file.exists(): assert decode(file.read_bytes()) == Mine(1)\n"
        "else: file.write_bytes(encode(Mine(1)).json)\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, script, tmp_path / "text"], env={"PYTHONPATH": ":".join(sys.path)}, check=True)
    assert json.loads((tmp_path / "text").read_text())["$dataclass"] == "__main__:Mine"


def test_what_was_written_deep_down_is_read() -> None:
    """Or was refused: the bound counts what a tag adds."""
    values = [
        Colour.RED,
        complex("nan+1j"),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        Message("user", "x", [[Frozen(1)]]),
        Pair({1: 2}, Point(1)),
        collections.OrderedDict({1: {2: (3,)}}),
        kinds.Refused(1, detail="x"),
        ExceptionGroup("g", [ValueError([1])]),
        b"x",
        float("inf"),
    ]
    for value in values:
        deepest = 0
        for wrap in (lambda inner: [inner], lambda inner: {"k": inner}, lambda inner: (inner,)):
            nested: Any = value
            for level in range(202):
                try:
                    text = encode(nested).json
                except LimitError:
                    break
                assert encode(decode(text)).json == text
                deepest = max(deepest, level)
                nested = wrap(nested)
        assert 180 < deepest <= 200


# ---- histories -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Message, lambda role, content: Point(role, {"content": content})])
def test_a_history_of_objects_costs_what_it_adds_and_comes_back_as_it_was(make: Any) -> None:
    """Also among dicts, changed in place, and built anew at each step."""
    for anew in (False, True):
        tape = Tape()
        history: list[Any] = [{"role": "system", "content": "s" * 2000}]
        then = []
        for turn in range(30):
            history.append(
                make("user", f"{turn} " * 400) if turn % 3 else {"role": "user", "content": f"{turn} " * 400}
            )
            tape.record({"messages": json_copy(history) if anew else history})
            then.append(json_copy(history))
        assert tape.bytes() < 30 * 1800
        last = history[-1]
        if type(last) is Message:
            last.role = "assistant"
        elif type(last) is Point:
            last.y["content"] = "new"
        tape.record({"messages": history})
        recall = tape.recall()
        for seq, value in enumerate([*then, history]):
            assert tape.read(seq, recall) == {"messages": value}


def json_copy(value: Any) -> Any:
    return decode(encode(value).json)


def test_what_is_read_of_a_history_is_the_readers_to_change() -> None:
    """Objects in what is referred to are made anew for each."""
    tape = Tape()
    history: list[Any] = [Message("user", "x" * 300), {"deep": [Message("user", "y" * 300, [1])]}]
    for turn in range(3):
        history.append(Message("user", f"{turn}" * 300))
        tape.record(history)
    recall = tape.recall()
    first = tape.read(2, recall)
    first[0].content = "changed"
    first[1]["deep"][0].tool_calls.append(2)
    first[4].content = "changed"
    assert tape.read(2, recall) == history == tape.read(2)


def test_no_equality_but_pythons_own_is_believed_or_called() -> None:
    """What is compared is what is written: a `__eq__` that lies changes nothing, one that raises is never called."""

    @dataclasses.dataclass
    class Raiser:
        x: int

        def __eq__(self, other: object) -> bool:
            raise AssertionError("it was called")

    for first, second in (
        (Liar(1), Liar(2)),
        (Raiser(1), Raiser(2)),
        ("user", Role.USER),
        (1, Level.LOW),
        ("user", Liar(1)),
        ({"content": "x"}, Liar(1)),
        ([Liar(1)], [Liar(2)]),
    ):
        tape_memory = Memory()
        history: list[Any] = [{"role": "user", "content": "x" * 300}, {"value": first}, {"content": "y" * 300}]
        lines = {}
        for seq in range(4):
            if seq == 2:
                history[1]["value"] = second
            encoded = encode(history, where="/result", memory=tape_memory, returns=(Liar, Raiser))
            tape_memory.commit((1, 1, seq), encoded.notes)
            lines[1, 1, seq] = b'{"result":%b}' % encoded.json
            read = decode(encoded.json, recall=Recall(lines.get), returns=(Liar, Raiser))
            assert encode(read, returns=(Liar, Raiser)).json == encode(history, returns=(Liar, Raiser)).json
            history.append({"role": "user", "content": f"{seq}" * 300})


def test_a_memory_that_learned_objects_writes_what_the_one_that_wrote_would() -> None:
    tape, again = Tape(), Memory()
    history: list[Any] = [{"role": "system", "content": "s" * 300}]
    recall = tape.recall()
    for turn in range(12):
        history.append(Message("user", f"{turn}" * 300) if turn % 4 else WithInit(turn, turn))
        record = tape.record({"messages": history})
        assert learn(again, (1, 1, turn), [("/result", tape.read(turn, recall), record.json)])
        longer = [*history, Point(1, "x" * 100)]
        assert (
            encode(longer, where="/result", memory=again).json
            == encode(longer, where="/result", memory=tape.memory).json
        )
