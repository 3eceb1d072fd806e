"""An attempt's values: encoded once, referred to afterwards, and read back whole through `StoryValues`."""

import asyncio
from pathlib import Path

import pytest

from rolltape import records
from rolltape.errors import DamagedError, EncodeError, LimitError
from rolltape.journal import AttemptLog, Reader, StoryValues, WriterConfig, open_writer, story_of, survey, verify
from rolltape.journal import format as fmt
from rolltape.store import LocalStore
from rolltape.values import learn

KEY = "q1#0"


def message(turn: int) -> dict[str, str]:
    """Two kilobytes that no other turn has."""
    return {"role": "assistant" if turn % 2 else "user", "content": f"turn {turn}: " + f"{turn * 7919:x}-" * 400}


async def talk(log: AttemptLog, history: list[dict[str, str]], turns: int) -> None:
    """Each step is called with the whole history, and its reply becomes the next message."""
    for _ in range(turns):
        reply = message(len(history))
        values = {"call": {"args": [], "kwargs": {"messages": history}}, "result": {"value": reply}}
        await log.append(records.Done, path=str(log.next_seq), values=values)
        history.append(reply)


def on_disk(run: Path) -> int:
    return sum(path.stat().st_size for path in run.rglob("*.jsonl"))


def read_all(run: Path) -> list[tuple[object, object]]:
    """What each step was called with and returned, read with random access to what it refers to."""
    reader = Reader(LocalStore(run))
    story = survey(reader, pytest.fail)[KEY].story()
    values = StoryValues.of(reader, story)
    found = []
    for entry in story.entries:
        if entry.envelope.type == "done":
            line = reader.line_at(*entry.place)
            done = line.decode(records.Done)
            found.append(
                (values.decode(line, done.call)["kwargs"]["messages"], values.decode(line, done.result)["value"])
            )
    return found


def test_a_growing_history_costs_what_it_adds_and_reads_back_whole(tmp_path):
    """Twice as many turns take about twice the bytes, not four times, and every step is as it was."""

    async def work(run: Path, turns: int) -> None:
        writer = open_writer(LocalStore(run))
        log = AttemptLog(writer, KEY, 1)
        await log.take()
        await log.begin(None)
        await talk(log, [message(0)], turns)
        await writer.aclose()

    for turns in (40, 80):
        asyncio.run(work(tmp_path / str(turns), turns))
    logical = sum(len(message(turn)["content"]) for turn in range(81))
    assert on_disk(tmp_path / "80") < 1.2 * logical
    assert on_disk(tmp_path / "80") < 2.1 * on_disk(tmp_path / "40")
    everything = [message(turn) for turn in range(81)]
    assert read_all(tmp_path / "80") == [(everything[:n], everything[n]) for n in range(1, 81)]


def test_an_attempt_that_continues_refers_to_what_the_one_before_recorded(tmp_path):
    """In another epoch, with a memory that learned from what was read: nothing is written twice."""

    async def first() -> None:
        writer = open_writer(LocalStore(tmp_path))
        log = AttemptLog(writer, KEY, 1)
        await log.begin(None)
        await talk(log, [message(0)], 10)
        await writer.aclose()

    async def second() -> None:
        reader = Reader(LocalStore(tmp_path))
        story = story_of(reader, KEY, pytest.fail)
        values = StoryValues(reader, {entry.point: entry.place for entry in story.entries}.get)
        writer = open_writer(LocalStore(tmp_path))
        log = AttemptLog(writer, KEY, 2)
        history = [message(0)]
        for entry in story.entries:
            if entry.envelope.type == "done":
                done = entry.place.decode(records.Done)
                parts = [
                    (where, values.decode(entry.place, raw), raw)
                    for where, raw in (("/call", done.call), ("/result", done.result))
                ]
                assert learn(log.memory, entry.point, parts)
                history.append(parts[1][1]["value"])
        await log.begin(story.last)
        await talk(log, history, 10)
        await writer.aclose()

    asyncio.run(first())
    before = on_disk(tmp_path)
    asyncio.run(second())
    assert on_disk(tmp_path) < 2.2 * before
    everything = [message(turn) for turn in range(21)]
    assert read_all(tmp_path) == [(everything[:n], everything[n]) for n in range(1, 21)]


