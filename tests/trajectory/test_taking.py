"""Taking, checking and ending, in one process: every path out gives the trajectory back, and nothing is lost on it."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import rolltape
from rolltape import records
from rolltape.errors import (
    DamagedError,
    DiskFullError,
    InUseError,
    JournalClosed,
    JournalFailed,
    SupersededError,
    UsageError,
)
from rolltape.journal import AttemptLog, Reader, WriterConfig, open_writer
from rolltape.journal import format as fmt
from rolltape.store import LocalStore
from rolltape.testing import points
from rolltape.testing.disk import CrashDisk
from rolltape.testing.kill import run_until
from rolltape.trajectory.run import Run
from rolltape.trajectory.taking import World

HANG_S = 60.0
"""Whatever takes longer hangs. Nothing is timed by it."""

ENV = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}

T = TypeVar("T")


def soon(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, HANG_S))


@pytest.fixture(autouse=True)
def no_points_are_left() -> Iterator[None]:
    yield
    points.clear()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 what is waited for is on the disk, or in the log
        await asyncio.sleep(0.01)


class Steps:
    """Steps that count how often each was called."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    async def run(self, name: str) -> str:
        self.calls[name] = self.calls.get(name, 0) + 1
        return f"{name}, call {self.calls[name]}"


async def roll(run: Run, steps: Steps, *names: str, key: str = "q#0") -> Any:
    """Run a trajectory to its end; return its result."""
    async with run.trajectory(key) as traj:
        if traj.outcome is None:
            traj.finish([await traj.call(steps.run, name) for name in names])
    assert traj.outcome is not None
    return traj.outcome.result


async def leave(run: Run, steps: Steps, *names: str, key: str = "q#0") -> None:
    """Make steps, and leave the trajectory unresolved."""
    with pytest.raises(asyncio.CancelledError):
        async with run.trajectory(key) as traj:
            for name in names:
                await traj.call(steps.run, name)
            raise asyncio.CancelledError


def statuses(path: Path | str) -> dict[str, str]:
    with rolltape.read(path) as run:
        return {trajectory.key: trajectory.status for trajectory in run}


def on(disk: CrashDisk) -> LocalStore:
    return LocalStore("/run", fs=disk)


# ---- one process -----------------------------------------------------------------------------------------------------


def test_two_tasks_cannot_have_one_trajectory(tmp_path):
    async def main() -> None:
        async with rolltape.open(tmp_path / "run") as run, run.trajectory("q"):
            with pytest.raises(InUseError, match="q#0 is open in this process already"):
                async with run.trajectory("q"):
                    pass

    soon(main())


def test_two_openings_of_a_run_in_one_process_are_two_as_any_others(tmp_path):
    async def main() -> None:
        steps = Steps()
        async with rolltape.open(tmp_path / "run") as one, rolltape.open(tmp_path / "run") as two:
            async with one.trajectory("q") as traj:
                await traj.call(steps.run, "a")
                with pytest.raises(InUseError, match="this process itself, which has the run open more than once"):
                    async with two.trajectory("q"):
                        pass
            assert await roll(two, steps, "b", key="r#0") == ["b, call 1"]
            assert await roll(two, steps, "a", "b") is None, "the first opening's outcome, which finished with nothing"
            assert await roll(one, steps, "c", key="r#0") == ["b, call 1"]

    soon(main())


def test_what_a_closed_run_has_left_goes_on_in_the_next_although_the_process_lives(tmp_path):
    async def main() -> None:
        steps = Steps()
        async with rolltape.open(tmp_path / "run") as run:
            await leave(run, steps, "a")
        async with rolltape.open(tmp_path / "run") as run:
            assert await roll(run, steps, "a", "b") == ["a, call 1", "b, call 1"]

    soon(main())


