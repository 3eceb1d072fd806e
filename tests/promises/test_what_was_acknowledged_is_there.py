"""Promise 1: what was acknowledged is there.

Real processes, really killed. `torture-write` prints ACK with a hash once a step is acknowledged; after each kill
`torture-read` has to print HAVE with the same hash for every ACK, and find no damage; in the end every step is there,
once, as its seed says.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from hashlib import sha256, shake_128
from pathlib import Path
from typing import NamedTuple

import pytest

from rolltape import records
from rolltape.journal import Reader
from rolltape.store import LocalStore
from rolltape.testing.kill import Child, ChildFailed, kill_loop, run_until

WRITE = ["-m", "rolltape.testing", "torture-write"]
READ = [sys.executable, "-m", "rolltape.testing", "torture-read"]
HANG_S = 120.0
"""Whatever takes longer hangs. Nothing is timed by it."""

Step = tuple[str, str]
"""(trajectory, step)."""


class Work(NamedTuple):
    """What a `torture-write` is to do."""

    run: Path
    trajectories: int = 4
    steps: int = 50
    durability: str = "disk"
    processes: int = 1
    payload_bytes: int = 200
    segment_bytes_max: int = 20_000
    step_delay_ms: float = 0.0
    seed: int = 7

    @property
    def argv(self) -> list[str]:
        given = {
            "dir": self.run,
            "seed": self.seed,
            "trajectories": self.trajectories,
            "steps": self.steps,
            "durability": self.durability,
            "processes": self.processes,
            "payload-bytes": self.payload_bytes,
            "segment-bytes-max": self.segment_bytes_max,
            "step-delay-ms": self.step_delay_ms,
        }
        return [*WRITE, *(word for name, value in given.items() for word in (f"--{name}", str(value)))]

    def expected(self) -> dict[Step, str]:
        """Every step and its hash, computed here from the seed."""
        return {
            (str(trajectory), str(step)): sha256(
                shake_128(f"{self.seed}/{trajectory}/{step}".encode()).digest(self.payload_bytes)
            ).hexdigest()
            for trajectory in range(self.trajectories)
            for step in range(self.steps)
        }


ENV = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


def said(lines: list[str], word: str) -> dict[Step, str]:
    """The steps of the lines that begin with `word`, with their hashes; each step once."""
    found: dict[Step, str] = {}
    for line in lines:
        first, *rest = line.split()
        if first == word:
            trajectory, step, digest = rest
            assert found.setdefault((trajectory, step), digest) == digest
    return found


def read(run: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [*READ, "--dir", str(run)], stdout=subprocess.PIPE, text=True, timeout=HANG_S, env={**os.environ, **ENV}
    )
    return done.returncode, done.stdout.splitlines()


class Acknowledged:
    """Every ACK so far, and the check that each is there."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.steps: dict[Step, str] = {}

    def check(self, lines: list[str]) -> None:
        """`lines` is what a writer had printed when it ended."""
        acked, tried = said(lines, "ACK"), said(lines, "TRY")
        assert acked.items() <= tried.items()
        before = self.steps
        self.steps = {**before, **acked}
        code, found = read(self.work.run)
        if code == 2:  # killed before there was a run
            assert self.steps == {} and found == []
            return
        assert [line for line in found if not line.startswith("HAVE ")] == []
        assert code == 0
        have = Counter(line.split()[1:][0] + " " + line.split()[2] for line in found)
        assert set(have.values()) <= {1}, "a step counts twice"
        assert self.steps.items() <= said(found, "HAVE").items()
        # A step that was acknowledged, here or before, was not made again.
        assert before.keys().isdisjoint(tried)


