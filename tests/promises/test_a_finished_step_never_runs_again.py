"""Promise 2: a finished step never runs again.

`rollout_program.py` is killed at points of it, for real, and run again with the same journal. What the ledger says it
did to the world must be what one undisturbed rollout does, but for the calls that were in flight when it was killed.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

PROGRAM = str(Path(__file__).with_name("rollout_program.py"))
HANG_S = 120.0
"""Whatever takes longer hangs. Nothing is timed by it."""
EVERY = 29
"""So many points lie between two kills in `make test`. A prime, so that no pattern of the rollout goes with it."""

TRIES = {"flaky": 3, "never": 4}
"""Steps that are tried again, and how often a rollout calls them that nobody disturbs."""

both = pytest.mark.parametrize("mode", [[], ["blocking"]], ids=["async", "blocking"])


def run(folder: Path, kill_at: int, seed: int, mode: list[str]) -> dict[str, Any] | None:
    """Run the program; None: it was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, PROGRAM, str(folder / "run"), str(folder / "ledger"), str(kill_at), str(seed), *mode]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert ended.returncode == (-signal.SIGKILL if ended.returncode < 0 else 0), ended.stderr
    result: dict[str, Any] | None = None if ended.returncode else json.loads(ended.stdout)
    return result


def ledger(folder: Path) -> list[tuple[str, str]]:
    return [tuple(line.split(" ", 1)) for line in (folder / "ledger").read_text().splitlines()]  # type: ignore[misc]


def check(folder: Path) -> None:
    """Find nothing in the ledger that a rollout must not do."""
    have: set[str] = set()
    chosen: dict[str, str] = {}
    starts: dict[str, Counter[int]] = defaultdict(Counter)
    process = 0
    for what, name in ledger(folder):
        if what == "process":
            process += 1
        elif what == "have":
            have.add(name)
        elif what == "start":
            assert name not in have, f"process {process} ran {name} again, which had finished"
            starts[name][process] += 1
            assert starts[name][process] <= TRIES.get(name, 1), f"process {process} ran {name} more than once"
        elif what == "chose":
            name, _, value = name.partition("=")
            assert chosen.setdefault(name, value) == value, f"process {process} got another {name}"
    kills = len(starts["flaky"]) - 1  # each can have one try in flight
    assert starts["flaky"].total() <= TRIES["flaky"] + kills, f"tries were not counted: {starts['flaky']}"


def killed_at(folder: Path, kill_at: int, seed: int, mode: list[str], expected: dict[str, Any]) -> bool:
    """Kill the program at a point, then let it finish. False: it had finished before it came to that point."""
    first = run(folder, kill_at, seed, mode)
    assert (first or run(folder, 0, seed + 1, mode)) == expected, f"killed at {kill_at}"
    check(folder)
    return first is None


def killed_until_it_gets_through(folder: Path, seed: int, most: int, mode: list[str], expected: dict[str, Any]) -> int:
    """Kill the program at random points, again and again, until it finishes. Returns how often it was killed.

    What is replayed has points too, so kills that come early do not bring it nearer to its end.
    """
    points, kills = random.Random(seed), 0
    while (result := run(folder, points.randint(1, most), seed + kills, mode)) is None:
        kills += 1
    assert result == expected, f"seed {seed}"
    check(folder)
    return kills


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], int]]:
    """What the program gives that nobody disturbs, and how many points it has."""
    found = {}
    for name in ("async", "blocking"):
        folder = tmp_path_factory.mktemp(name)
        result = run(folder, 0, 1, [name] * (name == "blocking"))
        assert result is not None
        found[name] = (result, len(ledger(folder)))
    return found


@both
def test_killed_anywhere_only_what_was_in_flight_runs_again(tmp_path: Path, expected: Any, mode: list[str]) -> None:
    result, points = expected["".join(mode) or "async"]
    kills = [killed_at(tmp_path / str(at), at, at, mode, result) for at in range(1, points, EVERY)]
    assert sum(kills) >= len(kills) - 1  # the last points may not be there, with other choices


@both
def test_killed_again_and_again_it_gets_through(tmp_path: Path, expected: Any, mode: list[str]) -> None:
    result, points = expected["".join(mode) or "async"]
    assert killed_until_it_gets_through(tmp_path, 7, points, mode, result) > 0


@both
@pytest.mark.torture
def test_killed_at_every_point_only_what_was_in_flight_runs_again(
    tmp_path: Path, expected: Any, mode: list[str]
) -> None:
    result, points = expected["".join(mode) or "async"]
    for seed in (1, 2):
        for at in range(1, points + 1):
            killed_at(tmp_path / f"{seed}-{at}", at, 1000 * seed + at, mode, result)


@both
@pytest.mark.torture
def test_killed_hundreds_of_times_no_branch_gets_what_another_got(
    tmp_path: Path, expected: Any, mode: list[str]
) -> None:
    result, points = expected["".join(mode) or "async"]
    kills = 0
    for seed in range(1000):
        kills += killed_until_it_gets_through(tmp_path / str(seed), seed, points, mode, result)
        if kills >= 300:
            return
    raise AssertionError(f"it was killed {kills} times only")
