"""An exception comes back so that `except` and its attributes work as live."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from rolltape.errors import EncodeError, UsageError
from rolltape.values import Foreign, Memory, decode, encode
from rolltape.values.exceptions import EXCEPTIONS_MAX
from tests.values import kinds
from tests.values.kinds import Group, Refused
from tests.values.support import there_and_back


def raised(function: Callable[[], Any]) -> Any:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


GOLDEN = [
    (ValueError(1, "two"), '{"$exception":"builtins:ValueError","args":[1,"two"]}'),
    (
        FileNotFoundError(2, "No such file", "a.txt"),
        '{"$exception":"builtins:FileNotFoundError","args":[2,"No such file"],"attributes":{"filename":"a.txt"}}',
    ),
    (
        Refused(3, detail="d"),
        '{"$exception":"tests.values.kinds:Refused","args":["3: d"],"attributes":{"code":3,"detail":"d"}}',
    ),
    (
        ExceptionGroup("g", [KeyError("k")]),
        '{"$exception":"builtins:ExceptionGroup","args":["g",[{"$exception":"builtins:KeyError","args":["k"]}]]}',
    ),
]


@pytest.mark.parametrize(("value", "text"), GOLDEN, ids=lambda item: str(item)[:40])
def test_these_tags_are_the_file_format(value: BaseException, text: str) -> None:
    assert encode(value).json.decode() == text
    assert encode(decode(text.encode())).json.decode() == text


@pytest.mark.parametrize(
    "function",
    [
        lambda: {}["k"],
        lambda: int("x"),
        lambda: b"\xff".decode(),
        lambda: "\ud800".encode(),
        lambda: json.loads("{"),
        lambda: os.stat("/nowhere/at/all"),
        lambda: __import__("nowhere"),
        lambda: exec("a b"),
        lambda: exec("nope"),
        lambda: object().nope,  # type: ignore[attr-defined]
        lambda: next(iter(())),
        lambda: subprocess.run("exit 3", shell=True, check=True),
        lambda: asyncio.run(asyncio.wait_for(asyncio.sleep(9), 0)),
        lambda: (_ for _ in ()).throw(asyncio.CancelledError("why")),
        lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
        lambda: (_ for _ in ()).throw(Refused(1, detail="x")),
        lambda: (_ for _ in ()).throw(UsageError("ours")),
        lambda: (_ for _ in ()).throw(OSError("one argument")),
        lambda: (_ for _ in ()).throw(ExceptionGroup("g", [ValueError(1), Group("in", [Refused(1, detail="x")])])),
    ],
)
def test_what_is_raised_comes_back_alike(function: Any) -> None:
    """Its class, its text, its arguments, its attributes, what it was raised from."""
    error = raised(function)
    again = there_and_back(error)
    assert type(again) is type(error) and str(again) == str(error)
    assert vars(again).keys() == vars(error).keys()
    assert repr(again.args) == repr(error.args)
    for name in (
        "errno",
        "filename",
        "name",
        "code",
        "value",
        "start",
        "reason",
        "lineno",
        "offset",
        "returncode",
        "doc",
    ):
        assert getattr(again, name, "none") == getattr(error, name, "none")
    assert repr(again.__cause__) == repr(error.__cause__) and repr(again.__context__) == repr(error.__context__)
    assert again.__suppress_context__ == error.__suppress_context__
    if isinstance(error, BaseExceptionGroup):
        assert repr(again.exceptions) == repr(error.exceptions)
        assert again.split(ValueError)[0] is not None
    assert encode(again).json == encode(error).json


def test_its_own_init_is_not_called_and_its_notes_are_kept() -> None:
    error = Refused(1, detail="x")
    error.add_note("at step 3")
    text = encode(error).json
    kinds.CALLED.clear()
    again = decode(text)
    assert again.__notes__ == ["at step 3"] and (again.code, again.detail) == (1, "x") and not kinds.CALLED


def test_what_it_was_raised_from_and_while_handling_what() -> None:
    def both() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")  # noqa: B904
        except ValueError as error:
            raise RuntimeError("third") from error

    again = there_and_back(raised(both))
    assert repr(again.__cause__) == "ValueError('second')" and again.__cause__ is again.__context__
    assert repr(again.__cause__.__context__) == "KeyError('first')" and again.__cause__.__cause__ is None
    assert again.__suppress_context__ and not again.__cause__.__suppress_context__

    def hidden() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None

    again = there_and_back(raised(hidden))
    assert again.__cause__ is None and again.__suppress_context__ and repr(again.__context__) == "KeyError('first')"
    cause = ValueError("outside")
    error = RuntimeError("x")
    error.__cause__ = cause
    again = there_and_back(error)
    assert repr(again.__cause__) == repr(cause) and again.__context__ is None


def test_a_chain_has_a_bound() -> None:
    """However long it is, wherever it branches, and if it ends in itself."""
    error: BaseException = ValueError(0)
    for i in range(1, 100):
        after = ValueError(i)
        after.__context__, after.__cause__, error = error, RuntimeError(i), after
    text = encode(error).json
    assert text.count(b'"$exception"') == EXCEPTIONS_MAX
    assert encode(decode(text)).json.count(b'"$exception"') == EXCEPTIONS_MAX
    many = ExceptionGroup("many", [after] * 40)
    assert len(there_and_back(many).exceptions) == 40
    circle = ValueError("circle")
    circle.me = circle  # type: ignore[attr-defined]
    circle.args = (circle,)
    assert type(there_and_back(circle)) is ValueError


def test_what_cannot_be_recorded_of_it_says_so_in_its_place() -> None:
    """It is dropped, and the rest stands: an exception is never refused for what it holds."""
    error = Refused(1, detail="x")
    error.response = object()  # type: ignore[attr-defined]
    error.body = {"deep": [lambda: 1]}  # type: ignore[attr-defined]
    error.args = ("x", object())
    error.big = bytes(40_000) + b"1"  # type: ignore[attr-defined]
    error.bad = [bytes(50_000), object()]  # type: ignore[attr-defined]
    encoded = encode(error)
    again = decode(encoded.json, blob=lambda name, size: encoded.blobs[name])
    assert again.response == Foreign("$unrecorded", "builtins:object", {}) == again.args[1]
    assert repr(again.response) == "<builtins:object, not recorded>" and again.body.type == "builtins:dict"
    assert again.big == error.big and len(encoded.blobs) == 1  # type: ignore[attr-defined]
    assert encode(again).json == encoded.json


def test_a_local_exception_is_refused_unless_returns_names_it() -> None:
    class Local(Exception):
        pass

    with pytest.raises(EncodeError, match=r"^/0: .*Local cannot be recorded.*returns="):
        encode([Local(1)])
    assert type(decode(encode(Local(1), returns=Local).json, returns=Local)) is Local
    outer = ValueError("outer")
    outer.__cause__ = Local(1)
    again = there_and_back(outer)
    assert again.__cause__ is None and again.__suppress_context__


def test_secrets_in_its_attributes_are_hidden() -> None:
    error = Refused(1, detail="x")
    error.api_key = "c4n4ry"  # type: ignore[attr-defined]
    error.request = {"headers": {"authorization": "c4n4ry"}}  # type: ignore[attr-defined]
    error.__cause__ = ValueError("Bearer c4n4ry")
    for memory in (None, Memory()):
        assert b"c4n4ry" not in encode({"error": error}, memory=memory).json


def test_a_group_that_cannot_hold_its_exceptions_names_the_one() -> None:
    class Local(Exception):
        pass

    with pytest.raises(EncodeError, match=r"^/1/1: .*Local cannot be recorded"):
        encode(ExceptionGroup("g", [ValueError(1), Local(2)]))
