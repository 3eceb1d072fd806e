"""Replaces sealed segments by compressed copies, while the run lives or after it.

When `compress` returns, each segment that it reports is on disk as a copy that was read back and compared, and its
lines are gone, both durably. Killed at any moment, or failing at any step, it leaves of every segment the lines, a
whole copy, or both: a run reads the same before, during and after. Only whole, sound, sealed segments are touched.

The rule that keeps this safe with any number of processes at once (`docs/design/compress.md`): what a process did not
write and read back itself, it does not rely on. It makes a copy of its own under the next free number, and only when
that one is on disk deletes the lines and lower-numbered copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rolltape.errors import JournalFailed, UsageError
from rolltape.journal import format as fmt
from rolltape.journal import seekable
from rolltape.journal.epochs import epochs
from rolltape.journal.failures import failure
from rolltape.journal.reader import Damage, Reader, SegmentScan

if TYPE_CHECKING:
    from rolltape.store import Store

LEVEL = 6
LEVELS = range(1, 20)

SEGMENT_BYTES_MAX = 4 << 30
"""A longer segment is left alone: the whole of its compressed copy is held in memory."""

_SEAL_BYTES_MAX = 1 << 10
_NOT_SEALED = "it has no seal that counts: it is being written, or its writer was killed or could not write"

OnProgress = Callable[[str, int, int], None]
"""Called after each segment with its name, and with how many bytes of how many are dealt with."""


class CompressReport(msgspec.Struct, frozen=True):
    """What `compress` did."""

    compressed: list[str]
    """The segments that it compressed."""
    skipped: list[tuple[str, str]]
    """The segments that it left alone, and why. Those that were compressed before are in neither list."""
    bytes_before: int
    """What the segments in `compressed` took before."""
    bytes_after: int
    """What they take now."""


def compress(store: Store, *, level: int = LEVEL, on_progress: OnProgress | None = None) -> CompressReport:
    """Compress every sealed segment of the run in `store`, and say what was done and what was not.

    JournalFailed: the file system refused something. What was done until then stands, and nothing is lost; run it
    again to go on.
    """
    if level not in LEVELS:
        raise UsageError(f"level is {level!r}: use {LEVELS.start} (fast) to {LEVELS.stop - 1} (small)")
    reader = Reader(store)
    compressed: list[str] = []
    skipped: list[tuple[str, str]] = []
    before = after = done = 0
    try:
        todo = [segment for epoch in epochs(store) for segment in _to_do(store, epoch)]
        for segment in todo:
            result = _replace(store, reader, segment, level)
            if isinstance(result, str):
                skipped.append((segment.name, result))
            elif result is not None:
                compressed.append(segment.name)
                before, after = before + segment.bytes, after + result
            done += segment.bytes
            if on_progress is not None:
                on_progress(segment.name, done, sum(segment.bytes for segment in todo))
    except OSError as error:
        raise failure(store, error) from error
    return CompressReport(compressed, skipped, before, after)


class _Segment(NamedTuple):
    """A segment with something to do: its lines are there, or more copies than one."""

    epoch: int
    number: int
    lines_bytes: int | None
    copies: dict[int, int]
    """The copies' sizes by their numbers."""

    @property
    def name(self) -> str:
        return fmt.segment_name(self.epoch, self.number)

    @property
    def bytes(self) -> int:
        return (self.lines_bytes or 0) + sum(self.copies.values())


def _to_do(store: Store, epoch: int) -> Iterator[_Segment]:
    lines: dict[int, int] = {}
    copies: dict[int, dict[int, int]] = {}
    for file, size in store.list(fmt.epoch_folder(epoch)).items():
        if size < 0:
            continue  # a directory: the reader says so, and there is nothing to compress
        if (number := fmt.number_of(file, ".jsonl")) is not None:
            lines[number] = size
        elif (copy := fmt.copy_of(file)) is not None:
            copies.setdefault(copy[0], {})[copy[1]] = size
    for number in sorted({*lines, *copies}):
        if number in lines or len(copies[number]) > 1:
            yield _Segment(epoch, number, lines.get(number), copies.get(number, {}))


