"""The bytes of a compressed segment: readable by any zstd, by frame, and with any damage found and told.

What must come back of a damaged file is worked out here from where the damage lies, by the format's page.
"""

from __future__ import annotations

import functools
import random
import shutil
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest
from backports import zstd

from rolltape import records
from rolltape.errors import DamagedError
from rolltape.journal import (
    Damage,
    Follower,
    Line,
    Place,
    Reader,
    WriterConfig,
    compress,
    open_writer,
    seekable,
    verify,
)
from rolltape.journal.seekable import FRAME_BYTES, FRAME_BYTES_MAX
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk
from tests.journal.compressing import no_damage, on

NAME = "journal/00000001/00000001.jsonl"
ZST = f"/run/{NAME}.zst"
GOLDEN = Path(__file__).parents[1] / "golden"


class Packed(NamedTuple):
    """A run with one segment, compressed."""

    files: dict[str, bytes]
    content: bytes
    lines: list[Line]
    data: bytes
    """The compressed file."""
    frames: list[tuple[int, int, int, int]]
    """Of each frame: where it begins and ends in the file, and in the content."""

    def disk(self, data: bytes) -> CrashDisk:
        """The run with that in the compressed file's place."""
        disk = CrashDisk()
        for path, content in {**self.files, ZST: data}.items():
            disk.write_file(path, content)
        return disk


