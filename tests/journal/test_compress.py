"""Compressing a run: whatever is killed, fails or runs beside it, the run says the same, and another go finishes.

`docs/design/compress.md` says what is on disk after a kill at each step.
"""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from backports import zstd

from rolltape import records
from rolltape.errors import DamagedError, JournalFailed, NotARunError, UsageError
from rolltape.journal import Follower, Reader, WriterConfig, compress, open_reader, open_writer, rely_on, verify
from rolltape.journal import format as fmt
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk
from rolltape.testing.kill import kill_loop, run_until
from tests.journal.compressing import OPEN, ROOT, SEALED, names, new_disk, no_damage, on, said, said_before, tree

CHANGES = {"create", "write", "fsync", "fdatasync", "mkdir", "link", "unlink"}


def contents(disk: CrashDisk) -> dict[str, bytes]:
    """The segments as they were written, by name; a copy decompressed by the standard library's zstd."""
    found: dict[str, bytes] = {}
    for path, data in disk.tree().items():
        name = path.removeprefix(f"{ROOT}/")
        if name.endswith(".jsonl"):
            found[name] = data
        elif (copy := fmt.copy_of(name.rpartition("/")[2])) is not None:
            found[f"{name.rpartition('/')[0]}/{copy[0]:08d}.jsonl"] = zstd.decompress(data)
    return found


SEGMENTS = {name: data for name, data in tree().items() if name.endswith(".jsonl")}


def check_finished(disk: CrashDisk) -> None:
    """Every sealed segment is there once, as a copy; everything is as it was written; the run says the same."""
    files = [name for name in names(disk) if name.endswith((".jsonl", ".zst"))]
    assert len(files) == len(SEGMENTS)
    assert [name for name in files if name.endswith(".jsonl")] == [OPEN]
    assert contents(disk) == SEGMENTS
    assert said(on(disk)) == said_before()


# ---- what it does ----------------------------------------------------------------------------------------------------


def test_the_run_to_compress_means_something():
    """Each kind of segment is in it."""
    assert set(SEALED) | {OPEN} == set(SEGMENTS)
    assert len(said_before().found.values) == 9 and len(said_before().lines) > 20


def test_a_compressed_run_says_what_it_said():
    """Lines, places, values, stories; the torn line of the open segment too, which is nobody's damage."""
    disk = new_disk()
    report = compress(on(disk))
    assert report.compressed == SEALED
    assert [name for name, _ in report.skipped] == [OPEN] and "no seal" in report.skipped[0][1]
    assert report.bytes_before == sum(len(SEGMENTS[name]) for name in SEALED)
    assert report.bytes_after == sum(len(data) for name, data in disk.tree().items() if name.endswith(".zst"))
    check_finished(disk)
    verify(on(disk), no_damage)


def test_what_is_compressed_already_is_left_alone():
    disk = new_disk()
    compress(on(disk))
    before = disk.tree()
    report = compress(on(disk))
    assert (report.compressed, [name for name, _ in report.skipped]) == ([], [OPEN])
    assert disk.tree() == before


def test_packs_claims_and_other_peoples_files_stay():
    disk = new_disk(**{"journal/00000001/notes.txt": b"mine", "journal/00000001/00000009.jsonl.zst.part": b"mine too"})
    before = disk.tree()
    compress(on(disk))
    after = disk.tree()
    assert {n: d for n, d in before.items() if not n.endswith(".jsonl")}.items() <= after.items()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:], "damaged|no seal"),
        (lambda data: data[:300] + b"?" + data[301:], "damaged: journal/00000001/00000003.jsonl"),
        (lambda data: data[:-1], "no seal"),
        (lambda data: data + b"junk", "no seal"),
        (lambda data: data + data.splitlines(keepends=True)[-1], "lies behind its seal"),
        (lambda data: data + b"\0" * 512, "no seal"),
        (lambda data: b"", "no seal"),
        (lambda data: b"\0" * len(data), "no seal"),
        (lambda data: data.splitlines(keepends=True)[-1], "damaged|no seal"),
    ],
)
def test_only_whole_sound_sealed_segments_are_compressed(change, why):
    """Anything else is evidence, and stays as it is."""
    name = SEALED[2]
    disk = new_disk(**{name: change(SEGMENTS[name])})
    before = disk.tree()
    report = compress(on(disk))
    skipped = dict(report.skipped)
    assert name in skipped and any(part in skipped[name] for part in why.split("|")), skipped
    assert disk.tree()[f"{ROOT}/{name}"] == before[f"{ROOT}/{name}"]
    assert set(report.compressed) == set(SEALED) - {name}