def test_a_trajectory_is_given_back_whatever_ends_its_block(tmp_path):
    """And left unresolved by what is not the rollout's own failure."""
    endings = [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(), GeneratorExit()]
    endings += [DamagedError("x"), JournalFailed("x"), DiskFullError("x"), SupersededError("x"), InUseError("x")]

    async def main() -> None:
        steps = Steps()
        async with rolltape.open(tmp_path / "run") as run:
            for ending in endings:
                with pytest.raises(type(ending)):
                    async with run.trajectory("q") as traj:
                        await traj.call(steps.run, "a")
                        raise ending
            assert statuses(run.path) == {"q#0": "running"}
            assert await roll(run, steps, "a") == ["a, call 1"]

    soon(main())
    assert statuses(tmp_path / "run") == {"q#0": "completed"}


def test_a_failure_of_the_rollout_is_its_outcome(tmp_path):
    async def main() -> None:
        async with rolltape.open(tmp_path / "run") as run:
            with pytest.raises(ZeroDivisionError):
                async with run.trajectory("q"):
                    raise ZeroDivisionError
            async with run.trajectory("q") as traj:
                assert traj.outcome is not None and traj.outcome.status == "failed"

    soon(main())


def test_the_same_in_blocking_code(tmp_path):
    with rolltape.open(tmp_path / "run") as run:
        with run.trajectory("q") as traj, pytest.raises(InUseError), run.trajectory("q"):
            pass
        for ending in (KeyboardInterrupt, DamagedError):
            with pytest.raises(ending), run.trajectory("r") as traj:
                assert traj.call(abs, -1) == 1
                raise ending
        with run.trajectory("r") as traj:
            assert traj.outcome is None and traj.call(abs, -1) == 1
    assert statuses(tmp_path / "run") == {"q#0": "completed", "r#0": "completed"}


def test_a_task_that_the_block_has_left_behind_records_nothing(tmp_path):
    """Without looking at newer attempts of its own epoch, it and its successor would both go on."""

    async def main() -> None:
        steps, wakes = Steps(), asyncio.Event()

        async def straggler(traj: rolltape.Trajectory) -> None:
            await wakes.wait()
            with pytest.raises(UsageError, match="the block of q#0 has ended"):
                await traj.call(steps.run, "late")

        async with rolltape.open(tmp_path / "run") as run:
            with pytest.raises(asyncio.CancelledError):
                async with run.trajectory("q") as traj:
                    task = asyncio.create_task(straggler(traj))
                    raise asyncio.CancelledError
            async with run.trajectory("q") as traj:
                wakes.set()
                await task
                traj.finish(await traj.call(steps.run, "a"))
        assert steps.calls == {"a": 1}

    soon(main())


def test_an_attempt_that_was_left_cannot_end_the_trajectory_of_its_successor(tmp_path):
    async def main() -> None:
        async with rolltape.open(tmp_path / "run") as run:
            trajectory, held = await run.open("q#0", "q", 0, 0, "park")
            assert held is not None
            run.release("q#0", held)
            async with run.trajectory("q") as successor:
                with pytest.raises(SupersededError, match="was taken by another attempt"):
                    await run.end(trajectory, held, "failed", ValueError("late"))
                successor.finish(1)
        assert statuses(tmp_path / "run") == {"q#0": "completed"}

    soon(main())


# ---- cancelled while it is taken -------------------------------------------------------------------------------------


async def cancelled_at(point: str, run: Run) -> None:
    opening = asyncio.ensure_future(roll(run, Steps(), "a"))
    points.at(point, lambda: opening.cancel())
    with pytest.raises(asyncio.CancelledError):
        await opening
    points.clear()


@pytest.mark.parametrize("point", ["take", "attempt"])
def test_a_cancelled_opening_gives_the_trajectory_back(point, tmp_path):
    async def main() -> None:
        async with rolltape.open(tmp_path / "run") as run:
            await cancelled_at(point, run)
            assert await roll(run, Steps(), "a") == ["a, call 1"]

    soon(main())


