"""Promise 7: the newest attempt wins.

Late records of an older attempt or a superseded process never replace newer ones; they are kept and shown as stale. An
accepted outcome is never superseded.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Coroutine
from hashlib import sha256, shake_128
from pathlib import Path
from typing import Any, TypeVar

import pytest

import rolltape
from rolltape import records
from rolltape.journal import AttemptLog, Reader, Story, Writer, WriterConfig, open_writer, rely_on, story_of, survey
from rolltape.journal.reader import Line
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk
from rolltape.testing.kill import Child, run_until

HANG_S = 120.0
"""Whatever takes longer hangs. Nothing is timed by it."""

DONE, SUPERSEDED = 0, 3

T = TypeVar("T")
Step = tuple[str, str]
"""(trajectory, step)."""


# ---- with a stopped clock: every order of things, in one process -----------------------------------------------------


def on(disk: CrashDisk) -> LocalStore:
    return LocalStore("/run", fs=disk)


async def soon(awaitable: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wait_for(awaitable, HANG_S)


def story_on(disk: CrashDisk, key: str = "k#0") -> Story[Line]:
    return story_of(Reader(on(disk.process())), key, lambda damage: pytest.fail(str(damage)))


def says(story: Story[Line]) -> list[str]:
    return [entry.place.decode(records.Done).path for entry in story.entries if entry.envelope.type == "done"]


def stale(story: Story[Line]) -> list[str]:
    return [entry.place.decode(records.Done).path for entry in story.stale if entry.envelope.type == "done"]


async def steps(log: AttemptLog, *paths: str) -> None:
    for path in paths:
        await soon(log.append(records.Done, path=path))


async def continue_it(disk: CrashDisk, writer: Writer, attempt: int = 1) -> AttemptLog:
    """What a successor does, in its order: take, read, make what it relies on durable, begin."""
    log = AttemptLog(writer, "k#0", attempt)
    await soon(log.take())
    store = on(disk.process())
    story = survey(Reader(store), lambda damage: pytest.fail(str(damage)))["k#0"].story()
    rely_on(store, {(entry.place.epoch, entry.place.segment) for entry in story.entries})
    await soon(log.begin(story.last))
    return log


@pytest.mark.parametrize("power", ["stays on", "fails"])
@pytest.mark.parametrize("durability", ["disk", "os"])
def test_what_a_superseded_process_adds_is_stale(durability, power):
    """It was paused, another one went on, it woke and wrote: acknowledged or not, it does not count, and is shown."""

    async def main() -> None:
        disk = CrashDisk()
        config = WriterConfig(durability=durability, background_sync_s=10_000.0)
        old = open_writer(on(disk.process()), config)
        late = AttemptLog(old, "k#0", 1)
        await soon(late.take())
        await soon(late.begin(None))
        await steps(late, "0", "1")
        new = open_writer(on(disk.process()), config)
        log = await continue_it(disk, new)
        await steps(late, "late 2", "late 3")
        await steps(log, "2")
        await soon(late.append(records.Outcome, status="failed", unix_s=0.0))
        if power == "fails":
            after = disk.power_cut("nothing")
            story = story_on(after)
            assert says(story) == (["0", "1", "2"] if durability == "disk" else ["0", "1"])
        else:
            await soon(log.append(records.Outcome, status="completed", unix_s=0.0))
            story = story_on(disk)
            assert says(story) == ["0", "1", "2"]
            assert story.entries[-1].envelope.status == "completed"
        for writer in (old, new):
            await soon(writer.aclose())
        assert stale(story) == ["late 2", "late 3"]
        assert story.stale[-1].envelope.status == "failed"
        assert (story.newest, story.counts, story.gaps) == ((2, 1), (2, 1), [])

    asyncio.run(main())


def test_an_older_attempt_of_the_same_process_is_superseded_like_any_other():
    """A retry goes on while a call that nobody cancelled comes back."""

    async def main() -> None:
        disk = CrashDisk()
        writer = open_writer(on(disk.process()))
        first = AttemptLog(writer, "k#0", 1)
        await soon(first.begin(None))
        await steps(first, "0")
        second = await continue_it(disk, writer, attempt=2)
        await asyncio.gather(steps(first, "late 1", "late 2"), steps(second, "1", "2"))
        await soon(writer.aclose())
        story = story_on(disk)
        assert (says(story), stale(story)) == (["0", "1", "2"], ["late 1", "late 2"])

    asyncio.run(main())


def test_an_accepted_outcome_stands_whatever_comes_later():
    """A successor that misjudged its owner has begun, and even finished: nothing of it counts."""

    async def main() -> None:
        disk = CrashDisk()
        old, new = (open_writer(on(disk.process())) for _ in range(2))
        owner = AttemptLog(old, "k#0", 1)
        await soon(owner.begin(None))
        await steps(owner, "0")
        other = await continue_it(disk, new)
        await steps(other, "1")
        await soon(owner.append(records.Outcome, status="completed", reward=1.0, unix_s=0.0))
        await soon(owner.append(records.Accepted, unix_s=0.0))
        await soon(other.append(records.Outcome, status="failed", unix_s=0.0))
        await soon(other.append(records.Accepted, unix_s=0.0))
        for writer in (old, new):
            await soon(writer.aclose())
        story = story_on(disk)
        assert story.accepted and story.counts == (1, 1) and story.newest == (2, 1)
        assert (says(story), stale(story)) == (["0"], ["1"])

    asyncio.run(main())


def test_a_take_alone_takes_nothing_over():
    """Whoever takes and dies, or withdraws, leaves the story to its owner."""

    async def main() -> None:
        disk = CrashDisk()
        old, new = (open_writer(on(disk.process())) for _ in range(2))
        owner = AttemptLog(old, "k#0", 1)
        await soon(owner.begin(None))
        await steps(owner, "0")
        taker = AttemptLog(new, "k#0", 1)
        await soon(taker.take())
        await steps(owner, "1")
        assert says(story_on(disk)) == ["0", "1"]
        await soon(taker.withdraw())
        await steps(owner, "2")
        for writer in (old, new):
            await soon(writer.aclose())
        assert says(story_on(disk)) == ["0", "1", "2"]

    asyncio.run(main())


@pytest.mark.parametrize("size", [10, 40_000], ids=["in line", "in the pack"])
def test_what_a_successor_continues_survives_a_power_cut_although_its_author_never_synced_it(size):
    """It was in the page cache only. The successor's own first record is durable: its past has to be, too."""

    async def main() -> None:
        disk = CrashDisk()
        old = open_writer(on(disk.process()), WriterConfig(durability="os", background_sync_s=10_000.0))
        log = AttemptLog(old, "k#0", 1)
        await soon(log.begin(None))
        for path in ("0", "1"):
            await soon(log.append(records.Done, path=path, values={"result": {"value": bytes(size)}}))
        new = open_writer(on(disk.process()))
        await steps(await continue_it(disk, new), "2")
        after = disk.power_cut("nothing")
        for writer in (old, new):
            await asyncio.to_thread(writer.close)
        story = story_on(after)
        assert (says(story), story.gaps) == (["0", "1", "2"], [])
        reader = Reader(on(after))
        for entry in story.entries[1:3]:
            for digest in entry.place.decode(_Packed).pack:
                assert reader.value(entry.place, digest[0]) == bytes(size)

    asyncio.run(main())


