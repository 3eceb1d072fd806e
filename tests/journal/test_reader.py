"""Reading a run: whole, from a place, one trajectory, or live, while others write to it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape import records
from rolltape.errors import DamagedError, FormatError, NotARunError
from rolltape.journal import (
    AttemptLog,
    Damage,
    Follower,
    Line,
    Reader,
    SegmentScan,
    WriterConfig,
    open_writer,
    story_of,
    survey,
    verify,
)
from rolltape.journal import format as fmt
from rolltape.journal.epochs import claim_epoch, create_run
from rolltape.journal.segment import SegmentWriter
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk

HANG_S = 30.0
"""Whatever takes longer hangs. Nothing is timed by it."""

READING = {"open", "close", "pread", "listdir", "stat"}


def on(disk: CrashDisk) -> LocalStore:
    return LocalStore("/run", fs=disk)


def sound(damage: Damage) -> None:
    pytest.fail(f"reported as damage: {damage}")


def note(name: str, size: int = 0) -> records.Note:
    return records.Note(epoch=1, name=name + "x" * size, unix_s=0.0)


def name_of(line: Line) -> str:
    return line.decode(records.Note).name


def notes_in(lines: list[Line]) -> list[str]:
    return [name_of(line) for line in lines if line.envelope().type == "note"]


def places(lines: list[Line]) -> list[tuple[int, int, int]]:
    return [(line.epoch, line.segment, line.offset) for line in lines]


def write(disk: CrashDisk, *names: str, segment_bytes_max: int = 300, size: int = 50) -> None:
    """One epoch that writes these notes, a few to a segment, and is closed."""
    writer = open_writer(on(disk.process()), WriterConfig(segment_bytes_max=segment_bytes_max))
    for name in names:
        writer.append_from_thread(note(name, size=size))
    writer.close()


class ByHand:
    """A segment that the test writes itself, as a writer would, in pieces of any size."""

    def __init__(self, disk: CrashDisk) -> None:
        self.store = on(disk)
        self.run = create_run(self.store).run
        claim_epoch(self.store, self.run, durability="disk", lease_s=30.0)
        self.segment = SegmentWriter(self.store, self.run, 1, 1, [])
        self._offset = self.segment.good
        self._proven = self.segment.good

    def line(self, name: str) -> bytes:
        """The next line, which is not written yet."""
        seed = fmt.file_seed(fmt.segment_identity(self.run, 1, 1))
        return fmt.close_line(fmt.encode_record(note(name)), seed, self._offset, self._proven)

    def add(self, piece: bytes) -> None:
        """Write a piece of a line."""
        self.store.append(self.segment.name, piece)
        self._offset += len(piece)

    def sync(self) -> None:
        self.store.sync(self.segment.name)
        self._proven = self._offset


# ---- the whole run ---------------------------------------------------------------------------------------------------


def test_a_run_is_read_from_its_first_epoch_to_its_last_each_in_the_order_of_writing():
    """Every line, with its place."""
    disk = CrashDisk()
    for epoch in "abc":
        write(disk, *(f"{epoch}{n}" for n in range(9)))
    lines = list(Reader(on(disk)).scan(sound))
    assert [name[:2] for name in notes_in(lines)] == [f"{epoch}{n}" for epoch in "abc" for n in range(9)]
    assert places(lines) == sorted(set(places(lines)))
    assert max(line.segment for line in lines) > 2
    for line in lines:
        name = fmt.segment_name(line.epoch, line.segment)
        assert disk.tree()[f"/run/{name}"][line.offset :].startswith(line.raw)


def test_newest_first_is_by_epoch_and_each_from_its_beginning():
    """A reader that meets a link has to meet later what it links to, also while others write."""
    disk = CrashDisk()
    for epoch in "abc":
        write(disk, *(f"{epoch}{n}" for n in range(9)))
    lines = list(Reader(on(disk)).scan(sound, newest_first=True))
    assert [name[:2] for name in notes_in(lines)] == [f"{epoch}{n}" for epoch in "cba" for n in range(9)]
    assert sorted(places(lines)) == places(list(Reader(on(disk)).scan(sound)))


def test_reading_changes_nothing_and_gives_the_same_answer_twice():
    """Readers may be anybody, on a read-only mount too."""
    disk = CrashDisk()
    write(disk, *(str(n) for n in range(9)))
    path = "/run/journal/00000001/00000001.jsonl"
    disk.write_file(path, disk.tree()[path] + b"torn")
    before = disk.tree()
    other, seen = disk.process(), set()
    other.on_operation = lambda op, path: seen.add(op)
    first = list(Reader(on(other)).scan(lambda damage: None))
    verify(on(other), lambda damage: None)
    list(Follower(Reader(on(other)), lambda damage: None).poll())
    assert list(Reader(on(other)).scan(lambda damage: None)) == first
    assert seen <= READING
    assert disk.tree() == before


def test_an_epoch_that_wrote_nothing_is_nothing():
    """Killed between its claim and its first segment."""
    disk = CrashDisk()
    run = create_run(on(disk)).run
    claim_epoch(on(disk), run, durability="disk", lease_s=30.0)
    assert list(Reader(on(disk)).scan(sound)) == []
    assert verify(on(disk), sound) == {}


def test_somebody_elses_files_are_left_alone():
    """A backup, an editor's file, a directory of notes."""
    disk = CrashDisk()
    write(disk, "a", "b")
    before = list(Reader(on(disk)).scan(sound))
    for name in ("README", "journal/notes.txt", "journal/1/00000001.jsonl", "journal/00000001/00000001.jsonl.bak"):
        disk.write_file(f"/run/{name}", b"not ours")
    disk.write_file("/run/journal/00000001/.tmp-0123456789abcdef", b'{"type":"segment"')
    assert list(Reader(on(disk)).scan(sound)) == before