def test_a_take_that_was_given_up_is_undecided_for_nobody(tmp_path):
    async def main() -> None:
        async with rolltape.open(tmp_path / "run") as run:
            for _ in range(3):
                await cancelled_at("take", run)
            async with rolltape.open(tmp_path / "run") as other:
                assert await roll(other, Steps(), "a") == ["a, call 1"]
            assert await roll(run, Steps(), "never") == ["a, call 1"]

    soon(main())


def test_each_take_has_a_number_of_its_own(tmp_path):
    """A number that was withdrawn would be withdrawn for ever: others would not see the next take."""

    async def main() -> None:
        async with rolltape.open(tmp_path / "run") as run:
            for _ in range(2):
                await cancelled_at("take", run)
            assert await roll(run, Steps(), "a") == ["a, call 1"]
        taken = [line.envelope() for line in Reader(LocalStore(tmp_path / "run")).scan(print)]
        ids = [(line.epoch, line.attempt) for line in taken if line.type == "take"]
        assert ids == [(1, 1), (1, 2), (1, 3)]

    soon(main())


def test_what_a_process_taken_for_dead_still_ends_is_seen(tmp_path):
    """It was only slow. Its other trajectories are read again each time, not once and for all."""

    async def main() -> None:
        path, steps = tmp_path / "run", Steps()
        slow = open_writer(LocalStore(path))
        await AttemptLog(slow, "q#0", 1).begin(None, task="q")
        async with rolltape.open(path, take_over=True) as run:
            assert await roll(run, steps, "a") == ["a, call 1"]
            log = AttemptLog(slow, "r#0", 1)
            await log.begin(None, task="r")
            await log.append(records.Outcome, status="completed", values={"result": {"value": "done"}}, unix_s=0.0)
            await log.append(records.Accepted, unix_s=0.0)
            assert await roll(run, steps, "never", key="r#0") == "done"
        await slow.aclose()

    soon(main())


def test_taking_over_is_of_what_was_there_before(tmp_path):
    """Who opened the run after that is judged like anybody."""

    async def main() -> None:
        path = tmp_path / "run"
        async with (
            rolltape.open(path, take_over=True) as run,
            rolltape.open(path) as later,
            later.trajectory("q"),
        ):
            with pytest.raises(InUseError):
                await roll(run, Steps(), "a")

    soon(main())


def test_whoever_goes_on_after_a_later_process_takes_a_later_epoch(tmp_path):
    """The highest (epoch, attempt) is always the newest."""

    async def main() -> None:
        path, steps = tmp_path / "run", Steps()
        async with rolltape.open(path) as run:
            async with rolltape.open(path) as later:
                await leave(later, steps, "a")
            assert await roll(run, steps, "a", "b") == ["a, call 1", "b, call 1"]
            assert await roll(run, steps, "a", key="r#0") == ["a, call 2"]
        async with rolltape.open(path) as run:
            assert await roll(run, steps, "never") == ["a, call 1", "b, call 1"]
        with rolltape.read(path) as found:
            assert [attempt.epoch for attempt in found["q#0"].attempts()] == [2, 3]

    soon(main())


def test_a_call_of_an_ended_trajectory_records_nothing(tmp_path):
    async def main() -> None:
        async with rolltape.open(tmp_path / "run") as run:
            steps = Steps()
            await roll(run, steps, "a")
            async with run.trajectory("q") as traj:
                assert await traj.call(steps.run, "a") == "a, call 1"
                with pytest.raises(UsageError, match="has ended"):
                    await traj.call(steps.run, "b")

    soon(main())


# ---- closing ---------------------------------------------------------------------------------------------------------


def test_closing_a_run_with_open_trajectories_leaves_them_unresolved(tmp_path, caplog):
    async def main() -> None:
        steps = Steps()
        run = rolltape.open(tmp_path / "run")
        with pytest.raises(JournalClosed):
            async with run.trajectory("q") as traj:
                await traj.call(steps.run, "a")
                run.close()
                await traj.call(steps.run, "b")
        with pytest.raises(JournalClosed, match="is closed: open it again"):
            async with run.trajectory("q"):
                pass
        run.close()
        async with rolltape.open(tmp_path / "run") as run:
            assert (await roll(run, steps, "a", "c"))[0] == "a, call 1"

    soon(main())
    assert "is closed with 1 open trajectories" in caplog.text


