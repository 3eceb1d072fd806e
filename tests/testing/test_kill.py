"""The kill harness kills for real, sees every whole line, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rolltape.testing.kill import Child, ChildFailed, Killed, kill_loop, run_until

LIMIT_S = 30.0
COUNT = """
    import itertools, time
    for number in itertools.count():
        print(number)
        time.sleep(0.001)
"""
SLEEP = "import time; time.sleep(60)"
DEAF = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready")
    time.sleep(60)
"""
# The grandchild prints its number, says so, and stays.
PARENT = """
    import subprocess, sys, time
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session={session})
    {then}
"""
# Adds one line to a file and then says so, until the file has as many as asked for.
WORKER = """
    import os, sys, time
    path, most = sys.argv[1], int(sys.argv[2])
    with open(path, "ab+") as file:
        for number in range(os.path.getsize(path), most):
            file.write(b"x")
            file.flush()
            print(number)
            time.sleep(0.002)
"""


def python(code: str, *args: str) -> list[str]:
    return ["-c", textwrap.dedent(code), *args]


def runs(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def quick(started_s: float) -> bool:
    """Nothing ran into the 60 s that the children sleep, or into LIMIT_S."""
    return time.monotonic() - started_s < LIMIT_S / 2


def ignore(lines: list[str]) -> None:
    pass


# run_until.


def test_a_child_is_killed_at_the_line_that_was_waited_for_and_its_lines_are_whole() -> None:
    result = run_until(python(COUNT), kill_when=lambda line: line == "20", timeout_s=LIMIT_S)
    assert result.returncode == -signal.SIGKILL
    assert result.killed
    assert len(result.lines) > 20
    assert result.lines == [str(number) for number in range(len(result.lines))]


def test_a_child_is_killed_after_a_time() -> None:
    started_s = time.monotonic()
    result = run_until(python(SLEEP), kill_after_s=0.2, timeout_s=LIMIT_S)
    assert result == Killed(-signal.SIGKILL, [], killed=True)
    assert time.monotonic() - started_s >= 0.2
    assert quick(started_s)


def test_a_child_that_is_killed_at_once_has_printed_nothing() -> None:
    assert run_until(python(COUNT), kill_after_s=0, timeout_s=LIMIT_S).killed


def test_a_child_that_ends_first_was_not_killed() -> None:
    result = run_until(python("print('a'); exit(3)"), kill_when=lambda line: line == "b", timeout_s=LIMIT_S)
    assert result == Killed(3, ["a"], killed=False)
    assert run_until(python(""), timeout_s=LIMIT_S) == Killed(0, [], killed=False)
    assert run_until(python("print('a')"), kill_after_s=LIMIT_S / 2, timeout_s=LIMIT_S) == Killed(0, ["a"], False)


def test_a_torn_last_line_is_no_line() -> None:
    code = "import sys, time; sys.stdout.write('whole\\ntorn'); sys.stdout.flush(); time.sleep(60)"
    with Child(python(code)) as child:
        child.wait_for(lambda line: line == "whole", LIMIT_S)
        time.sleep(0.1)
        child.kill()
    assert child.lines == ["whole"]


def test_everything_that_was_printed_before_the_end_is_seen() -> None:
    result = run_until(python("for number in range(50_000): print(number)"), timeout_s=LIMIT_S)
    assert result.lines == [str(number) for number in range(50_000)]


def test_the_environment_is_this_ones_and_what_is_added() -> None:
    code = "import os, sys; print(os.environ['ADDED'], 'PATH' in os.environ, sys.executable)"
    result = run_until(python(code), env={"ADDED": "here"}, timeout_s=LIMIT_S)
    assert result.lines[0].startswith("here True /")


def test_another_signal_lets_the_child_end_in_its_own_way() -> None:
    code = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        print("ready")
        time.sleep(60)
    """
    result = run_until(python(code), kill_when=lambda line: line == "ready", signal=signal.SIGTERM, timeout_s=LIMIT_S)
    assert result == Killed(75, ["ready"], killed=True)


def test_a_child_that_ignores_the_signal_is_a_timeout_and_dies_all_the_same() -> None:
    pids: list[int] = []

    def ready(line: str) -> bool:
        pids.append(int(line))
        return True

    code = DEAF.replace('"ready"', "os.getpid()").replace("import signal", "import os, signal")
    with pytest.raises(TimeoutError, match="still running"):
        run_until(python(code), kill_when=ready, signal=signal.SIGTERM, timeout_s=2)
    assert not runs(pids[0])


def test_a_child_that_hangs_is_a_timeout_that_shows_its_last_lines() -> None:
    with pytest.raises(TimeoutError, match=r"took too long; . lines, the last: \["):
        run_until(python(DEAF), kill_when=lambda line: False, timeout_s=0.5)


def test_what_the_predicate_raises_comes_out_and_the_child_is_dead() -> None:
    pids: list[int] = []

    def broken(line: str) -> bool:
        pids.append(int(line))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_until(python("import os, time; print(os.getpid()); time.sleep(60)"), kill_when=broken, timeout_s=LIMIT_S)
    assert not runs(pids[0])


# Grandchildren.


@pytest.mark.parametrize("end", [lambda child: child.kill(), lambda child: None], ids=["kill", "leaving the block"])
def test_grandchildren_die_with_the_child(end: Callable[[Child], object]) -> None:
    with Child(python(PARENT.format(session=False, then="time.sleep(60)"))) as child:
        grandchild = int(child.wait_for(str.isdigit, LIMIT_S))
        assert runs(grandchild)
        end(child)
    assert not runs(grandchild)


def test_grandchildren_that_outlive_a_child_which_ended_by_itself_are_killed() -> None:
    started_s = time.monotonic()
    result = run_until(python(PARENT.format(session=False, then="time.sleep(1)")), timeout_s=LIMIT_S)
    assert (result.returncode, result.killed) == (0, False)
    assert not runs(int(result.lines[0]))
    assert quick(started_s)


def test_a_grandchild_that_escaped_and_holds_the_output_open_makes_nothing_hang() -> None:
    started_s = time.monotonic()
    result = run_until(
        python(PARENT.format(session=True, then="time.sleep(60)")), kill_when=str.isdigit, timeout_s=LIMIT_S
    )
    try:
        assert result.killed
        assert quick(started_s)
    finally:
        os.kill(int(result.lines[0]), signal.SIGKILL)


def test_an_escaped_grandchild_that_never_stops_printing_makes_nothing_hang() -> None:
    code = PARENT.format(session=True, then="time.sleep(60)").replace("time.sleep(60)", "exec('while 1: print(1)')", 1)
    started_s = time.monotonic()
    result = run_until(python(code), kill_when=lambda line: True, timeout_s=LIMIT_S)
    try:
        assert result.killed
        assert quick(started_s)
    finally:
        os.kill(int(result.lines[0]), signal.SIGKILL)


# Child.


def test_waiting_goes_on_where_the_last_one_ended() -> None:
    with Child(python("print('a'); print('b'); print('a again')\n" + SLEEP)) as child:
        found = [child.wait_for(lambda line: line.startswith("a"), LIMIT_S) for _ in range(2)]
    assert found == ["a", "a again"]


def test_waiting_for_a_line_that_never_comes_ends_with_the_child() -> None:
    with (
        Child(python("print('a'); exit(4)")) as child,
        pytest.raises(ChildFailed, match=r"ended with 4.*\['a'\]"),
    ):
        child.wait_for(lambda line: line == "b", LIMIT_S)


def test_waiting_too_long_is_a_timeout_and_the_child_goes_on() -> None:
    with Child(python(DEAF)) as child:
        child.wait_for(lambda line: line == "ready", LIMIT_S)
        with pytest.raises(TimeoutError):
            child.wait_for(lambda line: True, 0.05)
        with pytest.raises(TimeoutError):
            child.wait(0.05)
        with pytest.raises(TimeoutError):
            child.kill(signal.SIGTERM, timeout_s=0.05)
        assert runs(child.pid)
        assert child.returncode is None
        assert child.kill() == -signal.SIGKILL
    assert child.returncode == -signal.SIGKILL


def test_a_test_that_fails_leaves_no_child() -> None:
    with pytest.raises(ZeroDivisionError), Child(python(SLEEP)) as child:
        raise ZeroDivisionError
    assert not runs(child.pid)


def test_a_stopped_child_and_grandchild_do_nothing_until_they_may_go_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = """
        import os, sys, time
        os.fork()
        with open(sys.argv[1], "ab", buffering=0) as file:
            while True:
                file.write(b"x")
                time.sleep(0.0005)
    """
    with Child(python(code, str(log))) as child:

        def grows(s: float) -> bool:
            before = log.stat().st_size if log.exists() else 0
            time.sleep(s)
            return log.exists() and log.stat().st_size > before

        for _ in range(3):
            while not grows(0.02):
                assert runs(child.pid)
            child.stop()
            assert not grows(0.1)
            child.cont()
        child.stop()
        assert child.kill() == -signal.SIGKILL


def test_stopping_and_signalling_a_child_that_has_ended_does_nothing() -> None:
    with Child(python("")) as child:
        assert child.wait(LIMIT_S) == 0
        assert not child.send(signal.SIGTERM)
        child.stop()
        child.cont()
        assert child.kill() == 0


def test_an_early_end_is_noticed_before_it_is_collected() -> None:
    with Child(python("")) as child:
        deadline_s = time.monotonic() + LIMIT_S
        while child.send(signal.SIGCONT):
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        assert child.returncode is None
    assert child.returncode == 0


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run_until(python(COUNT), kill_after_s=0.05, timeout_s=LIMIT_S)
    assert len(os.listdir("/proc/self/fd")) == before


# kill_loop.


def test_a_loop_kills_and_starts_again_until_the_work_is_done(tmp_path: Path) -> None:
    path = tmp_path / "work"
    said: list[str] = []

    def check(lines: list[str]) -> None:
        said.extend(lines)
        # Whatever was said to be done is done.
        assert len(set(said)) <= path.stat().st_size if path.exists() else not said

    ended = kill_loop(python(WORKER, str(path), "150"), rounds=200, seed=7, between=check)
    assert ended[-1].returncode == 0
    assert all(result.returncode == -signal.SIGKILL for result in ended[:-1])
    assert len(ended) > 2
    assert path.read_bytes() == b"x" * 150
    assert len(said) == len(set(said))


def test_a_loop_ends_when_its_rounds_are_used_up() -> None:
    checked: list[list[str]] = []
    ended = kill_loop(python(COUNT), rounds=3, seed=1, between=checked.append)
    assert [result.killed for result in ended] == [True] * 3
    assert checked == [result.lines for result in ended]


def test_a_loop_takes_a_child_that_asks_to_be_started_again_for_a_round(tmp_path: Path) -> None:
    code = """
        import pathlib, sys
        marker = pathlib.Path(sys.argv[1])
        if not marker.exists():
            marker.touch()
            sys.exit(75)
    """
    rounds = 0
    codes: list[int] = []
    while 75 not in codes:  # a round that was killed before it could ask proves nothing
        ended = kill_loop(python(code, str(tmp_path / f"marker{rounds}")), rounds=50, seed=rounds, between=ignore)
        codes = [result.returncode for result in ended]
        rounds += 1
        assert rounds < 50
    assert codes[-1] == 0


def test_a_child_that_fails_by_itself_ends_the_loop() -> None:
    with pytest.raises(ChildFailed, match=r"by itself with 1; the last lines: \['bad'\]"):
        kill_loop(python("print('bad'); exit(1)"), rounds=100, seed=1, between=ignore)


def test_what_the_check_between_rounds_raises_ends_the_loop() -> None:
    def check(lines: list[str]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        kill_loop(python(COUNT), rounds=3, seed=1, between=check)
