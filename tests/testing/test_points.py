"""Processes stop, die and pause where they are told to, and nowhere else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rolltape.testing import points
from rolltape.testing.kill import Child
from rolltape.trajectory.points import POINTS, reached

HANG_S = 60.0
ENV = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
CODE = """if True:
    import sys, rolltape
    from rolltape.testing import points
    points.from_environment()
    with rolltape.open(sys.argv[1]) as run:
        for task in "ab":
            with run.trajectory(task) as traj:
                traj.call(abs, -1)
"""


def child(path: Path, what: str) -> Child:
    return Child(["-c", CODE, str(path)], env={**ENV, points.ENVIRONMENT: what})


def test_every_point_is_reached_in_the_order_of_the_protocol(tmp_path):
    with child(tmp_path / "run", " ".join(f"{point}=pause:0" for point in POINTS)) as driver:
        assert driver.wait(HANG_S) == 0
    said = [line.split()[1] for line in driver.lines]
    assert said == ["judge", "take", "read", "attempt", "outcome", "check", "accepted"]
    assert driver.lines[1] == "reached take a#0"


def test_a_process_can_be_killed_at_the_second_time(tmp_path):
    with child(tmp_path / "run", "outcome:2=kill") as driver:
        assert driver.wait(HANG_S) == -9
    assert driver.lines == ["reached outcome b#0"]


def test_a_process_that_stopped_itself_goes_on_when_it_is_told_to(tmp_path):
    with child(tmp_path / "run", "take=stop") as driver:
        driver.wait_for(lambda line: line == "reached take a#0", HANG_S)
        driver.wait_until_stopped(HANG_S)
        assert not (tmp_path / "run").joinpath("index.sqlite").exists()
        driver.cont()
        assert driver.wait(HANG_S) == 0


@pytest.mark.parametrize("what", ["nowhere=stop", "take=stay", "take"])
def test_what_cannot_be_done_is_refused(what, monkeypatch):
    monkeypatch.setenv(points.ENVIRONMENT, what)
    with pytest.raises(ValueError):
        points.from_environment()


def test_points_can_be_armed_one_over_another_and_cleared():
    seen: list[str] = []
    try:
        points.at("take", lambda: seen.append("any"))
        points.at("take", lambda: seen.append("q"), key="q#0")
        for key in ("r#0", "q#0", "q#0"):
            reached("take", key)
        assert seen == ["any", "q"]
    finally:
        points.clear()
    reached("take", "q#0")
    assert seen == ["any", "q"]
