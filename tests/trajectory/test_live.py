"""A run while it is written, by real processes: what runs, what was interrupted, what came last and what comes next."""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from signal import SIGKILL

import pytest

import rolltape
from rolltape import records
from rolltape.journal import Reader, Writer, WriterConfig, compress, open_writer
from rolltape.journal import format as fmt
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk
from rolltape.testing.kill import Child
from rolltape.trajectory.live import Live
from rolltape.trajectory.read import RecordedRun
from rolltape.trajectory.recorded import RecordedRecord

HANG_S = 60.0
"""Whatever takes longer hangs. Nothing is timed by it."""

WRITER = """
import asyncio, socket, sys, time
from rolltape import records
from rolltape.journal import AttemptLog, WriterConfig, open_writer
from rolltape.store import LocalStore

path, key, steps, delay_s, end, host = sys.argv[1:]
if host:
    socket.gethostname = lambda: host


async def main():
    writer = open_writer(LocalStore(path), WriterConfig(segment_bytes_max=20_000))
    log = AttemptLog(writer, key, 1)
    await log.begin(None)
    history = []
    print("began", flush=True)
    for step in range(int(steps)):
        history.append({"role": "user", "content": f"{step} " + "x" * 90})
        values = {"call": {"messages": history}, "result": {"value": step}}
        await log.append(records.Done, path=str(step), values=values, unix_s=time.time())
        print("step", step, flush=True)
        await asyncio.sleep(float(delay_s))
    if end == "accept":
        await log.append(records.Outcome, status="completed", reward=1.0, unix_s=time.time())
        await log.append(records.Accepted, unix_s=time.time())
    print("done", flush=True)
    if end == "stay":
        await asyncio.sleep(600)
    await writer.aclose()


asyncio.run(main())
"""


def argv(path: Path, key: str, steps: int, delay_s: float = 0.0, end: str = "accept", host: str = "") -> list[str]:
    return ["-c", WRITER, str(path), key, str(steps), str(delay_s), end, host]


def write(path: Path, key: str, steps: int, end: str = "accept", host: str = "") -> None:
    command = [sys.executable, *argv(path, key, steps, 0.0, end, host)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=HANG_S)


# ---- who is alive ----------------------------------------------------------------------------------------------------


def test_what_runs_is_told_from_what_was_interrupted(tmp_path: Path):
    """By its process, at each look: it lives, it is killed, it has left in good order, it was on another machine."""
    write(tmp_path, "left#0", 2, end="leave")
    write(tmp_path, "ended#0", 2)
    write(tmp_path, "left-elsewhere#0", 2, end="leave", host="another-machine")
    with Child(argv(tmp_path, "elsewhere#0", 3, end="stay", host="another-machine")) as elsewhere:
        elsewhere.wait_for(lambda line: line == "done", HANG_S)
        elsewhere.kill(SIGKILL)
    with (
        Child(argv(tmp_path, "alive#0", 3, end="stay")) as alive,
        Child(argv(tmp_path, "killed#0", 3, end="stay")) as dying,
    ):
        for child in (alive, dying):
            child.wait_for(lambda line: line == "done", HANG_S)
        with rolltape.read(tmp_path) as run:
            before = {
                "left#0": "interrupted",
                "left-elsewhere#0": "interrupted",
                "ended#0": "completed",
                "elsewhere#0": "unresolved",
                "alive#0": "running",
            }
            assert {t.key: t.status for t in run} == {**before, "killed#0": "running"}
            assert sorted(t.key for t in run.trajectories(status="running")) == ["alive#0", "killed#0"]
            dying.kill(SIGKILL)
            assert {t.key: t.status for t in run} == {**before, "killed#0": "interrupted"}
            assert [t.key for t in run.trajectories(status="running")] == ["alive#0"]
            found = sorted(t.key for t in run.trajectories(status=("interrupted", "completed")))
            assert found == ["ended#0", "killed#0", "left#0", "left-elsewhere#0"]
            assert run.count(status="unresolved") == 5
            alive_ones = [(process.host, process.alive) for process in run.processes()]
            here = socket.gethostname()
            assert alive_ones[:2] == [(here, False)] * 2
            assert alive_ones[2:4] == [("another-machine", False), ("another-machine", None)]
            assert sorted(alive for _, alive in alive_ones[4:]) == [False, True]  # type: ignore[type-var]
            assert run["killed#0"].attempts()[0].end == "interrupted"
            assert run["alive#0"].attempts()[0].end == "running"
            assert run["elsewhere#0"].attempts()[0].end == "unresolved"


