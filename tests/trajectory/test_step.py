"""Steps: decorated, inline and plain; called through a trajectory, directly, inside another step, and elsewhere."""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape import Retry, Trajectory, step
from rolltape.errors import UsageError
from rolltape.trajectory.step import name_of
from tests.trajectory.driving import begin, journal, steps, there_and_back


@step
async def double(value: int) -> int:
    """Twice the value."""
    return 2 * value


@step(kind="tool", name="the tool")
def triple(value: int) -> int:
    return 3 * value


@step
async def nested(value: int) -> int:
    """Steps inside steps are part of them."""
    return await double(value) + triple(value)


class Environment:
    @step(kind="env")
    async def reset(self, seed: int) -> int:
        return seed

    @step
    def observe(self) -> str:
        return "seen"

    async def plain(self, value: int) -> int:
        return value

    @staticmethod
    @step
    async def static(value: int) -> int:
        return value

    async def __call__(self, value: int) -> int:
        return value


def test_a_decorated_function_called_directly_records_inside_and_just_runs_elsewhere(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        return [await double(1), await double(value=2), await nested(3), await traj.call(double, 4)]

    assert there_and_back(tmp_path, rollout) == [2, 4, 15, 8]
    assert steps(tmp_path) == {"0": "double", "1": "double", "2": "nested", "3": "double"}
    assert asyncio.run(double(5)) == 10  # type: ignore[arg-type]
    assert triple(2) == 6
    assert (double.__name__, double.__doc__) == ("double", "Twice the value.")


def test_a_synchronous_step_called_directly_on_the_loop_is_refused_and_told_what_to_write(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        with pytest.raises(UsageError, match=r"await traj.call\(the tool, …\)"):
            triple(1)
        return await traj.call(triple, 1)

    assert there_and_back(tmp_path, rollout) == 3
    assert steps(tmp_path) == {"0": "the tool"}


def test_methods_are_steps_and_their_object_is_no_argument(tmp_path: Path):
    environment = Environment()

    async def rollout(traj: Trajectory) -> Any:
        return [
            await environment.reset(1),
            await traj.call(environment.reset, 2),
            await traj.call(environment.observe),
            await traj.call(environment.plain, 3),
            await traj.call(environment, 4),
            await Environment.static(5),
        ]

    assert there_and_back(tmp_path, rollout) == [1, 2, "seen", 3, 4, 5]
    named = ["Environment.reset"] * 2 + [f"Environment.{name}" for name in ("observe", "plain")]
    assert list(steps(tmp_path).values()) == [*named, "Environment", "Environment.static"]


def test_whatever_can_be_called_can_be_a_step(tmp_path: Path):
    async def later(a: int, b: int) -> int:
        return a + b

    async def rollout(traj: Trajectory) -> Any:
        return [
            await traj.call(functools.partial(later, 1), 2),
            await traj.call(functools.partial(functools.partial(operator.add, 1), 3)),
            await traj.call(lambda value: value, 5),
            await traj.call(lambda: later(1, 5)),
            await traj.call(sorted, [3, 1, 2]),
            await traj.call(int, "7"),
            await traj.call("abc".upper),
            await traj.call(step(operator.itemgetter(1), name="second"), [1, 2]),
        ]

    assert there_and_back(tmp_path, rollout) == [3, 4, 5, 6, [1, 2, 3], 7, "ABC", 2]
    assert list(steps(tmp_path).values()) == [
        "test_whatever_can_be_called_can_be_a_step.later",
        "add",
        *["test_whatever_can_be_called_can_be_a_step.rollout.<lambda>"] * 2,
        "sorted",
        "int",
        "str.upper",
        "second",
    ]


def test_inside_a_step_nothing_is_recorded_however_deep(tmp_path: Path):
    async def deep(traj_is_unknown: bool) -> list[Any]:
        async def inner() -> Any:
            return [rolltape.current(), await double(1), triple(1)]

        return [await asyncio.create_task(inner()), *await asyncio.gather(inner()), await asyncio.to_thread(triple, 2)]

    async def rollout(traj: Trajectory) -> Any:
        return await traj.call(deep, True)

    assert there_and_back(tmp_path, rollout) == [[None, 2, 3], [None, 2, 3], 6]
    assert list(steps(tmp_path)) == ["0"]


def test_what_a_trajectory_gives_is_refused_inside_a_step(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        async def asks(what: str) -> None:
            with pytest.raises(UsageError, match="nothing is recorded inside a step"):
                _ = traj.rng if what == "rng" else getattr(traj, what)()

        for what in ("now", "uuid", "rng"):
            await traj.call(asks, what)

    begin(tmp_path, rollout)


def test_a_policy_is_stated_by_a_decorator_or_inline_and_the_later_word_counts(tmp_path: Path):
    @step(kind="tool", timeout_s=60)
    async def work() -> str:
        return "done"

    async def rollout(traj: Trajectory) -> Any:
        return [await work(), await traj.call(step(work, kind="model", name="other"))]

    assert there_and_back(tmp_path, rollout) == ["done", "done"]
    kinds = [(line["name"].rpartition(".")[2], line["kind"]) for line in journal(tmp_path) if line["type"] == "done"]
    assert kinds == [("work", "tool"), ("other", "model")]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: step(timeout=3), "a step takes effect, "),
        (lambda: step(timeout_s=0), "use seconds over 0"),
        (lambda: step(effect="harmless"), "effect is 'harmless'"),
        (lambda: step(3), "this is a int"),
    ],
)
def test_misuse_is_told_what_to_write(misuse: Callable[[], Any], message: str):
    with pytest.raises(UsageError, match=message):
        misuse()