def test_closing_a_run_ends_its_threads_and_files(tmp_path):
    before = set(threading.enumerate())
    files = len(os.listdir("/proc/self/fd"))

    async def main() -> None:
        async with rolltape.open(tmp_path / "run") as one, rolltape.open(tmp_path / "run") as two:
            await roll(one, Steps(), "a")
            await roll(two, Steps(), "a", key="r#0")

    soon(main())
    with rolltape.open(tmp_path / "run") as run, run.trajectory("s") as traj:
        traj.call(abs, -1)
    gc.collect()
    assert set(threading.enumerate()) <= before
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_run_that_is_open_when_the_interpreter_exits_is_closed(tmp_path):
    """Nobody has to wait for its lease, nor look for its process."""
    code = """if True:
        import sys, rolltape
        run = rolltape.open(sys.argv[1], lease_s=10_000)
        traj = run.trajectory("q").__enter__()
        traj.call(abs, -1)
        traj.record("note", 1)  # nothing waits for it
    """
    assert run_until(["-c", code, str(tmp_path / "run")], timeout_s=HANG_S, env=ENV).returncode == 0
    assert Reader(LocalStore(tmp_path / "run")).is_closed(1)
    with rolltape.open(tmp_path / "run") as run, run.trajectory("q") as traj:
        assert (traj.call(abs, -1), traj.record("note", 2)) == (1, 1)


def test_a_forked_child_cannot_use_its_parent_s_run(tmp_path):
    """Nothing waits for threads that only the parent has, and closing it there changes nothing."""
    code = """if True:
        import asyncio, os, sys, rolltape
        from rolltape.errors import JournalClosed

        async def in_a_loop():
            async with run.trajectory("q"):
                pass

        def refused(attempt):
            try:
                attempt()
            except JournalClosed as error:
                assert "forked" in str(error), error
            else:
                raise AssertionError("it can be used")

        with rolltape.open(sys.argv[1]) as run:
            with run.trajectory("before") as traj:
                traj.call(abs, -1)
            if (child := os.fork()) == 0:
                refused(lambda: asyncio.run(in_a_loop()))
                refused(run.trajectory("q").__enter__)
                run.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            with run.trajectory("q") as traj:
                assert traj.call(abs, -2) == 2
    """
    argv = ["-W", "ignore::DeprecationWarning", "-c", code, str(tmp_path / "run")]
    assert run_until(argv, timeout_s=HANG_S, env=ENV).returncode == 0
    assert statuses(tmp_path / "run") == {"before#0": "completed", "q#0": "completed"}


# ---- errors while it ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", ["outcome", "accepted"])
def test_a_disk_that_fails_at_the_end_leaves_the_trajectory_unresolved(record):
    """The error propagates; opened again it goes on, and no step is called again."""

    async def main() -> None:
        disk, steps = CrashDisk(), Steps()
        mine = disk.process()
        async with Run("/run", fs=mine) as run:
            with pytest.raises(JournalFailed):
                async with run.trajectory("q") as traj:
                    traj.finish(await traj.call(steps.run, "a"))
                    mine.fail("write", 1 if record == "outcome" else 2)
            async with run.trajectory("q") as traj:
                if traj.outcome is None:
                    traj.finish(await traj.call(steps.run, "a"))
                assert (traj.outcome is None) == (record == "outcome")
            assert await roll(run, steps, "never") == "a, call 1"
        assert steps.calls == {"a": 1}

    soon(main())


