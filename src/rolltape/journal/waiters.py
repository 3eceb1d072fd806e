"""Who waits for records to be on disk: tasks of an event loop, and plain threads.

A `LoopPort` is one event loop's side of a writer. What the loop's tasks put within one tick goes to the I/O thread as
one batch, so the thread is woken once a tick; what comes back is released in slices, so that ten thousand waiters do
not stall the loop. A `ThreadPort` is the side of all threads without a loop.

Both bound what waits: `room` returns when the bytes in flight are under the limit. The limit is soft by one record,
so that a record larger than it can pass.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future as ThreadFuture
from typing import Protocol, TypeAlias

RELEASE_SLICE = 128
"""Waiters released in one callback of the loop. 128 kept the worst stall with 10,000 waiters at 30 ms; 512 at 70."""

GROUP_MIN = 1024
"""So many records are handed over even while waiters are released; fewer wait for the rest of the group."""

Blobs = Mapping[str, bytes]


class Log(Protocol):
    """What an item belongs to: once one of its records failed, the others fail too."""

    error: BaseException | None


Item: TypeAlias = "tuple[bytes, Blobs | None, asyncio.Future[None] | ThreadFuture[None] | None, Log | None]"
"""One record on its way: its body, its pack values, who waits for it, and the log that it belongs to."""


class Batch:
    """What one port handed over at once."""

    __slots__ = ("bytes", "failed", "items", "port", "sync")

    def __init__(self, port: Port, items: list[Item], size_bytes: int, sync: bool) -> None:
        self.port = port
        self.items = items
        self.bytes = size_bytes
        self.sync = sync
        self.failed: dict[int, BaseException] = {}
        """Errors by the item's place in `items`; what is not here was acknowledged."""


def size_of(body: bytes, blobs: Blobs | None) -> int:
    return len(body) + (sum(map(len, blobs.values())) if blobs else 0)


class Port(Protocol):
    """Where a batch goes back to, on the I/O thread."""

    def settle(self, batch: Batch) -> None: ...


class LoopPort:
    """One event loop's side of a writer. Every method but `settle` runs on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, submit: Callable[[Batch], None], bytes_max: int) -> None:
        self.loop = loop
        self._submit = submit
        self._bytes_max = bytes_max
        self._items: list[Item] = []
        self._items_bytes = 0
        self._sync = False
        self._releasing = 0
        """Batches whose waiters are being released: what they put next goes together."""
        self._bytes = 0
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()

    async def room(self) -> None:
        """Return when a record may be put, which is best done at once. Who comes first goes first."""
        if not self.full:
            return
        turn: asyncio.Future[None] = self.loop.create_future()
        self._waiting_for_room.append(turn)
        try:
            await turn
        finally:
            self._waiting_for_room.remove(turn)
            self.loop.call_soon(self._next_turn)  # after the record of this one was put

    @property
    def full(self) -> bool:
        """A record has to wait for `room`."""
        return self._bytes >= self._bytes_max or bool(self._waiting_for_room)

    def put(self, body: bytes, blobs: Blobs | None, log: Log | None, sync: bool) -> asyncio.Future[None]:
        """Queue a record. It will be written whatever becomes of the future; the future tells when it is on disk."""
        future: asyncio.Future[None] = self.loop.create_future()
        items = self._items
        if not items and not self._releasing:
            self.loop.call_soon(self.hand_over)
        items.append((body, blobs, future, log))
        size = size_of(body, blobs) if blobs else len(body)
        self._items_bytes += size
        self._bytes += size
        if sync:
            self._sync = True
        if self._releasing and len(items) >= GROUP_MIN:
            self.hand_over()
        return future

    def hand_over(self) -> None:
        """Give everything that was put to the I/O thread."""
        if self._items:
            batch = Batch(self, self._items, self._items_bytes, self._sync)
            self._items, self._items_bytes, self._sync = [], 0, False
            self._submit(batch)

    def settle(self, batch: Batch) -> None:
        try:
            self.loop.call_soon_threadsafe(self._begin_release, batch)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            # The loop is gone, and with it everybody who waited. The records are where they should be.

    def _begin_release(self, batch: Batch) -> None:
        self._releasing += 1
        self._bytes -= batch.bytes
        self._next_turn()
        self._release(batch, 0)

    def _release(self, batch: Batch, start: int) -> None:
        items, failed = batch.items, batch.failed
        end = start + RELEASE_SLICE
        for place, (_, _, future, _) in enumerate(items[start:end], start):
            if future is None or future.done():
                continue
            if failed and (error := failed.get(place)) is not None:
                future.set_exception(error)
            else:
                future.set_result(None)
        self.loop.call_soon(*((self._release, batch, end) if end < len(items) else (self._end_release,)))

    def _end_release(self) -> None:
        """Hand over what the released have put: they all ran before this, so their records go as one group."""
        self._releasing -= 1
        if not self._releasing:
            self.hand_over()

    def _next_turn(self) -> None:
        if self._waiting_for_room and self._bytes < self._bytes_max and not self._waiting_for_room[0].done():
            self._waiting_for_room[0].set_result(None)


class ThreadPort:
    """The side of all threads that have no event loop."""

    def __init__(self, submit: Callable[[Batch], None], bytes_max: int) -> None:
        self._submit = submit
        self._bytes_max = bytes_max
        self._bytes = 0
        self._room = threading.Condition()

    def put(self, body: bytes, blobs: Blobs | None, log: Log | None, sync: bool) -> ThreadFuture[None]:
        """Queue a record, waiting for room first. Several threads' records are written as one group."""
        future: ThreadFuture[None] = ThreadFuture()
        size = size_of(body, blobs)
        with self._room:
            self._room.wait_for(lambda: self._bytes < self._bytes_max)
            self._bytes += size
        self._submit(Batch(self, [(body, blobs, future, log)], size, sync))
        return future

    def settle(self, batch: Batch) -> None:
        with self._room:
            self._bytes -= batch.bytes
            self._room.notify_all()
        for place, (_, _, future, _) in enumerate(batch.items):
            assert isinstance(future, ThreadFuture)
            if not future.set_running_or_notify_cancel():
                continue
            if (error := batch.failed.get(place)) is not None:
                future.set_exception(error)
            else:
                future.set_result(None)
