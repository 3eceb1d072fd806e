"""Where calls stand: by the task that makes them, whatever runs first, whoever makes the tasks."""

from __future__ import annotations

import asyncio
import contextvars
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape import Trajectory
from rolltape.errors import UsageError
from rolltape.trajectory.scope import Scope
from tests.trajectory.driving import Stopped, attempt, begin, replay, steps, there_and_back

HERE = Path(__file__).parent


async def echo(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def search(traj: Trajectory, name: str, steps: int = 1) -> list[Any]:
    return [await traj.call(echo, f"{name}{number}") for number in range(steps)]


# ---- paths -----------------------------------------------------------------------------------------------------------


def test_calls_are_numbered_where_they_are_written_and_not_when_they_run(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        second, first = traj.call(echo, "a"), traj.call(echo, "b")
        return [await first, await second, *await asyncio.gather(traj.call(echo, "c"), traj.call(echo, "d"))]

    assert there_and_back(tmp_path, rollout) == ["b", "a", "c", "d"]
    assert steps(tmp_path).keys() == {"0", "1", "2", "3"}


def test_each_task_has_a_scope_by_its_name_and_its_number_among_its_namesakes(tmp_path: Path):
    async def outer(traj: Trajectory, name: str) -> Any:
        return await asyncio.gather(search(traj, name), search(traj, name + "'"))

    async def rollout(traj: Trajectory) -> Any:
        async with asyncio.TaskGroup() as group:
            grouped = group.create_task(search(traj, "g"))
        made = asyncio.create_task(search(traj, "m"))
        return [await made, grouped.result(), await asyncio.gather(outer(traj, "x"), outer(traj, "y"))]

    there_and_back(tmp_path, rollout)
    name = "test_each_task_has_a_scope_by_its_name_and_its_number_among_its_namesakes.outer"
    assert steps(tmp_path).keys() == {
        "search.0/0",
        "search.1/0",
        *(f"{name}.{n}/search.{m}/0" for n in (0, 1) for m in (0, 1)),
    }


def test_branches_get_their_own_values_again_whatever_runs_first(tmp_path: Path):
    """Each of 8 asks the same, and is told something else; then they run in the opposite order."""
    told = iter(range(1000))

    async def answer() -> int:
        return next(told)

    async def branch(traj: Trajectory, delay_s: float) -> list[int]:
        got = []
        for _ in range(5):
            await asyncio.sleep(delay_s)
            got.append(await traj.call(answer))
        return got

    async def rollout(traj: Trajectory, direction: int) -> Any:
        return await asyncio.gather(*(branch(traj, (n * direction % 8) / 1000) for n in range(8)))

    live = begin(tmp_path, lambda traj: rollout(traj, 1))
    assert replay(tmp_path, lambda traj: rollout(traj, -1)) == live


@pytest.mark.parametrize("timeout_s", [None, 5])
def test_what_wait_for_waits_for_stands_where_its_caller_does(tmp_path: Path, timeout_s: float | None):
    async def rollout(traj: Trajectory) -> Any:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(search(traj, "none is left"), 0)
        return [
            await asyncio.wait_for(search(traj, "a", 2), timeout_s),
            await search(traj, "b"),
            await asyncio.create_task(search(traj, "c")),
        ]

    there_and_back(tmp_path, rollout)
    assert steps(tmp_path).keys() == {"0", "1", "2", "search.0/0"}


@pytest.mark.parametrize("timeout_s", [None, 5])
def test_tasks_made_under_wait_for_have_places_of_their_own(tmp_path: Path, timeout_s: float | None):
    async def two(traj: Trajectory) -> Any:
        first = asyncio.create_task(search(traj, "x"))
        return [await asyncio.create_task(search(traj, "y")), await first]

    async def rollout(traj: Trajectory) -> Any:
        return await asyncio.wait_for(two(traj), timeout_s)

    there_and_back(tmp_path, rollout)
    assert steps(tmp_path).keys() == {"search.0/0", "search.1/0"}


def test_two_wait_for_at_once_do_not_share_a_place(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        return await asyncio.gather(*(asyncio.wait_for(search(traj, name, 3), 5) for name in "ab"))

    there_and_back(tmp_path, rollout)
    assert steps(tmp_path).keys() == {f"wait_for.{n}/{step}" for n in (0, 1) for step in (0, 1, 2)}


def test_a_timeout_around_tasks_and_calls_changes_no_place(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        async with asyncio.timeout(5):
            return [await search(traj, "a"), await asyncio.shield(search(traj, "b"))]

    there_and_back(tmp_path, rollout)
    assert steps(tmp_path).keys() == {"0", "search.0/0"}


def test_what_steps_start_inside_shifts_nothing(tmp_path: Path):
    inside = [True]

    async def busy(value: int) -> int:
        if inside[0]:
            await asyncio.gather(echo(1), asyncio.to_thread(int), asyncio.wait_for(echo(2), 1))
        return value

    async def rollout(traj: Trajectory) -> Any:
        first = await traj.call(busy, 1)
        return [first, *await asyncio.gather(search(traj, "a"), traj.call(echo, "b"))]

    live = begin(tmp_path, rollout)
    inside[0] = False
    assert replay(tmp_path, rollout) == live


def test_branch_names_a_place_and_counts_its_namesakes(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        for name in ("a/b", "a/b", "50%"):
            with traj.branch(name):
                await traj.call(echo, name)
                await asyncio.create_task(search(traj, "x"))
        return await traj.call(echo, "behind")

    there_and_back(tmp_path, rollout)
    assert {"a%2Fb.0/0", "a%2Fb.1/0", "a%2Fb.1/search.0/0", "50%25.0/0", "0"} <= steps(tmp_path).keys()


def test_names_never_make_one_path_of_two():
    def paths(root: Scope) -> list[str]:
        return [
            root.next_call(),
            root.next_call("0"),
            root.next_call("a/b"),
            root.next_call("a%2Fb"),
            root.child("a").next_call(),
            root.child("a").next_call(),
            root.child("a.1").next_call(),
            root.child("a.1/0").next_call(),
            root.child("=0").next_call(),
            root.child("").next_call(),
        ]

    assert len(set(paths(Scope()) + paths(Scope().child("x")))) == 20


def test_a_key_stands_in_its_scope_whatever_is_called_before(tmp_path: Path):
    async def rollout(traj: Trajectory, others: int) -> Any:
        for _ in range(others):
            traj.uuid()
        return await traj.call(rolltape.step(echo, key="plan"), 1)

    begin(tmp_path, lambda traj: rollout(traj, 0))
    replay(tmp_path, lambda traj: rollout(traj, 5))
    assert steps(tmp_path) == {"=plan": "echo"}


def test_a_key_is_used_once_in_a_scope(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        step = rolltape.step(echo, key="plan")
        await traj.call(step, 1)
        with traj.branch("other"):
            await traj.call(step, 2)
        with pytest.raises(UsageError, match=r"key='plan': give each its own"):
            await traj.call(step, 3)

    begin(tmp_path, rollout)


# ---- who makes the tasks ---------------------------------------------------------------------------------------------


def two_searches(traj: Trajectory) -> Any:
    return asyncio.gather(search(traj, "a", 2), search(traj, "b", 2))


TWO_SEARCHES = {f"search.{n}/{step}" for n in (0, 1) for step in (0, 1)}


def test_a_task_factory_of_the_users_still_makes_the_tasks(tmp_path: Path):
    made: list[str] = []

    def factory(loop: Any, coroutine: Any, **options: Any) -> Any:
        made.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **options)

    async def rollout() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        await attempt(tmp_path, two_searches)
        assert loop.get_task_factory() is factory

    asyncio.run(rollout())
    assert made.count("search") == 2
    assert steps(tmp_path).keys() == TWO_SEARCHES


def test_a_task_factory_that_is_chained_inside_changes_no_place_then_or_later(tmp_path: Path):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        made = []

        async def chained(traj: Trajectory) -> Any:
            before = loop.get_task_factory()
            assert before is not None

            def factory(loop: Any, coroutine: Any, **options: Any) -> Any:
                made.append(coroutine)
                return before(loop, coroutine, **options)

            loop.set_task_factory(factory)
            return await two_searches(traj)

        await attempt(tmp_path / "1", chained)
        await attempt(tmp_path / "2", two_searches)
        assert made

    asyncio.run(main())
    assert steps(tmp_path / "1").keys() == steps(tmp_path / "2").keys() == TWO_SEARCHES


def test_where_the_factory_was_replaced_two_tasks_at_one_place_are_refused(tmp_path: Path):
    async def rollout(traj: Trajectory) -> Any:
        asyncio.get_running_loop().set_task_factory(None)
        with pytest.raises(UsageError, match=r"two tasks or threads make calls of q#0 at one place"):
            await two_searches(traj)

    begin(tmp_path, rollout)


def test_a_task_from_elsewhere_has_a_place_once_it_is_named(tmp_path: Path):
    async def worker(queue: asyncio.Queue[Any], name: str) -> Any:
        traj = await queue.get()
        with traj.branch(name):
            return await search(traj, name)

    async def main() -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        workers = [asyncio.create_task(worker(queue, name)) for name in ("left", "right", "right")]

        async def rollout(traj: Trajectory) -> Any:
            await search(traj, "own")
            for _ in workers:
                queue.put_nowait(traj)
            return await asyncio.gather(*workers, return_exceptions=True)

        *found, refused = (await attempt(tmp_path, rollout)).saw  # type: ignore[attr-defined]
        assert found == [["left0"], ["right0"]]
        assert isinstance(refused, UsageError) and "give each its own name" in str(refused)

    asyncio.run(main())
    assert steps(tmp_path).keys() == {"0", "left.0/0", "right.0/0"}


def test_a_task_from_elsewhere_without_a_name_is_refused(tmp_path: Path):
    async def main() -> None:
        opened: asyncio.Future[Trajectory] = asyncio.get_running_loop().create_future()

        async def stranger() -> Any:
            return await search(await opened, "strange")

        task = asyncio.create_task(stranger())

        async def rollout(traj: Trajectory) -> Any:
            await search(traj, "own")
            opened.set_result(traj)
            with pytest.raises(UsageError, match=r"with traj.branch\(name\)"):
                await task

        await attempt(tmp_path, rollout)

    asyncio.run(main())


def test_an_explicit_context_is_kept_and_has_its_place(tmp_path: Path):
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")

    async def painted(traj: Trajectory) -> Any:
        return await traj.call(echo, colour.get())

    async def rollout(traj: Trajectory) -> Any:
        red, empty = contextvars.copy_context(), contextvars.Context()
        red.run(colour.set, "red")
        tasks = [asyncio.create_task(painted(traj), context=context) for context in (red, red, empty)]
        return await asyncio.gather(*tasks)

    assert there_and_back(tmp_path, rollout) == ["red", "red", "none"]
    name = "test_an_explicit_context_is_kept_and_has_its_place.painted"
    assert steps(tmp_path).keys() == {f"{name}.{n}/0" for n in range(3)}


def test_uvloop_makes_no_difference(tmp_path: Path):
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(attempt(tmp_path, wide))
    assert replay(tmp_path, wide)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_make_no_difference(tmp_path: Path):
    async def eagerly() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        await attempt(tmp_path, wide)

    asyncio.run(eagerly())
    assert replay(tmp_path, wide)


async def wide(traj: Trajectory) -> Any:
    """What has a place of its own, all at once."""
    async with asyncio.TaskGroup() as group:
        grouped = group.create_task(search(traj, "g"))
    with traj.branch("named"):
        named = await asyncio.gather(*(search(traj, "n") for _ in range(3)))
    return [
        named,
        grouped.result(),
        await asyncio.wait_for(search(traj, "w"), 5),
        await asyncio.wait_for(asyncio.create_task(search(traj, "t")), 5),
        await asyncio.wait_for(traj.call(echo, "c"), 5),
        await asyncio.wait_for(asyncio.gather(search(traj, "x"), search(traj, "y")), None),
    ]


# ---- more than one ---------------------------------------------------------------------------------------------------


def test_two_trajectories_at_once_in_one_loop_keep_their_own(tmp_path: Path):
    async def main(stop: bool) -> list[Trajectory]:
        async with rolltape.open(tmp_path, durability="os") as run:

            async def one(key: str) -> Trajectory:
                try:
                    async with run.trajectory(key) as traj:
                        assert rolltape.current() is traj
                        traj.finish(await asyncio.gather(search(traj, key, 3), search(traj, key + "'", 3)))
                        if stop:
                            raise Stopped
                except Stopped:
                    pass
                return traj

            return await asyncio.gather(*(one(f"q{n}#0") for n in range(8)))

    asyncio.run(main(True))
    for n, traj in enumerate(asyncio.run(main(False))):
        assert (traj.live_calls, traj.replayed_calls) == (0, 6)
        assert traj.outcome is not None
        assert traj.outcome.result == [[f"q{n}#0{i}" for i in range(3)], [f"q{n}#0'{i}" for i in range(3)]]


def test_one_trajectory_inside_another_changes_nothing_for_either(tmp_path: Path):
    async def main(stop: bool) -> list[int]:
        async with rolltape.open(tmp_path, durability="os") as run:
            try:
                async with run.trajectory("outer") as outer:
                    await search(outer, "before")
                    try:
                        async with run.trajectory("inner") as inner:
                            await asyncio.gather(search(inner, "a"), search(inner, "b"))
                            await search(outer, "between")
                            if stop:
                                raise Stopped
                    finally:
                        assert rolltape.current() is outer
                    await asyncio.gather(search(outer, "c"), search(outer, "d"))
            except Stopped:
                pass
            return [outer.replayed_calls, inner.replayed_calls]

    asyncio.run(main(True))
    assert asyncio.run(main(False)) == [2, 2]


def test_trajectories_in_the_loops_of_several_threads(tmp_path: Path):
    def work(run: rolltape.Run, key: str, found: dict[str, Any]) -> None:
        async def one() -> None:
            async with run.trajectory(key) as traj:
                found[key] = await asyncio.gather(*(search(traj, f"{key}{n}-", 5) for n in range(4)))

        asyncio.run(one())

    found: dict[str, Any] = {}
    with rolltape.open(tmp_path, durability="os") as run:
        threads = [threading.Thread(target=work, args=(run, f"q{n}#0", found)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {f"q{q}#0": [[f"q{q}#0{n}-{i}" for i in range(5)] for n in range(4)] for q in range(4)}


# ---- beginning and end -----------------------------------------------------------------------------------------------


def test_outside_of_its_block_nothing_is_in_a_trajectory(tmp_path: Path):
    async def main() -> None:
        seen = []

        async def look() -> None:
            seen.append(rolltape.current())

        async with rolltape.open(tmp_path) as run:
            async with run.trajectory("q") as traj:
                await asyncio.create_task(look())
                await traj.call(look)
                await asyncio.create_task(look(), context=contextvars.Context())
            await asyncio.create_task(look())
        assert seen == [traj, None, traj, None]  # inside a step nothing is either
        assert asyncio.get_running_loop().get_task_factory() is None

    asyncio.run(main())


def test_a_task_that_outlives_the_block_is_told_and_adds_nothing(tmp_path: Path):
    async def main() -> None:
        async with rolltape.open(tmp_path) as run:
            left = asyncio.Event()

            async def late(traj: Trajectory) -> Any:
                await left.wait()
                return await traj.call(echo, "late")

            async def in_flight(traj: Trajectory) -> Any:
                return await traj.call(left.wait)

            async with run.trajectory("q") as traj:
                tasks = [asyncio.create_task(late(traj)), asyncio.create_task(in_flight(traj))]
                await asyncio.sleep(0)
            left.set()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(error, UsageError) and "the block of q#0" in str(error)
            with pytest.raises(UsageError, match="the block of q#0"):
                traj.now()

    asyncio.run(main())
    assert steps(tmp_path, "done", "failed", "kept") == {}


def test_a_generator_that_is_closed_by_another_task_leaves_its_trajectory(tmp_path: Path):
    async def main() -> None:
        async with rolltape.open(tmp_path) as run:

            async def generate() -> AsyncIterator[Trajectory]:
                async with run.trajectory("q") as traj:
                    with traj.branch("inside"):
                        await traj.call(echo, 1)
                        yield traj

            async def begin() -> AsyncIterator[Trajectory]:
                generator = generate()
                await anext(generator)
                return generator

            generator = await asyncio.create_task(begin())
            await generator.aclose()  # type: ignore[attr-defined]
            async with run.trajectory("q") as traj, asyncio.timeout(5):
                with traj.branch("inside"):
                    assert await traj.call(echo, 1) == 1
                assert traj.replayed_calls == 1

    asyncio.run(main())


# ---- other Pythons ---------------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.trajectory import driving
from tests.trajectory.test_scope import wide

print((driving.begin if sys.argv[2] == "begin" else driving.replay)(Path(sys.argv[1]), wide))
"""


def other_python(version: str) -> str:
    """Return a Python of this version that has msgspec. ROLLTAPE_PYTHONS may name some, as PATH names folders."""
    name = f"python{version}"
    found = [shutil.which(name), *os.environ.get("ROLLTAPE_PYTHONS", "").split(":")]
    for python in filter(None, found):
        probe = f"import sys, msgspec, pytest; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
        if not subprocess.run([python, "-c", probe], capture_output=True).returncode:
            return python
    pytest.skip(f"no {name} with msgspec and pytest is here, nor in ROLLTAPE_PYTHONS")


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_a_run_goes_on_under_another_python(tmp_path: Path, version: str):
    """What was begun here is finished there, and the other way round: every call stands at the same place."""
    python = other_python(version)
    root = HERE.parent.parent
    env = {**os.environ, "PYTHONPATH": f"{Path(rolltape.__file__).parent.parent}:{root}"}

    def there(path: Path, what: str) -> str:
        return subprocess.run(
            [python, "-c", PROGRAM, str(path), what], env=env, cwd=root, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    assert there(tmp_path / "from here", "replay") if begin(tmp_path / "from here", wide) else None
    began = there(tmp_path / "from there", "begin")
    assert str(replay(tmp_path / "from there", wide)) == began
