"""Several processes and one trajectory: whatever stops, wakes and dies at whatever point, there is one truth.

Each test whose name says "without" stands for a row of the table in the model's README: it makes the interleaving that
breaks a promise where that rule is missing, with real processes that are stopped and killed at named points.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

import rolltape
from rolltape.testing.kill import Child, Killed
from rolltape.trajectory.points import POINTS

HANG_S = 60.0
"""Whatever takes longer hangs. Nothing is timed by it."""

PROGRAM = str(Path(__file__).parent / "taking_program.py")
ENV = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
DONE, SUPERSEDED, IN_USE, KILLED = 0, 3, 75, -9

AFTER_THE_TAKE = [point for point in POINTS if point not in ("judge", "take")]


class World(NamedTuple):
    """A run, and what its drivers have done."""

    run: Path
    ledger: Path

    def argv(self, *options: object) -> list[str]:
        return [PROGRAM, str(self.run), str(self.ledger), *map(str, options)]

    def driver(self, *options: object) -> Child:
        return Child(self.argv(*options), env=ENV)

    def drive(self, *options: object) -> Killed:
        """Run a driver to its end."""
        with self.driver(*options) as child:
            return Killed(child.wait(HANG_S), child.lines, False)

    def stopped_at(self, point: str, *options: object) -> Child:
        """Start a driver and return once it stands still at `point`."""
        child = self.driver("--at", f"{point}=stop", *options)
        try:
            child.wait_for(lambda line: line.startswith(f"reached {point}"), HANG_S)
            child.wait_until_stopped(HANG_S)
        except BaseException:
            child.kill()
            raise
        return child

    def told(self) -> list[list[str]]:
        return [line.split() for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []

    def truth(self, key: str = "q#0") -> list[str]:
        """The one result that anybody was told, which is the one that is read."""
        results = {tuple(words[2:]) for words in self.told() if words[:2] == ["outcome", key]}
        assert len(results) == 1, f"{len(results)} results of {key} were told"
        with rolltape.read(self.run) as run:
            found = run[key]
            assert (found.status, found.damage) == ("completed", "")
            assert tuple(found.result) in results
            assert [step.result for step in found.steps()] == list(found.result)
        return list(results.pop())

    def ran_again(self) -> list[list[str]]:
        """The steps that were called after a rollout had had their result."""
        had: set[tuple[str, str]] = set()
        again = []
        for what, key, *rest in self.told():
            if what == "have":
                had.add((key, rest[0]))
            elif what == "start" and (key, rest[0]) in had:
                again.append([key, *rest])
        return again

    def calls(self) -> dict[tuple[str, str], int]:
        """How often each step was called."""
        made: dict[tuple[str, str], int] = defaultdict(int)
        for what, key, *rest in self.told():
            if what == "start":
                made[key, rest[0]] += 1
        return made


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "run", tmp_path / "ledger")


# ---- killed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_the_next_driver_goes_on_and_repeats_nothing(point, world):
    """On the same machine it is known at once to be dead, whatever its lease."""
    killed = world.drive("--at", f"{point}=kill", "--lease-s", 10_000)
    assert killed.returncode == KILLED
    assert world.drive("--lease-s", 10_000).returncode == DONE
    assert len(world.truth()) == 3
    assert world.ran_again() == []


def test_killed_at_every_point_one_after_another_there_is_still_one_truth(world):
    for point in (*POINTS, *reversed(POINTS)):
        assert world.drive("--at", f"{point}=kill", "--keys", "q#0,r#0").returncode in (KILLED, DONE)
    assert world.drive("--keys", "q#0,r#0").returncode == DONE
    assert world.truth("q#0") != world.truth("r#0")
    assert world.ran_again() == []


def test_steps_finished_before_a_kill_are_not_called_again(world):
    for killed_after in (1, 2, 3):
        assert world.drive("--kill-after", killed_after, "--steps", 4).returncode == KILLED
    assert world.drive("--steps", 4).returncode == DONE
    assert len(world.truth()) == 4
    assert set(world.calls().values()) == {1}


@pytest.mark.parametrize("point", ["outcome", "check"])
def test_an_outcome_that_nobody_was_told_of_is_taken_over_without_calling_a_step(point, world):
    assert world.drive("--at", f"{point}=kill").returncode == KILLED
    assert world.drive().returncode == DONE
    world.truth()
    assert set(world.calls().values()) == {1}
    with rolltape.read(world.run) as run:
        assert [attempt.end for attempt in run["q#0"].attempts()] == ["superseded", "accepted"]


# ---- two at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["take", "read"])
def test_without_the_take_two_starters_would_both_run_a_finished_step(point, world):
    """The first has taken and not begun: the second waits for it, and is refused once it has begun."""
    with world.stopped_at(point, "--step-ms", 1500) as first, world.driver() as second:
        second.wait_for(lambda line: line.startswith("log waiting for q#0"), HANG_S)
        first.cont()
        assert second.wait(HANG_S) == IN_USE
        assert first.wait(HANG_S) == DONE
    assert any(str(first.pid) in line for line in second.lines if line.startswith("in use"))
    world.truth()
    assert set(world.calls().values()) == {1}


def test_whoever_waits_for_a_take_that_comes_to_nothing_goes_on(world):
    with world.stopped_at("take") as first, world.driver() as second:
        second.wait_for(lambda line: line.startswith("log waiting for q#0"), HANG_S)
        first.kill()
        assert second.wait(HANG_S) == DONE
    world.truth()


def test_whoever_takes_and_never_begins_is_not_waited_for_for_ever(world):
    with world.stopped_at("take") as first, world.driver("--lease-s", 0.5) as second:
        assert second.wait(HANG_S) == IN_USE
    assert any(f"process {first.pid}" in line for line in second.lines if line.startswith("in use"))


def test_judging_after_the_read_would_lose_a_step_that_was_finished_between(world):
    """It judges while the owner lives; the owner finishes a step and dies; only then it reads."""
    with world.driver("--step-ms", 200, "--steps", 50) as owner:
        owner.wait_for(lambda line: line.startswith("have"), HANG_S)
        with world.stopped_at("judge", "--steps", 50) as successor:
            owner.wait_for(lambda line: line.startswith("have"), HANG_S)
            owner.wait_for(lambda line: line.startswith("have"), HANG_S)
            owner.kill()
            successor.cont()
            assert successor.wait(HANG_S) == IN_USE
    assert world.drive("--steps", 50).returncode == DONE
    world.truth()
    assert world.ran_again() == []


def test_two_drivers_that_start_at_once_have_one_truth(world):
    """Many rounds: one of them works, the other is refused, or gets the outcome."""
    for round in range(12):
        options = ("--keys", f"q{round}#0,r{round}#0", "--step-ms", 2)
        with world.driver(*options) as one, world.driver(*options) as two:
            codes = {child.wait(HANG_S) for child in (one, two)}
        assert codes <= {DONE, IN_USE} and (codes == {DONE} or world.drive(*options).returncode == DONE)
        for key in options[1].split(","):
            world.truth(key)
    assert world.ran_again() == []
    assert set(world.calls().values()) == {1}


# ---- misjudged: the owner only stood still ---------------------------------------------------------------------------


@pytest.mark.parametrize("point", AFTER_THE_TAKE)
def test_a_driver_that_was_taken_for_dead_and_wakes_changes_nothing(point, world):
    """Stopped at a point, given up by somebody's `take_over=True`, woken: the result that was told stands."""
    with world.stopped_at(point) as stopped:
        assert world.drive("--take-over").returncode == DONE
        truth = world.truth()
        stopped.cont()
        code = stopped.wait(HANG_S)
    assert code == (DONE if point in ("check", "accepted") else SUPERSEDED)
    assert world.truth() == truth
    assert world.drive().returncode == DONE
    assert world.truth() == truth
    if point in ("outcome", "check", "accepted"):
        assert set(world.calls().values()) == {1}, "a step of a finished trajectory was called"