class _Packed(records.Done, tag="done", kw_only=True):
    pack: tuple[tuple[str, int, int], ...] = ()


# ---- with real processes ---------------------------------------------------------------------------------------------

ENV = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
SEED = 11


def work(run: Path, *, trajectories: int, steps: int, delay_ms: float = 0.0, durability: str = "disk") -> list[str]:
    return [
        *("-m", "rolltape.testing", "torture-write", "--dir", str(run), "--seed", str(SEED)),
        *("--trajectories", str(trajectories), "--steps", str(steps), "--step-delay-ms", str(delay_ms)),
        *("--durability", durability, "--segment-bytes-max", "50000"),
    ]


def expected(trajectories: int, steps: int) -> dict[Step, str]:
    return {
        (str(t), str(s)): sha256(shake_128(f"{SEED}/{t}/{s}".encode()).digest(256)).hexdigest()
        for t in range(trajectories)
        for s in range(steps)
    }


def said(lines: list[str], word: str) -> dict[Step, str]:
    found: dict[Step, str] = {}
    for line in lines:
        first, *rest = line.split()
        if first == word:
            assert (rest[0], rest[1]) not in found, f"twice: {line}"
            found[rest[0], rest[1]] = rest[2]
    return found


def have(run: Path) -> dict[Step, str]:
    """What `torture-read` prints: no damage, each step once."""
    command = [sys.executable, "-m", "rolltape.testing", "torture-read", "--dir", str(run)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=HANG_S, env={**os.environ, **ENV})
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("HAVE ")] == []
    assert done.returncode == 0
    return said(lines, "HAVE")


def stories(run: Path) -> dict[str, Story[Any]]:
    found = survey(Reader(LocalStore(run)), lambda damage: pytest.fail(str(damage)))
    return {key.removeprefix("torture-").removesuffix("#0"): lineage.story() for key, lineage in found.items()}


def test_a_stopped_process_that_wakes_after_another_went_on_changes_nothing(tmp_path):
    """SIGSTOP; another process finishes everything; SIGCONT: its late records are there, stale, and it gives up."""
    run = tmp_path / "run"
    argv = work(run, trajectories=3, steps=40, delay_ms=5.0)
    with Child(argv, env=ENV) as stopped:
        for trajectory in range(3):
            stopped.wait_for(lambda line, t=trajectory: line.startswith(f"ACK {t} "), HANG_S)
        stopped.stop()
        before = said(stopped.lines, "ACK")
        other = run_until(argv, timeout_s=HANG_S, env=ENV)
        assert other.returncode == DONE
        told = stories(run)
        assert have(run) == expected(3, 40)
        stopped.cont()
        assert stopped.wait(HANG_S) == SUPERSEDED
    acked = said(stopped.lines, "ACK")
    assert before.items() <= acked.items() <= expected(3, 40).items()
    assert acked.keys().isdisjoint(said(other.lines, "TRY")), "a finished step ran again"
    assert have(run) == expected(3, 40)
    after = stories(run)
    assert {key: [e.point for e in story.entries] for key, story in after.items()} == {
        key: [e.point for e in story.entries] for key, story in told.items()
    }
    late = [entry for story in after.values() for entry in story.stale]
    assert late and {entry.point[:2] for entry in late} == {(1, 1)}
    assert all(story.accepted and story.counts == (2, story.counts[1]) for story in after.values())