def test_what_a_killed_process_left_is_settled_by_the_next_reader(tmp_path: Path):
    """Its tail is synced, indexed, and read no more; a writer on another machine is given time."""
    for key, host in (("here#0", ""), ("there#0", "another-machine")):
        with Child(argv(tmp_path, key, 3, end="stay", host=host)) as child:
            child.wait_for(lambda line: line == "done", HANG_S)
            child.kill(SIGKILL)
    with rolltape.read(tmp_path) as run:
        assert [t.n_steps for t in run] == [3, 3]
        cursors = run._catalogue.cursors()
        assert [cursors[epoch, 1].settled for epoch in (1, 2)] == [True, False]
        assert run._catalogue.parts("here#0") and len(run._updater.parts("there#0")[2, 1]) == 4
        assert [len(marks) for marks in run._catalogue.parts("there#0").values()] == [3]


# ---- while it is written ---------------------------------------------------------------------------------------------


def test_a_run_is_read_while_it_is_written(tmp_path: Path):
    """At any moment a beginning of it, whole, with every value; never damage."""
    with Child(argv(tmp_path, "q#0", 400, 0.001)) as child:
        child.wait_for(lambda line: line == "began", HANG_S)
        seen = 0
        with rolltape.read(tmp_path) as run:
            while child.returncode is None and seen < 400:
                acknowledged = sum(line.startswith("step") for line in child.lines)
                run.refresh()
                trajectory = run["q#0"]
                steps = list(trajectory.steps())
                assert len(steps) >= max(seen, acknowledged) and trajectory.n_steps <= len(steps)
                assert [step.result for step in steps] == list(range(len(steps)))
                if steps:
                    assert len(steps[-1].call["messages"]) == len(steps)
                    assert steps[-1].call["messages"][-1]["content"].startswith(f"{len(steps) - 1} ")
                assert trajectory.damage == "" and run.damage == []
                seen = len(steps)
        assert child.wait(HANG_S) == 0


def follow(run: RecordedRun, **how: int) -> itertools.chain[RecordedRecord]:
    return itertools.chain(run.follow(poll_s=0.005, **how))


def test_a_follower_gives_each_record_once_in_order(tmp_path: Path):
    """From the last ones on, over segments that are rolled and compressed meanwhile, of several processes."""
    write(tmp_path, "before#0", 30)
    with Child(argv(tmp_path, "a#0", 150, 0.002)) as first, Child(argv(tmp_path, "b#0", 150, 0.002)) as second:
        for child in (first, second):
            child.wait_for(lambda line: line.startswith("step"), HANG_S)
        points, accepted = [], 0
        with rolltape.read(tmp_path) as run:
            for number, record in enumerate(follow(run, last=1000)):
                assert record.type not in ("segment", "seal", "heartbeat")
                points.append((record.key, record.point))
                if record.type == "done":
                    assert record.value("result") == {"value": record.point[2] - 1}
                    assert len(record.value("call")["messages"]) == record.point[2]
                if number % 100 == 50:
                    compress(LocalStore(tmp_path))
                accepted += record.type == "accepted"
                if accepted == 3:
                    break
            everything = [(record.key, record.point) for record in run.records()]
        assert Counter(points) == Counter(everything) and set(Counter(points).values()) == {1}
        for key in ("before#0", "a#0", "b#0"):
            own = [point for of, point in points if of == key]
            assert own == sorted(own)


