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
from typing import Protocol

RELEASE_SLICE = 128
"""Waiters released in one callback of the loop. 128 kept the worst stall with 10,000 waiters at 30 ms; 512 at 70."""

Blobs = Mapping[str, bytes]


class Log(Protocol):
    """What an item belongs to: once one of its records failed, the others fail too."""

    error: BaseException | None


class Item:
    """One record on its way: its body, its pack values, who waits for it, and the log that it belongs to."""

    __slots__ = ("blobs", "body", "bytes", "future", "log")

    def __init__(
        self,
        body: bytes,
        blobs: Blobs | None,
        future: asyncio.Future[None] | ThreadFuture[None] | None,
        log: Log | None,
    ) -> None:
        self.body = body
        self.blobs = blobs
        self.future = future
        self.log = log
        self.bytes = len(body) + (sum(map(len, blobs.values())) if blobs else 0)


class Batch:
    """What one port handed over at once."""

    __slots__ = ("failed", "items", "port", "sync")

    def __init__(self, port: Port, items: list[Item], sync: bool) -> None:
        self.port = port
        self.items = items
        self.sync = sync
        self.failed: dict[int, BaseException] = {}
        """Errors by the item's place in `items`; what is not here was acknowledged."""


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
        self._sync = False
        self._bytes = 0
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()

    async def room(self) -> None:
        """Return when a record may be put."""
        while self._bytes >= self._bytes_max:
            turn: asyncio.Future[None] = self.loop.create_future()
            self._waiting_for_room.append(turn)
            try:
                await turn
            finally:
                if turn.cancelled() and turn in self._waiting_for_room:
                    self._waiting_for_room.remove(turn)
                elif self._bytes < self._bytes_max:
                    self._next_turn()

    @property
    def full(self) -> bool:
        return self._bytes >= self._bytes_max

    def put(self, body: bytes, blobs: Blobs | None, log: Log | None, sync: bool) -> asyncio.Future[None]:
        """Queue a record. It will be written whatever becomes of the future; the future tells when it is on disk."""
        future: asyncio.Future[None] = self.loop.create_future()
        item = Item(body, blobs, future, log)
        if not self._items:
            self.loop.call_soon(self.hand_over)
        self._items.append(item)
        self._bytes += item.bytes
        if sync:
            self._sync = True
        return future

    def hand_over(self) -> None:
        """Give everything that was put to the I/O thread."""
        if self._items:
            batch = Batch(self, self._items, self._sync)
            self._items, self._sync = [], False
            self._submit(batch)

    def settle(self, batch: Batch) -> None:
        try:
            self.loop.call_soon_threadsafe(self._release, batch, 0)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            # The loop is gone, and with it everybody who waited. The records are where they should be.

    def _release(self, batch: Batch, start: int) -> None:
        items, failed = batch.items, batch.failed
        end = min(start + RELEASE_SLICE, len(items))
        for place in range(start, end):
            item = items[place]
            self._bytes -= item.bytes
            future = item.future
            if future is None or future.done():
                continue
            if failed and (error := failed.get(place)) is not None:
                future.set_exception(error)
            else:
                future.set_result(None)
        if self._waiting_for_room and self._bytes < self._bytes_max:
            self._next_turn()
        if end < len(items):
            self.loop.call_soon(self._release, batch, end)

    def _next_turn(self) -> None:
        while self._waiting_for_room:
            turn = self._waiting_for_room.popleft()
            if not turn.done():
                turn.set_result(None)
                return


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
        item = Item(body, blobs, future, log)
        with self._room:
            self._room.wait_for(lambda: self._bytes < self._bytes_max)
            self._bytes += item.bytes
        self._submit(Batch(self, [item], sync))
        return future

    def settle(self, batch: Batch) -> None:
        with self._room:
            self._bytes -= sum(item.bytes for item in batch.items)
            self._room.notify_all()
        for place, item in enumerate(batch.items):
            assert isinstance(item.future, ThreadFuture)
            if (error := batch.failed.get(place)) is not None:
                item.future.set_exception(error)
            else:
                item.future.set_result(None)