def test_a_full_disk_at_the_end_is_an_error_and_not_an_outcome():
    async def main() -> None:
        disk, steps = CrashDisk(), Steps()
        mine = disk.process()
        run = Run("/run", fs=mine)
        run._writers[0].config = WriterConfig(full_disk_wait_s=0)
        with pytest.raises(DiskFullError):
            async with run.trajectory("q") as traj:
                traj.finish(await traj.call(steps.run, "a"))
                mine.fail("write", error=errno.ENOSPC, forever=True)
        await asyncio.to_thread(run.close)
        async with Run("/run", fs=disk.process()) as run:
            assert (await roll(run, steps, "a")) == ["a, call 1"]

    soon(main())


# ---- power cuts ------------------------------------------------------------------------------------------------------


def test_an_outcome_of_another_process_is_on_disk_before_it_is_returned():
    """It was written, and its sync had not come back: whoever reads it and tells of it has to sync it first."""

    async def main() -> None:
        disk, steps = CrashDisk(), Steps()
        first, released = disk.process(), threading.Event()
        accepted = threading.Event()

        def hold_back(operation: str, path: str) -> None:
            if operation == "fdatasync" and accepted.is_set():
                released.wait(HANG_S)

        first.on_operation = hold_back
        async with Run("/run", fs=first) as owner:
            points.at("check", accepted.set)
            ending = asyncio.ensure_future(roll(owner, steps, "a"))
            await until(lambda: b'"accepted"' in read_all(disk))
            async with Run("/run", fs=disk.process()) as other:
                told = await roll(other, steps, "never")
            after = disk.power_cut("nothing")
            released.set()
            with pytest.raises(JournalFailed):
                await ending
        async with Run("/run", fs=after) as survivor:
            assert await roll(survivor, steps, "never") == told == ["a, call 1"]

    soon(main())


def read_all(disk: CrashDisk) -> bytes:
    store = on(disk.process())
    return store.read(fmt.segment_name(1, 1), 0, 1 << 20)


def test_what_an_attempt_continues_is_on_disk_before_it_begins():
    """The owner, at durability os, had it in the page cache only."""

    async def main() -> None:
        disk, steps = CrashDisk(), Steps()
        config = WriterConfig(durability="os", background_sync_s=10_000.0)
        owner = open_writer(on(disk.process()), config)
        log = AttemptLog(owner, "q#0", 1)
        await log.take()
        await log.begin(None, task="q")
        for path in ("0", "1"):
            await log.append(records.Kept, path=path, name="note", kind="note", values={"value": {"value": path}})
        run = Run("/run", fs=disk.process(), take_over=True)
        with pytest.raises(JournalFailed):
            async with run.trajectory("q") as traj:
                assert (traj.record("note", "x"), traj.record("note", "y")) == ("0", "1")
                await traj.call(steps.run, "a")
                after = disk.power_cut("nothing")
        await asyncio.to_thread(run.close)
        await owner.aclose()
        async with Run("/run", fs=after) as run, run.trajectory("q") as traj:
            assert (traj.record("note", "x"), traj.record("note", "y")) == ("0", "1")
            assert await traj.call(steps.run, "a") == "a, call 1"

    soon(main())


# ---- reading while others write --------------------------------------------------------------------------------------


def test_a_link_that_is_read_before_what_it_links_to_is_no_damage():
    """Each time the reader has looked at the old epoch, the new one goes on from something that came after the look."""

    async def main() -> None:
        disk = CrashDisk()
        config = WriterConfig(segment_bytes_max=1)  # each group in a segment of its own, so that looks are final
        old, new = (open_writer(on(disk.process()), config) for _ in range(2))
        log = AttemptLog(old, "q#0", 1)
        await log.begin(None, task="q")
        links, listed = iter(range(2, 7)), [""]
        loop = asyncio.get_running_loop()
        reading = disk.process()

        async def go_on(attempt: int) -> None:
            await log.append(records.Kept, path=str(attempt), name="n", kind="n", values={"value": {"value": 1}})
            await AttemptLog(new, "q#0", attempt).begin((1, 1, log.next_seq - 1))

        def meets_a_write(operation: str, path: str) -> None:
            if operation != "listdir":
                return
            if [listed[-1][-8:], path[-8:]] == ["00000001", "00000002"] and (attempt := next(links, None)):
                asyncio.run_coroutine_threadsafe(go_on(attempt), loop).result(HANG_S)
            listed.append(path)

        reader = Reader(on(reading))
        run = Run("/run", fs=disk.process())
        world = World(reader, 3, run._open_index)
        reading.on_operation = meets_a_write
        sight = await world.look("q#0", lambda sight: sight, own=False)
        assert next(links, None) is None, "the reader has met every write"
        assert (sight.story.gaps, sight.story.newest) == ([], (2, 6))
        await asyncio.to_thread(world.close)
        await asyncio.to_thread(run.close)
        for writer in (old, new):
            await writer.aclose()

    soon(main())


