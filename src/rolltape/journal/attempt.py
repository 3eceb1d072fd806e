"""What one attempt at a trajectory writes: numbered, in order, and nothing more once something failed.

When `append` returns, the record is on disk as the writer's durability says. A record that was queued is written even
if whoever waited was cancelled. After one failed record every later one of the same attempt is refused, so that an
attempt on disk has no holes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Raw

from rolltape import records
from rolltape.errors import JournalError
from rolltape.journal import format as fmt
from rolltape.journal.compressed import SegmentFiles
from rolltape.values import DEFAULT, Encoded, Memory, Redactor, encode

if TYPE_CHECKING:
    import asyncio

    from rolltape.journal.writer import Writer
    from rolltape.store import Store


Values: TypeAlias = Mapping[str, Any]
"""A record's fields that hold a user's values, such as {"result": {"value": 42}}."""

_NO_VALUES: Values = {}
_NONE_ENCODED: Mapping[str, Encoded] = {}


class AttemptLog:
    """The records of one attempt, put from one event loop."""

    def __init__(
        self, writer: Writer, key: str, attempt: int, *, memory: Memory | None = None, redactor: Redactor = DEFAULT
    ) -> None:
        self.key = key
        self.epoch = writer.epoch
        self.attempt = attempt
        self.memory = memory or Memory()
        """What the trajectory has recorded so far, which new values refer to instead of repeating it."""
        self.redactor = redactor
        self.error: BaseException | None = None
        """Why nothing more can be written: set by the writer when a record of this attempt failed."""
        self.next_seq = 0
        self._writer = writer

    async def take(self) -> None:
        """Say that this attempt is about to begin. On disk when it returns; changes no reading."""
        await self._outside(records.Take(**self._id(), unix_s=time.time()))

    async def withdraw(self) -> None:
        """Say that it will not begin after all."""
        await self._outside(records.Withdrawn(**self._id()))

    def give_up(self) -> None:
        """Say that it will not begin after all, without waiting: whatever has become of the log and of who waits."""
        record = fmt.encode_record(records.Withdrawn(**self._id()))
        with suppress(JournalError):  # of a closed journal: it has ended, and its undecided takes with it
            self._writer.put(record, sync=records.Withdrawn.durable).add_done_callback(_ignored)

    async def begin(self, continues: records.Point | None, **fields: Any) -> None:
        """Write the attempt's first record: from now on it is the newest, and continues exactly that point."""
        await self.append(records.Attempt, continues=continues, unix_s=time.time(), **fields)

    async def append(self, kind: type[records.InOrder], /, **fields: Any) -> None:
        """Write the next record, waiting for room first; return when it is on disk. Takes what `put` takes."""
        if (port := self._writer.port()).full:
            await port.room()
        await self.put(kind, **fields)

    async def room(self) -> None:
        """Return when the queue has room. A record put right after it keeps what waits within its bound."""
        if (port := self._writer.port()).full:
            await port.room()

    def put(
        self,
        kind: type[records.InOrder],
        /,
        *,
        values: Values = _NO_VALUES,
        returns: Any = None,
        encoded: Mapping[str, Encoded] = _NONE_ENCODED,
        blobs: Mapping[str, bytes] | None = None,
        **fields: Any,
    ) -> asyncio.Future[None]:
        """Number and queue the next record at once; the future is done when it is on disk.

        `values` are the user's own, by field: redacted, and encoded with references to what was recorded before.
        `returns` is what `encode` takes. `encoded` were encoded before with this log's memory and redactor.
        `blobs` are the pack values of fields that are encoded already. If this raises (what can't be encoded, a limit,
        a closed journal), nothing was queued and the number is still free.
        """
        packed = dict(blobs) if blobs else None
        notes = []
        for field, value in values.items():
            text = encode(value, where=f"/{field}", redact=self.redactor, memory=self.memory, returns=returns)
            encoded = {**encoded, field: text} if encoded else {field: text}
        for field, text in encoded.items():
            fields[field] = Raw(text.json)
            notes.append(text.notes)
            if text.blobs:
                packed = {**packed, **text.blobs} if packed else text.blobs
        fields["key"], fields["epoch"], fields["attempt"] = self.key, self.epoch, self.attempt
        fields["seq"] = seq = self.next_seq
        future = self._writer.put(fmt.encode_record(kind(**fields)), packed, log=self, sync=kind.durable)
        if notes:
            self.memory.commit((self.epoch, self.attempt, seq), *notes)
        self.next_seq = seq + 1
        return future

    async def _outside(self, record: records.OfTrajectory) -> None:
        await self._writer.port().room()
        await self._writer.put(fmt.encode_record(record), log=self, sync=record.durable)

    def _id(self) -> dict[str, Any]:
        return {"key": self.key, "epoch": self.epoch, "attempt": self.attempt}


def _ignored(future: asyncio.Future[None]) -> None:
    """Nobody waits for it. Others see that a take was given up, or wait until its process has ended."""
    if not future.cancelled():
        future.exception()


def rely_on(store: Store, places: Iterable[tuple[int, int]]) -> None:
    """Make the (epoch, segment) places survive power loss, with their packs, claims and every directory entry.

    Before an attempt records what it continues: what was read may so far be only in the page cache. `store` must not
    be the object that a writer of this process appends through.
    """
    files = SegmentFiles.over(store)
    folders: dict[int, dict[str, int]] = {}
    for epoch, segment in sorted(set(places)):
        if epoch not in folders:
            folders[epoch] = store.list(fmt.epoch_folder(epoch))
            store.sync(fmt.claim_name(epoch))
        files.sync(fmt.segment_name(epoch, segment))
        if f"{segment:08d}.pack" in folders[epoch]:
            store.sync(fmt.pack_name(epoch, segment))