def test_a_segment_whose_successor_does_not_count_all_of_it_is_left_alone():
    """Its writer wrote the seal and then could not sync it: what it says behind that point is nobody's."""
    disk = CrashDisk()
    writer = open_writer(on(disk), WriterConfig(segment_bytes_max=1))
    writer.append_from_thread(records.Note(epoch=1, name="one", unix_s=0.0))
    disk.fail("fdatasync")  # of the seal, which is written when the next group rolls
    writer.append_from_thread(records.Note(epoch=1, name="two", unix_s=0.0))
    writer.close()
    disk.heal()
    lines = [line.raw for line in Reader(on(disk)).scan(no_damage)]
    assert b'"seal"' in disk.tree()[f"{ROOT}/journal/00000001/00000002.jsonl"]
    report = compress(on(disk.process()))
    assert report.compressed == [f"journal/00000001/0000000{number}.jsonl" for number in (1, 3)]
    assert [name for name, _ in report.skipped] == ["journal/00000001/00000002.jsonl"]
    assert [line.raw for line in Reader(on(disk)).scan(no_damage)] == lines


def test_a_segment_may_be_compressed_while_its_writer_lives():
    """Sealed is sealed. The writer never looks back."""
    disk = CrashDisk()
    writer = open_writer(on(disk), WriterConfig(segment_bytes_max=300))
    follower = Follower(Reader(on(disk.process())), no_damage)
    told: list[str] = []
    for round in range(8):
        for n in range(4):
            writer.append_from_thread(records.Note(epoch=1, name=f"{round}.{n}", unix_s=0.0))
        compress(on(disk.process()))
        told += [line.decode(records.Note).name for line in follower.poll() if line.envelope().type == "note"]
    writer.close()
    assert told == [f"{round}.{n}" for round in range(8) for n in range(4)]
    assert sum(name.endswith(".zst") for name in names(disk)) > 4
    verify(on(disk), no_damage)


def test_progress_is_told_and_ends_at_the_whole():
    seen: list[tuple[str, int, int]] = []
    compress(on(new_disk()), on_progress=lambda *told: seen.append(told))
    assert [name for name, _, _ in seen] == sorted(SEGMENTS)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen) and seen[-1][1] == seen[-1][2]


@pytest.mark.parametrize("level", [0, 20, -1, 3.5])
def test_a_level_that_makes_no_sense_is_refused(level):
    with pytest.raises(UsageError, match="use 1"):
        compress(on(new_disk()), level=level)


def test_where_there_is_no_run_there_is_nothing_to_compress():
    with pytest.raises(NotARunError):
        compress(on(CrashDisk()))


@pytest.mark.parametrize(("mode", "bits"), [("private", 0o600), ("group", 0o640)])
def test_a_copy_has_the_permissions_of_everything_else(tmp_path, mode, bits):
    _put(tmp_path)
    compress(LocalStore(tmp_path, mode=mode))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.zst")} == {bits}


def _put(root: Path) -> None:
    for name, data in tree().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def test_the_runs_identity_is_found_in_a_copy_when_run_json_is_damaged():
    disk = new_disk()
    compress(on(disk))
    run = Reader(on(disk)).run
    disk.corrupt(f"{ROOT}/run.json", 20)
    disk.truncate(f"{ROOT}/{OPEN}", 0)
    with pytest.raises(DamagedError):
        Reader(on(disk))
    assert open_reader(on(disk), lambda damage: None).run == run