def test_a_broken_index_is_only_a_cache(tmp_path, caplog):
    async def main() -> None:
        steps = Steps()
        async with rolltape.open(tmp_path / "run") as run:
            await leave(run, steps, "a")
            await roll(run, steps, "a", key="other#0")
        (tmp_path / "run" / "index.sqlite").write_bytes(b"SQLite format 3\0" + b"rubbish" * 10_000)
        async with rolltape.open(tmp_path / "run") as run:
            assert await roll(run, steps, "a", "b") == ["a, call 1", "b, call 1"]
            for name in os.listdir(tmp_path / "run"):
                if name.startswith("index"):
                    (tmp_path / "run" / name).write_bytes(b"rubbish" * 10_000)
            assert await roll(run, steps, "never", key="other#0") == ["a, call 2"]

    soon(main())


def test_an_index_that_another_reader_empties_hides_nothing(tmp_path):
    """Between this process's reading and its looking up, all rows may be gone: then it reads again."""

    async def main() -> None:
        steps = Steps()
        async with rolltape.open(tmp_path / "run") as run:
            await leave(run, steps, "a")
        async with rolltape.open(tmp_path / "run") as run:
            with rolltape.read(tmp_path / "run") as reader:
                points.at("judge", lambda: reader._catalogue.rebuild(), time_number=2)
                assert await roll(run, steps, "a", "b") == ["a, call 1", "b, call 1"]

    soon(main())


# ---- damage ----------------------------------------------------------------------------------------------------------


def rot(path: Path, what: bytes, epoch: int = 1) -> None:
    """Change one byte of the last line that holds `what`."""
    segment = path / fmt.segment_name(epoch, 1)
    data = bytearray(segment.read_bytes())
    data[data.rindex(what) + 3] ^= 1
    segment.write_bytes(data)


async def three(path: Path) -> None:
    """Epoch 1: `old` ends, `first` is left, `last` is left after it; all is proven to be on disk."""
    steps = Steps()
    async with rolltape.open(path) as run:
        await roll(run, steps, "a", key="old#0")
        await leave(run, steps, "first a", "first b", key="first#0")
        await leave(run, steps, "last a", "last b", key="last#0")


@pytest.mark.parametrize("key", ["first#0", "last#0", "new#0"])
def test_a_step_that_may_be_among_the_damaged_is_never_run_again(key, tmp_path):
    """The rot was the end of one trajectory. Of others whose records end before it, it may have been one more."""

    async def main() -> None:
        await three(tmp_path / "run")
        rot(tmp_path / "run", b"last b")
        for _ in range(2):
            async with rolltape.open(tmp_path / "run") as run:
                with pytest.raises(DamagedError, match=r"00000001\.jsonl"):
                    await roll(run, Steps(), "x", key=key)
                assert await roll(run, Steps(), "x", key="old#0") == ["a, call 1"], "an accepted outcome is whole"

    soon(main())


