"""A rollout that the tests kill at every point of it: `rollout_program.py RUN LEDGER KILL_AT SEED [blocking]`.

What it does to the world is lines in a ledger that only grows: `start NAME` when a function is called, `end NAME` when
it is about to return, `have NAME` when the rollout has acted on the result, `chose NAME=VALUE` when it has acted on
something that no two runs have alike. Before, inside and behind each call lies a point; at the KILL_AT-th the process
kills itself. The last line printed is the result.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import rolltape
from rolltape import Retry, Trajectory, step


class World:
    """The ledger, and when to die."""

    def __init__(self, path: str, kill_at: int, seed: int) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(path) as ledger:
            self.starts = Counter(line.split()[1] for line in ledger if line.startswith("start "))
        os.write(self.fd, b"process -\n")
        self.left = kill_at
        self.random = random.Random(seed)
        self.lock = threading.Lock()

    def point(self) -> None:
        with self.lock:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def say(self, what: str, name: str) -> None:
        os.write(self.fd, f"{what} {name}\n".encode())
        self.point()

    def pause_s(self) -> float:
        return self.random.choice([0, 0, 0.001, 0.004])


class Flaky(Exception):
    """Raised by steps that work at another try, or never."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint


world: World


# ---- steps -----------------------------------------------------------------------------------------------------------


async def model(messages: list[dict[str, str]]) -> dict[str, str]:
    name = f"model-{len(messages)}"
    world.say("start", name)
    await asyncio.sleep(world.pause_s())
    world.say("end", name)
    return {"role": "assistant", "content": f"{name}: {'because ' * 12}{messages[-1]['content']}"}


async def tool(branch: str, number: int) -> tuple[str, int]:
    name = f"tool-{branch}-{number}"
    world.say("start", name)
    await asyncio.sleep(world.pause_s())
    world.say("end", name)
    return branch, number


async def sample(number: int) -> str:
    """The same question in every branch, and another answer each time."""
    world.say("start", f"sample-{number}-{(answer := os.urandom(8).hex())}")
    await asyncio.sleep(world.pause_s())
    world.say("end", f"sample-{number}-{answer}")
    return answer


def add(a: int, b: int) -> int:
    world.say("start", f"add-{a}-{b}")
    world.say("end", f"add-{a}-{b}")
    return a + b


async def fails(text: str) -> None:
    world.say("start", f"fails-{text}")
    raise Flaky(7, hint=text)


async def fails_twice(text: str) -> None:
    world.say("start", f"fails_twice-{text}")
    raise ExceptionGroup("both", [Flaky(8, hint=text), KeyError(text)])


@step(retry=Retry(max_retries=5, backoff_s=0.001))
async def works_at_the_third_try(name: str) -> str:
    world.say("start", name)
    world.starts[name] += 1
    if world.starts[name] < 3:
        raise ConnectionError(f"not yet: {name}")
    world.say("end", name)
    return name


@step(retry=Retry(max_retries=3, backoff_s=0.001))
def never_works(name: str) -> str:
    world.say("start", name)
    raise ConnectionError(f"never: {name}")


@step(timeout_s=0.02)
async def hangs(name: str) -> None:
    world.say("start", f"hangs-{name}")
    await asyncio.sleep(60)


async def slow(name: str) -> str:
    world.say("start", f"slow-{name}")
    await asyncio.sleep(60)
    return name


class Environment:
    """Its methods are steps."""

    @step(kind="env")
    async def reset(self, seed: int) -> int:
        world.say("start", f"reset-{seed}")
        return seed


# ---- the rollout -----------------------------------------------------------------------------------------------------


async def branch(traj: Trajectory, name: str, steps: int = 5) -> list[tuple[str, int]]:
    got = []
    for number in range(steps):
        got.append(await traj.call(tool, name, number))
        world.say("have", f"tool-{name}-{number}")
        await asyncio.sleep(world.pause_s())
    return got


async def alike(traj: Trajectory, name: str, steps: int = 5) -> int:
    """A branch that only its place tells from others: what it gets, it must get again."""
    for number in range(steps):
        answer = await traj.call(sample, number)
        world.say("chose", f"{name}-{number}={answer}")
        await asyncio.sleep(world.pause_s())
    return steps


async def rollout(traj: Trajectory) -> dict[str, Any]:
    """Everything that a rollout may do, and what it saw."""
    chosen = {"uuid": str(traj.uuid()), "random": traj.rng.random(), "now": traj.now()}
    chosen["kept"] = traj.record("salt", os.urandom(4).hex())
    saw: dict[str, Any] = {"messages": (messages := [{"role": "user", "content": "why?"}])}
    for turn in range(3):
        messages.append(await traj.call(model, messages))
        world.say("have", f"model-{len(messages) - 1}")
        messages.append({"role": "tool", "content": str(await traj.call(add, turn, 10))})
        world.say("have", f"add-{turn}-10")
    for name, value in chosen.items():
        world.say("chose", f"{name}={value}")
    saw |= await errors(traj)
    saw["alike"] = await asyncio.gather(*(alike(traj, f"a{n}") for n in range(3)))
    saw["branches"] = await asyncio.gather(*(branch(traj, f"b{n}") for n in range(8)))
    saw |= await limits(traj)
    saw["waited for"] = await asyncio.wait_for(branch(traj, "w", 2), 5)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(traj, name, 2)) for name in ("g0", "g1")]
    saw["group"] = [task.result() for task in tasks]
    with traj.branch("named"):
        saw["named"] = await asyncio.create_task(branch(traj, "n", 1))
    saw["reset"] = await Environment().reset(3) + await traj.call(step(partial(add, 1), key="one"), 1)
    which, value = await traj.first(branch(traj, "f0", 2), branch(traj, "f1", 2))
    order = [which async for which, _ in traj.as_completed(*(branch(traj, f"c{n}", 1) for n in range(3)))]
    saw["sum"] = await traj.call(add, len(messages), 1)
    for name in ("reset-3", "add-1-1", f"add-{len(messages)}-1"):
        world.say("have", name)
    world.say("chose", f"first={which}")
    world.say("chose", f"order={order}")
    assert value == [(f"f{which}", 0), (f"f{which}", 1)]
    return saw


