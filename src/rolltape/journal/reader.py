"""Reading a run's journal: whole, from an offset, or live, while any number of processes write to it.

Nothing here modifies a file. Memory is bounded by one line. A line is returned only if its checksum fits its place;
what a crash tore off the end of a segment is ignored; damage before it is handed to `on_damage` with its place, and
reading goes on after it (`docs/design/journal.md`, "Torn or rotten"). What cannot be read at all is damage too, never
"nothing there".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from rolltape import records
from rolltape.errors import DamagedError, FormatError
from rolltape.journal import format as fmt
from rolltape.journal.compressed import SegmentFiles
from rolltape.journal.epochs import check_format, epochs, read_run

if TYPE_CHECKING:
    from rolltape.store import Store

CHUNK_BYTES = 1 << 20

GAP_BYTES_MAX = 16 << 10
"""Reading so much for nothing is as quick as a read of its own."""

SEAL_BYTES_MAX = 1024
"""No seal is longer, in any version of the format."""

SEARCH_BYTES_MAX = 256 << 20
"""How much is checked in looking for a sound line inside a bad part, so that no file can make reading it quadratic."""

_SEGMENT = b'{"type":"segment"'

T = TypeVar("T")

_line_begins = re.compile(rb'\{"type":"[a-z_]+","(?:key|epoch|format|records|unix_s)":')

_envelopes = msgspec.json.Decoder(records.Envelope)
_trailers = msgspec.json.Decoder(fmt.Trailer)


class Damage(msgspec.Struct, frozen=True):
    """Bytes [start, end) of a file, or of what a compressed file holds, that are not as they were written."""

    file: str
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} at {self.start}..{self.end}: {self.reason}"


OnDamage = Callable[[Damage], None]


class Line(NamedTuple):
    """One sound line, and where it lies."""

    epoch: int
    segment: int
    offset: int
    raw: bytes

    def envelope(self) -> records.Envelope:
        """Decode what the reading rule needs, and skip the rest."""
        return _envelopes.decode(self.raw)

    def decode(self, type: type[T]) -> T:
        """Decode the line as one record type. FormatError: it is sound, and no such record."""
        try:
            return msgspec.json.decode(self.raw, type=type)
        except msgspec.DecodeError as error:
            name = fmt.segment_name(self.epoch, self.segment)
            raise FormatError(f"{name} at {self.offset} is no {type.__name__} record: {error}") from error


class Span(NamedTuple):
    """What lies between two newlines. `line` is None if the second is missing, or too far for a line."""

    start: int
    line: bytes | None
    end: int


class SegmentScan:
    """The sound lines of one segment from `start` on, as the file is now.

    After the iteration `position` is where to go on later, and `finished` says that nothing more will come: the
    segment is sealed, or its successor speaks for it.
    """

    def __init__(self, reader: Reader, epoch: int, segment: int, on_damage: OnDamage, *, start: int = 0) -> None:
        self.position = start
        self.finished = False
        self._store = reader.store
        self._epoch, self._segment = epoch, segment
        self._name = fmt.segment_name(epoch, segment)
        self._seed = fmt.file_seed(fmt.segment_identity(reader.run, epoch, segment))
        self._on_damage = on_damage
        stated = reader.stated(epoch, segment)
        self._good = None if stated is None else stated[0]
        self.stated_proven = 0 if stated is None else stated[1]
        self._proven: int | None = None

    def __iter__(self) -> Iterator[Line]:
        yield from self._lines()
        if fault := self._store.fault(self._name):
            size = self._store.complete_bytes(self._name)
            self._on_damage(Damage(self._store.file_of(self._name), size, size, fault))

    def _lines(self) -> Iterator[Line]:
        rotten_from: int | None = None
        spans = self._judged(self.position)
        while (span := next(spans, None)) is not None:
            start, line, end = span
            if line is None:
                read_before_proof = self._proven is None
                if not self._was_on_disk(start):
                    break
                if read_before_proof:
                    # What is proven is on disk by now. Read it again: the first look may have met a write half done.
                    spans = self._judged(start)
                    continue
                rotten_from = start if rotten_from is None else rotten_from
                self.position = end
                continue
            if rotten_from is not None:
                self._report(rotten_from, start)
                rotten_from = None
            if start == 0:
                check_format(line, True, self._name)
            self.position = end
            yield Line(self._epoch, self._segment, start, line)
            if line.startswith(fmt.SEAL):
                self.finished = True
                return
        self.finished = self._good is not None
        if self.position < (proven := self._proven_by_others()):
            rotten_from = self.position if rotten_from is None else rotten_from
            self.position = proven
        if rotten_from is not None:
            self._report(rotten_from, self.position)

    def _judged(self, start: int) -> Iterator[Span]:
        """Cut the file from `start` on into sound lines, and what is between them (`line` is None)."""
        for span in self._spans(start):
            if self._is_sound(span):
                yield span
                continue
            whole = self._inside(span)
            yield Span(span.start, None, span.end if whole is None else whole.start)
            if whole is not None:
                yield whole

    def _inside(self, bad: Span) -> Span | None:
        """Find the sound line at the end of a bad part: where the newline before it is lost, two look like one."""
        line, work = bad.line or b"", 0
        for begin in _line_begins.finditer(line, 1):
            piece = Span(bad.start + begin.start(), line[begin.start() :], bad.end)
            if self._is_sound(piece):
                return piece
            work += bad.end - piece.start
            if work > SEARCH_BYTES_MAX:
                break
        return None

    def _is_sound(self, span: Span) -> bool:
        return span.line is not None and fmt.is_sound(span.line, self._seed, span.start)

    def _was_on_disk(self, bad: int) -> bool:
        """Say whether something proves that what began here was on disk once: then it is rot, else the torn tail."""
        return bad < self._proven_length(bad) or (bad == 0 and self._is_foreign())

    def _proven_length(self, bad: int) -> int:
        """How much of the segment was on disk once, as far as its successor or its own lines beyond `bad` say."""
        if self._proven is None:
            self._proven = self._proven_by_others()
            for _, line, end in self._judged(bad):
                if line is not None:
                    self._proven = max(self._proven, end if line.startswith(fmt.SEAL) else fmt.dur_of(line))
        return self._proven

    def _proven_by_others(self) -> int:
        """How much was on disk as its successor says, or all of it where it is compressed: so only what is sealed."""
        complete = self._store.complete_bytes(self._name)
        return max(self.stated_proven, complete if self._good is None else min(complete, self._good))

    def _is_foreign(self) -> bool:
        """Say whether the first line is bad in a way that no crash explains: segments are created whole."""
        data = self._store.read(self._name, 0, CHUNK_BYTES)
        if not data.strip(b"\0"):
            return False
        line, newline, _ = data.partition(b"\n")
        check_format(line + newline, False, self._name)
        return bool(newline) or not (line.startswith(_SEGMENT) or _SEGMENT.startswith(line))

    def _spans(self, start: int) -> Iterator[Span]:
        """Cut the file at its newlines, in memory bounded by one line."""
        parts: list[bytes] = []
        at = start
        while True:
            end = at + CHUNK_BYTES if self._good is None else min(at + CHUNK_BYTES, self._good)
            chunk = self._store.read(self._name, at, end) if at < end else b""
            at += len(chunk)
            if not chunk:
                if parts:
                    yield Span(start, None, at)
                return
            done = 0
            while (newline := chunk.find(b"\n", done)) >= 0:
                line = chunk[done : newline + 1]
                if parts:
                    line, parts = b"".join((*parts, line)), []
                yield Span(start, line, start + len(line))
                start += len(line)
                done = newline + 1
            if done < len(chunk):
                parts.append(chunk[done:] if done else chunk)
            if at - start > fmt.LINE_BYTES_MAX:
                yield Span(start, None, at)
                start, parts = at, []

    def _report(self, start: int, end: int) -> None:
        self._on_damage(Damage(self._store.file_of(self._name), start, end, "not as it was written"))


class Reader:
    """A run's journal, for reading only. Cheap to make; sees what every process has written so far."""

    def __init__(self, store: Store, *, run: str | None = None) -> None:
        self.store = SegmentFiles.over(store)
        self.run = run or read_run(store).run
        self._last: dict[int, int] = {}
        """The highest segment of each epoch that was listed."""

    def segments(self, epoch: int) -> list[int]:
        """Return the numbers of the epoch's segments, ascending. Somebody else's files are left alone."""
        found = (fmt.number_of(name, ".jsonl") for name in self.store.list(fmt.epoch_folder(epoch)))
        numbers = sorted(number for number in found if number is not None)
        self._last[epoch] = max(numbers, default=0)
        return numbers

    def stated(self, epoch: int, segment: int) -> tuple[int, int] | None:
        """Return (good length, proven length) of a segment as a later header states them; None if none does."""
        if segment < self._last.get(epoch, 0) and (stated := self._stated_by(epoch, segment + 1, segment)) is not None:
            return stated  # nearly always: so nothing has to be listed
        for later in self.segments(epoch):
            if later > segment and (stated := self._stated_by(epoch, later, segment)) is not None:
                return stated
        return None

    def _stated_by(self, epoch: int, later: int, segment: int) -> tuple[int, int] | None:
        try:
            header = self.header(epoch, later)
        except FileNotFoundError:
            return None
        previous = [] if header is None else header.previous
        return next(((good, proven) for number, good, proven in previous if number == segment), None)

    def header(self, epoch: int, segment: int) -> records.Segment | None:
        """Return a segment's header, None if it is not as it was written (the segment's own scan says so)."""
        try:
            data = self.store.read(fmt.segment_name(epoch, segment), 0, 1 << 16)
        except IsADirectoryError:
            return None
        line = data[: data.find(b"\n") + 1]
        if not fmt.is_sound(line, fmt.file_seed(fmt.segment_identity(self.run, epoch, segment)), 0):
            return None
        return msgspec.json.decode(line, type=records.Segment)

    def scan(self, on_damage: OnDamage, *, newest_first: bool = False) -> Iterator[Line]:
        """Yield every sound line of the run: epochs ascending, or from the newest down, each from its beginning."""
        numbers = epochs(self.store)
        for epoch in reversed(numbers) if newest_first else numbers:
            yield from self.scan_epoch(epoch, on_damage)

    def scan_epoch(self, epoch: int, on_damage: OnDamage) -> Iterator[Line]:
        """Yield every sound line of one epoch, in the order in which it was written."""
        try:
            segments = self.segments(epoch)
            self.report_missing(epoch, segments, on_damage)
        except OSError as error:
            on_damage(unreadable(fmt.epoch_folder(epoch), error))
            return
        for segment in segments:
            try:
                yield from SegmentScan(self, epoch, segment, on_damage)
            except OSError as error:
                on_damage(unreadable(self.store.file_of(fmt.segment_name(epoch, segment)), error))

    def report_missing(self, epoch: int, segments: list[int], on_damage: OnDamage) -> None:
        """Report the numbers that `segments` skips, but for those whose creation failed."""
        for number in sorted(set(range(1, max(segments, default=0))) - set(segments)):
            good, _ = self.stated(epoch, number) or (-1, 0)
            if good != 0:
                on_damage(Damage(fmt.segment_name(epoch, number), 0, max(good, 0), "the segment is missing"))

    def value(self, line: Line, digest: str, size: int | None = None) -> bytes:
        """Return a binary value that `line` names, checked against its hash, and its length if `size` says it."""
        name = fmt.pack_name(line.epoch, line.segment)
        for known, offset, length in _trailers.decode(line.raw).pack:
            if known == digest and size in (None, length):
                try:
                    data = self.store.read(name, offset, offset + length)
                except OSError as error:
                    raise DamagedError(str(unreadable(name, error, offset))) from error
                if len(data) != length or blake2b(data, digest_size=16).hexdigest() != digest:
                    raise DamagedError(str(Damage(name, offset, offset + length, "a value is not as it was written")))
                return data
        raise DamagedError(f"{name} holds no value {digest} for the line at {line.offset} of segment {line.segment}")

    def is_closed(self, epoch: int) -> bool:
        """Say whether the epoch's writer has said that it writes no more."""
        sizes = self.store.list(fmt.epoch_folder(epoch))
        numbers = {n: size for name, size in sizes.items() if (n := fmt.number_of(name, ".jsonl")) is not None}
        if not numbers:
            return False
        last = max(numbers)
        begin = max(0, numbers[last] - SEAL_BYTES_MAX)
        data = self.store.read(fmt.segment_name(epoch, last), begin, numbers[last])
        start = data.rfind(b"\n", 0, -1) + 1
        line, seed = data[start:], fmt.file_seed(fmt.segment_identity(self.run, epoch, last))
        if not line.startswith(fmt.SEAL) or not fmt.is_sound(line, seed, begin + start):
            return False
        return msgspec.json.decode(line, type=records.Seal).closed

    def near_end(self, epoch: int, segment: int, window_bytes: int) -> int:
        """Return where a sound line begins, about `window_bytes` before the end; 0 if none is found."""
        size = self.store.list(fmt.epoch_folder(epoch)).get(fmt.segment_name(epoch, segment).rpartition("/")[2], 0)
        begin = max(0, size - window_bytes)
        data = self.store.read(fmt.segment_name(epoch, segment), begin, size) if begin else b""
        seed = fmt.file_seed(fmt.segment_identity(self.run, epoch, segment))
        at = data.find(b"\n") + 1
        while at and (end := data.find(b"\n", at) + 1):
            if fmt.is_sound(data[at:end], seed, begin + at):
                return begin + at
            at = end
        return 0

    def lines_at(self, places: Sequence[tuple[int, int, int, int]]) -> list[Line]:
        """Read lines whose (epoch, segment, offset, size) are known, in that order; near ones with one read."""
        found: dict[tuple[int, int, int, int], Line] = {}
        for near in _near(sorted(set(places))):
            epoch, segment, start, _ = near[0]
            end = near[-1][2] + near[-1][3]
            try:
                data = self.store.read(fmt.segment_name(epoch, segment), start, end)
            except OSError:
                data = b""  # one by one, the one that can't be read says so
            seed = fmt.file_seed(fmt.segment_identity(self.run, epoch, segment))
            for place in near:
                offset, size = place[2:]
                raw = data[offset - start : offset - start + size]
                sound = len(raw) == size and fmt.is_sound(raw, seed, offset)
                found[place] = Line(epoch, segment, offset, raw) if sound else self.line_at(*place)
        return [found[place] for place in places]

    def line_at(self, epoch: int, segment: int, offset: int, size: int) -> Line:
        """Read one line whose place is known. DamagedError: it is not there as it was written."""
        name = fmt.segment_name(epoch, segment)
        try:
            raw = self.store.read(name, offset, offset + size)
        except OSError as error:
            raise DamagedError(str(unreadable(self.store.file_of(name), error, offset))) from error
        if not fmt.is_sound(raw, fmt.file_seed(fmt.segment_identity(self.run, epoch, segment)), offset):
            file = self.store.file_of(name)
            raise DamagedError(str(Damage(file, offset, offset + size, "not as it was written")))
        return Line(epoch, segment, offset, raw)