def test_a_follower_begins_with_as_many_as_were_asked_for(tmp_path: Path):
    """None at all, or more than there are."""
    write(tmp_path, "a#0", 5)
    with rolltape.read(tmp_path) as run:
        for number, wanted in ((0, 0), (1, 1), (3, 3), (100, 8)):
            assert len(run.last(number)) == wanted
            given = []

            class Waits(Exception):
                pass

            def stop() -> None:
                raise Waits

            with pytest.raises(Waits):
                for record in run.follow(last=number, on_wait=stop):
                    given.append(record.point)
            assert len(given) == wanted
            assert given == [record.point for record in run.records()][8 - wanted :]


def test_the_last_records_are_the_last_of_all_processes(tmp_path: Path):
    """Also of one that began before another, went on after it, and is gone by now."""
    with Child(argv(tmp_path, "old#0", 0, end="leave")) as child:
        child.wait(HANG_S)
    with Child(argv(tmp_path, "long#0", 100_000, 0.001, end="leave")) as long:
        long.wait_for(lambda line: line.startswith("step"), HANG_S)
        write(tmp_path, "short#0", 30)
        long.wait_for(lambda line: line.startswith("step"), HANG_S)
        after = len(long.lines)
        long.wait_for(lambda line: line.startswith("step") and int(line.split()[1]) > after + 20, HANG_S)
        long.kill(SIGKILL)
    with rolltape.read(tmp_path) as run:
        assert {process.alive for process in run.processes()} == {False}
        assert {record.key for record in run.last(10)} == {"long#0"}
        times = [record.unix_s for record in run.last(50) if record.unix_s]
        assert times == sorted(times)


# ---- the end of a segment --------------------------------------------------------------------------------------------


def on(disk: CrashDisk) -> LocalStore:
    return LocalStore("/run", fs=disk)


def put(writer: Writer, name: str) -> None:
    writer.put_from_thread(fmt.encode_record(records.Note(epoch=1, name=name, unix_s=1.0))).result(HANG_S)


def shown(disk: CrashDisk, number: int) -> list[str]:
    live = Live(Reader(on(disk.process())), lambda epoch: False, number)
    return [line.decode(records.Note).name[:4] for line in live.last()]


def test_the_end_of_a_run_does_not_show_what_a_crash_tore_off():
    """However long the torn part is: lines behind it are as if they were not there, sound or not."""
    disk = CrashDisk()
    writer = open_writer(on(disk.process()), WriterConfig(durability="os", background_sync_s=HANG_S))
    for n in range(40):
        put(writer, f"{n:04d}{'x' * 20_000}")
    assert shown(disk, 2) == ["0038", "0039"]
    path = f"/run/{fmt.segment_name(1, 1)}"
    after = disk.power_cut("everything")
    after.corrupt(path, 60_000)
    whole = [line for line in Reader(on(after)).scan(lambda damage: pytest.fail(str(damage)))]
    assert len(whole) < 5
    assert shown(after, 2) == ["0000", "0001"]
    writer.close()


def test_the_end_of_a_run_shows_what_lies_behind_rot():
    """Where something proves that it was on disk."""
    disk = CrashDisk()
    writer = open_writer(on(disk.process()))
    for n in range(40):
        put(writer, f"{n:04d}{'x' * 20_000}")
    writer.close()
    disk.corrupt(f"/run/{fmt.segment_name(1, 1)}", 60_000)
    disk.corrupt(f"/run/{fmt.segment_name(1, 1)}", -30_000)
    assert shown(disk, 3) == ["0036", "0037", "0039"]


def test_records_are_the_whole_run_epoch_by_epoch(tmp_path: Path):
    """Those of no trajectory too."""

    async def main() -> None:
        for epoch in (1, 2):
            writer = open_writer(LocalStore(tmp_path))
            for name in "abc":
                await writer.append(records.Note(epoch=epoch, name=name, unix_s=1.0))
            await writer.aclose()

    asyncio.run(main())
    with rolltape.read(tmp_path) as run:
        found = [
            (record.point[0], record.record.name) for record in run.records() if isinstance(record.record, records.Note)
        ]
        assert found == [(epoch, name) for epoch in (1, 2) for name in "abc"]
        assert len(run) == 0 and list(run) == []
