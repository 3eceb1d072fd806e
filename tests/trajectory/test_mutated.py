"""Arguments that a step is declared to change: on replay they are changed again, in place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rolltape
from rolltape import step
from rolltape.errors import UsageError


class Board:
    """Something with attributes."""

    def __init__(self) -> None:
        self.moves: list[str] = []


async def twice(path: Any, rollout: Any) -> list[Any]:
    """Run a rollout, leave it unresolved, and run it again: what it returned each time."""
    seen = []
    for _ in range(2):
        async with rolltape.open(path) as run:
            with pytest.raises(asyncio.CancelledError):
                async with run.trajectory("q") as traj:
                    seen.append(await rollout(traj))
                    raise asyncio.CancelledError
    return seen


def test_a_list_a_dict_and_a_set_are_changed_again_in_place(tmp_path):
    """By position and by name, and the same objects; the function is not called again."""
    calls = []

    @step(mutates=("items", "counts", "seen"))
    async def work(items: list[int], counts: dict[str, int], *, seen: set[int]) -> int:
        calls.append(1)
        items.append(7)
        counts["a"] = 1
        seen.add(3)
        return len(items)

    async def rollout(traj: rolltape.Trajectory) -> Any:
        items, counts, seen = [1], {"b": 2}, {1}
        same = items, counts, seen
        length = await traj.call(work, items, counts, seen=seen)
        assert (items, counts, seen) == same
        return length, items, counts, seen

    first, second = asyncio.run(twice(tmp_path / "run", rollout))
    assert first == second == (2, [1, 7], {"b": 2, "a": 1}, {1, 3})
    assert calls == [1]


def test_one_name_may_be_given_as_it_is(tmp_path):
    """`mutates="items"`."""

    async def work(items: list[int]) -> None:
        items.clear()

    async def rollout(traj: rolltape.Trajectory) -> Any:
        items = [1, 2]
        await traj.call(step(work, mutates="items"), items)
        await traj.call(len, items)
        return items

    assert asyncio.run(twice(tmp_path / "run", rollout)) == [[], []]


def test_a_name_that_the_call_does_not_pass_is_refused(tmp_path):
    """And the message says what it does pass."""

    async def work(items: list[int]) -> None: ...

    async def rollout(traj: rolltape.Trajectory) -> Any:
        with pytest.raises(UsageError, match="mutates= names other, and the call passes items"):
            await traj.call(step(work, mutates="other"), [1])

    asyncio.run(twice(tmp_path / "run", rollout))