def packed(*sizes: int, plain: str = "x") -> Packed:
    """A segment with notes that are so long."""
    disk = CrashDisk()
    writer = open_writer(on(disk), WriterConfig(segment_bytes_max=1 << 30))
    for n, size in enumerate(sizes):
        text = plain * size if plain else random.Random(n).randbytes(size // 2).hex()
        writer.append_from_thread(records.Note(epoch=1, name=f"{n} {text}", unix_s=0.0))
    writer.close()
    content, lines = disk.tree()[f"/run/{NAME}"], list(Reader(on(disk)).scan(no_damage))
    compress(on(disk))
    files = disk.tree()
    return Packed(files, content, lines, files[ZST], frames_of(files[ZST]))


def frames_of(data: bytes) -> list[tuple[int, int, int, int]]:
    """Read the seek table as zstd's seekable format has it: the frames with content."""
    count, flags, magic = struct.unpack("<IBI", data[-9:])
    assert (magic, flags) == (0x8F92EAB1, 0)
    table = data[-9 - 8 * count :][: 8 * count]
    assert struct.unpack("<II", data[-17 - 8 * count :][:8]) == (0x184D2A5E, len(table) + 9)
    found, at, start = [], 0, 0
    for stored, size in struct.iter_unpack("<II", table):
        if size:
            found.append((at, at + stored, start, start + size))
        at, start = at + stored, start + size
    assert at == len(data) - 17 - len(table)
    return found


@functools.cache
def three_frames() -> Packed:
    """Small to damage, since it compresses well: six long lines and the ends."""
    return packed(*6 * [100_000])


def scanned(disk: CrashDisk) -> tuple[list[Line], list[Damage]]:
    damage: list[Damage] = []
    return list(Reader(on(disk)).scan(damage.append)), damage


# ---- what is written -------------------------------------------------------------------------------------------------


def test_any_zstd_gives_the_bytes_back(tmp_path):
    """Python's, and the command if it is here."""
    for one in (three_frames(), packed(1), packed(3_000_000, 5, plain=""), packed(*range(0, 40_000, 500), plain="")):
        assert zstd.decompress(one.data) == one.content
        assert all(zstd.get_frame_info(one.data[at:]).decompressed_size == e - s for at, _, s, e in one.frames)
        if shutil.which("zstd"):
            (tmp_path / "x.zst").write_bytes(one.data)
            command = ["zstd", "-dc", str(tmp_path / "x.zst")]
            assert subprocess.run(command, check=True, capture_output=True).stdout == one.content


def test_frames_hold_whole_lines_and_about_a_quarter_of_a_mebibyte():
    """So that one line costs little. Only a line longer than a frame may be lies in several."""
    one = packed(*[2_000] * 400, 300_000, 3_000_000, 7, *[90_000] * 5, plain="")
    begins = {line.offset for line in one.lines} | {len(one.content)}
    assert [s for _, _, s, _ in one.frames] == [0, *(e for _, _, _, e in one.frames[:-1])]
    long = next(line for line in one.lines if len(line.raw) > FRAME_BYTES_MAX)
    for _, _, start, end in one.frames:
        assert end - start <= FRAME_BYTES_MAX
        if not long.offset <= start < long.offset + len(long.raw):
            assert {start, end} <= begins
            assert end - start <= FRAME_BYTES or sum(start <= line.offset < end for line in one.lines) == 1
    assert sum(long.offset <= start < long.offset + len(long.raw) for _, _, start, _ in one.frames) == 3


def test_every_line_is_read_at_its_own_place():
    """Offsets are those in the content. A line may lie in several frames."""
    one = packed(*[2_000] * 300, 2_500_000, *[500] * 40, plain="")
    reader = Reader(on(one.disk(one.data)))
    for line in random.Random(1).sample(one.lines, len(one.lines)):
        assert reader.line_at(*Place(line.epoch, line.segment, line.offset, len(line.raw))) == line
    size = len(one.content)
    for _ in range(300):
        start, end = sorted(random.Random(_).sample(range(size + 100), 2))
        assert reader.store.read(NAME, start, end) == one.content[start:end]
    assert reader.store.read(NAME, size, size + 1) == b"" and reader.store.read(NAME, 5, 5) == b""


def test_a_listing_says_the_size_of_the_content():
    one = three_frames()
    files = Reader(on(one.disk(one.data))).store.list("journal/00000001")
    assert files == {"00000001.jsonl": len(one.content)}


def test_reading_one_line_reads_and_decompresses_one_frame():
    """By what it asks of the disk."""
    one = packed(*[2_000] * 2_000, plain="")
    disk = one.disk(one.data)
    reader, read = Reader(on(disk)), []
    reader.line_at(*place(one.lines[5]))
    disk.on_operation = lambda op, path: read.append(op)
    assert reader.line_at(*place(one.lines[1_500])) == one.lines[1_500]
    assert read.count("pread") <= 2 and read.count("listdir") == 0
    read.clear()
    for line in one.lines[1_501:1_541]:
        assert reader.line_at(*place(line)) == line
    assert read.count("pread") <= 1  # where they go on in the next frame


def place(line: Line) -> Place:
    return Place(line.epoch, line.segment, line.offset, len(line.raw))


# ---- damage ----------------------------------------------------------------------------------------------------------


def check_damaged(one: Packed, data: bytes, lost: list[int]) -> None:
    """Everything outside the frames `lost` is read, nothing is altered, and it is said that the file is damaged."""
    gone = [one.frames[number] for number in lost]
    expected = [
        line
        for line in one.lines
        if not any(s < line.offset + len(line.raw) and line.offset < e for _, _, s, e in gone)
    ]
    disk = one.disk(data)
    lines, damage = scanned(disk)
    assert lines == expected
    assert damage and all(told.file == f"{NAME}.zst" for told in damage)
    followed: list[Damage] = []
    follower = Follower(Reader(on(disk)), followed.append)
    assert list(follower.poll()) == expected
    assert list(follower.poll()) == [] and followed == damage
    reader = Reader(on(disk))
    for line in one.lines:
        if line in expected:
            assert reader.line_at(*place(line)) == line
        else:
            with pytest.raises(DamagedError, match=r"00000001\.jsonl\.zst at"):
                reader.line_at(*place(line))


def frame_at(one: Packed, offset: int) -> list[int]:
    return [number for number, (at, end, _, _) in enumerate(one.frames) if at <= offset < end]


@pytest.mark.parametrize("xor", [0x01, 0x80])
def test_a_flipped_byte_costs_its_frame_and_is_always_told(xor):
    """Each byte of the file, the header bits that no decompressor looks at too. In the tables it costs nothing."""
    one = three_frames()
    assert len(one.frames) == 3 and len(one.data) < 1_000
    for offset in range(len(one.data)):
        data = bytearray(one.data)
        data[offset] ^= xor
        check_damaged(one, bytes(data), frame_at(one, offset))


def test_a_file_cut_anywhere_gives_its_whole_frames_and_is_always_told():
    one = three_frames()
    for size in range(len(one.data)):
        check_damaged(one, one.data[:size], [n for n, frame in enumerate(one.frames) if frame[1] > size])


@pytest.mark.parametrize("length", [1, 8, 64, 512])
def test_zeroed_bytes_cost_their_frames_and_are_always_told(length):
    """A sector that came back empty. With the tables lost too, nothing is found behind the first bad frame."""
    one = three_frames()
    for offset in range(0, len(one.data), 5):
        data = one.data[:offset] + bytes(length) + one.data[offset + length :]
        data = data[: len(one.data)]
        if data == one.data:
            continue
        lost = [n for n, (at, end, _, _) in enumerate(one.frames) if data[at:end] != one.data[at:end]]
        tables = one.frames[-1][1]
        if lost and data[tables:] != one.data[tables:]:
            lost = list(range(lost[0], len(one.frames)))
        check_damaged(one, data, lost)


def test_bytes_behind_the_table_are_told_and_cost_nothing():
    one = three_frames()
    for junk in (b"x", b"\0" * 512, one.data, one.data[-9:]):
        disk = one.disk(one.data + junk)
        lines, damage = scanned(disk)
        assert lines == one.lines and damage


def test_a_table_that_lies_is_not_believed():
    """Sizes of two frames swapped, and every checksum of it made to fit."""
    one = three_frames()
    frames = [(at, end - at, stop - start) for at, end, start, stop in one.frames]
    for change in ("sizes", "stored"):
        lies = [list(frame) for frame in frames]
        which = 2 if change == "sizes" else 1
        lies[0][which], lies[-1][which] = lies[-1][which], lies[0][which]
        more = 7 if lies[0][which] + 7 != frames[0][which] else 9
        lies[0][which] += more
        lies[-1][which] -= more
        data = one.data[: one.frames[-1][1]] + _tail(one, lies)
        lines, damage = scanned(one.disk(data))
        assert damage and set(lines) <= set(one.lines)


def _tail(one: Packed, frames: list[list[int]]) -> bytes:
    import zlib

    crcs = b"".join(struct.pack("<I", zlib.crc32(one.data[at:end])) for at, end, _, _ in one.frames)
    entries = b"".join(struct.pack("<II", stored, size) for _, stored, size in frames)
    entries += struct.pack("<II", 12 + len(crcs), 0) + struct.pack("<IBI", len(frames) + 1, 0, 0x8F92EAB1)
    table = struct.pack("<II", 0x184D2A5E, len(entries)) + entries
    check = struct.pack("<I", zlib.crc32(table, zlib.crc32(crcs)))
    return struct.pack("<II", 0x184D2A50, len(crcs) + 4) + crcs + check + table


def test_the_tail_worked_out_here_is_the_one_that_is_written():
    one = three_frames()
    frames = [[at, end - at, stop - start] for at, end, start, stop in one.frames]
    assert one.data == one.data[: one.frames[-1][1]] + _tail(one, frames)


BIG = zstd.compress(b"\0" * (200 << 20))
LYING = struct.pack("<IBQ", 0xFD2FB528, 0b11100000, 1 << 40) + b"\x01\x00\x00"


@pytest.mark.parametrize(
    "data",
    [
        BIG,
        LYING,
        struct.pack("<IBB", 0xFD2FB528, 0, 0xFF) + b"\x01\x00\x00",
        struct.pack("<II", 0x184D2A50, 0xFFFFFFFF),
        struct.pack("<IBI", 0xFFFFFFFF, 0, 0x8F92EAB1),
        struct.pack("<IBI", 0, 0, 0x8F92EAB1),
        b"\0" * 100 + struct.pack("<IBI", 100_000, 0, 0x8F92EAB1),
        b"",
        b"\xff" * 5_000,
    ],
)
def test_a_bomb_is_damage_and_nobody_allocates_what_it_says(data):
    """A frame over 1 MiB, a header or a table that lies."""
    disk = three_frames().disk(data)
    zstd.compress(b"loaded")
    tracemalloc.start()
    try:
        lines, damage = scanned(disk)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert lines == [] and [told.file for told in damage] == [f"{NAME}.zst"]


def test_a_frame_that_gives_more_than_its_table_says_is_damage():
    """A bomb with a sound table around it: the first frame gives 200 MiB and says so to nobody but zstd."""
    one = three_frames()
    sizes = [[0, len(BIG), FRAME_BYTES], *([at, end - at, stop - start] for at, end, start, stop in one.frames[1:])]
    shifted = [(0, len(BIG), 0, 0), *((at, end, 0, 0) for at, end, _, _ in one.frames[1:])]
    body = BIG + one.data[one.frames[0][1] : one.frames[-1][1]]
    moved = one._replace(
        data=body, frames=[(a, e, s, t) for a, e, s, t in _moved(shifted, len(BIG) - one.frames[0][1])]
    )
    disk = one.disk(body + _tail(moved, sizes))
    tracemalloc.start()
    try:
        lines, damage = scanned(disk)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert lines == [] and damage


def streamed(data: bytes, window_log: int) -> bytes:
    """A frame that does not say how much it holds."""
    options = {zstd.CompressionParameter.window_log: window_log, zstd.CompressionParameter.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(data) + compressor.flush()


def test_a_frame_is_not_decompressed_beyond_its_size_nor_in_a_larger_window():
    """Both with every checksum in order, as only somebody who wants to do harm would make them."""
    data = streamed(b"\0" * (64 << 20), window_log=17)
    frame = seekable.Frame(0, len(data), 0, FRAME_BYTES, None)
    tracemalloc.start()
    try:
        assert seekable.unpack(data, frame) is None
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    for window_log, wanted in ((20, b"ten bytes!"), (27, None)):
        data = streamed(b"ten bytes!", window_log)
        assert seekable.unpack(data, seekable.Frame(0, len(data), 0, 10, None)) == wanted


def test_a_table_of_more_frames_than_any_segment_has_is_not_believed():
    nothing = [0] * ((1 << 17) + 1)
    for count, believed in ((1 << 17, True), (len(nothing), False)):
        data = seekable._tail(nothing[:count], nothing[:count], nothing[:count])
        table = seekable.read_table(lambda start, end, data=data: data[start:end], len(data))
        assert (table.fault == "") == believed


def _moved(frames, by: int):
    return [frames[0], *((at + by, end + by, start, stop) for at, end, start, stop in frames[1:])]


def test_what_a_user_compressed_with_zstd_is_read_or_refused_in_words():
    """Without a seek table: what has frames of up to 1 MiB is read, and said to be without; else what to do is said."""
    one = three_frames()
    split = b"".join(
        zstd.compress(one.content[at : at + FRAME_BYTES]) for at in range(0, len(one.content), FRAME_BYTES)
    )
    for data in (split, zstd.compress(one.content)):
        lines, damage = scanned(one.disk(data))
        assert lines == one.lines
        assert "seek table is missing" in str(damage[0]) and len(damage) == 1
    large = packed(*[100_000] * 20)
    lines, damage = scanned(large.disk(zstd.compress(large.content)))
    assert lines == [] and "zstd -d" in str(damage[0])


def test_a_copy_of_another_segment_is_no_line_of_this_one():
    """Checksums are over the place: a file under the wrong name is damage from its first line on."""
    one = three_frames()
    disk = one.disk(one.data)
    disk.write_file("/run/journal/00000001/00000002.jsonl.zst", one.data)
    lines, damage = scanned(disk)
    assert lines == one.lines and {told.file for told in damage} == {"journal/00000001/00000002.jsonl.zst"}


def test_what_cannot_be_read_is_told_with_the_files_name():
    """A directory in its place, and a disk that gives nothing."""
    one = three_frames()
    disk = one.disk(one.data)
    disk.fail("pread", path=".zst", forever=True)
    lines, damage = scanned(disk)
    assert lines == [] and [told.file for told in damage] == [f"{NAME}.zst"] and "cannot be read" in str(damage[0])
    disk = CrashDisk()
    for path, data in one.files.items():
        if path != ZST:
            disk.write_file(path, data)
    disk.write_file(f"{ZST}/notes.txt", b"")
    lines, damage = scanned(disk)
    assert lines == [] and "Is a directory" in str(damage[0])


@pytest.mark.torture
def test_any_damage_to_any_compressed_segment_is_told():
    """Random segments, random damage of every kind: never an altered line, never silence."""
    for seed in range(3_000):
        rng = random.Random(seed)
        if seed % 50 == 0:
            one = packed(*(rng.randrange(1, 200_000) for _ in range(rng.randrange(1, 9))), plain=rng.choice(["x", ""]))
        data = bytearray(one.data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] ^= rng.randrange(1, 256)
            elif kind == 1:
                data[at : at + rng.randrange(1, 600)] = bytes(rng.randrange(0, 600))
            elif kind == 2:
                del data[at:]
                data = data or bytearray(b"x")
            else:
                data[at:at] = rng.randbytes(rng.randrange(1, 100))
        lines, damage = scanned(one.disk(bytes(data)))
        assert bytes(data) == one.data or damage, seed
        assert set(lines) <= set(one.lines), seed


# ---- golden files ----------------------------------------------------------------------------------------------------


def test_a_compressed_segment_of_version_1_is_readable_for_ever(tmp_path):
    """`golden/compressed` holds copies of the segments of `golden/v1`, made once by `make_compressed.py`."""
    run = tmp_path / "run"
    shutil.copytree(GOLDEN / "v1" / "run", run)
    before = list(Reader(LocalStore(run)).scan(no_damage))
    copies = sorted((GOLDEN / "compressed" / "journal").rglob("*.zst"))
    assert [path.name for path in copies] == ["00000001.jsonl.zst", "00000002.3.jsonl.zst"]
    for path in copies:
        lines = run / "journal" / "00000001" / f"{path.name.partition('.')[0]}.jsonl"
        assert zstd.decompress(path.read_bytes()) == lines.read_bytes()
        lines.unlink()
        shutil.copy(path, lines.parent)
    assert list(Reader(LocalStore(run)).scan(no_damage)) == before
    verify(LocalStore(run), no_damage)
    assert compress(LocalStore(run)).compressed == []


def test_what_compresses_is_loaded_only_by_those_who_need_it():
    """`import rolltape` and reading a run that is not compressed do without."""
    code = (
        "import sys, rolltape.journal; print([name for name in sys.modules if 'zst' in name or 'compression' in name])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"
