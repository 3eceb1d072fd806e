"""A rollout that the tests kill at every point of it: `rollout_program.py RUN LEDGER KILL_AT SEED`.

What it does to the world is lines in a ledger that only grows: `start NAME` when a function is called, `end NAME` when
it is about to return, `have NAME` when the rollout has the result. Before, inside and behind each call lies a point; at
the KILL_AT-th the process kills itself. The last line printed is the result.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from typing import Any

import rolltape
from rolltape import Retry, Trajectory, step


class World:
    """The ledger, and when to die."""

    def __init__(self, path: str, kill_at: int, seed: int) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(path) as ledger:
            self.starts = Counter(line.split()[1] for line in ledger if line.startswith("start "))
        self.left = kill_at
        self.random = random.Random(seed)

    def point(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def say(self, what: str, name: str) -> None:
        os.write(self.fd, f"{what} {name}\n".encode())
        self.point()

    async def pause(self) -> None:
        await asyncio.sleep(self.random.choice([0, 0, 0.001, 0.004]))


class Flaky(Exception):
    """Raised by a step that works at another try."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint


world: World


async def model(messages: list[dict[str, str]]) -> dict[str, str]:
    name = f"model-{len(messages)}"
    world.say("start", name)
    await world.pause()
    world.say("end", name)
    return {"role": "assistant", "content": f"{name}: {'because ' * 12}{messages[-1]['content']}"}


async def tool(branch: str, number: int) -> tuple[str, int]:
    name = f"tool-{branch}-{number}"
    world.say("start", name)
    await world.pause()
    world.say("end", name)
    return branch, number


def add(a: int, b: int) -> int:
    world.say("start", f"add-{a}-{b}")
    world.say("end", f"add-{a}-{b}")
    return a + b


async def fails(text: str) -> None:
    world.say("start", f"fails-{text}")
    raise Flaky(7, hint=text)


@step(retry=Retry(max_retries=5, backoff_s=0.001))
async def works_at_the_third_try(name: str) -> str:
    world.say("start", name)
    world.starts[name] += 1
    if world.starts[name] < 3:
        raise ConnectionError(f"not yet: {name}")
    world.say("end", name)
    return name


@step(timeout_s=0.02)
async def hangs(name: str) -> None:
    world.say("start", f"hangs-{name}")
    await asyncio.sleep(60)


async def slow(name: str) -> str:
    world.say("start", f"slow-{name}")
    await asyncio.sleep(60)
    return name


async def branch(traj: Trajectory, name: str, steps: int = 5) -> list[tuple[str, int]]:
    got = []
    for number in range(steps):
        got.append(await traj.call(tool, name, number))
        world.say("have", f"tool-{name}-{number}")
        await world.pause()
    return got


async def rollout(traj: Trajectory) -> dict[str, Any]:
    """Everything that a rollout may do, and what it saw."""
    saw: dict[str, Any] = {"uuid": str(traj.uuid()), "random": traj.rng.random(), "now": traj.now()}
    messages = [{"role": "user", "content": "why?"}]
    for turn in range(3):
        messages.append(await traj.call(model, messages))
        world.say("have", f"model-{len(messages) - 1}")
        messages.append({"role": "tool", "content": str(await traj.call(add, turn, 10))})
        world.say("have", f"add-{turn}-10")
    saw["messages"] = messages
    try:
        await traj.call(fails, "as it should")
    except Exception as error:
        saw["error"] = [type(error).__name__, str(error), error.code, error.hint]  # type: ignore[attr-defined]
    saw["branches"] = await asyncio.gather(*(branch(traj, f"b{n}") for n in range(8)))
    saw["third"] = await works_at_the_third_try("flaky")
    world.say("have", "flaky")
    try:
        await traj.call(hangs, "once")
    except TimeoutError:
        saw["timeout"] = "of the step"
    try:
        async with asyncio.timeout(0.03):
            await traj.call(slow, "in-timeout")
    except TimeoutError:
        saw["outer timeout"] = "of asyncio"
    saw["waited for"] = await asyncio.wait_for(branch(traj, "w", 2), 5)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(traj, name, 2)) for name in ("g0", "g1")]
    saw["group"] = [task.result() for task in tasks]
    which, value = await traj.first(branch(traj, "f0", 2), branch(traj, "f1", 2))
    saw["first"] = [which, value]
    saw["order"] = [which async for which, _ in traj.as_completed(*(branch(traj, f"c{n}", 1) for n in range(3)))]
    saw["sum"] = await traj.call(add, len(messages), 1)
    world.say("have", f"add-{len(messages)}-1")
    return saw


async def main(run: str) -> None:
    async with rolltape.open(run) as opened, opened.trajectory("q", sample=1) as traj:
        if traj.outcome is None:
            traj.finish(await rollout(traj))
    async with rolltape.open(run) as opened, opened.trajectory("q", sample=1) as traj:
        assert traj.outcome is not None
        print(json.dumps(traj.outcome.result))


if __name__ == "__main__":
    world = World(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    asyncio.run(main(sys.argv[1]))
