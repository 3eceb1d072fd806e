"""`rolltape.read`: lists, filters, sorts and pages over a run, and each trajectory as it was recorded."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rolltape
from rolltape import records
from rolltape.errors import DamagedError, FormatError, NotARunError, UsageError
from rolltape.index import Updater
from rolltape.journal import AttemptLog, Reader, Writer, WriterConfig, compress, open_writer
from rolltape.journal import format as fmt
from rolltape.records import Point
from rolltape.store import LocalStore
from rolltape.trajectory.read import SORTS, RecordedRun
from rolltape.trajectory.recorded import ENDED
from rolltape.values import Memory, encode
from tests.index.compare import check
from tests.values.support import PLAIN, exact

HANG_S = 60.0
"""Whatever takes longer hangs. Nothing is timed by it."""

Given = dict[str, Any]


def put(writer: Writer, *made: records.Record) -> None:
    for record in made:
        last = writer.put_from_thread(fmt.encode_record(record))
    last.result(HANG_S)


# ---- lists -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 150 trajectories of all kinds, many of them alike in what they can be sorted by."""
    path = tmp_path_factory.mktemp("listed") / "run"
    rng = random.Random(5)
    writer = open_writer(LocalStore(path), WriterConfig(segment_bytes_max=20_000, durability="os"))
    for number in range(150):
        key = f"q{number % 40}@{number % 3}#{number}"
        id: dict[str, Any] = {"key": key, "epoch": 1}
        kind = rng.choice(["completed", "failed", "aborted", "cancelled", "parked", "nothing", "take", "unaccepted"])
        at = float(rng.randrange(1000, 1010))
        put(writer, records.Take(**id, attempt=1, unix_s=at))
        if kind == "take":
            continue
        identity = {"task": f"q{number % 40}", "visit": number % 3, "sample": number}
        attempt = rng.randrange(1, 4)
        for n in range(1, attempt + 1):
            put(writer, records.Attempt(**id, attempt=n, seq=0, unix_s=at, **identity))
        steps = rng.randrange(4)
        for seq in range(1, steps + 1):
            policy = ("main", rng.randrange(3)) if rng.random() < 0.5 else None
            put(writer, records.Done(**id, attempt=attempt, seq=seq, path=str(seq), unix_s=at + seq, policy=policy))
        seq = steps + 1
        of = {**id, "attempt": attempt, "unix_s": at + rng.randrange(3)}
        if kind == "parked":
            put(writer, records.Parked(**of, seq=seq, reason=f"doubt {number}"))
        elif kind != "nothing":
            status: Any = "failed" if kind == "unaccepted" else kind
            error = msgspec.Raw(msgspec.json.encode({"type": "ValueError", "message": f"bad {number}\nmore"}))
            reward = rng.choice([None, 0.0, 1.0, -0.5])
            put(writer, records.Outcome(**of, seq=seq, status=status, reward=reward, error=error))
            if kind != "unaccepted":
                put(writer, records.Accepted(**of, seq=seq + 1))
    writer.close()
    return path


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("minus", ["", "-"])
def test_a_list_is_sorted_by_each_key_and_what_has_none_comes_last(listed: Path, sort: str, minus: str):
    """In both directions; those alike are in the order of their keys."""
    with rolltape.read(listed) as run:
        found = [t.row() for t in run.trajectories(sort=minus + sort)]
        column = "duration_s" if sort == "duration" else sort
        judged = "unresolved"  # where nobody ended it, a row shows what became of its process
        values = [judged if row[column] in ("running", "interrupted") else row[column] for row in found]
        keyed = list(zip(values, [row["key"] for row in found], strict=True))
        some = [pair for pair in keyed if pair[0] is not None]
        none = [pair for pair in keyed if pair[0] is None]
        assert keyed == some + none and len(keyed) == 150
        assert some == sorted(some, reverse=bool(minus))
        assert none == sorted(none, reverse=bool(minus))


