"""Bringing an index up to the journal: in slices, never past what is proven on disk (`docs/design/index.md`)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from rolltape.errors import DamagedError
from rolltape.index.catalogue import Catalogue, Cursor
from rolltape.index.marks import Mark, SegmentId, lineage_of, mark_of
from rolltape.index.rows import row_of
from rolltape.journal import Damage, Line, Reader, SegmentScan
from rolltape.journal import format as fmt
from rolltape.journal.epochs import epochs, provably_gone, read_claim
from rolltape.journal.reader import unreadable

SLICE_LINES = 8_192
"""One transaction. Its marks are in memory, and other readers wait for it."""

_SEAL = b'{"type":"seal"'


class Updater:
    """Brings `catalogue` up to what `reader` sees."""

    def __init__(self, catalogue: Catalogue, reader: Reader) -> None:
        self.complete = False
        """The last update came to the end of the journal."""
        self.done_bytes = self.all_bytes = 0
        """How much of the journal the index holds, of how much there is."""
        self.damage: list[Damage] = []
        """What the last update met and the index does not keep."""
        self.made = 0
        """Which building of the index the last update was of (`Catalogue.made`)."""
        self._catalogue = catalogue
        self._reader = reader
        self._tails: dict[str, dict[SegmentId, list[Mark]]] = {}
        self._gone: set[int] = set()
        self._has_stored = False

    def update(self, budget_s: float | None = None, *, skip: Collection[int] = ()) -> bool:
        """Index what is new, for about `budget_s`; return whether that was all of it. `skip`: epochs left alone."""
        deadline = None if budget_s is None else time.monotonic() + budget_s
        while True:
            self.made = self._catalogue.made()
            try:
                sizes = self._go_on(deadline, skip)
            except _IsAhead:
                self._catalogue.rebuild()
                continue
            if self._catalogue.made() == self.made:  # else another reader has emptied it meanwhile
                break
        self.all_bytes = sum(sizes.values())
        self.done_bytes = sum(min(c.position, sizes.get(id, 0)) for id, c in self._catalogue.cursors().items())
        self._catalogue.lay_over(row_of(key, lineage_of(key, self.parts(key))) for key in self._tails)
        return self.complete

    def _go_on(self, deadline: float | None, skip: Collection[int]) -> dict[SegmentId, int]:
        """Index what is new, as far as time allows. Returns every segment's length."""
        self._has_stored = False
        sizes, unread = self._look(skip)
        self.complete = True
        for id in unread:
            self.complete = self._catch_up(id, sizes[id], deadline)
            if id != unread[-1] and self._is_due(deadline):
                self.complete = False
            if not self.complete:
                break
        if self.complete and len({epoch for epoch, _ in unread}) > 1:
            # Again, the newest epoch first: what a record goes on from is read after the record, so that it is there.
            sizes, unread = self._look(skip)
            for id in reversed(unread):
                self._catch_up(id, sizes[id], None)
        return sizes

    def _is_due(self, deadline: float | None) -> bool:
        """Say whether to stop here: not before something is stored, so that the next update gets further."""
        return deadline is not None and self._has_stored and time.monotonic() >= deadline

    def all_damage(self) -> list[Damage]:
        """Return what was met so far that is not as it was written."""
        return [*self._catalogue.damage(), *self.damage]

    def parts(self, key: str) -> dict[SegmentId, list[Mark]]:
        """Return the marks of one trajectory, tails included. Some may be there twice."""
        parts = self._catalogue.parts(key)
        for segment, marks in self._tails.get(key, {}).items():
            parts[segment] = [*parts.get(segment, ()), *marks]
        return parts

    def _look(self, skip: Collection[int]) -> tuple[dict[SegmentId, int], list[SegmentId]]:
        """Begin a pass: return the length of every segment, and the segments that may hold something new."""
        self._tails, self.damage = {}, []
        cursors = self._catalogue.cursors()  # before the lengths, which are then at least those that cursors know
        sizes = self._sizes()
        if any(0 < sizes.get(id, 0) < cursor.size for id, cursor in cursors.items()):
            raise _IsAhead
        newest = dict(list(sizes))  # each epoch's newest segment
        return sizes, [
            id
            for id, size in sizes.items()
            if id[0] not in skip and not cursors.get(id, Cursor()).covers(size, id[1] == newest[id[0]])
        ]

    def _sizes(self) -> dict[SegmentId, int]:
        """Return every segment and its length, epochs and segments ascending."""
        found: dict[SegmentId, int] = {}
        for epoch in epochs(self._reader.store):
            try:
                names = self._reader.store.list(fmt.epoch_folder(epoch))
                numbers = {n: size for name, size in names.items() if (n := fmt.number_of(name, ".jsonl")) is not None}
                self._reader.report_missing(epoch, sorted(numbers), self.damage.append)
            except OSError as error:
                self.damage.append(unreadable(fmt.epoch_folder(epoch), error))
                continue
            found.update(((epoch, number), numbers[number]) for number in sorted(numbers))
        return found

    # ---- one segment -------------------------------------------------------------------------------------------------

    def _catch_up(self, id: SegmentId, size: int, deadline: float | None) -> bool:
        """Index one segment from where its cursor stands; what is not proven becomes its tail."""
        while True:
            seen = self._catalogue.others_wrote()
            at = self._catalogue.cursors().get(id, Cursor())
            try:
                if at.settled and not at.finished and (stated := self._reader.stated(*id)) and stated[0] < at.position:
                    raise _IsAhead
                progress = _Progress(self._reader, id, at)
            except OSError as error:
                self.damage.append(self._unreadable(id, error))
                return True
            try:
                done = self._slices(progress, size, seen, deadline)
            except _OthersWrote:
                continue
            self.damage += progress.damage
            return done

    def _slices(self, progress: _Progress, size: int, seen: int, deadline: float | None) -> bool:
        while True:
            reads, error = progress.read(SLICE_LINES)
            if error is not None:
                if reads:
                    self._store(progress, reads, progress.cursor(reads, size, False, False), seen)
                self._keep_tail(progress)
                progress.damage.append(self._unreadable(progress.id, error))
                return True
            at_end = len(reads) < SLICE_LINES
            settled = at_end and self._settle(progress, size)
            if settled:
                reads += progress.unproven
            cursor = progress.cursor(reads, size, at_end, settled)
            if cursor != progress.at:
                self._store(progress, reads, cursor, seen)
            if at_end:
                if not settled:
                    self._keep_tail(progress)
                return True
            if self._is_due(deadline):
                return False

    def _store(self, progress: _Progress, reads: list[_Read], cursor: Cursor, seen: int) -> None:
        fresh: dict[str, list[Mark]] = {}
        for read in reads:
            if read.mark is not None:
                fresh.setdefault(read.key, []).append(read.mark)
        catalogue, id = self._catalogue, progress.id
        with catalogue.writing():
            if catalogue.others_wrote() != seen:
                raise _OthersWrote
            rows = []
            for key, marks in fresh.items():
                parts = catalogue.parts(key)
                parts[id] = [*parts.get(id, ()), *marks]
                catalogue.put_part(key, id, parts[id])
                rows.append(row_of(key, lineage_of(key, parts)))
            catalogue.put_rows(rows)
            catalogue.add_damage(damage for damage in progress.damage if damage.end <= cursor.position)
            catalogue.put_cursor(id, cursor)
        progress.damage = [damage for damage in progress.damage if damage.end > cursor.position]
        progress.at = cursor
        self._has_stored = True

    def _settle(self, progress: _Progress, size: int) -> bool:
        """Prove the tail of a segment that nobody seems to write to any more, by syncing it. Says whether it did."""
        if progress.scan.finished or not (self.is_gone(progress.id[0]) or progress.at.is_quiet(size)):
            return False
        try:
            self._reader.store.sync(fmt.segment_name(*progress.id))
        except OSError:
            return False  # a read-only file system, say: the tail stays a tail, which is slower and as right
        return True

    def _unreadable(self, id: SegmentId, error: OSError) -> Damage:
        return unreadable(self._reader.store.file_of(fmt.segment_name(*id)), error)

    def _keep_tail(self, progress: _Progress) -> None:
        for read in progress.unproven:
            if read.mark is not None:
                self._tails.setdefault(read.key, {}).setdefault(progress.id, []).append(read.mark)

    def is_gone(self, epoch: int) -> bool:
        """Say whether the epoch's writer certainly writes no more."""
        if epoch not in self._gone:
            try:
                claim = read_claim(self._reader.store, self._reader.run, epoch)
            except (DamagedError, OSError):
                return False  # then nobody knows; `verify` says what is wrong with the claim
            if claim is not None and provably_gone(claim):
                self._gone.add(epoch)
        return epoch in self._gone