def test_damage_that_a_later_record_of_the_trajectory_clears_is_not_its_own(tmp_path):
    """`last` was recorded after the rot, and its numbers have no gap: nothing of it is missing."""

    async def main() -> None:
        steps = Steps()
        await three(tmp_path / "run")
        rot(tmp_path / "run", b"first b")
        async with rolltape.open(tmp_path / "run") as run:
            assert len(await roll(run, steps, "last a", "last b", "more", key="last#0")) == 3
            assert steps.calls == {"more": 1}
            with pytest.raises(DamagedError):
                await roll(run, steps, "first a", key="first#0")

    soon(main())


def test_a_gap_is_damage(tmp_path):
    async def main() -> None:
        await three(tmp_path / "run")
        rot(tmp_path / "run", b"last a")
        async with rolltape.open(tmp_path / "run") as run:
            with pytest.raises(DamagedError, match="record 1 is missing"):
                await roll(run, Steps(), "last a", key="last#0")

    soon(main())


def test_whoever_cannot_see_whether_it_was_superseded_does_not_end(tmp_path):
    """A newer process's take may be among what is damaged."""

    async def main() -> None:
        steps, path = Steps(), tmp_path / "run"
        async with rolltape.open(path) as run:
            with pytest.raises(DamagedError, match="whether another process has taken over cannot be seen"):
                async with run.trajectory("q") as traj:
                    await traj.call(steps.run, "a")
                    async with rolltape.open(path) as newer:
                        await roll(newer, Steps(), "b", key="r#0")
                    rot(path, b'"r#0"', epoch=2)
            assert statuses(path)["q#0"] == "running", "unresolved, that is"

    soon(main())


# ---- the ownership check ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["withdraws", "begins"])
def test_an_undecided_take_of_a_living_process_is_waited_for(then, tmp_path):
    async def main() -> None:
        path = tmp_path / "run"
        async with rolltape.open(path) as run:
            newer = open_writer(LocalStore(path))
            log = AttemptLog(newer, "q#0", 7)
            await run_to_the_end(run, log, then)
            await newer.aclose()

    async def run_to_the_end(run: Run, log: AttemptLog, then: str) -> None:
        checked = asyncio.Event()
        ending = asyncio.ensure_future(hold(run, log, checked))
        await checked.wait()
        await asyncio.sleep(0.2)
        assert not ending.done()
        if then == "withdraws":
            await log.withdraw()
            await ending
        else:
            await log.begin(None, task="q")
            with pytest.raises(SupersededError):
                await ending

    async def hold(run: Run, log: AttemptLog, checked: asyncio.Event) -> None:
        async with run.trajectory("q"):
            await log.take()
            checked.set()

    soon(main())


def test_an_undecided_take_of_a_dead_process_stops_the_end_and_not_the_trajectory(tmp_path):
    """Its outcome is on disk; opened again, in a new epoch, it stands, and nothing is called again."""

    async def main() -> None:
        steps, path = Steps(), tmp_path / "run"
        async with rolltape.open(path) as run:
            with pytest.raises(SupersededError):
                async with run.trajectory("q") as traj:
                    traj.finish(await traj.call(steps.run, "a"))
                    newer = open_writer(LocalStore(path))
                    await AttemptLog(newer, "q#0", 7).take()
                    await newer.aclose()
            assert await roll(run, steps, "never") == "a, call 1"
        assert steps.calls == {"a": 1}

    soon(main())


def test_a_silent_take_of_another_machine_is_told_in_the_log(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "rolltape.run")

    async def main() -> None:
        path = tmp_path / "run"
        owner = open_writer(LocalStore(path))
        log = AttemptLog(owner, "q#0", 1)
        await log.take()
        async with rolltape.open(path) as run:
            opening = asyncio.ensure_future(roll(run, Steps(), "a"))
            await until(lambda: "waiting for q#0" in caplog.text)
            opening.cancel()  # a wait can be cancelled at any time
            with pytest.raises(asyncio.CancelledError):
                await opening
            await log.withdraw()
            assert await roll(run, Steps(), "a") == ["a, call 1"]
        await owner.aclose()

    soon(main())
