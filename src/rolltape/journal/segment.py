"""The write side of one segment and its pack.

When `write` returns, the lines survive the process. When `sync` returns, they survive power loss, and so do the pack
values that they name (those are synced before their lines are written, always). After any error from either, the
segment is dead: nothing more is written to it, and `good` and `proven` say how much of it counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rolltape import records
from rolltape.journal import format as fmt
from rolltape.journal.waiters import Item

if TYPE_CHECKING:
    from rolltape.store import Store

Closed = tuple[int, int, int]
"""(segment, good length, proven length) of a segment that its successor's header must speak for."""


class SegmentWriter:
    """One segment, created whole with its header when the object is made.

    Invariants: `proven` ≤ `good` ≤ the file's length. `good` is what a reader may count if this segment ends without
    a seal: what was synced, or at durability `os` written, by calls that succeeded. `proven` is what a sync covered.
    """

    def __init__(self, store: Store, run: str, epoch: int, number: int, previous: list[Closed]) -> None:
        self.number = number
        self.name = fmt.segment_name(epoch, number)
        self.pack_name = fmt.pack_name(epoch, number)
        self._store = store
        self._run, self._epoch = run, epoch
        self._seed = fmt.file_seed(fmt.segment_identity(run, epoch, number))
        self._packed: dict[str, fmt.PackEntry] = {}
        self._pack_bytes = 0
        self._records = 0
        header = records.Segment(
            format=records.FORMAT,
            minor=records.FORMAT_MINOR,
            run=run,
            epoch=epoch,
            segment=number,
            previous=previous,
            unix_s=time.time(),
        )
        line = fmt.close_line(fmt.encode_record(header), self._seed, 0, 0)
        store.put_new(self.name, line)
        self.good = self.proven = self._written = len(line)

    @property
    def size_bytes(self) -> int:
        """What it occupies, pack included."""
        return self._written + self._pack_bytes

    @property
    def dirty(self) -> bool:
        """Something was written that no sync has covered."""
        return self.proven < self._written

    def write(self, items: Iterable[Item]) -> None:
        """Write a group of records, with one write to each file."""
        values: dict[str, bytes] = {}
        for item in items:
            if item[1]:
                values.update(item[1])
        if values:
            self._write_pack(values)
        parts: list[bytes] = []
        offset, seed, tail, end_of_line = self._written, self._seed, fmt.tail(self.proven), fmt.end_of_line
        for item in items:
            body, blobs = item[0], item[1]
            if blobs:
                body = fmt.with_pack(body, [self._packed[digest] for digest in blobs])
            end = end_of_line(body, seed, offset, tail)
            offset += len(body) + len(end)
            parts.append(body)
            parts.append(end)
        self._store.append(self.name, b"".join(parts))
        self._written = offset
        self._records += len(parts) // 2

    def count_written(self) -> None:
        """At durability `os`, what was written counts."""
        self.good = self._written

    def sync(self) -> None:
        """Make everything written so far survive power loss."""
        self._store.sync(self.name)
        self.good = self.proven = self._written

    def seal(self, *, closed: bool = False) -> None:
        """Sync, then add the line that says that nothing follows, and sync that. `closed`: in the whole epoch."""
        if self.dirty:
            self.sync()
        seal = records.Seal(records=self._records, pack_bytes=self._pack_bytes, closed=closed, unix_s=time.time())
        self.write([(fmt.encode_record(seal), None, None, None)])
        self.sync()
        self.release()

    def release(self) -> None:
        """Close the files as they are."""
        self._store.release(self.name)
        self._store.release(self.pack_name)

    def _write_pack(self, values: dict[str, bytes]) -> None:
        new = {digest: value for digest, value in values.items() if digest not in self._packed}
        if not new:
            return
        if not self._pack_bytes:
            header = records.Pack(format=records.FORMAT, run=self._run, epoch=self._epoch, segment=self.number)
            line = fmt.close_line(fmt.encode_record(header), fmt.file_seed(self.pack_name), 0, 0)
            self._store.put_new(self.pack_name, line)
            self._pack_bytes = len(line)
        offset = self._pack_bytes
        entries: dict[str, fmt.PackEntry] = {}
        for digest, value in new.items():
            entries[digest] = (digest, offset, len(value))
            offset += len(value)
        self._store.append(self.pack_name, b"".join(new.values()))
        self._store.sync(self.pack_name)
        self._packed.update(entries)
        self._pack_bytes = offset
