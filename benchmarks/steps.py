"""Durable steps: `await traj.call(function, …)`, each on disk before the next one starts.

256 trajectories make 50 steps each at the same time; a step's function does nothing but return 2 KB:

rolltape           at durability disk, os, and os with a timeout on each step
bare               asyncio tasks that call the same function and append the very lines that rolltape wrote, by the
                   least that does it: group commit, one thread. An upper bound
JSONL, flush       what most loops do: `json.dumps`, write, flush. A power cut loses what it acknowledged
DBOS, LangGraph    in processes of their own, on SQLite. DBOS makes 5 steps a trajectory (50 with --full): they take as
                   long however many there are. LangGraph writes its steps behind the rollout's back, so it is done
                   when the whole is

What is measured lies between the first step and the last: all trajectories are open before, and wait after. Then:

growing histories  the argument of each step is the whole list of messages, to which its result is added
large replies      256 trajectories of 8 turns; a reply is 16,000 tokens with log-probabilities, and its argument all
                   tokens so far. A reply takes 4 to 12 s: half a million tokens a second together. Beside it, the
                   same rollouts without recording
long steps         1,024 trajectories of 10 steps of 2 s: the wall time, opening and ending included, over 20 s
many               10,000 trajectories in one process, whose steps take 1 to 3 s: memory, and how long the event loop
                   stood still; beside it, the same without recording
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TextIO

import _rivals
from _bare import Bare, Count
from _bench import Bench, Rounds, Row, peak_rss_bytes, text

import rolltape
from rolltape import Trajectory

RESULTS = [text(2040, seed) for seed in range(97)]


async def tool(number: int, query: str) -> dict[str, Any]:
    """The step's function: its results differ, as real ones do."""
    return {"value": f"{number:08}{RESULTS[number % len(RESULTS)]}"}


timed_tool = rolltape.step(timeout_s=60)(tool)


class Watch:
    """Holds the rollouts until all have begun, and measures from then until all have made their steps."""

    def __init__(self, rollouts: int, steps: int) -> None:
        self._rollouts, self._steps = rollouts, steps
        self._begun = self._ended = 0
        self._gate, self._over = asyncio.Event(), asyncio.Event()
        self.count = Count(0, 0, 0)

    async def begin(self) -> None:
        self._begun += 1
        if self._begun == self._rollouts:
            self._start = time.perf_counter(), time.process_time()
            self._gate.set()
        await self._gate.wait()

    async def end(self) -> None:
        self._ended += 1
        if self._ended == self._rollouts:
            wall, processor = self._start
            steps = self._rollouts * self._steps
            self.count = Count(steps, time.perf_counter() - wall, time.process_time() - processor)
            self._over.set()
        await self._over.wait()


class Lag:
    """How late the event loop comes to what is due: looked at each 5 ms."""

    EACH_S = 0.005

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self._handle = self._loop.call_later(self.EACH_S, self._look, self._loop.time() + self.EACH_S)

    def _look(self, due: float) -> None:
        self.late_s.append(max(0.0, self._loop.time() - due))
        self._next()

    def stop(self) -> list[float]:
        """Return what was seen, in order."""
        self._handle.cancel()
        return self.late_s


class Calls(Protocol):
    """A trajectory, or what is called as one."""

    def call(self, function: Callable[..., Awaitable[Any]], /, *args: Any) -> Awaitable[Any]: ...


async def rollouts(folder: Path, count: int, rollout: Callable[[Trajectory, int], Awaitable[None]], **how: Any) -> None:
    """Run so many trajectories at once."""

    async def one(run: rolltape.Run, number: int) -> None:
        async with run.trajectory(f"q{number}") as traj:
            await rollout(traj, number)

    async with rolltape.open(folder / "run", **how) as run:
        await together(count, partial(one, run))


UNRECORDED = "the same, not recorded"