def test_a_value_that_cannot_be_recorded_costs_nothing_but_the_error(tmp_path):
    """Its number is still free, nothing refers to it, and the attempt goes on without a hole."""

    async def work() -> None:
        writer = open_writer(LocalStore(tmp_path), WriterConfig(record_bytes_max=10_000))
        log = AttemptLog(writer, KEY, 1)
        await log.begin(None)
        with pytest.raises(EncodeError, match="/result/value/1"):
            await log.append(records.Done, path="0", values={"result": {"value": ["x" * 100, object()]}})
        with pytest.raises(LimitError, match="record_bytes_max"):
            await log.append(records.Done, path="0", values={"result": {"value": ["y" * 100, "z" * 10_000]}})
        for path in "01":
            await log.append(records.Done, path=path, values={"result": {"value": ["x" * 100, "y" * 100]}})
        await writer.aclose()

    asyncio.run(work())
    reader = Reader(LocalStore(tmp_path))
    story = survey(reader, pytest.fail)[KEY].story()
    assert story.gaps == [] and story.last == (1, 1, 2)
    values = StoryValues.of(reader, story)
    for entry in story.entries[1:]:
        line = reader.line_at(*entry.place)
        assert values.decode(line, line.decode(records.Done).result) == {"value": ["x" * 100, "y" * 100]}


def test_secrets_never_reach_the_disk(tmp_path):
    """Headers, keys and named fields are redacted before they are encoded, also where a value goes to the pack."""
    canary = "canary-5f2d9c"

    async def work() -> None:
        writer = open_writer(LocalStore(tmp_path))
        log = AttemptLog(writer, KEY, 1)
        await log.begin(None)
        call = {
            "headers": {"Authorization": f"Bearer {canary}"},
            "api_key": canary,
            "url": f"https://me:{canary}@host/",
        }
        await log.append(records.Done, path="0", values={"call": {"args": [], "kwargs": call}})
        await writer.aclose()

    asyncio.run(work())
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"[redacted]" in written
    assert canary.encode() not in written


def test_damage_to_what_a_value_refers_to_is_an_error_for_it_and_for_nothing_else(tmp_path):
    """The step whose own record is whole but refers to a lost one is not made up, and the others are read."""

    async def work() -> None:
        writer = open_writer(LocalStore(tmp_path))
        log = AttemptLog(writer, KEY, 1)
        await log.begin(None)
        text = "a long string that comes back later " * 10
        await log.append(records.Done, path="0", values={"result": {"value": text}})
        await log.append(records.Done, path="1", values={"result": {"value": "short"}})
        await log.append(records.Done, path="2", values={"result": {"value": text}})
        await writer.aclose()

    asyncio.run(work())
    segment = tmp_path / fmt.segment_name(1, 1)
    data = bytearray(segment.read_bytes())
    data[data.index(b"a long string") + 50] ^= 1
    segment.write_bytes(data)
    damages = []
    story = verify(LocalStore(tmp_path), damages.append)[KEY].story()
    assert damages and story.gaps
    reader = Reader(LocalStore(tmp_path))
    values = StoryValues.of(reader, story)
    lines = {e.point[2]: reader.line_at(*e.place) for e in story.entries if e.envelope.type == "done"}
    assert sorted(lines) == [2, 3]
    assert values.decode(lines[2], lines[2].decode(records.Done).result) == {"value": "short"}
    with pytest.raises(DamagedError, match=r"\(1, 1, 1\)"):
        values.decode(lines[3], lines[3].decode(records.Done).result)
