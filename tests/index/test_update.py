"""The index is never ahead of what is proven, never behind what is there, and does not read what it has read."""

from __future__ import annotations

import errno
import itertools
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape import records
from rolltape.index import Catalogue, Query, Updater, update
from rolltape.journal import Reader, Writer, WriterConfig, compress, open_writer
from rolltape.journal import format as fmt
from rolltape.journal.epochs import claim_epoch, create_run
from rolltape.journal.segment import SegmentWriter
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk
from tests.index.compare import Says, built_anew, check, check_against_the_run, said_by

HANG_S = 30.0
"""Whatever takes longer hangs. Nothing is timed by it."""


def on(disk: CrashDisk) -> LocalStore:
    return LocalStore("/run", fs=disk)


def put(writer: Writer, key: str, seq: int, attempt: int = 1, size: int = 0) -> None:
    """Write one record of an attempt: its first if `seq` is 0, a step else."""
    fields: dict[str, Any] = {"key": key, "epoch": writer.epoch, "attempt": attempt, "seq": seq, "unix_s": 1000.0 + seq}
    record = records.Attempt(**fields) if seq == 0 else records.Done(**fields, path=f"{seq}{'x' * size}")
    writer.put_from_thread(fmt.encode_record(record)).result(HANG_S)


def write(disk: CrashDisk, keys: list[str], steps: int, segment_bytes_max: int = 1000) -> Writer:
    """Write so many steps of each trajectory, in turn, and leave the writer open."""
    writer = open_writer(on(disk.process()), WriterConfig(segment_bytes_max=segment_bytes_max))
    for seq in range(steps + 1):
        for key in keys:
            put(writer, key, seq)
    return writer


class Index:
    """An index that lies elsewhere than the run, and survives what happens there."""

    def __init__(self, disk: CrashDisk, path: str = ":memory:") -> None:
        self.reader = Reader(on(disk.process()))
        self.catalogue = Catalogue(path, self.reader.run)
        self.updater = Updater(self.catalogue, self.reader)

    def on(self, disk: CrashDisk) -> Index:
        """The same index, of another disk, by another reader."""
        self.reader = Reader(on(disk.process()), run=self.reader.run)
        self.updater = Updater(self.catalogue, self.reader)
        return self

    def check(self, *, damage: bool = True) -> Says:
        assert self.updater.update()
        return check(self.catalogue, self.updater, self.reader, damage=damage)

    def a_while_passes(self) -> None:
        with self.catalogue.writing():
            self.catalogue._db.execute("UPDATE cursor SET grown_s = grown_s - 1000")

    def copy(self) -> Index:
        twin = Index.__new__(Index)
        twin.reader = self.reader
        twin.catalogue = Catalogue(":memory:", self.reader.run)
        self.catalogue._db.backup(twin.catalogue._db)
        twin.updater = Updater(twin.catalogue, twin.reader)
        return twin


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(update, "SLICE_LINES", 3)
    yield


# ---- as the run grows ------------------------------------------------------------------------------------------------