def test_names_are_those_of_the_functions():
    assert name_of(functools.partial(operator.add, 1)) == "add"
    assert name_of(Environment().plain) == "Environment.plain"
    assert name_of(Environment()) == "Environment"


def test_a_timeout_of_a_step_is_an_error_of_it_and_comes_again_at_once(tmp_path: Path):
    calls: list[int] = []

    @step(timeout_s=0.01)
    async def hangs() -> None:
        calls.append(1)
        await asyncio.sleep(3600)

    async def rollout(traj: Trajectory) -> Any:
        try:
            await hangs()
        except TimeoutError:
            return await double(1)

    assert there_and_back(tmp_path, rollout) == 2
    assert calls == [1]


def test_each_try_has_the_whole_time(tmp_path: Path):
    calls: list[int] = []

    @step(timeout_s=0.02, retry=Retry(max_retries=2, backoff_s=0))
    async def slow_at_first() -> int:
        calls.append(1)
        await asyncio.sleep(3600 if len(calls) < 3 else 0)
        return len(calls)

    async def rollout(traj: Trajectory) -> Any:
        return await slow_at_first()

    assert there_and_back(tmp_path, rollout) == 3


def test_a_synchronous_step_sees_the_callers_context_and_changes_only_a_copy(tmp_path: Path):
    import contextvars

    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour")

    def paint() -> str:
        before = colour.get()
        colour.set("green")
        return before

    async def rollout(traj: Trajectory) -> Any:
        colour.set("red")
        return [await traj.call(paint), colour.get()]

    assert there_and_back(tmp_path, rollout) == ["red", "red"]


def test_awaitables_of_any_kind_are_awaited(tmp_path: Path):
    class Later(Awaitable[int]):
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return 3

    async def rollout(traj: Trajectory) -> Any:
        return await traj.call(lambda: Later())

    assert there_and_back(tmp_path, rollout) == 3


def test_what_a_policy_says_of_a_step_is_recorded_with_it(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        return await traj.call(step(double.function, kind="model", backend="vllm-0", name="ask"), 1)

    assert there_and_back(tmp_path, rollout) == 2
    (done,) = [record for record in journal(tmp_path) if record["type"] == "done"]
    assert (done["kind"], done["backend"], done["name"]) == ("model", "vllm-0", "ask")
