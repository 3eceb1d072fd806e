"""Trajectories without an event loop: the user's functions in the user's threads, interrupted in every way."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape import Retry, step
from rolltape.errors import DivergenceError, JournalClosed, RolltapeError, UsageError
from rolltape.trajectory.blocking import BlockingTrajectory
from tests.trajectory.driving import Stopped, journal, steps

HANG_S = 60.0
"""Whatever takes longer hangs. Nothing is timed by it."""

Rollout = Callable[[BlockingTrajectory], Any]


class TooLong(Exception):
    """A limit that a signal enforces."""


def attempt(path: Path, rollout: Rollout, *, stop: bool = True) -> Any:
    with suppress(Stopped), rolltape.open(path, durability="os") as run, run.trajectory("q") as traj:
        saw = rollout(traj)
        if stop:
            raise Stopped
    return saw


def there_and_back(path: Path, rollout: Rollout, called: list[Any]) -> Any:
    """Run it live, then from the journal: `called`, to which its steps add, gets nothing more."""
    live = attempt(path, rollout)
    before = list(called)
    assert attempt(path, rollout, stop=False) == live
    assert called == before
    return live


def test_functions_run_where_they_are_called(tmp_path: Path):
    called: list[Any] = []

    def where(value: int) -> int:
        called.append(threading.get_ident())
        return value

    def rollout(traj: BlockingTrajectory) -> Any:
        return [traj.call(where, n) for n in range(3)]

    assert there_and_back(tmp_path, rollout, called) == [0, 1, 2]
    assert called == [threading.get_ident()] * 3


def test_what_is_bound_to_a_thread_works(tmp_path: Path):
    with closing(sqlite3.connect(":memory:")) as database:

        def ask(query: str) -> list[Any]:
            return database.execute(query).fetchall()

        assert attempt(tmp_path, lambda traj: traj.call(ask, "select 1")) == [(1,)]


def test_an_asynchronous_step_runs_on_the_runs_own_loop_with_the_callers_context(tmp_path: Path):
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour")
    called: list[Any] = []

    async def paint(thing: str) -> str:
        called.append(threading.current_thread().name)
        await asyncio.sleep(0)
        return f"{colour.get()} {thing}"

    def rollout(traj: BlockingTrajectory) -> Any:
        colour.set("red")
        return traj.call(paint, "house")

    assert there_and_back(tmp_path, rollout, called) == "red house"
    assert called == ["rolltape-loop"]


def test_what_a_function_gives_to_be_awaited_is_awaited(tmp_path: Path):
    async def answer() -> int:
        return 42

    assert attempt(tmp_path, lambda traj: traj.call(lambda: answer())) == 42


def test_a_function_sees_and_sets_the_callers_context(tmp_path: Path):
    seen: contextvars.ContextVar[int] = contextvars.ContextVar("seen", default=0)

    def count() -> int:
        seen.set(seen.get() + 1)
        return seen.get()

    def rollout(traj: BlockingTrajectory) -> Any:
        return [traj.call(count), traj.call(count), seen.get()]

    assert attempt(tmp_path, rollout) == [1, 2, 2]


def test_decorated_steps_record_when_called_directly_also_in_branches(tmp_path: Path):
    called: list[Any] = []

    @step
    def double(n: int) -> int:
        called.append(n)
        return triple(n) - n  # inside a step nothing is recorded

    @step
    def triple(n: int) -> int:
        return 3 * n

    @step
    async def later(n: int) -> int:
        called.append(n)
        return n

    def rollout(traj: BlockingTrajectory) -> Any:
        with traj.branch("inside"):
            inside = double(2)
        return [inside, double(1), later(7)]

    assert there_and_back(tmp_path, rollout, called) == [4, 2, 7]
    assert set(steps(tmp_path)) == {"inside.0/0", "0", "1"}
    assert double(5) == 10


def test_a_step_may_use_asynchronous_ones_inside(tmp_path: Path):
    async def later(n: int) -> int:
        return n

    def rollout(traj: BlockingTrajectory) -> Any:
        return traj.call(lambda: traj.call(later, 1) + traj.call(int, "2"))

    assert attempt(tmp_path, rollout) == 3
    assert len(steps(tmp_path)) == 1


def test_an_asynchronous_step_that_waits_for_its_own_loop_is_refused(tmp_path: Path):
    async def later() -> int:
        return 1

    def rollout(traj: BlockingTrajectory) -> Any:
        async def stuck() -> int:
            return traj.call(later)

        with pytest.raises(UsageError, match="would wait for itself"):
            traj.call(stuck)

    attempt(tmp_path, rollout)


def test_values_of_the_trajectory_come_again(tmp_path: Path):
    called: list[Any] = []

    def rollout(traj: BlockingTrajectory) -> Any:
        saw = [traj.now(), traj.record("salt", os.urandom(4)), traj.uuid(), traj.rng.random()]
        traj.call(called.append, 1)
        with traj.branch("b"):
            return [*saw, traj.uuid(), traj.rng.random(), traj.now()]

    there_and_back(tmp_path, rollout, called)


def test_arguments_are_known_by_the_functions_own_names(tmp_path: Path):
    @step(mutates=("notes",))
    def write(notes: list[str], text: str) -> int:
        notes.append(text)
        return len(notes)

    def rollout(traj: BlockingTrajectory, text: str) -> Any:
        return [traj.call(write, notes := ["a"], text), notes]

    assert attempt(tmp_path, lambda traj: rollout(traj, "b")) == [2, ["a", "b"]]
    with pytest.raises(DivergenceError, match='text: "b" was recorded, "c" is passed now'):
        attempt(tmp_path, lambda traj: rollout(traj, "c"))
    assert attempt(tmp_path, lambda traj: rollout(traj, "b")) == [2, ["a", "b"]]


def test_nothing_is_recorded_inside_a_step(tmp_path: Path):
    def rollout(traj: BlockingTrajectory) -> Any:
        for method in (traj.now, traj.uuid, lambda: traj.record("a", 1), lambda: traj.rng):
            with pytest.raises(UsageError, match="nothing is recorded inside a step"):
                traj.call(method)

    attempt(tmp_path, rollout)


# ---- threads ---------------------------------------------------------------------------------------------------------


def test_threads_get_their_own_values_again_whichever_runs_first(tmp_path: Path):
    told = iter(range(1000))

    def answer() -> int:
        return next(told)

    def rollout(traj: BlockingTrajectory, direction: int) -> Any:
        def work(n: int) -> list[int]:
            time.sleep(n * direction % 8 / 1000)
            with traj.branch(f"worker {n}"):
                return [traj.call(answer) for _ in range(5)]

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(work, range(8)))

    live = attempt(tmp_path, lambda traj: rollout(traj, 1))
    assert attempt(tmp_path, lambda traj: rollout(traj, -1), stop=False) == live


def test_a_thread_without_a_branch_is_refused(tmp_path: Path):
    def rollout(traj: BlockingTrajectory) -> Any:
        traj.call(int, "1")
        with ThreadPoolExecutor(1) as pool:
            for method in (lambda: traj.call(int, "2"), traj.now, traj.uuid):
                with pytest.raises(UsageError, match=r"with traj.branch\(name\)"):
                    pool.submit(method).result()

    attempt(tmp_path, rollout)


def test_threads_do_not_share_a_branch(tmp_path: Path):
    def rollout(traj: BlockingTrajectory) -> Any:
        barrier = threading.Barrier(8)

        def work() -> int:
            barrier.wait()
            with traj.branch("same"):
                return traj.call(int, "1")

        with ThreadPoolExecutor(8) as pool:
            errors = [pool.submit(work) for _ in range(8)]
        assert sum(future.exception() is None for future in errors) == 1
        assert all(isinstance(future.exception(), (UsageError, type(None))) for future in errors)

    attempt(tmp_path, rollout)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [StopIteration(3), TimeoutError("its own"), concurrent.futures.CancelledError("its own"), KeyError("k")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("loop", [False, True], ids=["in a thread", "on a loop"])
def test_errors_arrive_as_they_were_raised_and_again(tmp_path: Path, error: Exception, loop: bool):
    """Also those that futures take for their own."""
    called = []

    def fails() -> None:
        called.append(1)
        raise error

    def caught(raised: Exception) -> Any:
        return [type(raised), raised.args, type(raised.__cause__)]

    async def on_a_loop(traj: rolltape.Trajectory) -> Any:
        try:
            await traj.call(fails)
        except Exception as raised:
            await traj.call(int, "1")
            return caught(raised)

    def in_a_thread(traj: BlockingTrajectory) -> Any:
        try:
            traj.call(fails)
        except Exception as raised:
            traj.call(int, "1")
            return caught(raised)

    async def attempt_on_a_loop() -> Any:
        async with rolltape.open(tmp_path) as run, asyncio.timeout(HANG_S):
            with suppress(Stopped):
                async with run.trajectory("q") as traj:
                    saw = await on_a_loop(traj)
                    raise Stopped
            return saw

    live, again = [asyncio.run(attempt_on_a_loop()) if loop else attempt(tmp_path, in_a_thread) for _ in range(2)]
    expected = RuntimeError if isinstance(error, StopIteration) else type(error)  # as in any coroutine
    assert live == again
    assert live[0] is expected
    assert called == [1]


def test_a_retry_runs_in_the_same_thread_and_its_count_goes_on(tmp_path: Path):
    called: list[int] = []

    @step(retry=Retry(max_retries=2, backoff_s=0))
    def flaky() -> int:
        called.append(threading.get_ident())
        if len(called) < 3:
            raise ConnectionError
        return len(called)

    assert there_and_back(tmp_path, lambda traj: flaky(), called) == 3
    assert called == [threading.get_ident()] * 3


def test_a_timeout_is_looked_at_when_the_function_returns_and_tries_do_not_overlap(tmp_path: Path):
    running: list[str] = []

    @step(timeout_s=0.01, retry=Retry(max_retries=1, backoff_s=0))
    def sleepy() -> int:
        running.append("begins")
        time.sleep(0.05)
        running.append("ends")
        return 1

    def rollout(traj: BlockingTrajectory) -> Any:
        with pytest.raises(TimeoutError):
            sleepy()
        return traj.call(int, "1")

    there_and_back(tmp_path, rollout, running)
    assert running == ["begins", "ends"] * 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Stopped])
def test_what_interrupts_a_function_leaves_the_trajectory_unresolved(tmp_path: Path, error: type[BaseException]):
    def rollout(traj: BlockingTrajectory, interrupted: bool) -> Any:
        def interrupt() -> int:
            if interrupted:
                raise error
            return 1

        return traj.call(int, "1") + traj.call(interrupt)

    with pytest.raises(error), rolltape.open(tmp_path) as run, run.trajectory("q") as traj:
        rollout(traj, True)
    assert steps(tmp_path, "done", "failed", "cancelled") == {"0": "int"}
    assert attempt(tmp_path, lambda traj: rollout(traj, False), stop=False) == 2


def test_an_interruption_that_is_caught_is_not_recorded(tmp_path: Path):
    """The function is called again, and this time the rollout goes another way: nobody waits for a Ctrl-C."""
    leave = [True]

    def exits() -> str:
        if leave[0]:
            raise SystemExit(3)
        return "3"

    def rollout(traj: BlockingTrajectory) -> Any:
        try:
            got = traj.call(exits)
        except SystemExit as error:
            got = str(error.code)
        return traj.call(int, got)

    assert attempt(tmp_path, rollout) == 3
    leave[0] = False
    assert attempt(tmp_path, rollout, stop=False) == 3
    assert "cancelled" not in {line["type"] for line in journal(tmp_path)}


def test_ctrl_c_stops_a_wait_for_an_asynchronous_step(tmp_path: Path):
    """The signal really comes, in a process of its own: the trajectory is unresolved and goes on later."""
    program = """
        import asyncio, os, signal, sys, threading
        import rolltape

        async def slow(seconds):
            print("slow", flush=True)
            if seconds:
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            await asyncio.sleep(seconds)

        with rolltape.open(sys.argv[1]) as run:
            try:
                with run.trajectory("q") as traj:
                    print(traj.call(int, "1"))
                    traj.call(slow, 60)
            except KeyboardInterrupt:
                print("interrupted")
            with run.trajectory("q") as traj:
                print(traj.call(int, "1"), traj.attempt)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], capture_output=True, text=True, timeout=HANG_S
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["1", "slow", "interrupted", "1", "2"]), ended.stderr


