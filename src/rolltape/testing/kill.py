"""Run a Python program as a child process, and really kill it.

    with Child(["worker.py", "runs/x"]) as child:
        child.wait_for(lambda line: line.startswith("acked"), timeout_s=10)
        child.kill()
    assert_on_disk("runs/x", child.lines)

The child has a session and process group of its own, and signals go to the whole group: its children die with it. When
`kill`, `wait`, `run_until` or the `with` block is done, by whatever exception, every process of the group is dead and
collected, so nothing of it writes any more. Out of reach is only a grandchild that leaves for a session of its own.
Nothing here waits without a limit.

A line counts as printed once its newline is out: a torn last line is dropped. Output is unbuffered, so that whatever
was printed before a kill is seen. stderr is the parent's. It is for Linux: it needs `os.waitid`, and /proc to wait for
grandchildren.
"""

from __future__ import annotations

import os
import random
import select
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from types import TracebackType
from typing import Self

__all__ = ["Child", "ChildFailed", "Killed", "kill_loop", "run_until"]

_POLL_S = 0.002
_FIRST_BOUND_S = 0.1
_DEATH_TIMEOUT_S = 10.0
# A pipe holds at most so much, unless root raised /proc/sys/fs/pipe-max-size: what a dead child wrote is within it.
_PIPE_BYTES_MAX = 1 << 20
_READ_BYTES = 1 << 16


class ChildFailed(AssertionError):
    """The child ended by itself, where the test needed it to go on or to succeed."""


@dataclass(frozen=True)
class Killed:
    """How a child ended."""

    returncode: int
    """As `subprocess` has it: -9 after SIGKILL."""
    lines: list[str]
    """The whole lines that it printed, without their newlines."""
    killed: bool
    """It was signalled before it had ended by itself. It may still have exited in its own way, with its own code."""


class Child:
    """A running `python *argv`, with this interpreter and this environment plus `env`. Use it in a `with` block."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        # sys.executable, not "python3": a pyenv shim costs 0.3 s a start, and its shell would be what gets the signal.
        self._argv = [sys.executable, *argv]
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._scanned = 0
        self._finished = False
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        self._wake_read, self._wake_write = os.pipe()
        self._reader = threading.Thread(target=self._read, name=f"child-{self.pid}-stdout", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._finish()

    @property
    def pid(self) -> int:
        """The child's process id, which is also its group's."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """As `subprocess` has it, once `kill`, `wait` or the `with` block is done; None before."""
        return self._process.returncode

    @property
    def lines(self) -> list[str]:
        """The whole lines printed so far, without their newlines."""
        with self._changed:
            return list(self._lines)

    def wait_for(self, predicate: Callable[[str], bool], timeout_s: float) -> str:
        """Return the next line that satisfies `predicate`. The search goes on where the last one ended.

        Raises ChildFailed when the child ends without it, and TimeoutError.
        """
        if not self._watch(predicate, None, time.monotonic() + timeout_s):
            raise ChildFailed(self._story(f"ended with {self.returncode}, and the line that was waited for never came"))
        return self._lines[self._scanned - 1]

    def wait(self, timeout_s: float) -> int:
        """Wait until the child ends by itself; then kill what it left in its group. Returns the exit status."""
        self._poll(self._ended, timeout_s, "is still running")
        return self._finish()

    def send(self, signal: int) -> bool:
        """Send a signal to the whole group. False: the child had already ended."""
        if self._ended():
            return False
        os.killpg(self.pid, signal)
        return True

    def kill(self, signal: int = SIGKILL, timeout_s: float = _DEATH_TIMEOUT_S) -> int:
        """Send a signal to the whole group and wait until the child has ended of it. Returns the exit status.

        A child that does not end within `timeout_s` is a TimeoutError; leaving the `with` block kills it all the same.
        """
        self.send(signal)
        return self.wait(timeout_s)

    def stop(self) -> None:
        """SIGSTOP: once it returns no process of the group runs, until `cont`."""
        self.send(SIGSTOP)
        self._poll(self._stopped, _DEATH_TIMEOUT_S, "does not stop")

    def wait_until_stopped(self, timeout_s: float) -> None:
        """Return once no process of the group runs: a child that stops itself (`rolltape.testing.points`)."""
        self._poll(self._stopped, timeout_s, "does not stop itself")

    def cont(self) -> None:
        """SIGCONT: go on after `stop`, its own or this one."""
        self.send(SIGCONT)

    def _watch(self, told: Callable[[str], bool] | None, due_s: float | None, deadline_s: float) -> bool:
        """True: a new line satisfied `told`, or the time is `due_s`. False: the child ended before that."""
        while True:
            ended = self._ended()
            if ended:
                self._finish()
            with self._changed:
                new = self._lines[self._scanned :]
            for line in new:
                self._scanned += 1
                if told is not None and told(line):
                    return True
            now_s = time.monotonic()
            if ended:
                return False
            if due_s is not None and now_s >= due_s:
                return True
            if now_s >= deadline_s:
                raise TimeoutError(self._story("took too long"))
            with self._changed:
                if len(self._lines) == self._scanned:
                    self._changed.wait(_POLL_S if due_s is None else min(_POLL_S, due_s - now_s))

    def _poll(self, condition: Callable[[], bool], timeout_s: float, complaint: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() >= deadline_s:
                raise TimeoutError(self._story(f"{complaint} after {timeout_s:g} s"))
            time.sleep(_POLL_S)

    def _ended(self) -> bool:
        # Not collected here: until then its number, and so its group's, cannot belong to anyone else.
        return self.returncode is not None or self._changed_state(os.WEXITED)

    def _stopped(self) -> bool:
        return self._changed_state(os.WSTOPPED | os.WEXITED) and all(state in "TtZX" for state in _states(self.pid))

    def _changed_state(self, states: int) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, states | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # somebody else's os.wait collected it
            return True

    def _finish(self) -> int:
        """Kill the group, collect the child, take in what it had printed."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, SIGKILL)
            self._process.wait(_DEATH_TIMEOUT_S)
        if not self._finished:
            self._poll(lambda: _gone(self.pid), _DEATH_TIMEOUT_S, "left processes that do not die")
            self._finished = True
            os.close(self._wake_write)
            self._reader.join()
            os.close(self._wake_read)
            self._stdout.close()
        return self._process.returncode

    def _read(self) -> None:
        """Take in lines to the end, or once woken until the pipe is empty: an escaped grandchild may hold it open."""
        stdout = self._stdout.fileno()
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        poll.register(self._wake_read, 0)
        torn, budget = b"", _PIPE_BYTES_MAX
        while budget > 0:
            ready = dict(poll.poll())
            chunk = os.read(stdout, _READ_BYTES) if stdout in ready else b""
            if not chunk:
                return
            if self._wake_read in ready:
                budget -= len(chunk)
            *whole, torn = (torn + chunk).split(b"\n")
            with self._changed:
                self._lines += [line.decode(errors="replace") for line in whole]
                self._changed.notify_all()

    def _story(self, what: str) -> str:
        lines = self.lines
        return f"{shlex.join(self._argv)} {what}; {len(lines)} lines, the last: {lines[-3:]}"