class Follower:
    """Reads what is new at each `poll`: a live view of a run. `cursor` is where it stands, by epoch."""

    def __init__(
        self, reader: Reader, on_damage: OnDamage, cursor: dict[int, tuple[int, int]] | None = None, *, after: int = 0
    ) -> None:
        self.cursor: dict[int, tuple[int, int]] = dict(cursor or {})
        """For each epoch: the segment and the offset in it at which to go on."""
        self._after = after
        self._unreadable: set[str] = set()
        self._reported: set[Damage] = set()
        self._reader = reader
        self._on_damage = on_damage

    def poll(self, *, skip: Collection[int] = ()) -> Iterator[Line]:
        """Yield the sound lines that epochs above `after`, but for those in `skip`, added since the last poll."""
        for epoch in epochs(self._reader.store, above=self._after):
            if epoch not in skip:
                yield from self._poll_epoch(epoch)

    def _poll_epoch(self, epoch: int) -> Iterator[Line]:
        segment, offset = self.cursor.get(epoch, (0, 0))
        try:
            numbers = self._reader.segments(epoch)
        except OSError as error:
            return self._report_once(fmt.epoch_folder(epoch), error)
        for number in numbers:
            if number < segment:
                continue
            start = offset if number == segment else 0
            try:
                scan = SegmentScan(self._reader, epoch, number, self._report, start=start)
                for line in scan:
                    self.cursor[epoch] = (number, scan.position)
                    yield line
            except OSError as error:
                self._report_once(self._reader.store.file_of(fmt.segment_name(epoch, number)), error)
                if isinstance(error, IsADirectoryError):  # it never was a segment: what comes after it is still read
                    continue
                return
            self.cursor[epoch] = (number, scan.position)
            if not scan.finished and number == numbers[-1]:  # else its writer has gone on to the next one
                return

    def _report(self, damage: Damage) -> None:
        """Hand it on, once: a compressed segment that is not as it was written says so whenever it is looked at."""
        if damage not in self._reported:
            self._reported.add(damage)
            self._on_damage(damage)

    def _report_once(self, name: str, error: OSError) -> None:
        if name not in self._unreadable:
            self._unreadable.add(name)
            self._on_damage(unreadable(name, error))


def _near(places: list[tuple[int, int, int, int]]) -> Iterator[list[tuple[int, int, int, int]]]:
    """Cut sorted places into runs that one read covers without much between them."""
    run: list[tuple[int, int, int, int]] = []
    for place in places:
        if run:
            epoch, segment, offset, size = run[-1]
            far = place[2] - (offset + size) > GAP_BYTES_MAX or place[2] - run[0][2] > CHUNK_BYTES
            if far or place[:2] != (epoch, segment):
                yield run
                run = []
        run.append(place)
    if run:
        yield run


def unreadable(name: str, error: OSError, at: int = 0) -> Damage:
    return Damage(name, at, at, f"cannot be read: {os.strerror(error.errno) if error.errno else error}")