class _IsAhead(Exception):
    """The index holds what does not count any more: its writer gave it up after all, or the file was cut."""


class _OthersWrote(Exception):
    """Another reader has changed the index since this one looked at it: look again."""


class _Read(NamedTuple):
    """One sound line."""

    start: int
    end: int
    key: str
    mark: Mark | None


class _Progress:
    """One segment on its way into the index."""

    def __init__(self, reader: Reader, id: SegmentId, at: Cursor) -> None:
        self.id = id
        self.at = at
        """What the index holds of it."""
        self.damage: list[Damage] = []
        self.scan = SegmentScan(reader, *id, self.damage_found, start=at.position)
        self.unproven: deque[_Read] = deque()
        self.proven = self._proven()

    def damage_found(self, damage: Damage) -> None:
        self.damage.append(damage)

    def read(self, number: int) -> tuple[list[_Read], OSError | None]:
        """Return the next lines that are proven to be on disk, and what stopped the reading if something did."""
        reads: list[_Read] = []
        try:
            reads.extend(islice(self.proven, number))
        except OSError as error:
            return reads, error
        return reads, None

    def _proven(self) -> Iterator[_Read]:
        """Yield what is proven to be on disk; at the end, `unproven` is what is not."""
        proven = self.scan.stated_proven
        for line in self.scan:
            read = self._read(line)
            self.unproven.append(read)
            proven = max(proven, read.end if line.raw.startswith(_SEAL) else fmt.dur_of(line.raw))
            while self.unproven and self.unproven[0].end <= proven:
                yield self.unproven.popleft()

    def _read(self, line: Line) -> _Read:
        end = line.offset + len(line.raw)
        try:
            found = mark_of(line)
        except msgspec.DecodeError as error:
            self.damage.append(Damage(fmt.segment_name(*self.id), line.offset, line.offset, f"no record: {error}"))
            found = None
        return _Read(line.offset, end, *(found or ("", None)))

    def cursor(self, reads: list[_Read], size: int, at_end: bool, settled: bool) -> Cursor:
        """Return where the index stands once `reads` are in it."""
        if not at_end:
            return self.at._replace(position=reads[-1].end, size=-1)
        position = self.scan.position
        if self.unproven and not settled:
            position = self.unproven[0].start
        finished = self.scan.finished and not self.unproven
        grown_s = self.at.grown_s if self.at.size == size else time.time()
        return Cursor(position, finished, settled, size, grown_s)
