"""The bytes of a compressed segment: zstd frames, a check of each, and the table by which one is found.

    frame … frame   check: CRC-32 of each frame's bytes, then of the rest of this line   seek table
    └─ content ─┘   └─ skippable frames: `zstd -d` passes over them ───────────────────────────────┘

`zstd -dc` gives the content back; the seek table is that of zstd's seekable format. A frame holds whole lines, about
`FRAME_BYTES` of them; only a line longer than `FRAME_BYTES_MAX` lies in several. What is not as it was written is
found before it is decompressed, and no file, whatever it says, makes anybody allocate more than a frame.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple
from zlib import crc32

FRAME_BYTES = 256 << 10
"""Content of a frame, as far as lines allow: reading one line decompresses so much."""

FRAME_BYTES_MAX = 1 << 20
"""Content of a frame at most, in any file that is read."""

_STORED_BYTES_MAX = FRAME_BYTES_MAX + (FRAME_BYTES_MAX >> 7)
"""What does not compress grows by less than that."""

_FRAMES_MAX = 1 << 17
"""More than any segment has, so that a table that is read stays small."""

_WINDOW_LOG_MAX = FRAME_BYTES_MAX.bit_length() - 1
_TAIL_GUESS_BYTES = 16 << 10

_FRAME_MAGIC = 0xFD2FB528
_CHECK_MAGIC = 0x184D2A50
_TABLE_MAGIC = 0x184D2A5E
_SEEKABLE_MAGIC = 0x8F92EAB1

_skippable = struct.Struct("<II")
_entry = struct.Struct("<II")
_footer = struct.Struct("<IBI")
_word = struct.Struct("<I")

Read = Callable[[int, int], bytes]
"""Reads the bytes [start, end) of the compressed file."""


@cache
def _zstd() -> Any:
    """The standard library's module, or for an older Python the same one from elsewhere. Only who needs it loads it."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


class Frame(NamedTuple):
    """Where a frame lies in the file, and where its content lies in the segment."""

    at: int
    stored: int
    start: int
    size: int
    crc: int | None
    """Of the stored bytes; None where nothing believable says it."""


class Table:
    """Which frame holds which content. `fault` says what is wrong with the file's own account of it, or is empty."""

    def __init__(self, at: array[int], stored: array[int], sizes: array[int], crcs: array[int], fault: str) -> None:
        self._at, self._stored, self._sizes, self._crcs = at, stored, sizes, crcs
        self._starts = array("Q", accumulate(sizes, initial=0))
        self.fault = fault

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self._starts[-1]

    def frame(self, number: int) -> Frame:
        crc = self._crcs[number] if self._crcs else None
        return Frame(self._at[number], self._stored[number], self._starts[number], self._sizes[number], crc)

    def covering(self, start: int, end: int) -> Iterator[int]:
        """Yield the numbers of the frames that hold the content [start, end), as far as there is any."""
        number = max(0, bisect_right(self._starts, start) - 1)
        while number < len(self._sizes) and self._starts[number] < end:
            yield number
            number += 1


# ---- writing ---------------------------------------------------------------------------------------------------------


class Packer:
    """Compresses one segment, line by line. Memory: the compressed segment, and a frame."""

    def __init__(self, level: int) -> None:
        options = _zstd().CompressionParameter
        self._zstd = _zstd().ZstdCompressor(options={options.compression_level: level, options.checksum_flag: 1})
        self._lines: list[bytes] = []
        self._waiting = 0
        self._frames: list[bytes] = []
        self._sizes: list[int] = []

    def add(self, line: bytes) -> None:
        if self._waiting and self._waiting + len(line) > FRAME_BYTES:
            self._flush()
        self._lines.append(line)
        self._waiting += len(line)

    def finish(self) -> bytes:
        """Return the whole file."""
        self._flush()
        stored = [len(frame) for frame in self._frames]
        return b"".join((*self._frames, _tail(stored, self._sizes, [crc32(frame) for frame in self._frames])))

    def _flush(self) -> None:
        content = b"".join(self._lines)
        for start in range(0, len(content), FRAME_BYTES_MAX):
            piece = content[start : start + FRAME_BYTES_MAX]
            self._frames.append(self._zstd.compress(piece, self._zstd.FLUSH_FRAME))
            self._sizes.append(len(piece))
        self._lines, self._waiting = [], 0


