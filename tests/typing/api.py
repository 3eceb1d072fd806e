"""The public API as its users' type checkers see it. Checked by mypy --strict, never run."""

from __future__ import annotations

import asyncio
import functools
from typing import TypedDict, assert_type

import rolltape
from rolltape import Outcome, Retry, Trajectory, step


class Message(TypedDict):
    """Where a function's parameters hold Any, mypy cannot tell an asynchronous one, and gives Any for its result."""

    role: str
    content: str


class Task(TypedDict):
    question: str


class Reply:
    text: str
    tool: str | None


async def create(*, model: str, messages: list[Message]) -> Reply:
    raise NotImplementedError


def run_tool(name: str, /, limit_s: float = 1.0) -> str:
    raise NotImplementedError


@step
async def search(query: str) -> list[str]:
    raise NotImplementedError


@step(kind="grader", timeout_s=60, retry=Retry(max_retries=2))
def grade(task: Task, messages: list[Message]) -> float:
    raise NotImplementedError


class Environment:
    @step(kind="env")
    async def reset(self, seed: int) -> bytes:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


async def solve(traj: Trajectory, task: Task) -> float:
    messages: list[Message] = [{"role": "user", "content": task["question"]}]
    for _ in range(30):
        reply = await traj.call(create, model="m", messages=messages)
        assert_type(reply, Reply)
        messages.append({"role": "assistant", "content": reply.text})
        if reply.tool is None:
            break
        output = await traj.call(run_tool, reply.tool)
        assert_type(output, str)
        messages.append({"role": "tool", "content": output})
    return await traj.call(grade, task, messages)


async def every_kind_of_step(traj: Trajectory) -> None:
    assert_type(await traj.call(search, "q"), list[str])
    assert_type(await search("q"), list[str])
    assert_type(await traj.call(step(run_tool, timeout_s=3), "x", limit_s=2), str)
    assert_type(await traj.call(step(create, kind="model"), model="m", messages=[]), Reply)
    assert_type(await traj.call(Environment().reset, 1), bytes)
    assert_type(await traj.call(Environment().close), None)
    assert_type(await traj.call(functools.partial(run_tool, "x")), str)
    assert_type(await traj.call(len, [1]), int)
    which, first = await traj.first(traj.call(search, "a"), traj.call(search, "b"))
    assert_type(which, int)
    assert_type(first, list[str])
    async for _, later in traj.as_completed(traj.call(search, "a")):
        assert_type(later, list[str])
    assert_type(traj.now(), float)
    assert_type(traj.record("salt", b"x"), bytes)
    assert_type(traj.rng.random(), float)
    with traj.branch("named"):
        assert_type(await asyncio.create_task(traj.call(search, "a")), list[str])
    current: Trajectory | None = rolltape.current()
    assert current is traj


async def opened() -> None:
    async with rolltape.open("runs/x", durability="disk") as run, run.trajectory("q17", visit=2, sample=5) as traj:
        assert_type(traj, Trajectory)
        outcome: Outcome | None = traj.outcome
        if outcome is None:
            traj.finish(await solve(traj, {"question": "why?"}))


def blocking() -> None:
    with rolltape.open("runs/x") as run, run.trajectory("q17#5") as traj:
        assert_type(traj.call(run_tool, "x"), str)
        assert_type(traj.call(create, model="m", messages=[]), Reply)
        assert_type(traj.call(grade, {"question": "why?"}, []), float)
        assert_type(grade({"question": "why?"}, []), float)
        assert_type(traj.now(), float)
        with traj.branch("named"):
            traj.finish(traj.record("note", 1))


async def wrong(traj: Trajectory) -> None:
    """Each of these is an error; the test fails if one of them is none."""
    await traj.call(run_tool, 3)  # type: ignore[call-overload]
    await traj.call(run_tool)  # type: ignore[call-overload]
    await traj.call(create, model="m", mesages=[])  # type: ignore[call-overload]
    await search(3)  # type: ignore[arg-type]
    await traj.call("run_tool", "x")  # type: ignore[call-overload]
    (await traj.call(grade, {"question": "why?"}, [])).upper()  # type: ignore[attr-defined]
    rolltape.open("runs/x", durability="paper")  # type: ignore[arg-type]