async def without(count: int, rollout: Callable[[Calls, int], Awaitable[None]]) -> None:
    """The same rollouts, and nothing is recorded."""

    class Unrecorded:
        def call(self, function: Callable[..., Awaitable[Any]], /, *args: Any) -> Awaitable[Any]:
            return function(*args)

    await together(count, partial(rollout, Unrecorded()))


async def together(count: int, one: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))
            if number % 128 == 127:
                await asyncio.sleep(0)


# ---- steps -----------------------------------------------------------------------------------------------------------


def ours(folder: Path, shape: tuple[int, int], durability: str, function: Any = tool) -> Count:
    watch = Watch(*shape)

    async def rollout(traj: Trajectory, number: int) -> None:
        await watch.begin()
        for step in range(shape[1]):
            await traj.call(function, number + step, "what is it")
        await watch.end()

    asyncio.run(rollouts(folder, shape[0], rollout, durability=durability))
    return watch.count


def bare(folder: Path, shape: tuple[int, int], lines: list[bytes], sync: bool) -> Count:
    return asyncio.run(_bare(folder, shape, lines, sync))


async def _bare(folder: Path, shape: tuple[int, int], lines: list[bytes], sync: bool) -> Count:
    watch = Watch(*shape)
    journal = Bare(folder / "bare.jsonl", sync=sync)

    async def rollout(number: int) -> None:
        await watch.begin()
        for step in range(shape[1]):
            await tool(number + step, "what is it")
            await journal.append(lines[(number + step) % len(lines)])
        await watch.end()

    await asyncio.gather(*map(rollout, range(shape[0])))
    journal.close()
    return watch.count


def jsonl_flush(folder: Path, shape: tuple[int, int]) -> Count:
    with open(folder / "steps.jsonl", "a") as file:
        return asyncio.run(_jsonl_flush(file, shape))


async def _jsonl_flush(file: TextIO, shape: tuple[int, int]) -> Count:
    watch = Watch(*shape)

    async def rollout(number: int) -> None:
        await watch.begin()
        for step in range(shape[1]):
            result = await tool(number + step, "what is it")
            record = {"key": f"q{number}", "step": step, "args": [number + step, "what is it"], "result": result}
            file.write(json.dumps(record) + "\n")
            file.flush()
        await watch.end()

    await asyncio.gather(*map(rollout, range(shape[0])))
    return watch.count


def recorded_lines(bench: Bench) -> list[bytes]:
    """Return what rolltape writes for such steps."""
    with bench.folder() as folder:
        ours(folder, (97, 2), "os")
        segments = folder.glob("run/journal/*/*.jsonl")
        lines = [line for path in segments for line in path.read_bytes().splitlines(keepends=True)]
        return [line for line in lines if line.startswith(b'{"type":"done"')]


Steps = Callable[[Path], Count]
OURS, OURS_OS, OURS_TIMED = "rolltape, disk", "rolltape, os", "rolltape, os, timeout"
BARE, BARE_OS, JSONL = "bare, disk", "bare, os", "JSONL, flush"
DBOS, DBOS_WAL, LANGGRAPH = "DBOS", "DBOS, WAL", "LangGraph"


def measure_steps(bench: Bench) -> None:
    shape = (256, 10 if bench.quick else 50)
    lines = recorded_lines(bench)
    runs: dict[str, Steps] = {
        OURS: partial(ours, shape=shape, durability="disk"),
        BARE: partial(bare, shape=shape, lines=lines, sync=True),
        OURS_OS: partial(ours, shape=shape, durability="os"),
        OURS_TIMED: partial(ours, shape=shape, durability="os", function=timed_tool),
        BARE_OS: partial(bare, shape=shape, lines=lines, sync=False),
        JSONL: partial(jsonl_flush, shape=shape),
    }
    of = {OURS: {"bare": BARE}, OURS_OS: {"bare": BARE_OS}, OURS_TIMED: {"bare": BARE_OS}}
    _, processor = compare(bench, f"{shape[0]} trajectories at once", runs, of, count=9)
    over = [a - b for a, b in zip(processor.figures[OURS], processor.figures[BARE], strict=True)]
    bench.goal("us of processor a step over bare", statistics.median(over), at_most=10)
    bench.goal("us of processor a step without fsync", processor.median(OURS_OS), at_most=15)
    bench.goal("us of processor a step without fsync, with a timeout", processor.median(OURS_TIMED), at_most=20)
    if _rivals.installed(bench):
        measure_engines(bench, shape)