def _replace(store: Store, reader: Reader, segment: _Segment, level: int) -> int | str | None:
    """Put a copy in the place of all that there is of the segment. Returns its size, or why not.

    None: another process has done it meanwhile.
    """
    try:
        packed = _packed(store, reader, segment, level)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    if isinstance(packed, str):
        return packed
    mine = _put(store, segment, packed.data)
    try:
        _check(store, fmt.copy_name(segment.epoch, segment.number, mine), packed)
    except FileNotFoundError:  # so a higher-numbered copy is on disk: only who has one deletes this one
        return None
    # From here on nothing is needed but this copy. What is gone already, another process has replaced as well.
    older = [fmt.copy_name(segment.epoch, segment.number, number) for number in segment.copies]
    for name in (segment.name, *older):
        with suppress(FileNotFoundError):
            store.delete(name)
    return len(packed.data)


# ---- making a copy ---------------------------------------------------------------------------------------------------


class _Packed(NamedTuple):
    data: bytes
    content_bytes: int
    digest: bytes
    """Of the content."""


def _packed(store: Store, reader: Reader, segment: _Segment, level: int) -> _Packed | str:
    """Compress a segment in memory, line by line, or say why it is not whole, sound and sealed."""
    if segment.bytes > SEGMENT_BYTES_MAX:
        return f"it is longer than {SEGMENT_BYTES_MAX:,} bytes"
    if segment.lines_bytes is not None and not _ends_in_seal(store, segment.name, segment.lines_bytes):
        return _NOT_SEALED
    damage: list[Damage] = []
    packer, digest, end, sealed = seekable.Packer(level), blake2b(digest_size=32), 0, False
    for line in SegmentScan(reader, segment.epoch, segment.number, damage.append):
        if line.offset == end:  # else there is a gap, which is damage
            packer.add(line.raw)
            digest.update(line.raw)
            end += len(line.raw)
            sealed = line.raw.startswith(fmt.SEAL)
    if damage:
        return f"it is damaged: {damage[0]}"
    if not sealed:
        return _NOT_SEALED
    if reader.store.read(segment.name, end, end + 1):
        return "something lies behind its seal"
    return _Packed(packer.finish(), end, digest.digest())


def _ends_in_seal(store: Store, name: str, size: int) -> bool:
    """Say whether it looks finished: so most that are not need not be read."""
    last = store.read(name, max(0, size - _SEAL_BYTES_MAX), size)
    return last[last.rfind(b"\n", 0, -1) + 1 :].startswith(fmt.SEAL)


def _put(store: Store, segment: _Segment, data: bytes) -> int:
    """Create the copy, durably, under a number above all that were seen, and return that."""
    number = max(segment.copies, default=0) + 1
    while True:
        name = fmt.copy_name(segment.epoch, segment.number, number)
        try:
            store.put_new(name, data)
        except FileExistsError:
            number += 1
            continue
        store.release(name)
        return number


def _check(store: Store, name: str, packed: _Packed) -> None:
    """Read the copy back and compare it. JournalFailed: it is not the same, and is deleted again."""
    digest = blake2b(digest_size=32)
    table = seekable.read_table(lambda start, end: store.read(name, start, end), len(packed.data))
    for number in table.covering(0, table.size):
        frame = table.frame(number)
        content = seekable.unpack(store.read(name, frame.at, frame.at + frame.stored), frame)
        digest.update(content or b"")
    if table.fault or table.size != packed.content_bytes or digest.digest() != packed.digest:
        store.delete(name)
        raise JournalFailed(
            f"{name} reads back otherwise than it was written, and was deleted again: {store}. The segment is as it "
            "was; check the disk (dmesg) and the memory before running it again"
        )
