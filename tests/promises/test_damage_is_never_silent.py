"""Promise 8: damage is never silent.

A torn tail is ignored; damage before it is reported with its place; everything intact is still readable; nothing
altered is ever returned. What must come back is computed here from the bytes as they were written and as they are now,
by the rule of `docs/design/journal.md`, without a checksum: a line is intact where it lies unchanged.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rolltape import records
from rolltape.errors import DamagedError, FormatError, NotARunError, RolltapeError
from rolltape.journal import (
    AttemptLog,
    Damage,
    Follower,
    Lineage,
    Place,
    Reader,
    WriterConfig,
    open_reader,
    open_writer,
    story_of,
    survey,
    verify,
)
from rolltape.journal import format as fmt
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk
from tests.journal.runs import close, read, step

ROOT = "/run"
PACKED = b"tensors, or a screenshot"

FIRST, MIDDLE, LAST = (f"journal/00000001/0000000{number}.jsonl" for number in (1, 2, 3))
"""The segments of the epoch that was closed: all are sealed, and the last has no successor."""
GIVEN_UP = "journal/00000002/00000001.jsonl"
"""A segment in which a sync failed. What it has beyond the good length that its successor states doesn't count."""
OPEN = "journal/00000002/00000002.jsonl"
"""The segment that was being written when its process was killed. Nothing proves its last group."""
PACK = "journal/00000001/00000002.pack"
SEGMENTS = [FIRST, MIDDLE, LAST, GIVEN_UP, OPEN]
WHOLE = ["run.json", "claims/00000001.json", "claims/00000002.json"]
"""Files that are created whole and never grow: no crash explains a change."""

XORS = (0x01, 0x80, 0xFF)

Tree = dict[str, bytes]
"""Every file of a run by its name in it."""
Where = tuple[str, int]
"""A line by its file and its offset."""


# ---- a small run to damage -------------------------------------------------------------------------------------------


@functools.cache
def small_run() -> Tree:
    """Two trajectories in two epochs: the first closed, the second killed after a full disk cost it a segment."""
    disk = CrashDisk()
    asyncio.run(_write_small_run(disk))
    return {path.removeprefix(f"{ROOT}/"): data for path, data in disk.tree().items()}


async def _write_small_run(disk: CrashDisk) -> None:
    writer = open_writer(LocalStore(ROOT, fs=disk), WriterConfig(segment_bytes_max=480))
    a, b = AttemptLog(writer, "a#0", 1), AttemptLog(writer, "b#0", 1)
    await a.take()
    await a.begin(None)
    await b.begin(None)
    await asyncio.gather(step(a, "0", "a0"), step(b, "0", "b0"))
    await step(a, "1", PACKED)
    await asyncio.gather(step(a, "2", "a2"), step(b, "1", "b1"))
    await step(b, "2", "b2")
    close(writer)
    process = disk.process()
    writer = open_writer(LocalStore(ROOT, fs=process))
    a = AttemptLog(writer, "a#0", 2)
    await a.begin((1, 1, 3))
    process.fail("fdatasync", error=errno.ENOSPC)
    await asyncio.gather(step(a, "3", "a3"), step(a, "4", "a4"))
    await step(a, "5", "a5")
    await asyncio.gather(step(a, "6", "a6"), step(a, "7", "a7"))
    process.kill()
    close(writer)


VALUES = {
    ("a#0", (1, 1, 1)): "a0",
    ("a#0", (1, 1, 2)): PACKED,
    ("a#0", (1, 1, 3)): "a2",
    ("b#0", (1, 1, 1)): "b0",
    ("b#0", (1, 1, 2)): "b1",
    ("b#0", (1, 1, 3)): "b2",
    ("a#0", (2, 2, 1)): "a3",
    ("a#0", (2, 2, 2)): "a4",
    ("a#0", (2, 2, 3)): "a5",
    ("a#0", (2, 2, 4)): "a6",
    ("a#0", (2, 2, 5)): "a7",
}
"""What every step of the small run returned."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with the small run."""
    for name, data in small_run().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


# ---- what must come back ---------------------------------------------------------------------------------------------


class Expected(NamedTuple):
    lines: dict[Where, bytes]
    """Every line that counts."""
    rotten: set[Where]
    """Every line that was on disk for certain and is not as it was written."""
    doubtful: set[Where]
    """Headers with nothing behind them that a file system may have lost, though it should not: reported or not."""


def expect(written: Tree, now: Tree) -> Expected:
    """Say what must come back of a run that was written like that and is now like this."""
    expected = Expected({}, set(), set())
    for name in sorted(now):
        if name in written and name.endswith(".jsonl"):
            good, stated_proven = stated(written, now, name)
            text, lines = now[name][:good], lines_of(written[name][:good])
            intact = {at for at, line in lines.items() if text[at : at + len(line)] == line}
            proven = max([stated_proven, *(proven_by(at, lines[at]) for at in intact)])
            for at, line in lines.items():
                if at in intact:
                    expected.lines[name, at] = line
                elif at < proven or (at == 0 and b"\n" in text):
                    expected.rotten.add((name, at))
                else:
                    expected.doubtful.update({(name, at)} if at == 0 else ())
                    break
    return expected