def test_relying_on_a_compressed_segment_syncs_its_copy():
    """Somebody copied the run here, and nothing of it is on disk yet."""
    disk, copied = new_disk(), CrashDisk()
    compress(on(disk))
    store = on(copied)
    copied.write_file(f"{ROOT}/notes.txt", b"not ours")
    for name in sorted(names(disk)):
        folder = os.path.dirname(f"{ROOT}/{name}")
        for depth in range(1, folder.count("/") + 1):
            _make(copied, "/".join(folder.split("/")[: depth + 1]))
        fd = copied.open(f"{ROOT}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        copied.write(fd, disk.tree()[f"{ROOT}/{name}"])
        copied.close(fd)
    assert copied.snapshot().power_cut("nothing").tree() == {f"{ROOT}/notes.txt": b"not ours"}
    rely_on(store, [(1, 1), (1, 2), (1, 3)])
    kept = copied.power_cut("nothing").tree()
    assert {path: data for path, data in disk.tree().items() if "/journal/00000001/" in path}.items() <= kept.items()


def _make(disk: CrashDisk, folder: str) -> None:
    with suppress(FileExistsError):
        disk.mkdir(folder)


# ---- kills, power cuts, failures -------------------------------------------------------------------------------------


def moments(disk: CrashDisk) -> list[tuple[str, CrashDisk]]:
    """The disk before and after each operation of a compress that changes something."""
    found: list[tuple[str, CrashDisk]] = []
    disk.on_operation = lambda op, path: (
        found.append((f"before {op} {path}", disk.snapshot())) if op in CHANGES else None
    )
    disk.on_done = lambda op, path: found.append((f"after {op} {path}", disk.snapshot())) if op in CHANGES else None
    compress(on(disk))
    disk.on_operation = disk.on_done = None
    return found


def check_goes_on(disk: CrashDisk) -> None:
    """It says the same now; another compress finishes; and whatever a power cut makes of that says the same."""
    assert said(on(disk)) == said_before()
    compress(on(disk))
    check_finished(disk)
    assert said(on(disk.power_cut("nothing"))) == said_before()


def check_every_crash(disk: CrashDisk, limit: int | None) -> int:
    looked, seen = 0, set()
    for _, moment in moments(disk):
        for state in [moment.snapshot().kill(), *moment.crash_states(limit)]:
            looked += 1
            files = tuple(sorted((path, data) for path, data in state.tree().items() if "/.tmp-" not in path))
            if files not in seen:
                seen.add(files)
                check_goes_on(state)
    return looked


def test_a_crash_at_any_operation_loses_nothing():
    """Killed, or the power cut, before and after each operation, in every state that this could leave."""
    assert check_every_crash(new_disk(), 200) > 200


def test_a_crash_while_a_crash_is_made_good_loses_nothing():
    """Leftovers of a killed compress are there: a copy beside its lines, and two copies."""
    states = {}
    for name, moment in moments(new_disk()):
        if "unlink" in name and "00000001/00000002.jsonl" in name:
            states[name] = moment
    assert states
    for moment in states.values():
        assert check_every_crash(moment.snapshot().kill(), 100) > 100


def check_every_failure(error: int, forever: bool, *operations: str) -> None:
    seen: set[object] = set()
    for op in operations:
        nth = 1
        while True:
            disk = new_disk()
            fault = disk.fail(op, nth, error, forever=forever)
            failed, skipped = False, dict[str, str]()
            try:
                skipped = dict(compress(on(disk)).skipped)
            except (JournalFailed, DamagedError):
                failed = True
            if not fault.fired:
                break
            left = {name for name in SEALED if f"{ROOT}/{name}" in disk.tree()}
            assert failed or left == {name for name in SEALED if "cannot be read" in skipped.get(name, "")}, (op, nth)
            after = disk.kill()
            for state in (after.snapshot(), *after.crash_states(20)):
                files = tuple(sorted((path, data) for path, data in state.tree().items() if "/.tmp-" not in path))
                if files not in seen:
                    seen.add(files)
                    check_goes_on(state)
            nth += 1
        assert nth > 5, op


WRITING = ("create", "write", "fsync", "link", "unlink")
READING = ("open", "pread", "listdir", "stat", "close")


@pytest.mark.parametrize("forever", [False, True])
def test_each_operation_that_fails_is_told_and_costs_nothing(forever):
    """It says what was refused, or what it left alone; the next go finishes."""
    check_every_failure(errno.EIO, forever, *WRITING)
    check_every_failure(errno.EACCES, forever, *READING)


@pytest.mark.torture
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ESTALE])
@pytest.mark.parametrize("forever", [False, True])
def test_each_operation_that_fails_in_any_way_is_told_and_costs_nothing(error, forever):
    check_every_failure(error, forever, *WRITING, *READING)


@pytest.mark.parametrize(
    ("error", "advice"), [(errno.ENOSPC, "Free some space"), (errno.EROFS, "read-only"), (errno.EIO, "check the disk")]
)
def test_a_failure_says_what_to_do(error, advice):
    disk = new_disk()
    disk.fail("write", error=error)
    with pytest.raises(JournalFailed, match=advice):
        compress(on(disk))


def test_what_a_failed_sync_left_in_doubt_is_relied_on_by_nobody():
    """A copy whose name may never reach the disk looks like any other; the next process makes one of its own."""
    nth = 1
    while True:
        disk = new_disk()
        fault = disk.fail("fsync", nth)
        with suppress(JournalFailed):
            compress(on(disk))
        if not fault.fired:
            break
        after = disk.kill()
        compress(on(after))
        for state in after.crash_states():
            assert said(on(state)) == said_before()
        nth += 1
    assert nth > 10