def measure_engines(bench: Bench, shape: tuple[int, int]) -> None:
    """Beside DBOS and LangGraph."""
    short = (32, 4) if bench.quick else shape if bench.full else (shape[0], 5)
    runs: dict[str, Steps] = {
        OURS: partial(ours, shape=shape, durability="disk"),
        DBOS: partial(rival, engine=_rivals.DBOS, shape=short),
        DBOS_WAL: partial(rival, engine=_rivals.DBOS_WAL, shape=short),
        LANGGRAPH: partial(rival, engine=_rivals.LANGGRAPH, shape=short if bench.quick else shape),
    }
    rivals = {name: name for name in (DBOS, DBOS_WAL, LANGGRAPH)}
    rounds, _ = compare(bench, f"{shape[0]} trajectories beside others", runs, {OURS: rivals}, count=3)
    bench.goal("x DBOS (SQLite) in steps per second", rounds.ratio(OURS, DBOS), at_least=100)
    bench.goal("x LangGraph in steps per second", rounds.ratio(OURS, LANGGRAPH), at_least=50)


def compare(
    bench: Bench, title: str, runs: Mapping[str, Steps], of: Mapping[str, Mapping[str, str]], count: int
) -> tuple[Rounds, Rounds]:
    """Return each one's steps per second, and processor time per step, with a table of both."""
    counts: dict[str, list[Count]] = {name: [] for name in runs}

    def per_second(name: str) -> float:
        with bench.folder() as folder:
            counts[name].append(runs[name](folder))
        return counts[name][-1].per_second

    rounds = bench.rounds({name: partial(per_second, name) for name in runs}, count=count)
    processor = Rounds({name: [done.processor_us for done in found[1:]] for name, found in counts.items()})
    for unit, figures in (("steps/s", rounds), ("us of processor/step", processor)):
        bench.table(title, unit, [figures.row(name, of.get(name)) for name in runs])
    return rounds, processor


def rival(folder: Path, engine: str, shape: tuple[int, int]) -> Count:
    return _rivals.run(engine, "steps", folder, *shape)


# ---- growing histories -----------------------------------------------------------------------------------------------


def history(folder: Path, shape: tuple[int, int]) -> Count:
    """So many rollouts of so many turns, each of which is called with all messages and adds one."""
    watch = Watch(*shape)

    async def model(messages: list[dict[str, str]], number: int) -> dict[str, str]:
        return message(number, len(messages))

    async def rollout(traj: Trajectory, number: int) -> None:
        messages = [{"role": "user", "content": "what is it"}]
        await watch.begin()
        for _ in range(shape[1]):
            messages.append(await traj.call(model, messages, number))
        await watch.end()

    asyncio.run(rollouts(folder, shape[0], rollout, durability="os"))
    return watch.count


def message(number: int, place: int) -> dict[str, str]:
    return {"role": "assistant", "content": f"{number:04}{place:04}{RESULTS[place % len(RESULTS)]}"}


def measure_histories(bench: Bench) -> None:
    shapes = {50: (64, 50), 500: (8 if bench.quick else 32, 500)}
    size: dict[int, float] = {}

    def processor_us(turns: int) -> float:
        with bench.folder() as folder:
            count = history(folder, shapes[turns])
            logical = count.records * statistics.mean(len(json.dumps(message(0, n)).encode()) for n in range(turns))
            size[turns] = journal_bytes(folder / "run") / logical
            return count.processor_us

    rounds = bench.rounds({f"{turns} turns": partial(processor_us, turns) for turns in shapes}, count=5)
    title = "growing history"
    bench.table(title, "us of processor/step", [rounds.row(f"{turns} turns") for turns in shapes])
    bench.table(title, "journal bytes/logical", [Row(f"{turns} turns", size[turns], {}) for turns in shapes])
    for turns in shapes:
        bench.goal(f"journal bytes a logical byte at {turns} turns", size[turns], at_most=1.2)
    bench.goal("us of processor a step at 500 turns", rounds.median("500 turns"), at_most=60)