def _tail(stored: list[int], sizes: list[int], crcs: list[int]) -> bytes:
    """What follows the frames: the check and the seek table."""
    check_bytes = 4 * len(crcs) + 4
    entries = [*zip(stored, sizes, strict=True), (_skippable.size + check_bytes, 0)]
    table = b"".join(_entry.pack(*entry) for entry in entries) + _footer.pack(len(entries), 0, _SEEKABLE_MAGIC)
    table = _skippable.pack(_TABLE_MAGIC, len(table)) + table
    check = struct.pack(f"<{len(crcs)}I", *crcs)
    return _skippable.pack(_CHECK_MAGIC, check_bytes) + check + _word.pack(crc32(table, crc32(check))) + table


def _tail_bytes(frames: int) -> int:
    return 2 * _skippable.size + 4 * frames + 4 + _entry.size * (frames + 1) + _footer.size


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_table(read: Read, file_bytes: int) -> Table:
    """Read the table of a file of so many bytes. Where it is not as it was written, the frames are looked for."""
    return _written_table(read, file_bytes) or _found_table(read, file_bytes)


def _written_table(read: Read, file_bytes: int) -> Table | None:
    tail = read(max(0, file_bytes - _TAIL_GUESS_BYTES), file_bytes)
    if len(tail) < _tail_bytes(0):
        return None
    frames = _footer.unpack_from(tail, len(tail) - _footer.size)[0] - 1
    if not 0 <= frames <= _FRAMES_MAX or (wanted := _tail_bytes(frames)) > file_bytes:
        return None
    tail = tail[-wanted:] if wanted <= len(tail) else read(file_bytes - wanted, file_bytes)
    if len(tail) != wanted:
        return None
    crcs = list(struct.unpack_from(f"<{frames}I", tail, _skippable.size))
    words = struct.unpack_from(f"<{2 * frames}I", tail, 2 * _skippable.size + 4 * frames + 4)
    stored, sizes = list(words[::2]), list(words[1::2])
    # The bytes are believed if they are what would be written for what they say, the checksum among them.
    if _tail(stored, sizes, crcs) != tail or sum(stored) + wanted != file_bytes:
        return None
    if max(sizes, default=0) > FRAME_BYTES_MAX or max(stored, default=0) > _STORED_BYTES_MAX:
        return None
    at = array("Q", list(accumulate(stored, initial=0))[:-1])
    return Table(at, array("Q", stored), array("Q", sizes), array("L", crcs), "")


def _found_table(read: Read, file_bytes: int) -> Table:
    """Go from frame to frame, as far as each says where the next one begins."""
    at, stored, sizes = array("Q"), array("Q"), array("Q")
    here, fault = 0, "its seek table is missing or not as it was written"
    while here < file_bytes and len(at) < _FRAMES_MAX:
        try:
            length, size = _measure(read(here, here + _STORED_BYTES_MAX))
        except ValueError as error:
            fault = f"{fault}, and nothing can be read from its byte {here} on: {error}"
            break
        if size is not None:
            at.append(here)
            stored.append(length)
            sizes.append(size)
        here += length
    return Table(at, stored, sizes, array("L"), fault)


def _measure(data: bytes) -> tuple[int, int | None]:
    """Return how long the frame at the beginning of `data` is and how much it holds; None: it is skippable."""
    if len(data) < _skippable.size:
        raise ValueError("it ends inside a frame")
    magic, length = _skippable.unpack_from(data)
    if magic & ~0xF == _CHECK_MAGIC:
        if _skippable.size + length > len(data):
            raise ValueError("it ends inside a frame, or the frame is too long")
        return _skippable.size + length, None
    if magic != _FRAME_MAGIC:
        raise ValueError("no frame begins there")
    zstd = _zstd()
    try:
        size = zstd.get_frame_info(data).decompressed_size
        if size is None or size > FRAME_BYTES_MAX:
            raise ValueError("a frame holds over 1 MiB, or does not say how much (decompress the file with `zstd -d`)")
        return zstd.get_frame_size(data), size
    except zstd.ZstdError as error:
        raise ValueError(f"a frame is cut off or not as it was written ({error})") from error


def unpack(data: bytes, frame: Frame) -> bytes | None:
    """Return the content of a frame whose stored bytes are `data`; None if they are not as they were written."""
    if len(data) != frame.stored or (frame.crc is not None and crc32(data) != frame.crc):
        return None
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX})
    try:
        content: bytes = decompressor.decompress(data, max_length=frame.size + 1)
    except zstd.ZstdError:
        return None
    return content if len(content) == frame.size and decompressor.eof and not decompressor.unused_data else None