def test_a_copy_that_reads_back_otherwise_is_deleted_and_the_lines_stay():
    """Faulty memory, or a disk that lies."""
    disk = new_disk()

    def damage(op: str, path: str) -> None:
        if op == "unlink" and ".tmp-" in path:
            disk.corrupt(path, 30)

    disk.on_operation = damage
    with pytest.raises(JournalFailed, match=r"00000001\.jsonl\.zst reads back otherwise"):
        compress(on(disk))
    disk.on_operation = None
    assert names(disk) == set(tree())
    check_goes_on(disk)


def test_a_leftover_that_is_damaged_or_somebody_elses_is_replaced():
    """The lines count while they are there; the leftover goes when a good copy is on disk."""
    for leftover in (b"", b"rubbish", b"\0" * 4096, zstd.compress(b"something else\n")):
        disk = new_disk(**{f"{SEALED[0]}.zst": leftover, "journal/00000001/00000002.7.jsonl.zst": leftover})
        check_goes_on(disk)


def test_of_several_copies_the_highest_counts_and_is_left_in_the_end():
    """What a compress leaves that was killed when the lines were gone already: a leftover that nobody believes in."""
    disk = new_disk()
    compress(on(disk))
    copies = disk.tree()
    for name in SEALED:
        disk.write_file(f"{ROOT}/{name.removesuffix('.jsonl')}.2.jsonl.zst", copies[f"{ROOT}/{name}.zst"])
        disk.write_file(f"{ROOT}/{name}.zst", b"rubbish")
    assert said(on(disk)) == said_before()
    assert compress(on(disk)).compressed == SEALED
    check_finished(disk)
    assert {name for name in names(disk) if name.endswith(".zst")} == {f"{name[:-6]}.3.jsonl.zst" for name in SEALED}


# ---- beside others ---------------------------------------------------------------------------------------------------


def followed(follower: Follower) -> list[tuple[int, int, int, bytes]]:
    return [tuple(line) for line in follower.poll()]


def test_followers_and_readers_beside_it_see_everything_once():
    """One follower that polls all the time, one that begins at each operation and goes on at the end."""
    disk = new_disk()
    always, late = Follower(Reader(on(disk.process())), no_damage), []
    seen: list[tuple[int, int, int, bytes]] = []

    def look(op: str, path: str) -> None:
        seen.extend(followed(always))
        begun = Follower(Reader(on(disk.process())), no_damage)
        poll = begun.poll()
        late.append((begun, poll, [tuple(next(poll)) for _ in range(len(late) % 20)]))
        if op in CHANGES:
            assert said(on(disk.process())) == said_before()

    disk.on_operation = look
    compress(on(disk))
    assert seen + followed(always) == said_before().lines
    for begun, poll, first in late:
        rest = [tuple(line) for line in poll]
        assert first + rest + followed(begun) == said_before().lines
    assert len(late) > 100


def overtaken(nth: int) -> bool:
    """Compress the whole run before the nth operation of a reading. False: it had fewer."""
    disk, count = new_disk(), 0
    process = disk.process()

    def overtake(op: str, path: str) -> None:
        nonlocal count
        if count == nth:
            compress(on(disk))
        count += 1

    process.on_operation = overtake
    assert [tuple(line) for line in Reader(on(process)).scan(no_damage)] == said_before().lines, nth
    return count > nth


def test_a_reader_that_is_overtaken_between_any_two_of_its_operations_misses_nothing():
    """All at once, at one moment of the reading. A listing may miss a segment under both of its names."""
    nth = 0
    while overtaken(nth):
        nth += 1
    assert nth > 50


def compressed_twice(nth: int) -> tuple[CrashDisk, list[CrashDisk]]:
    """Run a second compress before the nth change that the first makes. The disk, and what it was after that."""
    disk, count = new_disk(), 0
    states: list[CrashDisk] = []

    def run_another(op: str, path: str) -> None:
        nonlocal count
        if op in CHANGES:
            if count == nth:
                compress(on(disk.process()))
            if count >= nth:
                states.append(disk.snapshot())
            count += 1

    disk.on_operation = run_another
    compress(on(disk))
    disk.on_operation = None
    return disk, states


def test_a_second_compress_at_any_operation_of_the_first_does_no_harm():
    """Whichever is first: the run says the same, also after a power cut, and one copy of each is left in the end."""
    nth = 0
    while (found := compressed_twice(nth))[1]:
        disk, states = found
        for state in [*states[:6], disk]:
            assert said(on(state.snapshot().power_cut("nothing"))) == said_before()
        compress(on(disk.process()))
        check_finished(disk)
        nth += 1
    assert nth > 30