@pytest.mark.parametrize("sort", ["started", "-reward", "status", "-duration", "-key"])
@pytest.mark.parametrize("page", [1, 7, 50, 150, 1000])
def test_pages_together_hold_every_trajectory_once(listed: Path, sort: str, page: int):
    """Whatever they are sorted by."""
    with rolltape.read(listed) as run:
        whole = [t.key for t in run.trajectories(sort=sort)]
        paged: list[str] = []
        while found := [t.key for t in run.trajectories(sort=sort, limit=page, offset=len(paged))]:
            assert len(found) <= page
            paged += found
        assert paged == whole and len(set(paged)) == 150
        assert list(run.trajectories(limit=0)) == []


def test_a_list_is_filtered_by_status_task_and_text(listed: Path):
    """One by one and together, as counting over all rows has it."""
    with rolltape.read(listed) as run:
        everything = list(run)
        statuses = Counter(t.status for t in everything)
        assert set(statuses) == {"completed", "failed", "aborted", "cancelled", "parked", "interrupted"}
        for status, number in statuses.items():
            assert len(list(run.trajectories(status=status))) == number == run.count(status=status)
        assert run.count(status="unresolved") == statuses["interrupted"]  # any without an outcome
        assert run.count(status="running") == 0
        assert run.count(status=("failed", "parked")) == statuses["failed"] + statuses["parked"]
        assert run.count(status=("interrupted", "failed")) == statuses["failed"] + statuses["interrupted"]
        assert run.count(status=()) == 0
        for task in ("q0", "q17", "q1", "nothing"):
            wanted = [t.key for t in everything if t.task == task]
            assert [t.key for t in run.trajectories(task=task)] == wanted
        for text in ("q1", "bad 1", "doubt", "%", "_", "'", "ValueError: bad 14", "\nmore"):
            wanted = [t.key for t in everything if text in t.key or text in t.error]
            assert [t.key for t in run.trajectories(text=text)] == wanted
        both = [t.key for t in everything if t.status == "failed" and t.task == "q3" and "bad" in t.error]
        assert [t.key for t in run.trajectories(status="failed", task="q3", text="bad")] == both
        totals = {total["status"]: total["trajectories"] for total in run.totals()}
        assert totals.pop("unresolved") == statuses["interrupted"]
        assert totals == {status: number for status, number in statuses.items() if status != "interrupted"}
        assert sum(total["steps"] for total in run.totals()) == sum(t.n_steps for t in everything)


def test_a_list_says_what_the_records_say(listed: Path):
    """As another way of reading them has it."""
    with rolltape.read(listed) as run:
        assert run.refresh()
        says = check(run._catalogue, run._updater, run._reader)
        assert {row.status for row in says.rows.values()} == {*ENDED, "parked", "unresolved"}


def test_an_attempt_after_it_was_parked_is_at_work_on_it_again(tmp_path: Path):
    """Whatever it was parked for, somebody has decided."""
    writer = open_writer(LocalStore(tmp_path / "run"))
    of: dict[str, Any] = {"key": "q#0", "epoch": 1, "unix_s": 1.0}
    put(writer, records.Attempt(**of, attempt=1, seq=0), records.Parked(**of, attempt=1, seq=1, reason="doubt"))
    with rolltape.read(tmp_path / "run") as run:
        assert run["q#0"].status == "parked" and run["q#0"].error == "doubt"
        put(writer, records.Attempt(**of, attempt=2, seq=0, continues=(1, 1, 1)))
        run.refresh()
        assert run["q#0"].status == "running" and run["q#0"].error == ""
    writer.close()


def test_what_cannot_be_asked_for_says_what_can(listed: Path):
    """A wrong status, a wrong sort."""
    with rolltape.read(listed) as run:
        with pytest.raises(UsageError, match="use one of completed, failed"):
            list(run.trajectories(status="done"))
        with pytest.raises(UsageError, match="use one of attempts, bytes"):
            list(run.trajectories(sort="--key"))