def test_an_alarm_in_a_function_is_its_error(tmp_path: Path):
    """A limit that a signal enforces, as synchronous code has it, is recorded and raised again."""

    def ring(*_: Any) -> None:
        raise TooLong("0.05 s")

    called: list[int] = []

    def slow() -> None:
        called.append(1)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(HANG_S)

    def rollout(traj: BlockingTrajectory) -> Any:
        try:
            traj.call(slow)
        except TooLong as error:
            return [str(error), traj.call(int, "1")]

    before = signal.signal(signal.SIGALRM, ring)
    try:
        assert there_and_back(tmp_path, rollout, called) == ["0.05 s", 1]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert called == [1]


# ---- beginning and end -----------------------------------------------------------------------------------------------


def test_inside_an_event_loop_the_other_spelling_is_named(tmp_path: Path):
    async def main() -> None:
        with (
            rolltape.open(tmp_path) as run,
            pytest.raises(UsageError, match=r"async with run\.trajectory"),
            run.trajectory("q"),
        ):
            pass

    asyncio.run(main())


def test_outside_of_the_block_steps_just_run(tmp_path: Path):
    called = step(int)
    with rolltape.open(tmp_path) as run:
        with run.trajectory("q") as traj:
            called("1")
        assert called("2") == 2
        with pytest.raises(RolltapeError):
            traj.call(int, "3")
    assert rolltape.current() is None
    assert list(steps(tmp_path)) == ["0"]