def test_where_there_is_no_run_there_is_nothing_to_read():
    """An error that says so, not an empty run."""
    with pytest.raises(NotARunError):
        Reader(on(CrashDisk()))


def test_a_quiescent_run_can_be_copied_and_moved(tmp_path):
    """It is self-contained: no path, inode or time of the file system is part of it."""
    writer = open_writer(LocalStore(tmp_path / "a"), WriterConfig(segment_bytes_max=300))
    for number in range(9):
        writer.append_from_thread(note(str(number), size=50))
    writer.close()
    before = list(Reader(LocalStore(tmp_path / "a")).scan(sound))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "c")
    for name in "bc":
        assert list(Reader(LocalStore(tmp_path / name)).scan(sound)) == before
        verify(LocalStore(tmp_path / name), sound)


# ---- from a place ----------------------------------------------------------------------------------------------------


def test_a_segment_can_be_read_from_any_line_on():
    """`position` is where to go on, `finished` that nothing more will come."""
    disk = CrashDisk()
    write(disk, *(str(n) for n in range(9)), segment_bytes_max=1 << 20)
    reader = Reader(on(disk))
    whole = list(reader.scan(sound))
    for number, line in enumerate(whole):
        scan = SegmentScan(reader, 1, 1, sound, start=line.offset)
        assert list(scan) == whole[number:]
        assert scan.finished
        assert scan.position == whole[-1].offset + len(whole[-1].raw)


def test_position_follows_each_line_that_is_handed_out():
    """Whoever stops in the middle goes on with the next line."""
    disk = CrashDisk()
    write(disk, *(str(n) for n in range(9)), segment_bytes_max=1 << 20)
    reader = Reader(on(disk))
    scan = SegmentScan(reader, 1, 1, sound)
    taken = [line for _, line in zip(range(4), scan, strict=False)]
    assert scan.position == taken[-1].offset + len(taken[-1].raw)
    assert taken + list(SegmentScan(reader, 1, 1, sound, start=scan.position)) == list(reader.scan(sound))