def test_a_key_that_is_not_there_names_those_that_are_like_it(listed: Path):
    """A sample was forgotten, or is another."""
    with rolltape.read(listed) as run:
        key = next(iter(run)).key
        assert key in run and run[key].key == key
        assert "nothing" not in run and 7 not in run
        with pytest.raises(KeyError, match=r"q17@.#\d"):
            run["q17"]
        with pytest.raises(KeyError, match="did you mean"):
            run["q3#9"]
        with pytest.raises(KeyError, match=r"no trajectory 'nothing#0' in /.*run"):
            run["nothing#0"]
        with pytest.raises(KeyError):
            run["#"]


def test_what_cannot_be_written_in_a_key_is_in_no_list(listed: Path):
    """Arguments that are no UTF-8 come from a shell as lone surrogates."""
    with rolltape.read(listed) as run:
        assert "q\udc9b#0" not in run
        assert list(run.trajectories(text="\udc9b")) == list(run.trajectories(task="\udc9b")) == []
        assert run.count(text="\udc9b") == 0
        with pytest.raises(KeyError):
            run["\udc9b"]


def test_a_budget_shows_what_there_is_so_far_and_a_key_is_found_all_the_same(listed: Path, tmp_path: Path):
    """`in` as well as `[]`."""
    shutil.copytree(listed, tmp_path / "run", ignore=shutil.ignore_patterns("index*"))
    with rolltape.read(tmp_path / "run") as run:
        assert not run.refresh(budget_s=0)
        assert 0 < run.indexed < 1 and 0 < len(run) < 150
        last = "q29@2#149"
        assert last in run
        assert run.indexed == 1 and len(run) == 150
    with rolltape.read(tmp_path / "run") as run:
        assert not run.rebuild_index(budget_s=0)
        assert run[last].key == last


# ---- what was recorded -----------------------------------------------------------------------------------------------

words = st.sampled_from(["short", "x" * 70, "y" * 200, "é\u2028\U0001f600" * 30, 'q"\\' * 40])
messages = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from("ua"), words)
odd = st.sampled_from([None, 0, -0.0, float("inf"), b"raw", b"z" * 40_000, {"$ref": [1]}, (1, 2), {3: 4}, "", [], {}])


class Story:
    """A trajectory that is recorded by several attempts, and what each record has to say."""

    def __init__(self, path: Path, data: st.DataObject) -> None:
        self.store, self.data, self.key = LocalStore(path), data, "q#0"
        self.written: dict[Point, Given] = {}
        self.story: list[Point] = []
        self.begun: list[Point] = []

    async def attempt(self, writer: Writer, attempt: int) -> None:
        data = self.data
        point = data.draw(st.sampled_from(self.story)) if self.story and data.draw(st.integers(0, 4)) else None
        before = self.story[: self.story.index(point) + 1] if point else []
        memory = Memory()
        history: list[Any] = []
        for known in before:
            notes = [
                encode(value, where=f"/{field}", redact=PLAIN, memory=memory).notes
                for field, value in self.written[known].items()
            ]
            memory.commit(known, *notes)
            if self.written[known]:
                history = list(self.written[known]["call"]["messages"])
        log = AttemptLog(writer, self.key, attempt, memory=memory, redactor=PLAIN)
        self.begun.append((writer.epoch, attempt, 0))
        await log.begin(point)
        self.written[self.begun[-1]] = {}
        self.story = [*before, self.begun[-1]]
        for number in range(data.draw(st.integers(0, 6))):
            history += data.draw(st.lists(messages, max_size=3))
            reply = history[-1]["content"] if history and data.draw(st.booleans()) else data.draw(words | odd)
            values = {"call": {"messages": list(history)}, "result": {"value": reply}}
            here = (writer.epoch, attempt, log.next_seq)
            await log.append(records.Done, values=values, path=str(number), name="model", unix_s=float(number))
            self.written[here] = values
            self.story.append(here)