def test_a_generator_that_is_closed_leaves_its_trajectory_unresolved(tmp_path: Path):
    with rolltape.open(tmp_path) as run:

        def episodes() -> Iterator[int]:
            with run.trajectory("q") as traj:
                yield traj.call(int, "1")
                yield traj.call(int, "2")

        first = episodes()
        assert next(first) == 1
        first.close()
        assert list(episodes()) == [1, 2]
    assert list(steps(tmp_path).values()) == ["int", "int"]


def test_closing_the_run_tells_a_thread_that_waits(tmp_path: Path):
    began = threading.Event()

    async def for_ever() -> None:
        began.set()
        await asyncio.sleep(HANG_S)

    def work(run: rolltape.Run) -> None:
        with run.trajectory("q") as traj:
            traj.call(for_ever)

    with ThreadPoolExecutor(1) as pool:
        with rolltape.open(tmp_path) as run:
            working = pool.submit(work, run)
            assert began.wait(HANG_S)
        with pytest.raises(JournalClosed, match="closed"):
            working.result(HANG_S)
    assert not any(thread.name == "rolltape-loop" for thread in threading.enumerate())


def test_a_forked_child_is_told_that_the_run_is_its_parents(tmp_path: Path):
    program = """
        import os, sys
        import rolltape
        from rolltape.errors import JournalClosed

        with rolltape.open(sys.argv[1]) as run, run.trajectory("q") as traj:
            traj.call(int, "1")
            if not (child := os.fork()):
                try:
                    traj.call(int, "2")
                except JournalClosed as error:
                    os._exit(3 if "forked" in str(error) else 4)
                os._exit(5)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), traj.call(int, "2"))
    """
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert (ended.returncode, ended.stdout) == (0, "3 2\n"), ended.stderr


def test_a_process_may_end_without_leaving_the_block(tmp_path: Path):
    program = """
        import sys
        import rolltape

        run = rolltape.open(sys.argv[1])
        opening = run.trajectory("q")
        print(opening.__enter__().call(int, "1"))
    """
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")
    assert len(steps(tmp_path)) == 1