def stated(written: Tree, now: Tree, name: str) -> tuple[int | None, int]:
    """What an intact header of a later segment says of this one: its good length, and how much of it is proven."""
    folder, _, number = name.removesuffix(".jsonl").rpartition("/")
    for later in sorted(now):
        if later in written and later.startswith(folder) and later > name and later.endswith(".jsonl"):
            header = lines_of(written[later])[0]
            if now[later].startswith(header):
                for segment, good, proven in msgspec.json.decode(header).get("previous", []):
                    if segment == int(number):
                        return good, proven
    return None, 0


def lines_of(data: bytes) -> dict[int, bytes]:
    """The whole lines of a file by their offsets."""
    lines, at = {}, 0
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n"):
            lines[at] = line
        at += len(line)
    return lines


def proven_by(at: int, line: bytes) -> int:
    record = msgspec.json.decode(line)
    return at + len(line) if record["type"] == "seal" else record["dur"]


def is_broken(lines: dict[Where, bytes]) -> bool:
    """Whether what is left of a trajectory has a gap, as far as its own records tell."""
    seqs: dict[tuple[str, int], set[int]] = {}
    for key, epoch, _, seq in of_attempts(lines):
        seqs.setdefault((key, epoch), set()).add(seq)
    if ("a#0", 2) in seqs and not seqs.get(("a#0", 1), set()) >= {0, 1, 2, 3}:
        return True
    return any(found != set(range(max(found) + 1)) for found in seqs.values())


def of_attempts(lines: dict[Where, bytes]) -> dict[tuple[str, int, int, int], Where]:
    """The lines that have a place in an attempt, by that place; of two that say the same, the first."""
    points: dict[tuple[str, int, int, int], Where] = {}
    for where, line in lines.items():
        record = msgspec.json.decode(line)
        if "seq" in record:
            points.setdefault((record["key"], record["epoch"], record["attempt"], record["seq"]), where)
    return points


# ---- reading it in every way -----------------------------------------------------------------------------------------


def check_scan(written: Tree, now: Tree, store: LocalStore) -> list[Damage]:
    """Read every line. What comes back is what must, and each rotten line, nothing else, is reported at its place."""
    expected = expect(written, now)
    damage: list[Damage] = []
    lines = {}
    for line in open_reader(store, damage.append).scan(damage.append):
        lines[fmt.segment_name(line.epoch, line.segment), line.offset] = line.raw
    assert lines == expected.lines
    reported = [one for one in damage if one.file.endswith(".jsonl")]
    for name, at in expected.rotten:
        assert any(one.file == name and one.start <= at < one.end for one in reported), (name, at, damage)
    for one in reported:
        assert (one.file, one.start) in expected.rotten | expected.doubtful, (one, expected)
        assert str(one).startswith(f"{one.file} at {one.start}..{one.end}: ")
    return damage


def check(written: Tree, now: Tree, store: LocalStore) -> None:
    """Read the run in every way there is, while `now` is on disk: they agree, and each says what must be said."""
    damage = check_scan(written, now, store)
    expected = expect(written, now)

    surveyed: list[Damage] = []
    places = points_of(survey(open_reader(store, ignore), surveyed.append))
    assert places == of_attempts(expected.lines)
    assert set(surveyed) == {one for one in damage if one.file != fmt.RUN_FILE}

    verified = check_verify(written, now, store)
    assert set(damage) <= set(verified)
    reported = {one.file for one in verified}

    found = read(store)
    assert set(damage) <= set(found.damage)
    done = {
        (key, entry.point)
        for key, story in found.stories.items()
        for entry in story.entries
        if entry.envelope.type == "done"
    }
    rotten_value = {("a#0", (1, 1, 2))} if PACK in reported and now.get(PACK, b"")[-len(PACKED) :] != PACKED else set()
    assert found.values == {place: VALUES[place] for place in done - rotten_value}
    assert bool(found.damage) == bool(reported - ({PACK} if done.isdisjoint(rotten_value) else set()))


def check_verify(written: Tree, now: Tree, store: LocalStore) -> list[Damage]:
    """Verify the run. Every file that has to be reported is, and no other."""
    expected = expect(written, now)
    verified: list[Damage] = []
    assert points_of(verify(store, verified.append)) == of_attempts(expected.lines)
    reported = {one.file for one in verified} - {name for name, _ in expected.doubtful}
    assert reported == must_be_reported(written, now, expected.lines, expected.rotten)
    return verified