def test_an_index_that_is_brought_up_after_every_record_equals_a_new_one():
    """With several writers that take turns, over many segments, compressed ones too."""
    disk = CrashDisk()
    writers = [open_writer(on(disk.process()), WriterConfig(segment_bytes_max=700)) for _ in range(2)]
    index = Index(disk)
    for seq in range(25):
        for number, writer in enumerate(writers):
            put(writer, f"q{number}#{seq % 2}", seq // 2, size=seq)
            index.check()
        if seq % 8 == 7:
            assert compress(on(disk.process())).compressed
            index.check()
    for writer in writers:
        writer.close()
        index.check()
    compress(on(disk.process()))
    index.check()


def test_step_by_step_equals_one_go(small_slices: None):
    """A budget of nothing still gets further each time, and ends."""
    disk = CrashDisk()
    write(disk, ["a#0", "b#0"], 30).close()
    live = write(disk, ["b#0", "c#0"], 20, 1 << 20)
    index, seen, steps = Index(disk), [0], 0
    while not index.updater.update(budget_s=0):
        steps += 1
        assert not index.updater.complete
        assert index.updater.done_bytes > seen[-1]
        seen.append(index.updater.done_bytes)
        rows = said_by(index.catalogue, index.updater).rows
        assert rows.keys() <= {"a#0", "b#0", "c#0"}
    assert steps > 20
    index.check()
    live.close()
    index.check()


def test_a_budget_is_kept_where_segments_are_small():
    """Not only inside one: a run may have very many."""
    disk = CrashDisk()
    for _ in range(20):
        write(disk, ["a#0"], 2).close()
    index, steps = Index(disk), 1
    while not index.updater.update(budget_s=0):
        steps += 1
    assert steps >= 20
    index.check()


@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_a_torn_tail_of_any_length_is_not_indexed(data: st.DataObject):
    """Whatever the index had seen before the machine lost it; it was looked at only as far as it was proven."""
    disk = CrashDisk()
    writer = open_writer(on(disk.process()), WriterConfig(durability="os", background_sync_s=HANG_S))
    index = Index(disk)
    synced = 0
    for seq in range(12):
        put(writer, "a#0", seq, size=data.draw(st.integers(0, 40)))
        if data.draw(st.booleans()):
            index.updater.update()
        if seq == 5:
            name = fmt.segment_name(1, 1)
            on(disk.process()).sync(name)  # as `rely_on` does for whoever continues
            synced = len(disk.tree()[f"/run/{name}"])
    path = f"/run/{fmt.segment_name(1, 1)}"
    whole = disk.tree()[path]
    disk.kill()
    cut = len(whole) - data.draw(st.integers(0, 10**6)) % (len(whole) - synced + 1)
    after = disk.power_cut("everything")
    after.truncate(path, cut)
    index.on(after).check()
    writer.close()


def a_reader_meets_another(disk: CrashDisk, path: str, moment: int, live: Writer) -> bool:
    """At the nth operation of one, the other empties the index, or brings some or all of it up. False: there is none.

    Both have the same index, and more was written meanwhile.
    """
    one, other, left = Index(disk, path), Index(disk, path), moment
    mine = disk.process()
    one.reader = Reader(on(mine), run=one.reader.run)
    one.updater = Updater(one.catalogue, one.reader)

    def come_by(op: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            put(live, "a#0", 6 + moment)
            if moment % 2:
                other.catalogue.rebuild()
            if moment % 4 < 3:
                other.updater.update(budget_s=None if moment % 4 else 0)

    mine.on_operation = come_by
    assert one.updater.update()
    mine.on_operation = None
    assert built_anew(one.reader).rows["b#0"] == said_by(one.catalogue, one.updater).rows["b#0"]
    for index in (one, other):
        index.check()
        index.catalogue.close()
    return left <= 0


def test_two_readers_take_turns_and_neither_redoes_what_the_other_did(tmp_path: Path, small_slices: None):
    """Whenever, between two operations of one, the other comes by."""
    disk = CrashDisk()
    write(disk, ["a#0", "b#0"], 8, 1500).close()
    live = write(disk, ["a#0", "c#0"], 4, 1 << 20)
    moment = 1
    while a_reader_meets_another(disk, str(tmp_path / f"{moment}.sqlite"), moment, live):
        moment += 3
    assert moment > 30
    live.close()


def test_an_update_that_is_stopped_anywhere_in_a_transaction_leaves_nothing_of_it(tmp_path: Path, small_slices: None):
    """SQLite itself stops it after so many of its instructions; the next reader goes on."""
    disk = CrashDisk()
    write(disk, ["a#0", "b#0"], 6, 1 << 20).close()
    path, stopped = str(tmp_path / "index.sqlite"), 0
    for moment in itertools.count(1):
        index, left = Index(disk, path), moment * 7

        def tick() -> bool:
            nonlocal left
            left -= 1
            return left <= 0

        index.catalogue._db.set_progress_handler(tick, 10)
        try:
            index.updater.update()
        except sqlite3.OperationalError as error:
            assert "interrupted" in str(error)
            stopped += 1
        index.catalogue.close()
        again = Index(disk, path)
        again.check()
        again.catalogue.rebuild()
        again.catalogue.close()
        if left > 0:
            break
    assert stopped > 10


# ---- power -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_no_power_cut_leaves_the_index_ahead_of_the_run(durability: Any):
    """At every operation of a writer, every disk that may be left, with an index that had seen what there was."""
    states = cuts = 0
    rng = random.Random(7)
    disk = CrashDisk()
    first = open_writer(on(disk.process()), WriterConfig(segment_bytes_max=500))
    put(first, "a#0", 0)
    put(first, "a#0", 1)
    index = Index(disk)
    mine = disk.process()

    def look(op: str, path: str) -> None:
        nonlocal states, cuts
        if op not in ("write", "fsync", "fdatasync", "link"):
            return
        index.updater.update()
        if rng.random() < 0.2:
            index.a_while_passes()  # then the next look syncs what it reads
            index.updater.update()
        cuts += 1
        for state in disk.crash_states(limit=6, seed=cuts):
            states += 1
            index.copy().on(state).check()

    mine.on_operation = mine.on_done = look
    config = WriterConfig(segment_bytes_max=600, durability=durability, background_sync_s=HANG_S)
    second = open_writer(on(mine), config)
    for seq in range(4):
        put(second, "a#0", seq, size=50)
        put(second, "b#0", seq, size=50)
    second.close()
    mine.on_operation = mine.on_done = None
    first.close()
    assert cuts > 25 and states > 50


def test_what_a_writer_gave_up_after_it_was_taken_for_settled_is_not_shown():
    """A disk stays full for longer than a reader waits: the reader syncs what is there, and then it does not count."""
    disk = CrashDisk()
    mine = disk.process()
    writer = open_writer(on(mine))
    for seq in range(3):
        put(writer, "a#0", seq)
    index = Index(disk)
    index.check()
    stuck, go_on = threading.Event(), threading.Event()

    def hold(op: str, path: str) -> None:
        if op == "fdatasync":
            stuck.set()
            assert go_on.wait(HANG_S)

    mine.on_operation = hold
    mine.fail("fdatasync", error=errno.ENOSPC)
    body = fmt.encode_record(records.Done(key="a#0", epoch=1, attempt=1, seq=3, path="3", unix_s=1.0))
    lost = fmt.encode_record(records.Failed(key="b#0", epoch=1, attempt=1, seq=0, path="3", error=msgspec.Raw(b"{}")))
    waiting = writer.put_from_thread(body)
    assert stuck.wait(HANG_S)
    index.check()
    index.a_while_passes()
    index.check()  # settled: it is on disk, and nobody knows better yet
    mine.on_operation = None
    go_on.set()
    waiting.result(HANG_S)
    index.check()  # it counts where it was written again
    writer.put_from_thread(lost).result(HANG_S)
    index.check()
    writer.close()
    index.check()


def test_a_record_that_failed_after_it_was_taken_for_settled_is_not_shown():
    """Its waiter was told that it is not there; a new index does not find it either."""
    disk = CrashDisk()
    mine = disk.process()
    writer = open_writer(on(mine))
    put(writer, "a#0", 0)
    index = Index(disk)
    index.check()

    def look(op: str, path: str) -> None:
        if op == "fdatasync":
            mine.on_operation = None
            index.check()
            index.a_while_passes()
            assert index.check().rows["a#0"].steps == 1

    mine.on_operation = look
    mine.fail("fdatasync", error=errno.EIO)
    with pytest.raises(Exception, match="Input/output error"):
        put(writer, "a#0", 1)
    put(writer, "b#0", 0)
    assert index.check().rows["a#0"].steps == 0
    writer.close()
    assert index.check().rows["a#0"].steps == 0


def test_what_a_failed_sync_covered_is_never_taken_for_settled():
    """It counts, and is shown; but no later sync makes it survive a power cut, so the index does not hold it."""
    disk = CrashDisk()
    mine = disk.process()
    writer = open_writer(on(mine), WriterConfig(durability="os", background_sync_s=HANG_S))
    for seq in range(4):
        put(writer, "a#0", seq)
    mine.fail("fdatasync", error=errno.EIO)
    body = fmt.encode_record(records.Note(epoch=1, name="n", unix_s=1.0))
    with pytest.raises(Exception, match="Input/output error"):
        writer.put_from_thread(body, sync=True).result(HANG_S)
    put(writer, "b#0", 0)
    index = Index(disk)
    for _ in range(3):
        assert index.check().rows["a#0"].steps == 3
        index.a_while_passes()
    for state in disk.crash_states(limit=40):
        index.copy().on(state).check()
    assert index.on(disk.power_cut()).check().rows.get("a#0") is None
    writer.close()


def test_a_file_that_was_cut_is_read_again():
    """A copy of an older state was put in its place, say."""
    disk = CrashDisk()
    write(disk, ["a#0", "b#0"], 10, 1 << 20).close()
    index = Index(disk)
    index.check()
    path = f"/run/{fmt.segment_name(1, 1)}"
    disk.truncate(path, len(disk.tree()[path]) // 2)
    assert index.check().rows["a#0"].steps < 10


# ---- damage ----------------------------------------------------------------------------------------------------------


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_damage_is_kept_whichever_way_it_was_met(data: st.DataObject):
    """The bytes go bad before they are looked at: the index grown in steps has what a new one has."""
    disk = CrashDisk()
    writer = write(disk, ["a#0", "b#0"], 5, data.draw(st.sampled_from([700, 1 << 20])))
    index = Index(disk)
    before = disk.tree()
    index.check()
    for seq in range(6, 12):
        put(writer, "a#0", seq)
    if data.draw(st.booleans()):
        writer.close()
    for path, content in sorted(disk.tree().items()):
        new = range(len(before.get(path, b"")), len(content))
        if path.endswith(".jsonl") and new and data.draw(st.booleans()):
            for _ in range(data.draw(st.integers(1, 3))):
                at = new[data.draw(st.integers(0, 10**6)) % len(new)]
                disk.corrupt(path, at, data.draw(st.sampled_from([1, 0x80, ord("\n")])))
    try:
        update.SLICE_LINES = data.draw(st.sampled_from([1, 2, 16_384]))
        while not index.updater.update(budget_s=0):
            pass
    finally:
        update.SLICE_LINES = 16_384
    index.check()
    writer.close()
    index.check()


def test_a_segment_that_is_missing_is_told_with_every_list():
    """And nothing that can be read is left out."""
    disk = CrashDisk()
    write(disk, ["a#0"], 20).close()
    path = f"/run/{fmt.segment_name(1, 2)}"
    disk.unlink(path)
    says = Index(disk).check()
    assert [damage.file for damage in says.damage] == [fmt.segment_name(1, 2)]
    assert says.rows["a#0"].damage


class BadSector(LocalStore):
    """A store on a disk that cannot read one place of the first segment."""

    bad = 0

    def read(self, name: str, start: int, end: int) -> bytes:
        if name == fmt.segment_name(1, 1) and start <= self.bad < end:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(name, start, end)


@pytest.mark.parametrize("sealed", [True, False])
def test_an_unreadable_part_hides_nothing_that_lies_before_it(sealed: bool):
    """The disk fails in the middle of a long segment; what was read until then is shown, as `Reader.scan` gives it."""
    disk = CrashDisk()
    writer = write(disk, ["a#0", "b#0"], 40, 64 << 20)
    for seq in range(41, 47):
        put(writer, "a#0", seq, size=700_000)
    if sealed:
        writer.close()
    grown, shown = Index(disk), list[int]()
    grown.updater.update()
    for bad in (100_000, 1_500_000, 2_500_000, 3_500_000):
        store = BadSector("/run", fs=disk.process())
        store.bad = bad
        reader = Reader(store)
        anew = built_anew(reader)
        check_against_the_run(anew, reader)
        assert [damage.reason for damage in anew.damage] == ["cannot be read: Input/output error"]
        shown.append(anew.rows["a#0"].steps if anew.rows else 0)
        grown.reader = reader
        grown.updater = Updater(grown.catalogue, reader)
        assert grown.updater.update()
        assert said_by(grown.catalogue, grown.updater).rows["a#0"].steps >= shown[-1]
    assert shown == [0, 41, 42, 44], shown
    grown.on(disk).check()
    writer.close()


def test_a_segment_whose_successor_cannot_be_read_is_told_and_nothing_else_is_lost():
    """How much of it counts would stand there."""
    disk = CrashDisk()
    write(disk, ["a#0"], 20).close()
    write(disk, ["b#0"], 3).close()
    bad = disk.process()
    bad.fail("pread", error=errno.EIO, forever=True, path="00000001/00000003.jsonl")
    reader = Reader(on(bad))
    says = built_anew(reader)
    assert {damage.reason for damage in says.damage} == {"cannot be read: Input/output error"}
    assert says.rows["b#0"].steps == 3
    check_against_the_run(says, reader)


def test_of_a_record_that_is_visible_twice_the_first_counts():
    """The header that says how much of the first file counts is damaged."""
    disk = CrashDisk()
    mine = disk.process()
    writer = open_writer(on(mine))
    for seq in range(20):
        put(writer, "a#0", seq)
    mine.fail("fdatasync", error=errno.ENOSPC)
    put(writer, "a#0", 20)  # written to the first segment, and again to the second, where its line is shorter
    put(writer, "a#0", 21)
    writer.close()
    disk.corrupt(f"/run/{fmt.segment_name(1, 2)}", 30)
    says = Index(disk).check()
    assert says.rows["a#0"].steps == 21


# ---- how much is read ------------------------------------------------------------------------------------------------


def opened_by(disk: CrashDisk, index: Index) -> Counter[str]:
    """Update, and return which segments were opened how often."""
    mine, opened = disk.process(), Counter[str]()
    mine.on_operation = lambda op, path: opened.update([path]) if op == "open" and "jsonl" in path else None
    index.on(mine)
    index.reader = Reader(on(mine), run=index.reader.run)
    index.updater = Updater(index.catalogue, index.reader)
    assert index.updater.update()
    return opened


def test_what_is_sealed_is_not_opened_again_and_the_tail_is_read_each_time():
    """However often somebody looks."""
    disk = CrashDisk()
    write(disk, ["a#0"], 40).close()
    live = write(disk, ["b#0"], 40)
    index = Index(disk)
    assert len(opened_by(disk, index)) > 10
    newest = f"00000002/{max(Reader(on(disk)).segments(2)):08d}"
    for _ in range(3):
        assert all(newest in name for name in opened_by(disk, index))
    index.a_while_passes()
    assert opened_by(disk, index)  # it is synced, and read to its end
    assert not opened_by(disk, index)
    put(live, "b#0", 41)
    assert opened_by(disk, index)
    live.close()
    assert opened_by(disk, index)
    assert not opened_by(disk, index)
    index.check()


def test_bytes_are_read_once():
    """An update that finds nothing new reads the last group of each live writer, not its segment."""
    disk = CrashDisk()
    live = write(disk, ["a#0"], 3000, 64 << 20)
    index = Index(disk)
    index.check()
    mine, read = disk.process(), 0
    store = on(mine)
    plain = store.read

    def counting(name: str, start: int, end: int) -> bytes:
        nonlocal read
        data = plain(name, start, end)
        read += len(data)
        return data

    store.read = counting  # type: ignore[method-assign]
    updater = Updater(index.catalogue, Reader(store))
    read = 0
    assert updater.update()
    assert read < 5000
    live.close()


# ---- what a row is made of -------------------------------------------------------------------------------------------


@given(
    key=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    task=st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    number=st.integers(-(2**63), 2**63 - 1),
    unix_s=st.floats(1, 1e11),
)
@settings(deadline=None, max_examples=80)
def test_whatever_a_record_says_is_found_again(key: str, task: str, reward: float | None, number: int, unix_s: float):
    """Keys with quotes and zeros in them, huge numbers."""
    disk = CrashDisk()
    writer = open_writer(on(disk.process()))
    id = {"key": key, "epoch": 1, "attempt": 1}
    for record in (
        records.Attempt(**id, seq=0, task=task, visit=number, sample=number, unix_s=unix_s),
        records.Outcome(**id, seq=1, status="completed", reward=reward, unix_s=unix_s),
        records.Accepted(**id, seq=2, unix_s=unix_s),
    ):
        writer.put_from_thread(fmt.encode_record(record)).result(HANG_S)
    index = Index(disk)
    row = index.check().rows[key]
    assert (row.reward, row.status) == (reward, "completed")
    if task:
        assert (row.task, row.visit, row.sample) == (task, number, number)
    assert row.started == row.ended == round(unix_s * 1000) / 1000
    assert list(index.catalogue.rows(Query(text=key))) == [row]
    writer.close()
    assert index.check().rows == {key: row}


def test_rows_do_not_depend_on_the_order_in_which_records_came():
    """An older epoch may be read after the newer one that continues it."""
    disk = CrashDisk()
    old = write(disk, ["a#0"], 5)
    new = open_writer(on(disk.process()))
    index = Index(disk)
    attempt = records.Attempt(key="a#0", epoch=2, attempt=1, seq=0, continues=(1, 1, 5), unix_s=1.0)
    new.put_from_thread(fmt.encode_record(attempt)).result(HANG_S)
    index.check()
    put(old, "a#0", 6)
    row = index.check().rows["a#0"]
    assert (row.steps, row.attempts, row.epoch, row.damage) == (5, 2, 2, "")
    old.close()
    new.close()
    index.check()


def test_what_goes_on_from_a_record_that_comes_while_one_looks_is_no_damage():
    """An older epoch adds a record after it was read, and the newer one, not read yet, goes on from it."""
    disk = CrashDisk()
    old = write(disk, ["a#0"], 3)
    new = open_writer(on(disk.process()))
    mine = disk.process()

    def meanwhile(op: str, path: str) -> None:
        if op == "open" and "journal/00000002/" in path:
            mine.on_operation = None
            put(old, "a#0", 4)
            attempt = records.Attempt(key="a#0", epoch=2, attempt=1, seq=0, continues=(1, 1, 4), unix_s=1.0)
            new.put_from_thread(fmt.encode_record(attempt)).result(HANG_S)

    index = Index(disk)
    index.reader = Reader(on(mine))
    index.updater = Updater(index.catalogue, index.reader)
    mine.on_operation = meanwhile
    assert index.updater.update()
    assert mine.on_operation is None
    (row,) = index.catalogue.rows(Query())
    assert (row.damage, row.steps, row.attempts) == ("", 4, 2)
    index.check()
    old.close()
    new.close()


def test_a_number_that_no_index_holds_is_damage_and_stops_nobody():
    """A sound line says it, so somebody wrote it like this."""
    disk = CrashDisk()
    writer = open_writer(on(disk.process()))
    for n, fields in enumerate(
        (b'"visit":9223372036854775808', b'"unix_s":1e300', b'"policy":["p",1000000000000000000000]')
    ):
        body = b'{"type":"attempt","key":"a%d#0","epoch":1,"attempt":1,"seq":0,%b' % (n, fields)
        writer.put_from_thread(body).result(HANG_S)
    put(writer, "b#0", 0)
    index = Index(disk)
    assert index.updater.update()
    assert [row.key for row in index.catalogue.rows(Query())] == ["b#0"]
    assert len(said_by(index.catalogue, index.updater).damage) == 3
    writer.close()


def test_a_record_that_nobody_of_ours_wrote_is_damage_and_the_rest_is_indexed():
    """A sound line that is no record, and one of a type that a newer version added."""
    disk = CrashDisk()
    store = on(disk.process())
    run = create_run(store).run
    claim_epoch(store, run, durability="disk", lease_s=30.0)
    segment = SegmentWriter(store, run, 1, 1, [])
    bodies = [
        b'{"type":"attempt","key":"a#0","epoch":1,"attempt":1,"seq":0,"unix_s":1.0',
        b'{"type":"of_a_later_version","key":"a#0","epoch":1,"attempt":1,"seq":1,"more":[{}]',
        b'{"type":"done","key":17,"epoch":1,"attempt":1,"seq":2,"path":"0"',
        b'{"type":"done","key":"a#0","epoch":1,"attempt":1,"seq":2,"path":"0"',
    ]
    for body in bodies:
        segment.write([(body, None, None, None)])
        segment.sync()
    segment.seal()
    says = Index(disk).check()
    assert says.rows["a#0"].steps == 1 and len(says.damage) == 1