def test_a_line_whose_place_is_known_is_read_alone():
    """And is refused anywhere else."""
    disk = CrashDisk()
    write(disk, "a", "b", "c")
    reader = Reader(on(disk))
    for line in reader.scan(sound):
        assert reader.line_at(line.epoch, line.segment, line.offset, len(line.raw)) == line
        for offset, size in ((line.offset + 1, len(line.raw)), (line.offset, len(line.raw) - 1), (1 << 40, 10)):
            with pytest.raises(DamagedError, match=r"0000000[12]\.jsonl"):
                reader.line_at(line.epoch, line.segment, offset, size)


def test_a_line_is_decoded_as_what_it_is():
    """Asking for another type is an error with its place."""
    disk = CrashDisk()
    write(disk, "a")
    line = list(Reader(on(disk)).scan(sound))[1]
    assert line.decode(records.Note).name[0] == "a"
    with pytest.raises(FormatError, match=r"00000001\.jsonl at \d+ is no Done record"):
        line.decode(records.Done)


# ---- one trajectory --------------------------------------------------------------------------------------------------

KEYS = ["q1#0", "q1#00", "q1@2#0", "1#0", 'a "quoted" \\ key#0', "Zürich \U0001f600\u2028#0", 'x","key":"q1#0', "é#0"]


def test_one_trajectory_is_read_as_the_survey_of_the_whole_run_has_it():
    """Whatever its key looks like, and whatever looks like its key."""

    async def main() -> None:
        disk = CrashDisk()
        for attempt in (1, 2):
            writer = open_writer(on(disk), WriterConfig(segment_bytes_max=1000))
            for key in KEYS:
                log = AttemptLog(writer, key, attempt)
                await log.take()
                await log.begin((1, 1, 1) if attempt == 2 else None)
                for step in range(3):
                    mentioned = [KEYS, *({"key": other, "step": step} for other in KEYS)]
                    await log.append(records.Done, path=str(step), values={"result": {"value": mentioned}})
            await writer.aclose()
        reader = Reader(on(disk))
        surveyed = survey(reader, sound)
        assert sorted(surveyed) == sorted(KEYS)
        for key in KEYS:
            story, wanted = story_of(reader, key, sound), surveyed[key].story()
            assert [e.point for e in story.entries] == [e.point for e in wanted.entries]
            assert [e.point for e in story.entries] == [(1, 1, 0), (1, 1, 1), *((2, 2, n) for n in range(4))]
            assert [e.point for e in story.stale] == [(1, 1, 2), (1, 1, 3)]
            assert [reader.line_at(*e.place) for e in wanted.entries] == [e.place for e in story.entries]
        assert story_of(reader, "nobody#0", sound).entries == []

    asyncio.run(main())


def test_a_record_of_a_type_that_is_not_known_is_skipped_and_no_damage():
    """A later minor version may have written some of the lines."""
    disk = CrashDisk()
    writer = open_writer(on(disk))
    later = b'{"type":"of_a_later_version","key":"k#0","epoch":1,"attempt":1,"more":[{}]'
    for body in (b'{"type":"of_a_later_version","epoch":1,"more":[{}]', later):
        writer.put_from_thread(body).result(HANG_S)
    writer.append_from_thread(note("a"))
    writer.close()
    found = verify(on(disk), sound)
    assert [lineage.story().entries for lineage in found.values()] == [[]]
    assert notes_in(list(Reader(on(disk)).scan(sound)))[0] == "a"


# ---- values ----------------------------------------------------------------------------------------------------------