@pytest.mark.parametrize("round", range(3))
def test_what_a_process_had_acknowledged_is_its_successors_while_both_run(round, tmp_path):
    """The successor dies in its first steps: it has taken everything over, and may not lose or repeat a thing."""
    argv = work(tmp_path / "run", trajectories=6, steps=100_000, durability="os")
    with Child(argv, env=ENV) as first:
        first.wait_for(lambda line: line.startswith("ACK"), HANG_S)
        successor = run_until(argv, timeout_s=HANG_S, kill_when=lambda line: line.startswith("TRY"), env=ENV)
        assert first.wait(HANG_S) == SUPERSEDED
    acked = said(first.lines, "ACK")
    assert (acked | said(successor.lines, "ACK")).items() <= have(tmp_path / "run").items()
    assert acked.keys().isdisjoint(said(successor.lines, "TRY")), "a finished step ran again"


def test_two_processes_started_at_once_end_with_one_truth(tmp_path):
    """The higher epoch finishes, the lower one yields or had nothing to do; every step once, no ACK is lost."""
    for round in range(2):
        run = tmp_path / str(round)
        argv = work(run, trajectories=4, steps=60)
        with Child(argv, env=ENV) as one, Child(argv, env=ENV) as two:
            codes = [child.wait(HANG_S) for child in (one, two)]
        assert DONE in codes and set(codes) <= {DONE, SUPERSEDED}
        wanted = expected(4, 60)
        assert have(run) == wanted
        for child in (one, two):
            assert said(child.lines, "ACK").items() <= wanted.items()
        assert all(story.accepted and story.gaps == [] for story in stories(run).values())
        both = said(one.lines, "ACK").keys() & said(two.lines, "ACK").keys()
        assert both == set(), "a finished step ran again"


def test_a_driver_that_stood_still_changes_no_result_that_was_told(tmp_path):
    """Stopped in the middle of several trajectories, taken for dead, woken when all of them had ended."""
    program = Path(__file__).parents[1] / "trajectory" / "taking_program.py"
    keys = [f"q{number}#0" for number in range(6)]
    argv = [str(program), str(tmp_path / "run"), str(tmp_path / "ledger"), "--keys", ",".join(keys)]
    argv += ["--steps", "20", "--step-ms", "20"]

    def results() -> dict[str, Any]:
        with rolltape.read(tmp_path / "run") as run:
            assert not run.damage
            return {trajectory.key: (trajectory.status, trajectory.result) for trajectory in run}

    with Child(argv, env=ENV) as stopped:
        for _ in range(30):
            stopped.wait_for(lambda line: line.startswith("have"), HANG_S)
        stopped.stop()
        other = run_until([*argv, "--take-over"], timeout_s=HANG_S, env=ENV)
        assert other.returncode == DONE
        told = results()
        assert set(told) == set(keys) and {status for status, _ in told.values()} == {"completed"}
        stopped.cont()
        assert stopped.wait(HANG_S) == SUPERSEDED
    assert results() == told
    for key, (_, tokens) in told.items():
        assert f"outcome {key} {' '.join(tokens)}" in other.lines
        assert not [line for line in stopped.lines if line.startswith(f"outcome {key} ")]


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(5))
def test_whatever_stops_wakes_and_dies_every_acknowledged_step_is_there(seed, tmp_path):
    """Up to four processes on one run, each started, stopped, woken and killed at random, for sixty rounds."""
    rng, run = random.Random(seed), tmp_path / "run"
    argv = work(run, trajectories=5, steps=100_000, delay_ms=20.0, durability=rng.choice(["disk", "os"]))
    living: list[Child] = []
    acked: dict[Step, str] = {}
    try:
        for _ in range(60):
            action = rng.choice(["start", "start", "stop", "wake", "kill"])
            if action == "start" and len(living) < 4:
                living.append(Child(argv, env=ENV))
            elif living:
                child = rng.choice(living)
                if action == "stop":
                    child.stop()
                elif action == "wake":
                    child.cont()
                elif action == "kill":
                    child.kill()
                    living.remove(child)
                    acked |= said(child.lines, "ACK")
            time.sleep(rng.uniform(0, 0.3))
            now = {step: digest for child in living for step, digest in said(child.lines, "ACK").items()}
            if run.exists() and (run / "run.json").exists():
                assert (acked | now).items() <= have(run).items()
    finally:
        for child in living:
            child.__exit__(None, None, None)