def journal_bytes(run: Path) -> int:
    return sum(path.stat().st_size for path in run.glob("journal/*/*") if path.suffix in (".jsonl", ".pack"))


# ---- large replies ---------------------------------------------------------------------------------------------------


class Replies:
    """Replies of a model with a vocabulary of 150,000, made before the clock runs."""

    def __init__(self, tokens: int) -> None:
        random = Random(1)
        self._ids = [array("q", (int(150_000 * random.random() ** 3) for _ in range(tokens))) for _ in range(16)]
        self._logprobs = [array("d", (-random.expovariate(2.0) for _ in range(tokens))) for _ in range(16)]

    def reply(self, number: int) -> dict[str, Any]:
        ids, logprobs = (each[number % len(each)].tolist() for each in (self._ids, self._logprobs))
        ids[0], logprobs[0] = number, -1 / (number + 1)
        return {"token_ids": ids, "logprobs": logprobs, "finish_reason": "stop"}


def large_replies(
    folder: Path, trajectories: int, turns: int, tokens: int, reply_s: float, recorded: bool = True
) -> list[float]:
    """Return how late the event loop was, each 5 ms."""
    replies, pace_s = Replies(tokens), 0.0

    async def main() -> list[float]:
        nonlocal pace_s
        with TemporaryDirectory(dir=folder) as warm:
            await rollouts(Path(warm), 1, rollout)
        lag, pace_s = Lag(), reply_s
        await (rollouts(folder, trajectories, rollout) if recorded else without(trajectories, rollout))
        return lag.stop()

    async def generate(tokens: list[int], number: int) -> dict[str, Any]:
        await asyncio.sleep(pace_s * Random(number).uniform(0.5, 1.5))
        return replies.reply(number)

    async def rollout(traj: Calls, number: int) -> None:
        context = [number, *range(1000)]
        for turn in range(turns):
            reply = await traj.call(generate, context, 100 * number + turn)
            context = context + reply["token_ids"]

    return asyncio.run(main())


def measure_large_replies(bench: Bench) -> None:
    shape = (32, 3, 16_000, 0.5) if bench.quick else (256, 8, 16_000, 8.0)
    late_ms: dict[str, list[float]] = {}
    for name in (UNRECORDED, "rolltape"):
        with bench.folder() as folder:
            late_s = bench.in_child(large_replies, folder, *shape, name == "rolltape")
            late_ms[name] = [late * 1e3 for late in late_s]
    each = {}
    for length in (4, 16):
        with bench.folder() as folder:
            bench.in_child(large_replies, folder, 1, length, shape[2], 0.01)
            each[length] = journal_bytes(folder / "run") / length
    p99 = {name: statistics.quantiles(found, n=100)[98] for name, found in late_ms.items()}
    title = f"{shape[0]} trajectories of {shape[1]} replies of {shape[2]:,} tokens with logprobs"
    bench.table(f"{title}: event loop late, p99", "ms", [Row(name, value, {}) for name, value in p99.items()])
    bench.table(f"{title}: worst", "ms", [Row(name, max(found), {}) for name, found in late_ms.items()])
    sizes = [Row(f"a token, of {length} turns", size / shape[2], {}) for length, size in each.items()]
    bench.table("journal of such replies", "bytes", sizes)
    bench.goal("ms late, p99", p99["rolltape"], at_most=50)
    bench.goal("bytes a reply at 16 turns, over those at 4", each[16] / each[4], at_most=1.1)


# ---- long steps ------------------------------------------------------------------------------------------------------


