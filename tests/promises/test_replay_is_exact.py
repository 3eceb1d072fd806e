"""Promise 10: replay is exact. What a call returned live it returns again, of the same type; what it raised it raises.

Each rollout runs live until it stops before its end, and then from the journal alone: with steps that must not run.
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import pathlib
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rolltape
from rolltape import Retry, Trajectory, step
from rolltape.errors import DivergenceError, EncodeError
from tests.trajectory.driving import begin, journal, replay, there_and_back
from tests.values import kinds
from tests.values.support import exact

VALUES: list[Any] = [
    None,
    True,
    0,
    -0.0,
    float("inf"),
    2**70,
    "text",
    "lone \ud800",
    b"bytes",
    b"large" * 20_000,
    bytearray(b"x"),
    1j,
    decimal.Decimal("1.10"),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC),
    datetime.timedelta(days=-1, microseconds=3),
    uuid.UUID(int=7),
    pathlib.PurePosixPath("a/b"),
    range(1, 9, 3),
    [],
    (),
    (1, [2, (3,)]),
    {"a": 1, "$str": 2, "": None},
    {1: "a", (2, 3): b"b", None: 1.5},
    {3, 1, 2},
    frozenset({"a"}),
    [float(n) / 7 for n in range(500)],
    list(range(5000)),
    kinds.Colour.PAIR,
    kinds.Level.LOW,
    kinds.Access.READ | kinds.Access.WRITE,
    kinds.Message("assistant", "hi", [{"id": 1}]),
    kinds.Frozen(1, ("a", "b")),
    [kinds.Point(1, kinds.Named(2, []))],
    kinds.TaggedToo(1, note="n"),
    kinds.Pair(1, b"2"),
    kinds.Outer.Inner.A,
    {"nested": [{"deeper": (kinds.Point(1), {"deepest": {kinds.Frozen(1): {b"x"}}})}]},
]


def chosen(value: int) -> Any:
    return VALUES[value]


async def chosen_later(value: int) -> Any:
    await asyncio.sleep(0)
    return VALUES[value]


def test_values_return_equal_and_of_the_same_type(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        return [
            [await traj.call(chosen, number), await traj.call(chosen_later, value=number)]
            for number in range(len(VALUES))
        ]

    live = begin(tmp_path, rollout)
    for again, value in zip(replay(tmp_path, rollout), live, strict=True):
        assert exact(again) == exact(value)


def test_errors_that_are_values_stay_values(tmp_path: Path):
    errors = [kinds.Refused(403, detail="no"), ValueError("as a value", 3)]

    async def rollout(traj: Trajectory) -> Any:
        return [drawn(error) for error in await traj.call(lambda: errors)]

    there_and_back(tmp_path, rollout)


def test_all_of_them_at_once_and_out_of_one_another(tmp_path: Path):
    """Values that are arguments of later calls are recorded as references to where they came from."""

    async def echo(*values: Any) -> Any:
        return list(values)

    async def rollout(traj: Trajectory) -> Any:
        history: list[Any] = []
        for number in range(len(VALUES)):
            history.append(await traj.call(chosen, number))
            history.append(await traj.call(echo, history[-1], len(history)))
            assert len(await traj.call(echo, *history)) == len(history)
        return history

    live = begin(tmp_path, rollout)
    assert exact(replay(tmp_path, rollout)) == exact(live)


def test_what_the_rollout_does_to_a_result_does_not_come_back(tmp_path: Path):
    async def fresh() -> dict[str, Any]:
        return {"list": [1], "deep": {"list": []}}

    async def rollout(traj: Trajectory) -> Any:
        first = await traj.call(fresh)
        seen = repr(first)
        first["list"].append(2)
        first["deep"].clear()
        again = await traj.call(fresh)
        return [seen, repr(again), again is first]

    assert there_and_back(tmp_path, rollout)[2] is False


def test_numpy_arrays(tmp_path: Path):
    np = pytest.importorskip("numpy", reason="numpy is not installed")

    async def arrays() -> Any:
        return {"f": np.arange(6, dtype="f2").reshape(2, 3)[:, ::2], "b": np.array([True]), "s": np.float64(0.1)}

    async def rollout(traj: Trajectory) -> Any:
        return {
            name: (type(item), item.dtype, item.shape, item.tobytes())
            for name, item in (await traj.call(arrays)).items()
        }

    there_and_back(tmp_path, rollout)


# ---- errors ----------------------------------------------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


def raised_by(error: Callable[[], BaseException]) -> Callable[[], None]:
    def fails() -> None:
        raise error()

    return fails


def from_another() -> Exception:
    try:
        raise KeyError("inner") from OSError(2, "no file", "name")
    except KeyError as inner:
        outer = ValueError("outer")
        outer.__cause__ = inner
        outer.add_note("a note")
        return outer


ERRORS: list[Callable[[], BaseException]] = [
    lambda: kinds.Refused(403, detail="no"),
    lambda: ValueError("text", 1, [b"x"]),
    lambda: OSError(13, "denied", "a", None, "b"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    lambda: TimeoutError("of its own"),
    lambda: StopAsyncIteration(3),
    lambda: msgspec.ValidationError("bad"),
    lambda: ExceptionGroup("both", [kinds.Refused(1, detail="a"), ExceptionGroup("in", [KeyError("k")])]),
    lambda: kinds.Group("own group", [ValueError(1)]),
    lambda: Unprintable("x"),
    from_another,
]


def drawn(error: BaseException | None) -> Any:
    """Return all that can be told of an error."""
    if error is None:
        return None
    inside = getattr(error, "exceptions", ())
    args = error.args[:1] if inside else error.args
    return [type(error), args, vars(error), *map(drawn, (error.__cause__, *inside))]


@pytest.mark.parametrize("number", range(len(ERRORS)), ids=lambda number: type(ERRORS[number]()).__name__)
def test_an_error_that_was_handled_is_raised_again(tmp_path: Path, number: int):
    async def rollout(traj: Trajectory) -> Any:
        try:
            await traj.call(raised_by(ERRORS[number]))
        except Exception as error:
            await traj.call(chosen, 0)
            return drawn(error)

    there_and_back(tmp_path, rollout)


def test_the_traceback_is_kept_as_it_was(tmp_path: Path):
    live: list[str] = []

    def innermost() -> None:
        raise kinds.Refused(500, detail="deep inside")

    async def fails() -> None:
        innermost()

    async def rollout(traj: Trajectory) -> Any:
        try:
            await traj.call(fails)
        except kinds.Refused as error:
            live.append("".join(traceback.format_exception(error)))
            await traj.call(chosen, 0)

    there_and_back(tmp_path, rollout)
    [failed] = [line for line in journal(tmp_path) if line["type"] == "failed"]
    kept = failed["error"]["traceback"]
    assert failed["error"]["message"] == "500: deep inside"
    assert kept.endswith(
        'raise kinds.Refused(500, detail="deep inside")\ntests.values.kinds.Refused: 500: deep inside\n'
    )
    assert set(kept.splitlines()) <= set(live[0].splitlines())  # which also has the rollout's own frames


def test_except_star_handles_what_it_handled(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        saw = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(traj.call(raised_by(ERRORS[0])))
                group.create_task(traj.call(raised_by(ERRORS[1])))
        except* kinds.Refused as errors:
            saw += [error.code for error in errors.exceptions if isinstance(error, kinds.Refused)]
        except* ValueError as errors:
            saw += [error.args for error in errors.exceptions]
        await traj.call(chosen, 0)
        return saw

    assert there_and_back(tmp_path, rollout)[0] == 403


def test_an_error_after_which_nothing_was_recorded_is_tried_again(tmp_path: Path):
    broken = [True]

    async def fragile() -> str:
        if broken[0]:
            raise ConnectionError("down")
        return "up"

    async def rollout(traj: Trajectory) -> Any:
        try:
            return await traj.call(fragile)
        except ConnectionError:
            return "down"

    assert begin(tmp_path, rollout) == "down"
    broken[0] = False
    assert replay(tmp_path, rollout, live=1) == "up"


def test_tries_that_failed_are_not_made_again(tmp_path: Path):
    tries: list[int] = []

    @step(retry=Retry(max_retries=3, backoff_s=0))
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError(f"try {len(tries)}")
        return len(tries)

    async def rollout(traj: Trajectory) -> Any:
        return await flaky()

    assert there_and_back(tmp_path, rollout) == 3
    assert [line["tries"] for line in journal(tmp_path) if line["type"] == "retry"] == [1, 2]


# ---- cancellation ----------------------------------------------------------------------------------------------------


async def for_ever(name: str = "") -> None:
    await asyncio.sleep(3600)


def test_a_call_that_was_cancelled_is_cancelled_again_and_not_made(tmp_path: Path):
    calls: list[str] = []

    async def slow(name: str) -> None:
        calls.append(name)
        await for_ever()

    async def rollout(traj: Trajectory) -> Any:
        saw = []
        try:
            async with asyncio.timeout(0.01):
                await traj.call(slow, "timeout")
        except TimeoutError:
            saw.append("timeout")
        try:
            await asyncio.wait_for(traj.call(slow, "wait_for"), 0.01)
        except TimeoutError:
            saw.append("wait_for")
        task = asyncio.create_task(traj.call(slow, "task"))
        await asyncio.sleep(0.01)
        task.cancel()
        saw += [type(one) for one in await asyncio.gather(task, return_exceptions=True)]
        return [*saw, await traj.call(chosen, 1)]

    assert there_and_back(tmp_path, rollout) == ["timeout", "wait_for", asyncio.CancelledError, True]
    assert calls == ["timeout", "wait_for", "task"]


def test_a_call_that_was_cancelled_while_its_result_was_written_is_cancelled_again(tmp_path: Path):
    """The result is in the journal, and the rollout never had it."""

    async def rollout(traj: Trajectory) -> Any:
        entered = asyncio.Event()

        async def quick() -> int:
            entered.set()
            return 1

        task = asyncio.create_task(traj.call(quick))
        if not traj.attempt > 1:
            await entered.wait()
        await asyncio.sleep(0)
        task.cancel()
        [saw] = await asyncio.gather(task, return_exceptions=True)
        return [type(saw), await traj.call(chosen, 1)]

    assert there_and_back(tmp_path, rollout) == [asyncio.CancelledError, True]
    assert [line["type"] for line in journal(tmp_path) if line.get("path") == "0"] == ["done", "cancelled"]


def test_a_cancelled_call_is_recorded_before_anything_that_follows_from_it(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        try:
            async with asyncio.timeout(0.01):
                await traj.call(for_ever)
        except TimeoutError:
            return [traj.now(), traj.record("note", 1)]

    there_and_back(tmp_path, rollout)
    types = [line["type"] for line in journal(tmp_path) if line.get("path")]
    assert types == ["cancelled", "kept", "kept"]


def test_the_first_of_several_stays_the_first(tmp_path: Path):
    async def after(delay_s: float, name: str) -> str:
        await asyncio.sleep(delay_s)
        return name

    async def rollout(traj: Trajectory, delays: tuple[float, float]) -> Any:
        async def two(delay_s: float, name: str) -> Any:
            await asyncio.sleep(delay_s)
            return await traj.call(after, 0.0, name), await traj.call(after, 0.0, name + name)

        first = await traj.first(two(delays[0], "a"), two(delays[1], "b"))
        order = [got async for got in traj.as_completed(two(delays[0], "c"), two(delays[1], "d"))]
        return [first, order, await traj.call(chosen, 1)]

    live = begin(tmp_path, lambda traj: rollout(traj, (0.0, 0.02)))
    assert live[0] == (0, ("a", "aa"))
    assert replay(tmp_path, lambda traj: rollout(traj, (0.02, 0.0))) == live


# ---- what cannot be recorded -----------------------------------------------------------------------------------------


class Opaque:
    __slots__ = ()


def test_an_argument_that_cannot_be_recorded_is_refused_before_the_call(tmp_path: Path):
    called: list[Any] = []

    async def rollout(traj: Trajectory) -> Any:
        with pytest.raises(EncodeError, match=r"^/call/args/0/deep/1.*Opaque"):
            await traj.call(called.append, {"deep": [1, Opaque()]})
        with pytest.raises(EncodeError, match=r"^/call/kwargs/key.*function"):
            await traj.call(sorted, [2, 1], key=lambda value: value)
        return await traj.call(chosen, 1)

    assert there_and_back(tmp_path, rollout) is True
    assert called == []


def test_a_result_that_cannot_be_recorded_fails_its_call_live_and_what_follows_goes_on(tmp_path: Path):
    async def opaque() -> Any:
        return {"inner": [Opaque()]}

    async def rollout(traj: Trajectory) -> Any:
        with pytest.raises(EncodeError, match=r"^/result/value/inner/0.*Opaque"):
            await traj.call(opaque)
        return await traj.call(chosen, 1)

    assert begin(tmp_path, rollout) is True
    assert replay(tmp_path, rollout, live=1) is True  # nothing of it was recorded, so it is called again, in vain


def test_an_error_whose_class_cannot_be_found_again_fails_its_call_and_shows_what_happened(tmp_path: Path):
    class Local(Exception):
        pass

    async def rollout(traj: Trajectory) -> Any:
        with pytest.raises(EncodeError, match="Local") as caught:
            await traj.call(raised_by(lambda: Local("the reason")))
        assert isinstance(caught.value.__context__, Local)

    begin(tmp_path, rollout)


@pytest.mark.parametrize("fails_in", ["step", "rollout"])
def test_a_trajectory_that_fails_with_such_an_error_has_failed_all_the_same(tmp_path: Path, fails_in: str):
    class Local(Exception):
        def __init__(self) -> None:
            super().__init__("the reason", Opaque())

    async def main() -> Any:
        async with rolltape.open(tmp_path) as run:
            with pytest.raises((Local, EncodeError)):
                async with run.trajectory("q") as traj:
                    if fails_in == "rollout":
                        raise Local
                    await traj.call(raised_by(Local))
            async with run.trajectory("q") as traj:
                return traj.outcome

    outcome = asyncio.run(main())
    assert outcome.status == "failed"
    assert "Local" in outcome.error["traceback"] and "the reason" in outcome.error["traceback"]


# ---- functions that change what they are given -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda messages: messages.append(1), r"messages\[1\]|args\[0\]\[1\]"),
        (lambda messages: messages[0]["content"].update(text="new"), r"\[0\]\.content\.text"),
        (lambda messages: messages.clear(), r"\[0\]"),
    ],
)
def test_a_function_that_changes_its_arguments_is_refused_at_its_first_call(tmp_path: Path, change: Any, path: str):
    def changes(messages: list[Any]) -> None:
        change(messages)

    async def rollout(traj: Trajectory) -> Any:
        with pytest.raises(EncodeError, match=path) as caught:
            await traj.call(changes, [{"content": {"text": "old"}}])
        assert "changes changes its arguments" in str(caught.value).replace(
            "test_a_function_that_changes_its_arguments_is_refused_at_its_first_call.", ""
        )

    begin(tmp_path, rollout)


def test_arguments_that_are_changed_between_calls_are_recorded_as_they_were(tmp_path: Path):
    async def length(messages: list[int]) -> int:
        return len(messages)

    async def rollout(traj: Trajectory) -> Any:
        messages: list[int] = []
        saw = []
        for n in range(5):
            messages.append(n)
            saw.append(await traj.call(length, messages))
        messages.clear()
        return [*saw, await traj.call(length, messages)]

    assert there_and_back(tmp_path, rollout) == [1, 2, 3, 4, 5, 0]


def test_other_arguments_are_never_answered_with_what_was_recorded(tmp_path: Path):
    for n, (then, now) in enumerate([(1, True), (0.0, -0.0), ([1], (1,)), ("a", b"a"), ({1: 2}, {"1": 2})]):
        folder = tmp_path / str(n)
        begin(folder, lambda traj, then=then: traj.call(repr, then))
        with pytest.raises(DivergenceError, match="other arguments"):
            replay(folder, lambda traj, now=now: traj.call(repr, now))
