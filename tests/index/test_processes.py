"""Real processes on one index: several at once, and some of them killed in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rolltape.index import Catalogue, Updater
from rolltape.journal import Reader
from rolltape.store import LocalStore
from rolltape.testing.kill import Child, kill_loop
from tests.index.compare import check

HANG_S = 60.0
"""Whatever takes longer hangs. Nothing is timed by it."""

READER = """
import sys
import rolltape
from rolltape.index import update

update.SLICE_LINES = int(sys.argv[2])
run = rolltape.read(sys.argv[1])
print("at", run.index_path, flush=True)
for _ in range(int(sys.argv[3])):
    run.refresh()
    rows = list(run)
    assert len(rows) == len({row.key for row in rows}) >= int(sys.argv[4]), len(rows)
    assert all(row.key in run for row in rows)
    if len(sys.argv) > 5:
        run.rebuild_index()
print("fine", len(rows), flush=True)
"""


def write(path: Path, trajectories: int, steps: int) -> None:
    subprocess.run(torture(path, trajectories, steps), check=True, stdout=subprocess.DEVNULL, timeout=HANG_S)


def torture(path: Path, trajectories: int, steps: int) -> list[str]:
    argv = [sys.executable, "-m", "rolltape.testing", "torture-write", "--dir", str(path), "--seed", "3"]
    return [*argv, "--trajectories", str(trajectories), "--steps", str(steps), "--payload-bytes", "100"]


def check_run(path: Path) -> None:
    reader = Reader(LocalStore(path))
    catalogue = Catalogue(str(path / "index.sqlite"), reader.run)
    updater = Updater(catalogue, reader)
    assert updater.update()
    check(catalogue, updater, reader)
    catalogue.close()


def all_of(commands: list[list[str]]) -> list[str]:
    children = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for argv in commands]
    outputs = [child.communicate(timeout=HANG_S)[0] for child in children]
    assert [child.returncode for child in children] == [0] * len(children)
    return outputs


def reader(path: Path, slice_lines: int, rounds: int, at_least: int, *more: str) -> list[str]:
    return [sys.executable, "-c", READER, str(path), str(slice_lines), str(rounds), str(at_least), *more]


@pytest.mark.parametrize("slice_lines", [7, 16_384])
def test_readers_that_open_a_new_index_at_once_share_it(tmp_path: Path, slice_lines: int):
    """All use the one beside the run; each sees everything."""
    write(tmp_path / "run", 8, 60)
    outputs = all_of([reader(tmp_path / "run", slice_lines, 1, 8) for _ in range(5)])
    at = f"at {tmp_path}/run/index.sqlite"
    assert [output.splitlines() for output in outputs] == [[at, "fine 8"]] * 5
    check_run(tmp_path / "run")


def test_a_list_is_whole_while_others_build_the_index_again(tmp_path: Path):
    """An index that somebody has just emptied is never taken for an empty run."""
    write(tmp_path / "run", 8, 40)
    rebuilding = [reader(tmp_path / "run", 5, 6, 8, "rebuild") for _ in range(2)]
    looking = [reader(tmp_path / "run", 16_384, 25, 8) for _ in range(2)]
    assert [output.splitlines()[-1] for output in all_of([*rebuilding, *looking])] == ["fine 8"] * 4
    check_run(tmp_path / "run")


def test_readers_beside_a_writer_end_with_what_a_new_index_says(tmp_path: Path):
    """While it writes, and is killed."""
    with Child([*torture(tmp_path / "run", 6, 100_000)[1:], "--step-delay-ms", "5"]) as writer:
        writer.wait_for(lambda line: line.startswith("ACK"), HANG_S)
        outputs = all_of([reader(tmp_path / "run", slices, 10, 1) for slices in (40, 16_384)])
        assert all("fine" in output for output in outputs)
        writer.kill()
    check_run(tmp_path / "run")
    check_run(tmp_path / "run")


def killed_readers(path: Path, rounds: int) -> int:
    write(path, 12, 150)
    code = READER.replace("run.refresh()", "run.rebuild_index()")
    argv = ["-c", code, str(path), "2", "40", "12"]
    ended = kill_loop(argv, rounds=rounds, seed=5, between=lambda lines: check_run(path), timeout_s=HANG_S)
    return sum(end.killed and bool(end.lines) for end in ended)


def test_a_reader_that_is_killed_in_the_middle_leaves_an_index_that_goes_on(tmp_path: Path):
    """At random moments of building it."""
    assert killed_readers(tmp_path / "run", 8) > 1


@pytest.mark.torture
def test_a_reader_that_is_killed_in_the_middle_leaves_an_index_that_goes_on_for_long(tmp_path: Path):
    """The same, many times."""
    assert killed_readers(tmp_path / "run", 200) > 50