def points_of(lineages: dict[str, Lineage[Place]]) -> dict[tuple[str, int, int, int], Where]:
    return {
        (key, *entry.point): (fmt.segment_name(entry.place.epoch, entry.place.segment), entry.place.offset)
        for key, lineage in lineages.items()
        for attempt in lineage.attempts.values()
        for entry in attempt.entries.values()
    }


def must_be_reported(written: Tree, now: Tree, lines: dict[Where, bytes], rotten: set[Where]) -> set[str]:
    """The files that must be named: those with a rotten line, those that never grow, and a trajectory with a gap."""
    changed = {name for name in [*WHOLE, PACK] if now.get(name) != written[name]}
    gaps = {fmt.JOURNAL} if is_broken(lines) else set()
    return {name for name, _ in rotten} | changed | gaps


Checking = Callable[[Tree, Tree, LocalStore], object]


def check_with(run: Path, name: str, data: bytes, checking: Checking = check) -> None:
    """Check the small run while `name` has this content."""
    written = small_run()
    overwrite(run / name, data)
    checking(written, {**written, name: data}, LocalStore(run))
    overwrite(run / name, written[name])


def overwrite(path: Path, data: bytes) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.write(data)
        file.truncate(len(data))


def now_and_then(at: int, usually: Checking) -> Checking:
    """Ask every reader at some places, and one of them at all."""
    return check if at % 8 == 0 else usually


def ignore(damage: Damage) -> None:
    """What is reported here is looked at elsewhere."""


def test_the_small_run_has_every_kind_of_segment(run: Path) -> None:
    """The tests below mean something: the run has sealed, given up and unproven segments, and is sound."""
    written = small_run()
    assert written.keys() == {*SEGMENTS, *WHOLE, PACK}
    assert all(b'"type":"seal"' in written[name] for name in (FIRST, MIDDLE, LAST))
    assert b'"path":"3"' in written[GIVEN_UP] and b'"path":"3"' in written[OPEN]
    for name in (FIRST, MIDDLE):
        assert stated(written, written, name) == (len(written[name]), len(written[name]))
    good, proven = stated(written, written, GIVEN_UP)
    assert good == proven == list(lines_of(written[GIVEN_UP]))[2] < len(written[GIVEN_UP])
    assert proven_by(*list(lines_of(written[OPEN]).items())[-1]) == list(lines_of(written[OPEN]))[-2]
    found = read(LocalStore(run))
    assert found.values == VALUES and found.damage == []
    check(written, written, LocalStore(run))


# ---- one changed byte ------------------------------------------------------------------------------------------------


def flipped(data: bytes, at: int, xor: int) -> bytes:
    return data[:at] + bytes([data[at] ^ xor]) + data[at + 1 :]


def inside_lines(data: bytes) -> list[int]:
    """Every offset but the newlines'."""
    return [at for at, byte in enumerate(data) if byte != ord("\n")]