def test_many_at_once_on_a_real_disk(tmp_path):
    """Threads that compress, threads that read."""
    _put(tmp_path)
    failed: list[BaseException] = []

    def doing(what) -> None:
        try:
            for _ in range(3):
                what()
        except BaseException as error:
            failed.append(error)

    def look() -> None:
        assert [tuple(line) for line in Reader(LocalStore(tmp_path)).scan(no_damage)] == said_before().lines

    threads = [
        threading.Thread(target=doing, args=[what]) for what in 3 * [lambda: compress(LocalStore(tmp_path)), look]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    compress(LocalStore(tmp_path))
    assert len(list(tmp_path.rglob("*.zst"))) == len(SEALED)
    assert said(LocalStore(tmp_path)) == said_before()


def test_torture_read_says_the_same_of_a_run_that_is_compressed_in_part_and_whole(tmp_path):
    """Every acknowledged step, with its hash, from the outside."""
    plan = ["--seed", "1", "--trajectories", "3", "--steps", "12", "--segment-bytes-max", "4000"]
    told = [_torture("torture-write", tmp_path, *plan), _torture("torture-read", tmp_path)]
    late = sorted(tmp_path.rglob("*.jsonl"))[-1]
    kept = late.read_bytes()
    late.write_bytes(kept[:-1])
    assert compress(LocalStore(tmp_path)).skipped
    late.write_bytes(kept)
    assert _torture("torture-read", tmp_path) == told[1] and told[1].count("HAVE") == 36
    assert compress(LocalStore(tmp_path)).skipped == []
    assert _torture("torture-read", tmp_path) == told[1] and "CORRUPT" not in told[1]


def _torture(command: str, folder: Path, *options: str) -> str:
    argv = [sys.executable, "-m", "rolltape.testing", command, "--dir", str(folder), *options]
    return subprocess.run(argv, check=True, timeout=120, capture_output=True, text=True).stdout


# ---- processes that are really killed --------------------------------------------------------------------------------

COMPRESS = """
import sys
from rolltape.journal import compress
from rolltape.store import LocalStore
print("begin")
compress(LocalStore(sys.argv[1]), on_progress=lambda name, done, total: print(name))
"""


def written(folder: Path, notes: int) -> list[tuple[int, int, int, bytes]]:
    """A closed run of many segments, and its lines."""
    writer = open_writer(LocalStore(folder), WriterConfig(segment_bytes_max=200_000, durability="os"))
    bodies = [records.Note(epoch=1, name=f"{n} " + "x" * (n % 7) * 500, unix_s=0.0) for n in range(notes)]
    for future in [writer.put_from_thread(fmt.encode_record(body)) for body in bodies]:
        future.result()
    writer.close()
    return lines_in(folder)


def lines_in(folder: Path) -> list[tuple[int, int, int, bytes]]:
    return [tuple(line) for line in Reader(LocalStore(folder)).scan(no_damage)]


def check_killed_and_finished(folder: Path, before: list[tuple[int, int, int, bytes]], segments: int) -> None:
    subprocess.run([sys.executable, "-c", COMPRESS, str(folder)], check=True, timeout=120, stdout=subprocess.DEVNULL)
    assert lines_in(folder) == before
    assert len(list(folder.rglob("*.zst"))) == segments and not list(folder.rglob("*.jsonl"))


def test_a_compress_that_is_really_killed_loses_nothing(tmp_path):
    """Right after it began with a segment."""
    before = written(tmp_path, notes=6_000)
    segments = len(list(tmp_path.rglob("*.jsonl")))
    for nth in (1, 2, 1, 3):
        run_until(["-c", COMPRESS, str(tmp_path)], timeout_s=60, kill_when=_nth(nth))
        assert lines_in(tmp_path) == before
    check_killed_and_finished(tmp_path, before, segments)


def _nth(number: int) -> Callable[[str], bool]:
    """Accept that line of the child's."""
    told = itertools.count(1)
    return lambda line: next(told) == number


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(3))
def test_a_compress_that_is_killed_at_many_moments_loses_nothing(tmp_path, seed):
    """Any moment: in the middle of a write, a sync, a deletion."""
    before = written(tmp_path, notes=40_000)
    segments = len(list(tmp_path.rglob("*.jsonl")))

    def between(lines: list[str]) -> None:
        assert lines_in(tmp_path) == before

    ended = kill_loop(["-c", COMPRESS, str(tmp_path)], rounds=40, seed=seed, between=between)
    assert sum(round.killed for round in ended) > 10
    check_killed_and_finished(tmp_path, before, segments)


@pytest.mark.torture
def test_every_disk_that_a_power_cut_of_a_compress_could_leave():
    check_every_crash(new_disk(), None)