WORKS = {
    "one process, disk": {"steps": 100},
    "one process, os": {"steps": 400, "durability": "os"},
    "three processes, disk": {"processes": 3, "trajectories": 6, "steps": 30},
    "three processes, os, packs": {"processes": 3, "trajectories": 6, "steps": 20, "durability": "os"}
    | {"payload_bytes": 40_000, "segment_bytes_max": 300_000},
    "packs, disk": {"payload_bytes": 40_000, "steps": 20, "segment_bytes_max": 200_000},
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_every_acknowledged_step_is_there_after_each_kill(work, tmp_path):
    """A few kills at random moments, each followed by a look, until the work is done."""
    work, rng = Work(tmp_path / "run", **work), random.Random(1)
    acknowledged = Acknowledged(work)
    for _ in range(4):
        with Child(work.argv, env=ENV) as child:
            with suppress(ChildFailed):  # it was done before that
                if rng.random() < 0.75:
                    child.wait_for(lambda line: True, HANG_S)  # it has begun; else it may be killed while it starts
                time.sleep(rng.uniform(0, 0.04))
            child.kill()
        acknowledged.check(child.lines)
    finish(work, acknowledged)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_every_acknowledged_step_is_there_after_hundreds_of_kills(work, seed, tmp_path):
    """The same for minutes: 40 kills of each kind of work with each seed."""
    work = Work(tmp_path / "run", **{**work, "steps": 40 * work.get("steps", 50)}, seed=seed)
    acknowledged = Acknowledged(work)
    kill_loop(work.argv, rounds=40, seed=seed, between=acknowledged.check, timeout_s=HANG_S, env=ENV)
    finish(work, acknowledged)


def finish(work: Work, acknowledged: Acknowledged) -> None:
    """Let it run to its end: everything is there, once, as the seed says."""
    last = run_until(work.argv, timeout_s=10 * HANG_S, env=ENV)
    assert last.returncode == 0
    acknowledged.check(last.lines)
    assert acknowledged.steps.items() <= work.expected().items()
    code, found = read(work.run)
    assert code == 0
    assert said(found, "HAVE") == work.expected()


def test_a_writer_killed_at_every_kind_of_moment_continues(tmp_path):
    """At its first word, in its first step, in a later one, at its last, and then to the end."""
    work = Work(tmp_path / "run", trajectories=2, steps=12, segment_bytes_max=1000)
    acknowledged = Acknowledged(work)
    for moment in ("TRY 0 0 ", "ACK 0 0 ", "TRY 1 3 ", "ACK 1 5 ", "ACK 0 8 ", "TRY 1 11 ", "ACK 1 11 "):
        ended = run_until(work.argv, timeout_s=HANG_S, kill_when=lambda line, m=moment: line.startswith(m), env=ENV)
        acknowledged.check(ended.lines)
    finish(work, acknowledged)


def test_a_finished_run_stays_finished(tmp_path):
    """Running it again tries nothing and says nothing; all is there, once."""
    work = Work(tmp_path / "run", trajectories=3, steps=5)
    assert run_until(work.argv, timeout_s=HANG_S, env=ENV).returncode == 0
    again = run_until(work.argv, timeout_s=HANG_S, env=ENV)
    assert (again.returncode, again.lines) == (0, [])
    code, found = read(work.run)
    assert code == 0 and said(found, "HAVE") == work.expected() and len(found) == 15


# ---- a run of several processes --------------------------------------------------------------------------------------


def writers_of(run: Path) -> list[int]:
    """The processes, zombies aside, whose command line names this run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(run).encode() in command and state not in "ZX":
            found.append(int(process.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")


@needs_proc
def test_killing_the_parent_of_a_run_leaves_no_writer_behind(tmp_path):
    """Only the parent is killed; its children follow, and nothing of theirs is lost or written afterwards."""
    work = Work(tmp_path / "run", trajectories=6, steps=100_000, processes=3)
    with Child(work.argv, env=ENV) as child:
        for number in range(3):  # each of the three has begun
            child.wait_for(lambda line, n=number: re.match(rf"ACK ({n}|{n + 3}) ", line) is not None, HANG_S)
        assert len(writers_of(work.run)) == 4
        os.kill(child.pid, signal.SIGKILL)
        deadline = time.monotonic() + HANG_S
        while writers_of(work.run):
            assert time.monotonic() < deadline, "writers are left behind"
            time.sleep(0.01)
    acknowledged = Acknowledged(work)
    acknowledged.check(child.lines)
    sizes = {path: path.stat().st_size for path in work.run.rglob("*") if path.is_file()}
    assert sizes == {path: path.stat().st_size for path in work.run.rglob("*") if path.is_file()}
    assert len(acknowledged.steps) >= 3


@needs_proc
def test_a_run_says_that_one_of_its_processes_was_killed(tmp_path):
    """The others finish their share; the whole is not called done, and running it again finishes the rest."""
    work = Work(tmp_path / "run", trajectories=3, steps=40, processes=3, step_delay_ms=2.0)
    with Child(work.argv, env=ENV) as child:
        child.wait_for(lambda line: line.startswith("ACK 1 "), HANG_S)
        (victim,) = [pid for pid in writers_of(work.run) if b"1/3" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(victim, signal.SIGKILL)
        code = child.wait(HANG_S)
    assert code != 0
    acknowledged = Acknowledged(work)
    acknowledged.check(child.lines)
    assert len({step for step in acknowledged.steps if step[0] != "1"}) == 80
    finish(work, acknowledged)


def test_a_reader_beside_living_writers_never_reports_damage(tmp_path):
    """`torture-read`, again and again, while three processes write and roll small segments; a step once seen stays."""
    work = Work(tmp_path / "run", trajectories=6, steps=100_000, processes=3, durability="os", segment_bytes_max=50_000)
    work = work._replace(step_delay_ms=1.0)
    with Child(work.argv, env=ENV) as child:
        child.wait_for(lambda line: line.startswith("ACK"), HANG_S)
        before: dict[Step, str] = {}
        for _ in range(5):
            acked = said(child.lines, "ACK")
            code, found = read(work.run)
            assert [line for line in found if not line.startswith("HAVE ")] == []
            assert code == 0
            have = said(found, "HAVE")
            assert acked.items() <= have.items()
            assert before.items() <= have.items()
            before = have
        child.kill()
    Acknowledged(work).check(child.lines)


# ---- the order of things ---------------------------------------------------------------------------------------------

_CALL = re.compile(r"^(?P<pid>\d+) +(?P<name>\w+)\((?P<args>.*)\) += (?P<result>-?\d+)")


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_each_acknowledgement_follows_the_sync_that_covers_it(durability, tmp_path):
    """As the kernel saw it: the record's bytes are written, then synced (at `disk`), then ACK goes out."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    work = Work(tmp_path / "run", trajectories=3, steps=15, durability=durability, segment_bytes_max=3000)
    trace = tmp_path / "trace"
    calls = "openat,write,fsync,fdatasync,close,link,linkat"
    command = ["strace", "-f", "-s", "2000000", "-e", f"trace={calls}", "-o", str(trace), sys.executable, *work.argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, env={**os.environ, **ENV})
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr

    written: dict[Step, int] = {}
    covered: set[Step] = set()
    acknowledged: list[Step] = []
    # Steps in a file, by descriptor, that no sync has covered. Descriptors are used again only after a close.
    open_steps: dict[int, set[Step]] = {}
    for call in _finished_calls(trace.read_text(errors="replace")):
        fd, text = call["args"].split(",", 1)[0], call["args"]
        if call["name"] == "write" and fd == "1":
            for trajectory, step in re.findall(r"ACK (\d+) (\d+) ", text):
                where = (trajectory, step)
                assert where in written, f"ACK {where} before its record was written"
                if durability == "disk":
                    assert where in covered, f"ACK {where} before its record was synced"
                acknowledged.append(where)
        elif call["name"] == "write":
            lines = re.findall(
                r'\{\\"type\\":\\"done\\",\\"key\\":\\"torture-(\d+)#0\\".*?\\"path\\":\\"(\d+)\\"', text
            )
            for where in lines:
                written[where] = int(fd)
                open_steps.setdefault(int(fd), set()).add(where)
        elif call["name"] in ("fdatasync", "fsync"):
            assert call["result"] == "0"
            covered |= open_steps.pop(int(fd), set())
    assert sorted(acknowledged) == sorted((str(t), str(s)) for t in range(3) for s in range(15))
    assert not [steps for steps in open_steps.values() if steps], "something was never synced at all"


def _finished_calls(trace: str) -> list[dict[str, str]]:
    """Each call when it returned, those that another thread interrupted put together again."""
    begun: dict[str, str] = {}
    found = []
    for line in trace.splitlines():
        pid, _, rest = line.partition(" ")
        if rest.endswith("<unfinished ...>"):
            begun[pid] = rest.removesuffix("<unfinished ...>").strip()
            continue
        if match := re.match(r"\s*<\.\.\. \w+ resumed>(.*)", rest):
            rest = begun.pop(pid) + match[1].lstrip()
        if call := _CALL.match(f"{pid} {rest.strip()}"):
            found.append(call.groupdict())
    return found


def test_a_record_is_in_the_file_when_its_acknowledgement_is_seen(tmp_path):
    """Looked at from outside, by another process, at the very moment when ACK comes out of the pipe."""
    work = Work(tmp_path / "run", trajectories=2, steps=30, segment_bytes_max=2000)
    with Child(work.argv, env=ENV) as child:
        for _ in range(20):
            _, trajectory, step, _ = child.wait_for(lambda line: line.startswith("ACK"), HANG_S).split()
            needle = f'"key":"torture-{trajectory}#0"'.encode()
            lines = [line for path in sorted(work.run.rglob("*.jsonl")) for line in path.read_bytes().splitlines()]
            assert any(needle in line and f'"path":"{step}"'.encode() in line for line in lines)
        assert child.wait(HANG_S) == 0


def test_segments_of_a_torturer_are_rolled_and_sealed(tmp_path):
    """The options that the tests above rely on do what they say."""
    work = Work(tmp_path / "run", trajectories=2, steps=50, payload_bytes=40_000, segment_bytes_max=200_000)
    assert run_until(work.argv, timeout_s=HANG_S, env=ENV).returncode == 0
    reader = Reader(LocalStore(work.run))
    assert len(reader.segments(1)) >= 10
    seals = [line.decode(records.Seal) for line in reader.scan(lambda d: pytest.fail(str(d))) if b'"seal"' in line.raw]
    assert len(seals) == len(reader.segments(1))
    assert sum(seal.pack_bytes for seal in seals) > 2 * 50 * 40_000


@pytest.mark.torture
def test_many_readers_beside_many_writers_for_a_while(tmp_path):
    """Writers are killed and started again all the time; no reader ever sees damage or loses what it saw."""
    work = Work(tmp_path / "run", trajectories=9, steps=100_000, processes=3, segment_bytes_max=30_000)
    rng, stop, problems = random.Random(5), threading.Event(), []

    def read_all_the_time() -> None:
        before: dict[Step, str] = {}
        while not stop.is_set():
            code, found = read(work.run)
            have = said(found, "HAVE")
            if code != 2 and (code != 0 or not before.items() <= have.items()):
                problems.append((code, [line for line in found if line.startswith("CORRUPT")]))
            before = have

    readers = [threading.Thread(target=read_all_the_time, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    acknowledged = Acknowledged(work)
    for _ in range(60):
        ended = run_until(work.argv, timeout_s=HANG_S, kill_after_s=rng.uniform(0.2, 1.5), env=ENV)
        acknowledged.check(ended.lines)
    stop.set()
    for reader in readers:
        reader.join(HANG_S)
    assert problems == []