def run_until(
    argv: Sequence[str],
    *,
    timeout_s: float,
    kill_after_s: float | None = None,
    kill_when: Callable[[str], bool] | None = None,
    signal: int = SIGKILL,
    env: Mapping[str, str] | None = None,
) -> Killed:
    """Run `python *argv`, and signal its group at the first printed line that `kill_when` accepts or after a time.

    With neither, or where the child is quicker, it ends by itself. A child that has not ended `timeout_s` after its
    start (it ignores the signal, or hangs) is killed, and a TimeoutError.
    """
    with Child(argv, env=env) as child:
        start_s = time.monotonic()
        deadline_s = start_s + timeout_s
        due_s = None if kill_after_s is None else start_s + kill_after_s
        killed = child._watch(kill_when, due_s, deadline_s) and child.send(signal)
        returncode = child.wait(deadline_s - time.monotonic())
        return Killed(returncode, child.lines, killed)


def kill_loop(
    argv: Sequence[str],
    *,
    rounds: int,
    seed: int,
    between: Callable[[list[str]], None],
    timeout_s: float = 60.0,
    env: Mapping[str, str] | None = None,
    again: Collection[int] = (os.EX_TEMPFAIL,),
) -> list[Killed]:
    """Run `python *argv` again and again, each time killed at a random moment, until it exits with 0.

    Returns how each round ended, at most `rounds` of them; it finished if the last one's returncode is 0. `between`
    gets the lines of each round, the last one's too, and checks what is on disk. A child that ends by itself with
    another code than 0 raises ChildFailed, but one in `again` (75: try again later) is a round like those killed.

    The moments are drawn evenly from 0 to a bound, which follows the run's length: it doubles when even a late kill
    came before the first line (the child was still starting, or recovering), and grows by 3 % otherwise, so that later
    rounds get further. The seed fixes the draws, not what the child had done by then.
    """
    rng = random.Random(seed)
    bound_s = _FIRST_BOUND_S
    ended: list[Killed] = []
    for _ in range(rounds):
        delay_s = rng.uniform(0, bound_s)
        ended.append(run_until(argv, timeout_s=timeout_s, kill_after_s=delay_s, env=env))
        returncode, lines = ended[-1].returncode, ended[-1].lines
        if returncode != 0 and not ended[-1].killed and returncode not in again:
            raise ChildFailed(f"round {len(ended)} ended by itself with {returncode}; the last lines: {lines[-3:]}")
        between(lines)
        if returncode == 0:
            break
        late_and_silent = not lines and delay_s > bound_s / 2
        bound_s = min(bound_s * (2.0 if late_and_silent else 1.03), timeout_s / 2)
    return ended


def _states(group: int) -> list[str]:
    """The state letter of each process in the group; nothing where there is no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the command's name, which may hold anything: state, parent, group.
            state, _, owner = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):  # it ended meanwhile
            continue
        if int(owner) == group:
            found.append(state)
    return found


def _gone(group: int) -> bool:
    """Nothing of the group can run any more. Zombies may stay where PID 1 does not collect them."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    states = _states(group)
    return bool(states) and all(state in "ZX" for state in states)