def test_a_taker_that_was_taken_for_dead_and_wakes_gets_the_outcome(world):
    with world.stopped_at("take") as stopped:
        assert world.drive("--take-over").returncode == DONE
        stopped.cont()
        assert stopped.wait(HANG_S) == DONE
    world.truth()
    assert set(world.calls().values()) == {1}


def test_a_taker_that_wakes_after_another_has_begun_yields_and_takes_a_newer_epoch(world):
    """The other one has died too. What it finished counts, and only an attempt above its own can go on from it."""
    with world.stopped_at("take") as stopped:
        assert world.drive("--take-over", "--kill-after", 1).returncode == KILLED
        stopped.cont()
        assert stopped.wait(HANG_S) == DONE
    world.truth()
    assert set(world.calls().values()) == {1}
    with rolltape.read(world.run) as run:
        assert [attempt.epoch for attempt in run["q#0"].attempts()] == [2, 3]


def test_two_that_stand_still_at_the_end_and_a_third_tell_one_result(world):
    """Without the check and the `accepted` line, an outcome that was told would be superseded."""
    with world.stopped_at("outcome") as first, world.stopped_at("check", "--take-over") as second:
        assert world.drive("--take-over").returncode == DONE
        truth = world.truth()
        second.cont()
        assert second.wait(HANG_S) == DONE
        first.cont()
        assert first.wait(HANG_S) == SUPERSEDED
    assert world.truth() == truth
    assert set(world.calls().values()) == {1}