@given(data=st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_every_value_comes_back_as_it_was_written(data: st.DataObject):
    """Growing histories, replies that come back as messages, packed bytes; in attempts that count and in stale ones."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder) / "run", data)

        async def write() -> None:
            for _ in range(data.draw(st.integers(1, 3))):
                writer = open_writer(story.store, WriterConfig(segment_bytes_max=3000, durability="os"))
                for attempt in range(1, data.draw(st.integers(1, 3)) + 1):
                    await story.attempt(writer, attempt)
                await writer.aclose()
                if data.draw(st.booleans()):
                    compress(LocalStore(story.store.root))

        asyncio.run(write())
        with rolltape.read(story.store.root) as run:
            trajectory = run["q#0"]
            steps = list(trajectory.steps())
            assert [step.point for step in steps] == [point for point in story.story if point[2]]
            assert trajectory.n_steps == len(steps) and trajectory.n_attempts == len(story.begun)
            order = sorted(story.written)
            assert [record.point for record in trajectory.records(stale=True)] == order
            assert {r.point for r in trajectory.records(stale=True) if r.stale} == set(order) - set(story.story)
            readings = [trajectory.records(stale=True), run.records(), run.last(1000), reversed(steps)]
            for reading in readings:
                for record in reading:
                    if record.type == "done":
                        wanted = story.written[record.point]
                        assert exact(record.value("call")) == exact(wanted["call"])
                        assert exact(record.value("result")) == exact(wanted["result"])
                        assert "$list" not in msgspec.json.encode(record.plain()).decode()
            tries = trajectory.attempts()
            assert [(each.epoch, each.attempt, 0) for each in tries] == sorted(story.begun)
            assert [each.end for each in tries] == ["superseded"] * (len(tries) - 1) + ["interrupted"]
            assert sum(each.steps - each.stale_steps for each in tries) == len(steps)


def test_what_a_trajectory_was_given_and_gave(tmp_path: Path):
    """Its inputs, result and error; also where they are empty, false or absent."""

    async def write() -> None:
        writer = open_writer(LocalStore(tmp_path))
        for key, inputs in (("none#0", None), ("empty#0", {}), ("zero#0", 0), ("some#0", {"q": [1]})):
            log = AttemptLog(writer, key, 1)
            if inputs is None:
                await log.begin(None)
            else:
                await log.begin(None, values={"inputs": inputs})
            await log.append(records.Done, path="0")
            values: Given = {"result": {"value": [inputs]}, "error": {"type": "E", "message": "m"}}
            await log.append(records.Outcome, status="failed", cause="task", values=values, unix_s=3.0)
            await log.append(records.Accepted, unix_s=4.0)
        await writer.aclose()

    asyncio.run(write())
    with rolltape.read(tmp_path) as run:
        assert run["none#0"].inputs is None
        assert run["empty#0"].inputs == {} and run["zero#0"].inputs == 0
        assert run["some#0"].inputs == {"q": [1]}
        assert run["some#0"].result == [{"q": [1]}] and run["zero#0"].result == [0]
        assert run["some#0"].failure == {"type": "E", "message": "m"}
        assert (run["some#0"].error, run["some#0"].cause) == ("E: m", "task")
        assert run["some#0"].step("0").status == "done"
        assert run["some#0"].attempts()[0].end == "accepted"
        with pytest.raises(KeyError, match="no step '1' in some#0"):
            run["some#0"].step("1")


# ---- damage ----------------------------------------------------------------------------------------------------------


def a_run(path: Path, steps: int, *, durability: Any = "disk", segment_bytes_max: int = 64 << 20) -> Writer:
    """Write one trajectory whose every step refers to the one before, and leave the writer open."""

    async def write(writer: Writer) -> None:
        log = AttemptLog(writer, "q#0", 1)
        await log.begin(None)
        history: list[str] = []
        for step in range(steps):
            history.append(f"{step} " + "x" * 80)
            await log.append(records.Done, path=str(step), values={"result": {"value": history}})

    writer = open_writer(LocalStore(path), WriterConfig(durability=durability, segment_bytes_max=segment_bytes_max))
    asyncio.run(write(writer))
    return writer


def test_a_record_that_goes_bad_after_it_was_indexed_is_an_error_and_never_other_data(tmp_path: Path):
    """Whichever byte it is: what is read before and after it is right or DamagedError."""
    a_run(tmp_path / "run", 8).close()
    with rolltape.read(tmp_path / "run") as run:
        wanted = {step.path: step.result for step in run["q#0"].steps()}
        assert len(wanted) == 8
    segment = tmp_path / "run" / fmt.segment_name(1, 1)
    whole = segment.read_bytes()
    refused = 0
    for at in range(0, len(whole), 41):
        bad = bytearray(whole)
        bad[at] ^= 1
        segment.write_bytes(bad)
        with rolltape.read(tmp_path / "run") as run:
            trajectory = run["q#0"]
            assert trajectory.n_steps == 8
            told: list[DamagedError] = []
            for record in trajectory.records(on_damage=told.append):
                if record.type == "done":
                    try:
                        assert record.value("result")["value"] == wanted[record.record.path]  # type: ignore[union-attr]
                    except DamagedError:
                        refused += 1
            refused += len(told)
            if told:
                with pytest.raises(DamagedError, match=r"00000001\.jsonl"):
                    list(trajectory.records())
    assert refused > 20
    segment.write_bytes(whole)


def test_a_record_that_was_swapped_for_another_is_an_error(tmp_path: Path):
    """Both sound in their own places."""
    a_run(tmp_path / "run", 30).close()
    segment = tmp_path / "run" / fmt.segment_name(1, 1)
    with rolltape.read(tmp_path / "run") as run:
        assert len(run) == 1
        lines = segment.read_bytes().splitlines(keepends=True)
        pair = next((a, b) for a in range(2, 30) for b in range(a + 1, 30) if len(lines[a]) == len(lines[b]))
        lines[pair[0]], lines[pair[1]] = lines[pair[1]], lines[pair[0]]
        segment.write_bytes(b"".join(lines))
        with pytest.raises(DamagedError):
            list(run["q#0"].steps())


def test_a_packed_value_that_goes_bad_is_an_error(tmp_path: Path):
    """The rest of the record is read."""

    async def write() -> None:
        writer = open_writer(LocalStore(tmp_path))
        log = AttemptLog(writer, "q#0", 1)
        await log.begin(None)
        await log.append(records.Done, path="0", values={"result": {"value": b"v" * 50_000}})
        await writer.aclose()

    asyncio.run(write())
    pack = tmp_path / fmt.pack_name(1, 1)
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)
    with rolltape.read(tmp_path) as run:
        (step,) = run["q#0"].steps()
        assert step.path == "0"
        with pytest.raises(DamagedError, match=r"00000001\.pack"):
            _ = step.result


def test_damage_is_shown_with_the_list_and_with_the_trajectory(tmp_path: Path):
    """What was lost before anybody looked."""
    a_run(tmp_path / "run", 8).close()
    segment = tmp_path / "run" / fmt.segment_name(1, 1)
    lines = segment.read_bytes().splitlines(keepends=True)
    lines[4] = b"\0" * (len(lines[4]) - 1) + b"\n"
    segment.write_bytes(b"".join(lines))
    with rolltape.read(tmp_path / "run") as run:
        (damage,) = run.damage
        assert damage.file == fmt.segment_name(1, 1)
        trajectory = run["q#0"]
        assert trajectory.damage == "record 3 is missing in attempt 1 of epoch 1"
        assert trajectory.n_steps == 7
        good = []
        for step in trajectory.steps():
            try:
                assert len(step.result) == int(step.path) + 1
                good.append(int(step.path))
            except DamagedError:
                pass
        assert good == [0, 1]


def test_a_run_whose_identity_is_damaged_is_read_all_the_same(tmp_path: Path):
    """It stands in every segment too."""
    a_run(tmp_path / "run", 3).close()
    identity = tmp_path / "run" / "run.json"
    good = identity.read_bytes()
    for bad in (b"", good[:-5], good.replace(b"run", b"rum"), b"\0" * len(good)):
        identity.write_bytes(bad)
        with rolltape.read(tmp_path / "run") as run:
            assert run["q#0"].n_steps == 3 and run.created is None
            assert [damage.file for damage in run.damage] == ["run.json"]
            assert len(list(run.last())) == 4
    identity.unlink()
    with rolltape.read(tmp_path / "run") as run:
        assert len(run) == 1 and len(run.damage) == 1
    identity.write_bytes(good)
    with rolltape.read(tmp_path / "run") as run:
        assert run.created is not None and run.damage == []


def test_what_is_no_run_is_refused_and_nothing_is_made_there(tmp_path: Path):
    """An empty directory, none at all, and one of a newer version."""
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(NotARunError, match="no run here"):
            rolltape.read(path)
    assert os.listdir(tmp_path) == []
    a_run(tmp_path / "run", 1).close()
    (tmp_path / "run" / "run.json").write_bytes(b'{"type":"run","format":2,"of":"later"}\n')
    with pytest.raises(FormatError, match="format 2"):
        rolltape.read(tmp_path / "run")
    assert not (tmp_path / "run" / "index.sqlite").exists()


# ---- how much is read ------------------------------------------------------------------------------------------------


class CountingOs:
    """The operating system's own calls, counted."""

    def __init__(self) -> None:
        self.bytes = 0
        self.opened: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        self.opened[os.path.basename(path)] += 1
        return os.open(path, flags, mode)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        data = os.pread(fd, length, offset)
        self.bytes += len(data)
        return data


def counted(run: RecordedRun) -> CountingOs:
    """Let a run that was opened count what it reads from here on."""
    system = CountingOs()
    run._store = LocalStore(run.path, fs=system)  # type: ignore[arg-type]
    run._reader = Reader(run._store, run=run.id)
    run._updater = Updater(run._catalogue, run._reader)
    run._fresh = False
    return system


def test_one_trajectory_of_a_large_run_is_read_without_reading_the_run(listed: Path, tmp_path: Path):
    """Its own lines, and the tails of those who may still be writing."""
    shutil.copytree(listed, tmp_path / "run", ignore=shutil.ignore_patterns("index*"))
    live = open_writer(LocalStore(tmp_path / "run"))
    put(live, *(records.Note(epoch=2, name="x" * 1000, unix_s=1.0) for _ in range(2000)))
    put(live, records.Attempt(key="new#0", epoch=2, attempt=1, seq=0, unix_s=1.0))
    with rolltape.read(tmp_path / "run") as run:
        assert run.journal_bytes > 2_000_000
        system = counted(run)
        trajectory = run["q7@1#7"]
        size = sum(record.bytes for record in trajectory.records(stale=True))
        assert size > 0
        assert system.bytes < size + 100_000
        before = system.bytes
        run.refresh()
        assert len(run) == 151
        assert system.bytes - before < 100_000
        sealed = {f"{n:08d}.jsonl" for n in Reader(LocalStore(run.path)).segments(1)} - {"00000001.jsonl"}
        before_opened = Counter(system.opened)
        run.refresh()
        assert not (set(system.opened - before_opened) & sealed)
    live.close()


def test_the_last_records_of_a_large_run_are_read_without_reading_the_run(tmp_path: Path):
    """From its ends."""
    writer = open_writer(LocalStore(tmp_path / "run"))
    filler = msgspec.Raw(b'"' + b"x" * 1000 + b'"')
    put(writer, *(records.Note(epoch=1, name=str(n), value=filler, unix_s=1.0 + n) for n in range(5000)))
    put(writer, records.Note(epoch=1, name="one more", unix_s=5001.0))
    put(writer, records.Note(epoch=1, name="the last", unix_s=5002.0))
    with rolltape.read(tmp_path / "run") as run:
        system = counted(run)
        names = [record.record.name for record in run.last(3) if isinstance(record.record, records.Note)]
        assert names == ["4999", "one more", "the last"]
        assert 0 < system.bytes < 1_000_000 < 5_000_000 < run.journal_bytes
    writer.close()
