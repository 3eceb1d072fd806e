"""Divergences: what a rollout does otherwise than was recorded is shown, parks it, and goes on once it is put right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape import Trajectory
from rolltape.errors import DivergenceError
from tests.trajectory.driving import begin, journal, replay, steps

calls: list[Any] = []


async def ask(messages: list[Any], *, temperature: float = 1.0) -> str:
    calls.append(messages[-1])
    return f"answer to {messages[-1]}"


async def other(messages: list[Any]) -> str:
    calls.append("other")
    return "other"


async def asked(traj: Trajectory, *questions: Any, temperature: float = 1.0) -> list[str]:
    return [await traj.call(ask, [{"role": "user", "content": one}], temperature=temperature) for one in questions]


def diverges(path: Path, rollout: Callable[[Trajectory], Any], message: str) -> None:
    before = list(calls)
    with pytest.raises(DivergenceError, match=message):
        replay(path, rollout)
    assert calls == before, "something was called"
    assert journal(path)[-1]["type"] in ("seal", "parked")


def test_another_name_shows_both(tmp_path: Path):
    begin(tmp_path, lambda traj: asked(traj, "a", "b"))

    async def changed(traj: Trajectory) -> Any:
        await asked(traj, "a")
        await traj.call(other, [])

    diverges(tmp_path, changed, r"^step 1 was ask when it was recorded, and is other now\.")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda traj: asked(traj, "a", "B"), r'step 1, ask.*content: "b" was recorded, "B" is passed now'),
        (lambda traj: asked(traj, "a", 3), r'step 1, ask.*content: "b" was recorded, 3 is passed now'),
        (lambda traj: asked(traj, "a", "b", temperature=0.5), r"step 0, ask.*temperature: 1.0 was recorded, 0.5 is"),
        (lambda traj: asked(traj, "b", "a"), r'step 0, ask.*content: "a" was recorded, "b" is passed now'),
    ],
)
def test_other_arguments_show_where_they_first_differ(tmp_path: Path, changed: Any, message: str):
    begin(tmp_path, lambda traj: asked(traj, "a", "b"))
    diverges(tmp_path, changed, message)


def test_steps_that_nobody_asked_for_again_are_counted_at_the_return(tmp_path: Path):
    begin(tmp_path, lambda traj: asked(traj, "a", "b", "c"))
    diverges(tmp_path, lambda traj: asked(traj, "a"), r"2 recorded step\(s\) were not called again.* 1, ask")


def test_a_value_that_was_kept_under_another_name_is_shown(tmp_path: Path):
    async def rollout(traj: Trajectory, kind: str) -> Any:
        traj.record(kind, 1)
        return await asked(traj, "a")

    begin(tmp_path, lambda traj: rollout(traj, "salt"))
    diverges(tmp_path, lambda traj: rollout(traj, "pepper"), "step 0 was salt when it was recorded, and is pepper now")


def test_put_right_it_goes_on_from_where_it_was(tmp_path: Path):
    begin(tmp_path, lambda traj: asked(traj, "a", "b"))
    for _ in range(2):
        diverges(tmp_path, lambda traj: asked(traj, "a", "B"), "step 1")
    with rolltape.read(tmp_path) as run:
        assert run["q#0"].status == "parked"
    answers = replay(tmp_path, lambda traj: asked(traj, "a", "b", "c"), live=1)
    assert answers == [f"answer to {{'role': 'user', 'content': '{one}'}}" for one in "abc"]


def test_a_divergence_that_the_rollout_swallows_calls_nothing_either(tmp_path: Path):
    begin(tmp_path, lambda traj: asked(traj, "a", "b"))

    async def careless(traj: Trajectory) -> Any:
        try:
            await asked(traj, "a", "B")
        except Exception:
            return "never mind"

    diverges(tmp_path, careless, r"^step 1, ask")


def test_nothing_goes_on_after_a_divergence_was_swallowed(tmp_path: Path):
    begin(tmp_path, lambda traj: asked(traj, "a", "b"))

    async def stubborn(traj: Trajectory) -> Any:
        for question in ("A", "a", "b"):
            with pytest.raises(DivergenceError, match=r"^step 0, ask"):
                await asked(traj, question)
        raise KeyError("an error of its own")

    with pytest.raises(KeyError):
        replay(tmp_path, stubborn)
    assert replay(tmp_path, lambda traj: asked(traj, "a", "b"))


def test_a_divergence_in_a_branch_is_the_trajectorys(tmp_path: Path):
    async def rollout(traj: Trajectory, second: str) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(asked(traj, "a"))
            group.create_task(asked(traj, second))

    begin(tmp_path, lambda traj: rollout(traj, "b"))
    before = list(calls)
    with pytest.raises(BaseExceptionGroup) as caught:
        replay(tmp_path, lambda traj: rollout(traj, "B"))
    assert caught.value.subgroup(DivergenceError) is not None
    assert calls == before
    with rolltape.read(tmp_path) as run:
        assert run["q#0"].status == "parked"
    replay(tmp_path, lambda traj: rollout(traj, "b"))


def test_truncated_it_goes_on_live_from_the_first_difference(tmp_path: Path):
    begin(tmp_path, lambda traj: asked(traj, "a", "b", "c"))
    replay(tmp_path, lambda traj: asked(traj, "a", "B", "c"), live=2, on_divergence="truncate")
    assert steps(tmp_path, "resampled") == {"1": "ask"}