@pytest.mark.parametrize("name", SEGMENTS)
def test_every_flipped_byte_of_a_segment_is_found_or_lies_in_the_torn_tail(run: Path, name: str) -> None:
    """Whichever byte changes, to whatever: no altered line comes back, every other does, and the report names it."""
    data = small_run()[name]
    for at in inside_lines(data):
        for xor in XORS:
            check_with(run, name, flipped(data, at, xor), check_scan)
        if at % 8 == 0:
            check_with(run, name, flipped(data, at, XORS[at // 8 % len(XORS)]))


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_flipped_newline_costs_no_line_but_its_own(run: Path, name: str) -> None:
    """The next line is intact, so it is still read."""
    data = small_run()[name]
    for at in set(range(len(data))) - set(inside_lines(data)):
        for xor in XORS:
            check_with(run, name, flipped(data, at, xor))


@pytest.mark.parametrize("name", WHOLE)
def test_every_flipped_byte_of_a_file_that_never_grows_is_found(run: Path, name: str) -> None:
    """`run.json` and the claims are created whole: no crash explains a change, and the journal is readable without."""
    data = small_run()[name]
    for at in range(len(data)):
        check_with(run, name, flipped(data, at, XORS[at % len(XORS)]), now_and_then(at, check_verify))


def test_every_flipped_byte_of_a_packed_value_is_found(run: Path) -> None:
    """A binary value comes back as it was written, or not at all."""
    data = small_run()[PACK]
    assert data.endswith(PACKED)
    for at in range(len(data) - len(PACKED), len(data)):
        for xor in XORS:
            check_with(run, PACK, flipped(data, at, xor))


def test_every_flipped_byte_of_the_header_of_a_pack_is_found(run: Path) -> None:
    """The first line of a pack is checked like any other, though reading its values needs nothing of it."""
    data = small_run()[PACK]
    for at in range(len(data) - len(PACKED)):
        check_with(run, PACK, flipped(data, at, XORS[at % len(XORS)]), now_and_then(at, check_verify))


@pytest.mark.parametrize("name", ["run.json", FIRST, GIVEN_UP, OPEN])
def test_a_flipped_format_number_hides_nothing_else(run: Path, name: str) -> None:
    """One bit turns format 1 into 3, 5 or 9. That is damage like any other, not a newer version of everything."""
    data = small_run()[name]
    at = data.index(b'"format":1') + len(b'"format":')
    for xor in (0x02, 0x04, 0x08):
        check_with(run, name, flipped(data, at, xor))


@pytest.mark.torture
@pytest.mark.parametrize("name", [*SEGMENTS, *WHOLE, PACK])
def test_every_bit_of_every_byte_is_found(run: Path, name: str) -> None:
    """The same for each single bit, with every reader."""
    data = small_run()[name]
    for at in range(len(data)):
        for bit in range(8):
            check_with(run, name, flipped(data, at, 1 << bit))


# ---- files that end too early ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_cut_at_any_byte_keeps_exactly_the_whole_lines_before_the_cut(run: Path, name: str) -> None:
    """Below what a successor states as proven the cut is damage, elsewhere a tail; everything else is still read."""
    written = small_run()
    data = written[name]
    good, proven = stated(written, written, name)
    for size in range(len(data) + 1):
        cut = data[:size]
        expected = expect(written, {**written, name: cut})
        of_this = [line for (file, _), line in expected.lines.items() if file == name]
        assert of_this == list(lines_of(cut[:good]).values())
        assert bool(expected.rotten) == (size < proven)
        check_with(run, name, cut, now_and_then(size, check_scan))


@pytest.mark.parametrize("name", [*WHOLE, PACK])
def test_a_file_that_never_grows_is_found_cut_at_any_byte(run: Path, name: str) -> None:
    """Also to nothing at all."""
    data = small_run()[name]
    for size in range(len(data)):
        check_with(run, name, data[:size], now_and_then(size, check_verify))


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_zeroed_from_any_byte_on_reads_as_if_it_were_cut_there(run: Path, name: str) -> None:
    """A file system may keep the size of a file and lose its blocks."""
    data = small_run()[name]
    for size in range(0, len(data), 3):
        check_with(run, name, data[:size] + bytes(len(data) - size), now_and_then(size, check_scan))


@functools.cache
def other_lines() -> dict[str, bytes]:
    """Things that may lie behind the end of a segment, or in the place of a line, and belong elsewhere or nowhere."""
    written, rng = small_run(), random.Random(8)
    lines = list(lines_of(written[OPEN]).values())
    foreign = dict(lines_of(written[MIDDLE]))
    other_run = bytes.fromhex("00") * 16
    seed = fmt.file_seed(fmt.segment_identity(other_run.hex(), 2, 2))
    return {
        "one zero": b"\0",
        "a block of zeros": bytes(4096),
        "zeros and a newline": bytes(700) + b"\n",
        "newlines": b"\n" * 9,
        "random bytes": rng.randbytes(3000),
        "random lines": b"".join(rng.randbytes(90) + b"\n" for _ in range(9)),
        "nested brackets": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "a number without end": b'{"format":' + b"9" * 5000 + b"}\n",
        "half a line": lines[-1][:40],
        "the last line again": lines[-1],
        "an earlier line moved": lines[2],
        "its own header again": lines[0],
        "a line of another segment": written[GIVEN_UP][: len(lines[1])],
        "a line of another epoch": foreign[list(foreign)[1]],
        "a seal of another segment": foreign[list(foreign)[-1]],
        "a line of another run": fmt.close_line(lines[-1][:-34], seed, len(written[OPEN]), len(written[OPEN])),
        "everything again": written[OPEN],
    }


WHATEVER = [
    "one zero",
    "a block of zeros",
    "zeros and a newline",
    "newlines",
    "random bytes",
    "random lines",
    "nested brackets",
    "a number without end",
    "half a line",
    "the last line again",
    "an earlier line moved",
    "its own header again",
    "a line of another segment",
    "a line of another epoch",
    "a seal of another segment",
    "a line of another run",
    "everything again",
]


@pytest.mark.parametrize("what", WHATEVER)
def test_whatever_lies_behind_the_end_of_a_segment_is_never_read(run: Path, what: str) -> None:
    """Zeros, junk, and lines that are valid at another place."""
    for name in SEGMENTS:
        check_with(run, name, small_run()[name] + other_lines()[what])


@pytest.mark.parametrize("name", [FIRST, MIDDLE, LAST])
def test_nothing_counts_behind_a_seal(run: Path, name: str) -> None:
    """A seal says that nothing comes after it, also where a line does that fits its place."""
    data = small_run()[name]
    identity = msgspec.json.decode(small_run()["run.json"])["run"]
    seed = fmt.file_seed(fmt.segment_identity(identity, 1, int(name[-7])))
    late = records.Done(key="a#0", epoch=1, attempt=1, seq=9, path="9")
    check_with(run, name, data + fmt.close_line(fmt.encode_record(late), seed, len(data), len(data)))


@pytest.mark.parametrize("what", WHATEVER)
def test_whatever_lies_where_a_line_was_is_never_read(run: Path, what: str) -> None:
    """The lines behind it keep their places, or are pushed away."""
    junk = other_lines()[what]
    for name in SEGMENTS:
        data = small_run()[name]
        for at, line in lines_of(data).items():
            check_with(run, name, data[:at] + junk + data[at:])
            in_place = junk[: len(line) - 1].ljust(len(line) - 1, b"\0") + b"\n"
            check_with(run, name, data[:at] + in_place + data[at + len(line) :])


@pytest.mark.parametrize("name", SEGMENTS)
def test_lines_that_changed_places_are_both_damage(run: Path, name: str) -> None:
    """Each line is bound to its offset."""
    data = small_run()[name]
    lines = list(lines_of(data).values())
    for one in range(len(lines)):
        for other in range(one):
            swapped = [*lines]
            swapped[one], swapped[other] = lines[other], lines[one]
            check_with(run, name, b"".join(swapped), check_loosely)


@pytest.mark.parametrize("name", SEGMENTS)
def test_segments_that_changed_places_are_damage(run: Path, name: str) -> None:
    """Each line is bound to its segment and epoch."""
    written = small_run()
    for other in SEGMENTS:
        check_with(run, name, written[other])


# ---- files that are missing, or are something else -------------------------------------------------------------------


def reports(run: Path) -> list[Damage]:
    """Everything that `verify` says, which the other ways to read agree with."""
    verified: list[Damage] = []
    verify(LocalStore(run), verified.append)
    found = read(LocalStore(run))
    assert bool(verified) == bool(found.damage)
    for place, value in found.values.items():
        assert value == VALUES[place]
    return verified


@pytest.mark.parametrize("name", [FIRST, MIDDLE, GIVEN_UP])
def test_a_missing_segment_is_reported_and_the_others_are_read(run: Path, name: str) -> None:
    """Numbers have no gaps, and a later header says how long it was."""
    (run / name).unlink()
    assert {name, fmt.JOURNAL} >= {one.file for one in reports(run)} >= {name}
    now = {other: data for other, data in small_run().items() if other != name}
    damage: list[Damage] = []
    lines = {(one.epoch, one.segment, one.offset): one.raw for one in Reader(LocalStore(run)).scan(damage.append)}
    assert list(lines.values()) == list(expect(small_run(), now).lines.values())
    assert [one.file for one in damage] == [name]


def test_a_segment_that_a_later_attempt_needs_is_missed_though_nothing_follows_it(run: Path) -> None:
    """Nothing tells that an epoch's last segment existed, but a story that goes on from it has a gap."""
    (run / LAST).unlink()
    assert [one.file for one in reports(run)] == [fmt.JOURNAL]
    shutil.rmtree(run / "journal/00000001")
    assert [one.file for one in reports(run)] == [fmt.JOURNAL]


@pytest.mark.parametrize("name", [*SEGMENTS, *WHOLE, PACK])
def test_a_directory_where_a_file_should_be_is_reported(run: Path, name: str) -> None:
    """It is damage like any other: named, and in nobody's way."""
    (run / name).unlink()
    (run / name).mkdir()
    assert name in {one.file for one in reports(run)}
    found = read(LocalStore(run))
    assert found.values.keys() >= {place for place in VALUES if place[1][0] == (2 if "00000001/" in name else 1)}


@pytest.mark.parametrize("name", ["run.json", PACK])
def test_a_missing_file_is_reported(run: Path, name: str) -> None:
    """The journal is there, so the run is damaged, and never "no run"; all that does not need the file is read."""
    (run / name).unlink()
    assert {one.file for one in reports(run)} == {name}
    assert read(LocalStore(run)).values.keys() >= VALUES.keys() - {("a#0", (1, 1, 2))}
    with pytest.raises(NotARunError):
        Reader(LocalStore(run / "elsewhere"))


@pytest.mark.parametrize("name", ["journal/00000001", "journal/00000002"])
def test_a_file_where_an_epoch_should_be_is_reported_and_the_others_are_read(run: Path, name: str) -> None:
    """What cannot be read is an error, never "nothing there"."""
    shutil.rmtree(run / name)
    (run / name).write_bytes(b"not a directory")
    assert name in {one.file for one in reports(run)}
    other = 3 - int(name[-1])
    assert read(LocalStore(run)).values.keys() >= {place for place in VALUES if place[1][0] == other}


@pytest.mark.parametrize("name", ["journal", "claims"])
def test_a_file_where_all_epochs_should_be_is_an_error_that_says_so(run: Path, name: str) -> None:
    """No part of the run can be told from nothing then."""
    shutil.rmtree(run / name)
    (run / name).write_bytes(b"not a directory")
    for reading in (lambda: verify(LocalStore(run), ignore), lambda: read(LocalStore(run)), lambda: scan(run)):
        with pytest.raises(RolltapeError, match="Not a directory"):
            reading()


@pytest.mark.parametrize("others", [{GIVEN_UP}, {FIRST, GIVEN_UP}, {FIRST, MIDDLE, LAST, OPEN}])
@pytest.mark.parametrize("what", ["a directory", "junk", "nested brackets"])
def test_a_damaged_run_file_and_damaged_segments_hide_nothing_together(run: Path, others: set[str], what: str) -> None:
    """The run's identity is found in any header that is left."""
    (run / "run.json").write_bytes(b"\0")
    for name in others:
        (run / name).unlink()
        if what == "a directory":
            (run / name).mkdir()
        else:
            (run / name).write_bytes(b"\xff\xfe\n" if what == "junk" else other_lines()[what])
    assert {one.file for one in reports(run)} >= {"run.json", *others}
    assert read(LocalStore(run)).values


def test_a_run_of_which_nothing_tells_its_identity_is_an_error(run: Path) -> None:
    """No line can be judged then, and none is returned."""
    (run / "run.json").write_bytes(b"{}")
    for name in SEGMENTS:
        (run / name).write_bytes(b"\n" + small_run()[name])
    with pytest.raises(DamagedError, match=r"run\.json"):
        read(LocalStore(run))
    with pytest.raises(DamagedError, match=r"run\.json"):
        verify(LocalStore(run), ignore)


def test_files_of_others_are_left_alone(run: Path) -> None:
    """Backups, editors' files, whatever the system leaves: not ours, so neither read nor reported."""
    line = lines_of(small_run()[OPEN])[0]
    for folder in (".", "claims", "journal", "journal/00000001", "journal/00000002"):
        for odd in ("notes.txt", ".nfs000000000000001f", "00000001.jsonl~", "00000009.jsonl.bak", "0000009.jsonl"):
            (run / folder / odd).write_bytes(line)
        for odd in ("000000009.jsonl", "00000009.JSONL", "-0000009.jsonl", "٠٠٠٠٠٠٠٩.jsonl", ".tmp-1"):
            (run / folder / odd).write_bytes(line)
        for odd in ("lost+found", "+0000009", "9", "0000_009", "00000009 .json", "٠٠٠٠٠٠٠٩"):
            (run / folder / odd).mkdir()
    assert reports(run) == []
    check(small_run(), small_run(), LocalStore(run))


# ---- other versions --------------------------------------------------------------------------------------------------


def scan(run: Path) -> list[bytes]:
    return [line.raw for line in open_reader(LocalStore(run), ignore).scan(ignore)]


READERS: dict[str, Callable[[Path], object]] = {
    "scan": scan,
    "survey": lambda run: survey(open_reader(LocalStore(run), ignore), ignore),
    "story_of": lambda run: story_of(open_reader(LocalStore(run), ignore), "a#0", ignore),
    "verify": lambda run: verify(LocalStore(run), ignore),
    "read": lambda run: read(LocalStore(run)),
    "follow": lambda run: list(Follower(open_reader(LocalStore(run), ignore), ignore).poll()),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("checksum", ["ours", "unknown"])
@pytest.mark.parametrize("name", ["run.json", OPEN])
def test_a_newer_major_format_is_refused(run: Path, name: str, checksum: str, reader: str) -> None:
    """Whatever its lines look like: nothing is guessed about a format that is not known."""
    header = {**msgspec.json.decode(lines_of(small_run()[name])[0]), "format": 2}
    seed = fmt.file_seed(fmt.segment_identity(header["run"], 2, 2) if name == OPEN else fmt.RUN_FILE)
    newer = fmt.close_line(msgspec.json.encode(header)[:-1], seed, 0, 0)
    if checksum == "unknown":
        newer = msgspec.json.encode({**header, "crc": "sha256:9f86d081884c7d65"}) + b"\n"
    (run / name).write_bytes(newer + (b"\x01\x02 whatever\n" if name == OPEN else b""))
    with pytest.raises(FormatError, match=rf"{name} has format 2.*install a newer one"):
        READERS[reader](run)


@pytest.mark.parametrize("format", [2, 10, 1 << 40])
def test_nothing_is_written_into_a_run_of_a_newer_format(tmp_path: Path, format: int) -> None:
    """Opening it for writing changes no file."""
    body = records.RunCreated(format=format, run="0" * 32, unix_s=0.0)
    (tmp_path / "run.json").write_bytes(fmt.close_line(fmt.encode_record(body), fmt.file_seed(fmt.RUN_FILE), 0, 0))
    before = looks(tmp_path)
    with pytest.raises(FormatError):
        open_writer(LocalStore(tmp_path))
    assert looks(tmp_path) == before


def test_record_types_and_fields_of_a_newer_minor_version_are_skipped(run: Path) -> None:
    """They have their place in the order, nobody reads them, and nothing around them is lost."""
    name = "journal/00000003/00000001.jsonl"
    identity = msgspec.json.decode(small_run()["run.json"])["run"]
    seed = fmt.file_seed(fmt.segment_identity(identity, 3, 1))
    of_a = {"key": "a#0", "epoch": 3, "attempt": 3}
    data = b""
    for record in (
        {"type": "segment", "format": 1, "minor": 7, "run": identity, "epoch": 3, "segment": 1, "shape": [1, 2]},
        {"type": "weather", "epoch": 3, "sky": {"cloudy": True}},
        {"type": "attempt", **of_a, "seq": 0, "continues": [2, 2, 5], "mood": "new"},
        {"type": "hologram", **of_a, "seq": 1, "result": {"value": 1}},
        {"type": "done", **of_a, "seq": 2, "path": "8", "result": {"value": "a8"}, "colour": {"of": "a later version"}},
        {"type": "omen", "key": "c#0"},
    ):
        data += fmt.close_line(msgspec.json.encode(record)[:-1], seed, len(data), len(data))
    (run / name).parent.mkdir()
    (run / name).write_bytes(data)
    verified: list[Damage] = []
    verify(LocalStore(run), verified.append)
    found = read(LocalStore(run))
    assert verified == found.damage == []
    assert found.values == {**VALUES, ("a#0", (3, 3, 2)): "a8"}
    assert found.stories["a#0"].last == (3, 3, 2)


# ---- reading is only reading -----------------------------------------------------------------------------------------


def looks(directory: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a directory that reading it must leave as it is."""
    found = {}
    for path in [directory, *directory.rglob("*")]:
        status = path.stat()
        data = path.read_bytes() if path.is_file() else sorted(child.name for child in path.iterdir())
        found[str(path)] = (data, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, status.st_ino)
    return found


DAMAGES: dict[str, Callable[[Path], object]] = {
    "none": lambda run: None,
    "rot": lambda run: (run / MIDDLE).write_bytes(flipped(small_run()[MIDDLE], 300, 1)),
    "a torn tail": lambda run: (run / OPEN).write_bytes(small_run()[OPEN][:-9] + bytes(99)),
    "a lost header": lambda run: (run / GIVEN_UP).write_bytes(b""),
    "no run file": lambda run: (run / "run.json").unlink(),
    "no segment": lambda run: (run / FIRST).unlink(),
    "no pack": lambda run: (run / PACK).unlink(),
    "a directory": lambda run: ((run / LAST).unlink(), (run / LAST).mkdir()),
    "a leftover": lambda run: (run / "claims/.tmp-1").write_bytes(b"half a cl"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_reading_twice_gives_the_same_and_changes_nothing(run: Path, what: str) -> None:
    """No byte, no time stamp, no name: also not where something is damaged."""
    DAMAGES[what](run)
    before = looks(run)
    answers = []
    for _ in range(2):
        verified: list[Damage] = []
        places = points_of(verify(LocalStore(run), verified.append))
        found = read(LocalStore(run))
        followed = READERS["follow"](run)
        answers.append((verified, places, found.values, found.damage, found.stories.keys(), scan(run), followed))
    assert answers[0] == answers[1]
    assert looks(run) == before


def test_a_writer_opens_no_run_whose_identity_is_damaged(run: Path) -> None:
    """It would write lines that nobody else could judge. It changes nothing instead."""
    for data in (b"", b"{}", flipped(small_run()["run.json"], 40, 1)):
        (run / "run.json").write_bytes(data)
        before = looks(run)
        with pytest.raises(DamagedError, match=r"run\.json"):
            open_writer(LocalStore(run))
        assert looks(run) == before


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_follower_reads_the_same_lines_as_a_scan_of_a_damaged_run(run: Path, name: str) -> None:
    """A rotten header or seal stops nobody who looks for newer attempts in what comes after it."""
    data = small_run()[name]
    for at, line in lines_of(data).items():
        for inside in (0, len(line) // 2):
            (run / name).write_bytes(flipped(data, at + inside, 1))
            assert [line.raw for line in READERS["follow"](run)] == scan(run)  # type: ignore[attr-defined]


# ---- much damage, and many bytes -------------------------------------------------------------------------------------

EDITS = st.lists(
    st.tuples(
        st.sampled_from(SEGMENTS),
        st.sampled_from(["flip", "zero", "cut", "junk", "copy"]),
        st.integers(0, 799),
        st.integers(1, 255),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(edits=EDITS)
@example(edits=[("journal/00000002/00000002.jsonl", "zero", 275, 255)])
def test_any_damages_together_are_found_like_each_alone(edits: list[tuple[str, str, int, int]]) -> None:
    """Bytes changed, zeroed, overwritten with others' or cut off, in several places of several segments."""
    check_together(edits)


@pytest.mark.torture
@settings(max_examples=20_000, deadline=None, database=None)
@given(edits=EDITS)
def test_any_damages_together_are_found_like_each_alone_exhaustively(edits: list[tuple[str, str, int, int]]) -> None:
    """The same with new examples each time."""
    check_together(edits)


def check_together(edits: list[tuple[str, str, int, int]]) -> None:
    written = small_run()
    now = dict(written)
    for name, edit, at, amount in edits:
        data = bytearray(now[name])
        at %= len(data) + 1
        if edit == "flip" and at < len(data) and data[at] not in b"\n1":  # newlines and formats have their own tests
            data[at] ^= amount
        elif edit == "zero":
            data[at : at + amount] = bytes(len(data[at : at + amount]))
        elif edit == "cut":
            del data[at:]
        elif edit == "junk":
            data[at : at + amount] = random.Random(at).randbytes(len(data[at : at + amount])).replace(b"\n", b"x")
        elif edit == "copy":
            data[at : at + amount] = data[: len(data[at : at + amount])]
        now[name] = bytes(data)
    disk = CrashDisk()
    for name, data in now.items():
        disk.write_file(f"{ROOT}/{name}", data)
    check_loosely(written, now, LocalStore(ROOT, fs=disk))


def check_loosely(written: Tree, now: Tree, store: LocalStore) -> None:
    """Where the ends of rotten lines are lost too, it shows only behind them that a torn tail had already begun."""
    expected = expect(written, now)
    damage: list[Damage] = []
    lines = {}
    for line in open_reader(store, damage.append).scan(damage.append):
        lines[fmt.segment_name(line.epoch, line.segment), line.offset] = line.raw
    assert expected.lines.items() <= lines.items()
    for (name, at), line in lines.items():
        assert written[name][at : at + len(line)] == line
        assert (name, at) in expected.lines or any(other == name for other, _ in expected.rotten)
    for name, at in expected.rotten:
        assert any(one.file == name and one.start <= at < one.end for one in damage), (name, at, damage)
    doubtful = {name for name, _ in expected.doubtful}
    assert {one.file for one in damage} - doubtful == {name for name, _ in expected.rotten} - doubtful
    verified: list[Damage] = []
    assert points_of(verify(store, verified.append)) == of_attempts(lines)
    reported = must_be_reported(written, now, lines, expected.rotten)
    assert {one.file for one in verified} - doubtful == reported - doubtful
    for place, value in read(store).values.items():
        assert value == VALUES[place]


@functools.cache
def large_run() -> Tree:
    """Six megabytes in several segments, with a line longer than what a reader reads at once."""
    disk = CrashDisk()
    asyncio.run(_write_large_run(disk))
    return {path.removeprefix(f"{ROOT}/"): data for path, data in disk.tree().items()}


async def _write_large_run(disk: CrashDisk) -> None:
    rng = random.Random(5)
    writer = open_writer(LocalStore(ROOT, fs=disk), WriterConfig(segment_bytes_max=3 << 19))
    log = AttemptLog(writer, "a#0", 1)
    await log.begin(None)
    for group in range(14):
        sizes = [1 << 10] * 200 + [rng.randrange(1, 9_000) for _ in range(30)] + [(3 << 19) if group == 6 else 10]
        values = [rng.randbytes(size // 2).hex() for size in sizes]
        await asyncio.gather(*(step(log, f"{group}/{place}", value) for place, value in enumerate(values)))
    disk.kill()
    close(writer)


def test_a_large_journal_is_read_around_damage_at_sampled_places(tmp_path: Path) -> None:
    """Several megabytes, several segments, lines across the ends of what is read at once: flips, cuts and holes."""
    written = large_run()
    segments = sorted(name for name in written if name.endswith(".jsonl"))
    assert len(segments) >= 3 and sum(map(len, written.values())) > 5 << 20
    for name, data in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    rng = random.Random(7)
    for name in segments:
        data = written[name]
        edges = [at for at in ((1 << 20) - 1, 1 << 20, len(data) - 2) if at < len(data)]
        for at in (*edges, *(rng.randrange(len(data)) for _ in range(2))):
            flip = flipped(data, at, 0x10) if data[at] != ord("\n") else data
            for now in (flip, data[:at], data[:at] + bytes(len(data) - at)):
                overwrite(tmp_path / name, now)
                check_scan(written, {**written, name: now}, LocalStore(tmp_path))
        overwrite(tmp_path / name, data)


def test_a_follower_reads_on_behind_a_directory_in_the_place_of_a_segment(run: Path) -> None:
    """It is reported once, and what other segments of the epoch hold is not hidden by it."""
    name = "journal/00000001/00000001.jsonl"
    (run / name).unlink()
    (run / name).mkdir()
    damage: list[Damage] = []
    follower = Follower(open_reader(LocalStore(run), damage.append), damage.append)
    lines = [(line.epoch, line.segment) for _ in range(2) for line in follower.poll()]
    assert [one.file for one in damage] == [name]
    assert (1, 2) in lines and (2, 1) in lines
    assert (1, 1) not in lines