async def errors(traj: Trajectory) -> dict[str, Any]:
    """Errors of steps, caught."""
    saw: dict[str, Any] = {}
    try:
        await traj.call(fails, "once")
    except Flaky as error:
        saw["error"] = [type(error).__name__, str(error), error.code, error.hint]
    try:
        await traj.call(fails_twice, "both")
    except* Flaky as group:
        saw["flaky"] = [error.hint for error in group.exceptions if isinstance(error, Flaky)]
    except* KeyError as group:
        saw["key"] = [error.args for error in group.exceptions]
    saw["third"] = await works_at_the_third_try("flaky")
    for name in ("flaky", "fails-once", "fails_twice-both"):
        world.say("have", name)
    try:
        await traj.call(never_works, "never")
    except ConnectionError as error:
        saw["never"] = str(error)
    return saw


async def limits(traj: Trajectory) -> dict[str, Any]:
    """Calls that are cut off: by their own limit, by a limit around them, by a sibling's error."""
    saw: dict[str, Any] = {}
    try:
        await traj.call(hangs, "once")
    except TimeoutError:
        saw["timeout"] = "of the step"
    try:
        async with asyncio.timeout(0.03):
            await traj.call(slow, "in-timeout")
    except TimeoutError:
        saw["outer timeout"] = "of asyncio"
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(traj.call(slow, "sibling"))
            group.create_task(fails_after(traj, 2))
    except* Flaky as errors:
        saw["sibling"] = [str(error) for error in errors.exceptions]
    await traj.call(add, 0, 0)
    for name in ("never", "hangs-once", "slow-in-timeout", "slow-sibling", "fails-sibling", "add-0-0"):
        world.say("have", name)
    return saw


async def fails_after(traj: Trajectory, steps: int) -> None:
    await branch(traj, "s", steps)
    await traj.call(fails, "sibling")


# ---- the same without an event loop ----------------------------------------------------------------------------------


def blocking_tool(branch: str, number: int) -> tuple[str, int]:
    name = f"tool-{branch}-{number}"
    world.say("start", name)
    time.sleep(world.pause_s())
    world.say("end", name)
    return branch, number


def blocking_sample(number: int) -> str:
    world.say("start", f"sample-{number}-{(answer := os.urandom(8).hex())}")
    time.sleep(world.pause_s())
    return answer


def blocking_branch(traj: Any, name: str, steps: int = 5) -> list[tuple[str, int]]:
    got = []
    with traj.branch(name):
        for number in range(steps):
            got.append(traj.call(blocking_tool, name, number))
            world.say("have", f"tool-{name}-{number}")
            world.say("chose", f"{name}-{number}={traj.call(blocking_sample, number)}")
    return got


def blocking_rollout(traj: Any) -> dict[str, Any]:
    chosen = {"uuid": str(traj.uuid()), "random": traj.rng.random(), "now": traj.now()}
    chosen["kept"] = traj.record("salt", os.urandom(4).hex())
    saw: dict[str, Any] = {"messages": (messages := [{"role": "user", "content": "why?"}])}
    for turn in range(3):
        messages.append(traj.call(model, messages))
        world.say("have", f"model-{len(messages) - 1}")
        messages.append({"role": "tool", "content": str(traj.call(add, turn, 10))})
        world.say("have", f"add-{turn}-10")
    for name, value in chosen.items():
        world.say("chose", f"{name}={value}")
    try:
        traj.call(fails, "once")
    except Flaky as error:
        saw["error"] = [type(error).__name__, str(error), error.code, error.hint]
    saw["third"] = works_at_the_third_try("flaky")
    for name in ("flaky", "fails-once"):
        world.say("have", name)
    try:
        never_works("never")
    except ConnectionError as error:
        saw["never"] = str(error)
    try:
        traj.call(hangs, "once")
    except TimeoutError:
        saw["timeout"] = "of the step"
    with ThreadPoolExecutor(8) as pool:
        saw["branches"] = list(pool.map(lambda n: blocking_branch(traj, f"b{n}"), range(8)))
    saw["sum"] = traj.call(add, len(messages), 1)
    for name in ("never", "hangs-once", f"add-{len(messages)}-1"):
        world.say("have", name)
    return saw


# ---- running it ------------------------------------------------------------------------------------------------------


async def main(run: str) -> None:
    async with rolltape.open(run) as opened, opened.trajectory("q", sample=1) as traj:
        if traj.outcome is None:
            traj.finish(await rollout(traj))
    async with rolltape.open(run) as opened, opened.trajectory("q", sample=1) as traj:
        assert traj.outcome is not None
        print(json.dumps(traj.outcome.result))


def blocking_main(run: str) -> None:
    with rolltape.open(run) as opened, opened.trajectory("q", sample=1) as traj:
        if traj.outcome is None:
            traj.finish(blocking_rollout(traj))
    with rolltape.open(run) as opened, opened.trajectory("q", sample=1) as traj:
        assert traj.outcome is not None
        print(json.dumps(traj.outcome.result))


if __name__ == "__main__":
    world = World(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    if sys.argv[5:] == ["blocking"]:
        blocking_main(sys.argv[1])
    else:
        asyncio.run(main(sys.argv[1]))