def test_a_superseded_driver_is_told_at_its_next_call_and_stops(world):
    """Not only at its end: a watch looks at newer processes all the time."""
    with world.driver("--step-ms", 50, "--steps", 10_000) as stopped:
        stopped.wait_for(lambda line: line.startswith("have"), HANG_S)
        stopped.stop()
        before = len(stopped.lines)
        assert world.drive("--take-over", "--steps", before + 3).returncode == DONE
        truth = world.truth()
        stopped.cont()
        assert stopped.wait(HANG_S) == SUPERSEDED
    assert world.truth() == truth
    with rolltape.read(world.run) as run:
        stale = [record for record in run["q#0"].records(stale=True) if record.stale]
    assert {record.point[0] for record in stale} == {1}, "what it did after it woke is there, and does not count"


# ---- other machines --------------------------------------------------------------------------------------------------


def test_a_silent_driver_of_another_machine_is_waited_for_visibly_and_then_dead(world):
    assert world.drive("--host", "elsewhere", "--lease-s", 1.0, "--kill-after", 2).returncode == KILLED
    after = world.drive()
    assert after.returncode == DONE
    assert [line for line in after.lines if line.startswith("log waiting for q#0: process ") and "elsewhere" in line]
    world.truth()
    assert set(world.calls().values()) == {1}


def test_a_driver_of_another_machine_that_shows_signs_of_life_is_not_disturbed(world):
    """It is idle, but its writer adds a line every third of its lease."""
    with world.driver(
        "--host", "elsewhere", "--lease-s", 1.0, "--step-ms", 60_000, "--at", "attempt=pause:0"
    ) as living:
        living.wait_for(lambda line: line == "reached attempt q#0", HANG_S)
        other = world.drive()
    assert other.returncode == IN_USE
    assert [line for line in other.lines if line.startswith("in use q#0") and "elsewhere" in line]


def test_a_process_that_has_closed_the_run_is_waited_for_by_nobody(world):
    """Its last line says so: to other machines, and to other processes of its own while it lives."""
    assert world.drive("--host", "elsewhere", "--lease-s", 10_000, "--leave-after", 2).returncode == DONE
    assert world.drive("--lease-s", 10_000).returncode == DONE
    world.truth()
    assert set(world.calls().values()) == {1}


def test_a_trajectory_that_a_living_process_has_left_is_still_that_process_s(world):
    with world.driver("--leave-after", 2, "--linger") as living:
        living.wait_for(lambda line: line == "lingers", HANG_S)
        assert world.drive().returncode == IN_USE
        living.kill()
        assert world.drive().returncode == DONE
    world.truth()
    assert set(world.calls().values()) == {1}


# ---- many ------------------------------------------------------------------------------------------------------------


@pytest.mark.torture
def test_sixty_four_processes_and_one_run(world):
    """All want all of it. Some are killed; who comes last finds everything done."""
    keys = ",".join(f"q{number}#0" for number in range(24))
    options = ("--keys", keys, "--steps", 4, "--step-ms", 20)
    with ExitStack() as stack:
        children = [stack.enter_context(world.driver(*options)) for _ in range(64)]
        for child in children[::4]:
            child.wait_for(lambda line: True, HANG_S)
            child.kill()
        codes = {child.wait(4 * HANG_S) for child in children}
    assert codes <= {DONE, IN_USE, SUPERSEDED, KILLED}
    assert world.drive(*options).returncode == DONE
    for key in keys.split(","):
        world.truth(key)
    assert world.ran_again() == []