def long_steps(folder: Path, shape: tuple[int, int], step_s: float) -> float:
    """Return the wall time over the ideal, opening the run and ending the trajectories included."""

    async def slow(number: int) -> dict[str, Any]:
        await asyncio.sleep(step_s)
        return await tool(number, "")

    async def rollout(traj: Trajectory, number: int) -> None:
        for step in range(shape[1]):
            await traj.call(slow, number + step)

    start = time.perf_counter()
    asyncio.run(rollouts(folder, shape[0], rollout))
    return (time.perf_counter() - start) / (shape[1] * step_s)


def measure_long_steps(bench: Bench) -> None:
    shape, step_s = ((128, 4), 0.5) if bench.quick else ((1024, 10), 2.0)
    with bench.folder() as folder:
        rows = [Row("rolltape", bench.in_child(long_steps, folder, shape, step_s), {})]
    if bench.full and _rivals.installed(bench):
        for name, engine in ((DBOS, _rivals.DBOS), (DBOS_WAL, _rivals.DBOS_WAL), (LANGGRAPH, _rivals.LANGGRAPH)):
            with bench.folder() as folder:
                count = _rivals.run(engine, "steps", folder, *shape, step_s)
            rows.append(Row(f"{name} (opening and ending apart)", count.wall_s / (shape[1] * step_s), {}))
    bench.table(f"{shape[0]:,} trajectories of {shape[1]} steps of {step_s:g} s", "wall/ideal", rows)
    bench.goal("of the ideal wall time", rows[0].value, at_most=1.02)


# ---- many ------------------------------------------------------------------------------------------------------------


def many(folder: Path, count: int, recorded: bool) -> Mapping[str, float]:
    """Return the peak of memory in MB, and the worst stalls in ms while all are opened, at work, and ended."""

    async def pause(number: int) -> dict[str, Any]:
        await asyncio.sleep(Random(number).uniform(1.0, 3.0))
        return await tool(number, "")

    async def main() -> dict[str, float]:
        lag, marks, begun = Lag(), [0], 0

        async def rollout(traj: Calls, number: int) -> None:
            nonlocal begun
            begun += 1
            if begun == count:
                marks.append(len(lag.late_s))
            steps = 0
            while begun < count or steps < 5:
                await traj.call(pause, 1000 * number + steps)
                steps += 1
            if len(marks) == 2:
                marks.append(len(lag.late_s))

        await (rollouts(folder, count, rollout) if recorded else without(count, rollout))
        late = lag.stop()
        marks.append(len(late))
        worst = [max(late[start:end], default=0.0) * 1e3 for start, end in pairwise(marks)]
        return {"MB": peak_rss_bytes() / 1e6, **dict(zip(("opening", "at work", "ending"), worst, strict=True))}

    return asyncio.run(main())


def measure_many(bench: Bench) -> None:
    count = 1_000 if bench.quick else 10_000
    found: dict[str, Mapping[str, float]] = {}
    for name in (UNRECORDED, "rolltape"):
        with bench.folder() as folder:
            found[name] = bench.in_child(many, folder, count, name == "rolltape")
    title = f"{count:,} trajectories in one process"
    bench.table(f"{title}: peak of memory", "MB", [Row(name, figures["MB"], {}) for name, figures in found.items()])
    for when in ("opening", "at work", "ending"):
        rows = [Row(name, figures[when], {}) for name, figures in found.items()]
        bench.table(f"{title}: worst stall of the event loop, {when}", "ms", rows)
    bench.goal("MB of memory", found["rolltape"]["MB"], at_most=1000)
    bench.goal("ms at most the event loop stood still at work", found["rolltape"]["at work"], at_most=50)


def main() -> None:
    with Bench(__doc__, full="the rivals make as many steps as we do, and the long steps too") as bench:
        measure_steps(bench)
        measure_histories(bench)
        measure_large_replies(bench)
        measure_long_steps(bench)
        measure_many(bench)


if __name__ == "__main__":
    main()