@given(values=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8))
@settings(deadline=None, max_examples=40)
def test_values_come_back_as_they_were(values: list[bytes]):
    """Whatever their bytes, each through the line that names it."""
    disk = CrashDisk()
    writer = open_writer(on(disk), WriterConfig(segment_bytes_max=700))
    blobs = [{blake2b(value, digest_size=16).hexdigest(): value} for value in values]
    for each in blobs:
        writer.put_from_thread(fmt.encode_record(note("v")), each).result(HANG_S)
    writer.close()
    reader = Reader(on(disk))
    lines = [line for line in reader.scan(sound) if line.envelope().type == "note"]
    for line, each in zip(lines, blobs, strict=True):
        for digest, value in each.items():
            assert reader.value(line, digest) == reader.value(line, digest, len(value)) == value
            with pytest.raises(DamagedError, match="holds no value"):
                reader.value(line, digest, len(value) + 1)
        with pytest.raises(DamagedError, match="holds no value 00"):
            reader.value(line, "00" * 16)
    verify(on(disk), sound)


# ---- live ------------------------------------------------------------------------------------------------------------


def test_a_follower_gives_each_line_once_as_it_comes():
    """Over segments and epochs; a poll that finds nothing new gives nothing."""
    disk = CrashDisk()
    writers = [open_writer(on(disk.process()), WriterConfig(segment_bytes_max=300)) for _ in range(2)]
    follower = Follower(Reader(on(disk.process())), sound)
    seen: list[Line] = []
    for number in range(12):
        writers[number % 2].append_from_thread(note(str(number), size=50))
        new = list(follower.poll())
        assert [name.rstrip("x") for name in notes_in(new)] == [str(number)]
        assert list(follower.poll()) == []
        seen += new
    writers.append(open_writer(on(disk.process())))
    for writer in writers:
        writer.close()
    seen += follower.poll()
    assert sorted(seen) == list(Reader(on(disk)).scan(sound))


def test_a_follower_may_begin_after_an_epoch():
    """What a process needs to see of those that came after it."""
    disk = CrashDisk()
    for name in "abc":
        write(disk, name, size=0)
    assert notes_in(list(Follower(Reader(on(disk)), sound, after=1).poll())) == ["b", "c"]
    assert notes_in(list(Follower(Reader(on(disk)), sound, after=3).poll())) == []


def test_a_follower_that_stops_in_the_middle_of_a_poll_goes_on_there():
    """Its cursor stands behind the last line that it gave."""
    disk = CrashDisk()
    for _ in range(2):
        write(disk, *(str(n) for n in range(6)))
    whole = list(Reader(on(disk)).scan(sound))
    follower, seen = Follower(Reader(on(disk)), sound), []
    while len(seen) < len(whole):
        for line in follower.poll():
            seen.append(line)
            if len(seen) % 3 == 0:
                break
    assert seen == whole
    assert list(follower.poll()) == []


def test_a_cursor_is_a_small_value_that_another_process_goes_on_from(tmp_path):
    """Saved as JSON, read by a fresh process, which gives exactly what came since."""
    code = f"""
import sys
sys.path[:0] = {[part for part in sys.path if part]!r}
import msgspec
from rolltape.journal import Follower, Reader
from rolltape.records import Note
from rolltape.store import LocalStore

saved = open(sys.argv[2], "rb").read()
cursor = msgspec.json.decode(saved, type=dict[int, tuple[int, int]]) if saved else None
follower = Follower(Reader(LocalStore(sys.argv[1])), lambda damage: sys.exit(str(damage)), cursor)
print(*[line.decode(Note).name.rstrip("x") for line in follower.poll() if line.envelope().type == "note"])
open(sys.argv[2], "wb").write(msgspec.json.encode(follower.cursor))
"""
    (tmp_path / "cursor").touch()
    writer = open_writer(LocalStore(tmp_path / "run"), WriterConfig(segment_bytes_max=300))
    for round in range(3):
        names = [f"{round}.{n}" for n in range(4)]
        for name in names:
            writer.append_from_thread(note(name, size=50))
        if round == 1:
            writer.close()
            writer = open_writer(LocalStore(tmp_path / "run"))
        command = [sys.executable, "-c", code, str(tmp_path / "run"), str(tmp_path / "cursor")]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_S)
        assert done.stdout.split() == names
    writer.close()
    assert (tmp_path / "cursor").stat().st_size < 100


