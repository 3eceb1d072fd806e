"""An epoch is closed once its last line says so, and only then: nobody waits for a writer that has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rolltape import records
from rolltape.journal import Reader, WriterConfig, compress, has_ended_here, open_writer
from rolltape.journal import format as fmt
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk


def note(number: int) -> records.Note:
    return records.Note(epoch=1, name=f"note {number}", unix_s=0.0)


def test_a_writer_that_is_closed_says_so_in_its_last_line_and_no_other(tmp_path):
    async def main() -> None:
        writer = open_writer(LocalStore(tmp_path), WriterConfig(segment_bytes_max=1))
        for number in range(3):
            await writer.append(note(number))
            assert not Reader(LocalStore(tmp_path)).is_closed(1)
        assert not has_ended_here(writer.run, 1)
        await writer.aclose()
        assert has_ended_here(writer.run, 1)

    asyncio.run(main())
    reader = Reader(LocalStore(tmp_path))
    assert reader.is_closed(1)
    assert not reader.is_closed(2), "nobody has had that epoch"
    seals = [line.decode(records.Seal) for line in reader.scan(lambda d: pytest.fail(str(d))) if b'"seal"' in line.raw]
    assert [seal.closed for seal in seals] == [False] * (len(seals) - 1) + [True] and len(seals) > 2


def test_a_compressed_epoch_is_as_closed_as_before(tmp_path):
    writer = open_writer(LocalStore(tmp_path))
    writer.append_from_thread(note(1))
    writer.close()
    compress(LocalStore(tmp_path))
    assert list((tmp_path / "journal" / "00000001").glob("*.zst"))
    assert Reader(LocalStore(tmp_path)).is_closed(1)


def test_whatever_is_missing_of_the_last_line_the_epoch_is_not_closed(tmp_path):
    writer = open_writer(LocalStore(tmp_path))
    writer.append_from_thread(note(1))
    writer.close()
    segment: Path = tmp_path / fmt.segment_name(1, 1)
    whole = segment.read_bytes()
    for length in range(len(whole)):
        segment.write_bytes(whole[:length])
        assert not Reader(LocalStore(tmp_path)).is_closed(1)
    at = whole.rindex(b'"closed":true')
    segment.write_bytes(whole[:at] + b'"closed":True' + whole[at + 13 :])
    assert not Reader(LocalStore(tmp_path)).is_closed(1), "its checksum is wrong"


def test_a_writer_that_could_not_write_its_last_line_is_not_closed_on_disk():
    disk = CrashDisk()
    mine = disk.process()
    writer = open_writer(LocalStore("/run", fs=mine))
    writer.append_from_thread(note(1))
    mine.fail("write", forever=True)
    writer.close()
    assert not Reader(LocalStore("/run", fs=disk.process())).is_closed(1)
    assert has_ended_here(writer.run, 1)