def test_a_line_that_is_half_written_comes_when_it_is_whole():
    """Not before, not twice, and nobody calls it damage."""
    disk = CrashDisk()
    hand = ByHand(disk)
    follower = Follower(Reader(on(disk.process())), sound)
    assert len(list(follower.poll())) == 1
    line = hand.line("a")
    for cut in range(0, len(line), 7):
        hand.add(line[cut : cut + 7])
        assert [new.raw for new in follower.poll()] == ([line] if cut + 7 >= len(line) else [])
    assert list(follower.poll()) == []


def a_write_meets_a_read(read: Callable[[Reader, list[Damage]], list[Line]], moment: int) -> bool:
    """Read while half a line is there, whose writer finishes it and goes on at the reader's nth operation.

    The writer goes on far enough to prove that the half line's place was on disk. False: there is no nth operation.
    """
    disk = CrashDisk()
    hand = ByHand(disk)
    for name in ("first", "second"):
        hand.add(hand.line(name))
        hand.sync()
    half = hand.line("half")
    hand.add(half[: len(half) // 2])
    other, count, finished = disk.process(), 0, False

    def go_on(op: str, path: str) -> None:
        nonlocal count, finished
        count += 1
        if count == moment:
            finished = True
            hand.add(half[len(half) // 2 :])
            for name in ("third", "fourth"):
                hand.sync()
                hand.add(hand.line(name))
            hand.sync()

    reader = Reader(on(other))
    other.on_operation = go_on
    damages: list[Damage] = []
    lines = read(reader, damages)
    other.on_operation = None
    assert damages == []
    names = notes_in(lines)
    assert names == ["first", "second", "half", "third", "fourth"][: len(names)] and len(names) >= 2
    return finished


def test_a_reader_that_meets_a_write_half_done_never_calls_it_damage():
    """Whenever, between two of its own operations, the writer finishes the line and proves that it did."""
    moment = 1
    while a_write_meets_a_read(lambda reader, damages: list(reader.scan(damages.append)), moment):
        moment += 1
    assert moment > 5


def test_a_follower_that_meets_a_write_half_done_misses_nothing():
    """The same, and the next poll gives the rest."""

    def follow(reader: Reader, damages: list[Damage]) -> list[Line]:
        follower = Follower(reader, damages.append)
        lines = list(follower.poll()) + list(follower.poll())
        return lines + list(follower.poll())

    moment = 1
    while a_write_meets_a_read(follow, moment):
        moment += 1
    assert moment > 5


def test_readers_beside_a_writer_see_a_beginning_of_what_it_writes_and_no_damage(tmp_path):
    """Two readers, whole and following, as fast as they can, on a real file system, over several segments."""
    writer = open_writer(LocalStore(tmp_path), WriterConfig(durability="os", segment_bytes_max=200_000))
    written = threading.Event()
    problems: list[Any] = []

    def read_all() -> None:
        try:
            while True:
                last = written.is_set()
                lines = list(Reader(LocalStore(tmp_path)).scan(problems.append))
                names = [int(name.rstrip("x")) for name in notes_in(lines)]
                assert names == list(range(len(names)))
                if last:
                    assert len(names) == 3000
                    return
        except BaseException as error:
            problems.append(error)

    def follow() -> None:
        try:
            follower = Follower(Reader(LocalStore(tmp_path)), problems.append)
            names: list[int] = []
            while True:
                last = written.is_set()
                names += [int(name.rstrip("x")) for name in notes_in(list(follower.poll()))]
                if last:
                    assert names == list(range(3000))
                    return
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=job, daemon=True) for job in (read_all, follow)]
    for reader in readers:
        reader.start()
    for begin in range(0, 3000, 50):
        futures = [
            writer.put_from_thread(fmt.encode_record(note(str(number), size=400)))
            for number in range(begin, begin + 50)
        ]
        for future in futures:
            future.result(HANG_S)
    writer.close()
    written.set()
    for reader in readers:
        reader.join(HANG_S)
        assert not reader.is_alive(), "it hangs"
    assert problems == []


def test_a_cursor_survives_the_abandonment_of_its_segment():
    """What was read beyond the good length was never acknowledged: it comes again from the next segment."""
    disk = CrashDisk()
    mine = disk.process()
    writer = open_writer(on(mine))
    writer.append_from_thread(note("a"))
    follower = Follower(Reader(on(disk.process())), sound)
    assert notes_in(list(follower.poll())) == ["a"]
    mine.fail("fdatasync", error=28)  # ENOSPC: the group is written again, in the next segment
    seen: list[str] = []
    mine.on_done = lambda op, path: seen.extend(notes_in(list(follower.poll()))) if op == "write" else None
    writer.append_from_thread(note("b"))
    mine.on_done = None
    writer.append_from_thread(note("c"))
    writer.close()
    seen += notes_in(list(follower.poll()))
    assert seen == ["b", "b", "c"]
    assert notes_in(list(Reader(on(disk)).scan(sound))) == ["a", "b", "c"]
    assert list(follower.poll()) == []


def test_what_a_header_states_of_its_predecessor_ends_it():
    """A segment that was given up counts up to its good length, and no further, for every reader."""
    disk = CrashDisk()
    hand = ByHand(disk)
    hand.add(hand.line("counts"))
    hand.sync()
    good = len(disk.tree()["/run/journal/00000001/00000001.jsonl"])
    hand.add(hand.line("was never acknowledged"))
    hand.segment.release()
    second = SegmentWriter(hand.store, hand.run, 1, 2, [(1, good, good)])
    second.write([(fmt.encode_record(note("counts too")), None)])
    reader = Reader(on(disk))
    assert reader.stated(1, 1) == (good, good)
    assert reader.stated(1, 2) is None
    assert notes_in(list(reader.scan(sound))) == ["counts", "counts too"]
    assert notes_in(list(Follower(reader, sound).poll())) == ["counts", "counts too"]
    header = reader.header(1, 2)
    assert header is not None and header.previous == [(1, good, good)]


def test_an_envelope_is_what_the_reading_rule_needs_of_a_line():
    """The rest of it is not decoded, however large."""
    disk = CrashDisk()
    writer = open_writer(on(disk))
    writer.append_from_thread(records.Outcome(key="k#0", epoch=1, attempt=1, seq=3, status="failed", unix_s=0.0))
    writer.close()
    line = list(Reader(on(disk)).scan(sound))[1]
    assert line.envelope() == msgspec.convert(
        {"type": "outcome", "key": "k#0", "epoch": 1, "attempt": 1, "seq": 3, "status": "failed"}, records.Envelope
    )


def test_lines_that_lie_near_each_other_come_in_the_order_asked_for_and_none_that_was_altered():
    """They are read together, with what lies between; each is checked by itself."""
    disk = CrashDisk()
    write(disk, *(f"note {n}" for n in range(12)), segment_bytes_max=1200, size=200)
    reader = Reader(on(disk))
    lines = list(reader.scan(sound))
    places = [(line.epoch, line.segment, line.offset, len(line.raw)) for line in lines]
    asked = [*places[::-3], places[0], places[0]]
    by_place = dict(zip(places, lines, strict=True))
    assert len({place[1] for place in asked}) > 1
    assert reader.lines_at(asked) == [by_place[place] for place in asked]
    _, segment, offset, _ = altered = places[4]
    name = fmt.segment_name(1, segment)
    data = bytearray(disk.tree()[f"/run/{name}"])
    data[offset + 20] ^= 1
    disk.write_file(f"/run/{name}", bytes(data))
    others = [place for place in places if place != altered]
    assert reader.lines_at(others) == [by_place[place] for place in others]
    with pytest.raises(DamagedError, match=rf"{name} at {offset}\.\."):
        reader.lines_at(places)
