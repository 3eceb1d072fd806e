"""One process's writer: records go in from tasks and threads, and are acknowledged when they are on disk.

When `await writer.put(...)` returns, the record survives `kill -9`; at durability `disk` it survives power loss too.
At `os` a sync follows within `background_sync_s`; records that the fencing protocol rests on are synced before they
are acknowledged at both. Whatever waits when the I/O thread is free is written with one write and one sync.

A record that was put is written whatever becomes of whoever waits for it. A record whose waiter got an error may or
may not be on disk; none that comes after it in the same log is written (`docs/design/journal.md`, invariant 5).
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import logging
import os
import threading
import time
from concurrent.futures import Future as ThreadFuture
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rolltape import records
from rolltape.errors import DiskFullError, JournalClosed, JournalError, JournalFailed, LimitError, UsageError
from rolltape.journal import format as fmt
from rolltape.journal.epochs import claim_epoch, create_run
from rolltape.journal.failures import failure, where
from rolltape.journal.segment import Closed, SegmentWriter
from rolltape.journal.waiters import Batch, Blobs, Item, Log, LoopPort, ThreadPort

if TYPE_CHECKING:
    from rolltape.store import Store

logger = logging.getLogger("rolltape.journal")

Durability = Literal["disk", "os"]

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class WriterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a writer writes, and its bounds."""

    durability: Durability = "disk"
    segment_bytes_max: int = 64 << 20
    """A segment, its pack included, is sealed once it is this large. One group of records may exceed it."""
    record_bytes_max: int = 16 << 20
    """One line. Large binary values do not count: they go to the pack."""
    value_bytes_max: int = 1 << 30
    """The binary values of one record together."""
    queue_bytes_max: int = 64 << 20
    """What waits to be written, per event loop. Whoever comes then waits."""
    background_sync_s: float = 1.0
    """At durability `os`: how long a record may stay in the page cache only."""
    lease_s: float = 30.0
    """An idle writer adds a line every third of it. A writer that is silent for longer may be taken for dead."""
    full_disk_wait_s: float = 300.0
    """How long records wait for room on a full disk before their waiters get `DiskFullError`."""

    def __post_init__(self) -> None:
        if self.durability not in ("disk", "os"):
            raise UsageError(f"durability is {self.durability!r}: use 'disk' (survives power loss) or 'os'")
        for name in ("segment_bytes_max", "value_bytes_max", "queue_bytes_max", "background_sync_s", "lease_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)!r}: it has to be over 0")
        if not self.full_disk_wait_s >= 0:
            raise UsageError(
                f"full_disk_wait_s is {self.full_disk_wait_s!r}: use 0 to fail at once, or seconds to wait"
            )
        largest = fmt.LINE_BYTES_MAX - fmt.TAIL_BYTES_MAX
        if not 0 < self.record_bytes_max <= largest:
            raise UsageError(f"record_bytes_max is {self.record_bytes_max}: use 1 to {largest}")


class Writer:
    """The journal of one epoch. Made by `open_writer`; any number of event loops and threads may put records."""

    def __init__(self, store: Store, run: str, epoch: int, config: WriterConfig) -> None:
        self.epoch = epoch
        self.run = run
        self.config = config
        self.paused = False
        """The disk is full and the writer waits for room."""
        self._store = store
        self._record_bytes_max = config.record_bytes_max
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._loops: dict[asyncio.AbstractEventLoop, LoopPort] = {}
        self._threads = ThreadPort(self._submit, config.queue_bytes_max)
        self._refusal: JournalError | None = None
        """Why nothing more is taken: set once, when the writer is closed, gives up, or is found in a forked child."""
        self._forked = False
        self._closing = threading.Event()
        self._some_failed = False
        """Some record of some attempt has failed, so that each group has to be looked through for such attempts."""
        self._in_hand: list[Batch] = []
        """What the I/O thread has taken from the queue and not settled yet."""
        self._stopped = False
        """The I/O thread will take nothing more from the queue."""
        self._unstated: list[Closed] = []
        """Closed segments for which no durable header speaks yet."""
        self._segment: SegmentWriter | None = None
        self._next_number = 1
        self._written_at = self._synced_at = time.monotonic()
        self._open_segment()
        self._thread = threading.Thread(target=self._serve, name=f"rolltape-journal-{epoch}", daemon=True)
        self._thread.start()
        _close_at_exit(self)

    # ---- putting: on the caller's thread -----------------------------------------------------------------------------

    def port(self) -> LoopPort:
        """Return the running loop's side of this writer. `await port.room()` before a put bounds what waits."""
        loop = asyncio.get_running_loop()
        if (port := self._loops.get(loop)) is None:
            for known, other in list(self._loops.items()):
                if known.is_closed():
                    other.hand_over()
                    self._loops.pop(known, None)
            port = self._loops[loop] = LoopPort(loop, self._submit, self.config.queue_bytes_max)
        return port

    def put(
        self, body: bytes, blobs: Blobs | None = None, *, log: Log | None = None, sync: bool = False
    ) -> asyncio.Future[None]:
        """Queue a record from the running event loop, at once. The future is done when it is on disk, or failed."""
        if blobs or log is not None or self._refusal is not None or len(body) > self._record_bytes_max:
            self._check(body, blobs, log)
        return self.port().put(body, blobs, log, sync)

    def put_from_thread(
        self, body: bytes, blobs: Blobs | None = None, *, log: Log | None = None, sync: bool = False
    ) -> ThreadFuture[None]:
        """The same from a thread without an event loop; waits for room."""
        self._check(body, blobs, log)
        return self._threads.put(body, blobs, log, sync)

    async def append(self, record: records.Record) -> None:
        """Write one record that belongs to no attempt, and return when it is on disk."""
        await self.port().room()
        await self.put(fmt.encode_record(record), sync=record.durable)

    def append_from_thread(self, record: records.Record) -> None:
        """`append` for a thread without an event loop."""
        self.put_from_thread(fmt.encode_record(record), sync=record.durable).result()

    def _submit(self, batch: Batch) -> None:
        self._queue.put(batch)
        if self._stopped:
            self._fail_queued()

    def _check(self, body: bytes, blobs: Blobs | None, log: Log | None) -> None:
        if self._refusal is not None:
            raise _again(self._refusal)
        if log is not None and log.error is not None:
            raise _again(log.error)
        size = len(body) + (len(blobs) * fmt.PACK_ENTRY_BYTES_MAX if blobs else 0)
        if size > self.config.record_bytes_max:
            raise LimitError(
                f"a record of {size:,} bytes is over record_bytes_max={self.config.record_bytes_max:,}: "
                "record less (a path, a summary), pass large binary data as bytes (it goes to the pack), or raise it"
            )
        if blobs and (size := sum(map(len, blobs.values()))) > self.config.value_bytes_max:
            raise LimitError(
                f"binary values of {size:,} bytes in one record are over "
                f"value_bytes_max={self.config.value_bytes_max:,}: write a file and record its path, or raise it"
            )

    # ---- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what waits, seal, and stop. Safe to call twice, from any thread, and at interpreter exit."""
        if self._forked or not self._thread.is_alive():
            return
        for loop, port in list(self._loops.items()):
            if not loop.is_running() or loop is _running_loop():
                port.hand_over()
        self._refuse(JournalClosed(f"the journal of epoch {self.epoch} is closed: open the run again"))
        self._closing.set()
        self._queue.put(None)
        self._thread.join()
        _open_writers.discard(self)

    async def aclose(self) -> None:
        """`close` without holding up the event loop."""
        self.port().hand_over()
        await asyncio.to_thread(self.close)

    def _refuse(self, error: JournalError) -> None:
        if self._refusal is None:
            self._refusal = error

    def disable_after_fork(self) -> None:
        """In a forked child: this writer, its thread and its files are the parent's."""
        self._forked = True
        self._refusal = JournalClosed(
            f"the journal of epoch {self.epoch} belongs to the process that this one was forked from: "
            "open the run in this process"
        )

    # ---- writing: on the I/O thread ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not (self._closing.is_set() and self._queue.empty()):
                try:
                    batches = [self._queue.get(timeout=self._idle_s())]
                except Empty:
                    self._tend()
                    continue
                while not self._queue.empty():
                    batches.append(self._queue.get())
                self._commit([batch for batch in batches if batch is not None])
                self._sync_in_background()
            self._seal_at_close()
        except BaseException as error:
            # The one place that catches everything on this thread: whoever waits must be told, whatever went wrong.
            self._refuse(JournalFailed(f"the journal of epoch {self.epoch} stopped: {error!r}"))
            self._fail(self._in_hand, self._refusal or JournalFailed(str(error)))
            for batch in self._in_hand:
                batch.port.settle(batch)
            raise
        finally:
            # In this order: what is queued from now on is failed by whoever queues it, the rest here.
            self._stopped = True
            _ended.add((self.run, self.epoch))
            self._fail_queued()

    def _commit(self, batches: list[Batch]) -> None:
        """Write all that waits as one group, and release whoever waits for it."""
        self._in_hand = batches
        sync = self.config.durability == "disk" or any(batch.sync for batch in batches)
        waiting = [item for batch in batches for item in batch.items]
        if self._some_failed:
            for batch in batches:
                self._fail_with_their_logs(batch)
            waiting = [item for batch in batches for n, item in enumerate(batch.items) if n not in batch.failed]
        error = self._write_until_done(waiting, sync) if waiting else None
        if error is not None:
            self._fail(batches, error)
        if isinstance(error, DiskFullError):
            self._fail_queued(error)  # before anybody is told, so that what they put then gets its own chance
        self._in_hand = []
        for batch in batches:
            batch.port.settle(batch)

    def _fail_with_their_logs(self, batch: Batch) -> None:
        """An attempt of which one record failed gets no further one: its order has no holes."""
        for place, (_, _, _, log) in enumerate(batch.items):
            if log is not None and log.error is not None:
                batch.failed[place] = _again(log.error)

    def _write_until_done(self, items: list[Item], sync: bool) -> JournalError | None:
        """Write and sync one group. While the disk is full, again and again, in fresh segments; then say why not."""
        deadline: float | None = None
        wait_s = 0.05
        while True:
            try:
                self._write(items, sync)
            except OSError as error:
                self._abandon_segment(error)
                if error.errno not in _NO_SPACE:
                    return failure(self._store, error)
                deadline = deadline or time.monotonic() + self.config.full_disk_wait_s
                if time.monotonic() >= deadline or self._closing.wait(wait_s):
                    self.paused = False
                    return DiskFullError(
                        f"{where(error)}: {self._store}. Free some space and run again: "
                        f"everything acknowledged is kept (full_disk_wait_s={self.config.full_disk_wait_s:g})"
                    )
                if not self.paused:
                    self.paused = True
                    logger.warning("the disk is full; waiting for room: %s", self._store)
                wait_s = min(1.0, wait_s * 2)
            else:
                if self.paused:
                    self.paused = False
                    logger.warning("there is room again; going on: %s", self._store)
                return None

    def _write(self, items: list[Item], sync: bool) -> None:
        if self._segment is not None and self._segment.size_bytes >= self.config.segment_bytes_max:
            try:
                self._seal()
            except OSError as error:
                self._abandon_segment(error)
        segment = self._segment or self._open_segment()
        segment.write(items)
        self._written_at = time.monotonic()
        if sync:
            segment.sync()
            self._synced_at = time.monotonic()
        elif self.config.durability == "os":
            segment.count_written()

    # ---- segments ----------------------------------------------------------------------------------------------------

    def _open_segment(self) -> SegmentWriter:
        """Start the next segment. A number whose creation failed half way is used up, and counts for nothing."""
        while self._next_number <= fmt.NUMBER_MAX:
            try:
                segment = SegmentWriter(self._store, self.run, self.epoch, self._next_number, self._unstated)
                break
            except FileExistsError:
                self._unstated = [*self._unstated, (self._next_number, 0, 0)]
                self._next_number += 1
        else:
            raise OSError(errno.EOVERFLOW, "segment numbers are used up: open the run again")
        self._next_number += 1
        self._unstated = []
        self._segment = segment
        self._written_at = self._synced_at = time.monotonic()
        return segment

    def _seal(self, *, closed: bool = False) -> None:
        if self._segment is not None:
            self._segment.seal(closed=closed)
            self._unstated = [(self._segment.number, self._segment.good, self._segment.proven)]
            self._segment = None

    def _seal_at_close(self) -> None:
        try:
            self._seal(closed=True)
        except OSError as error:
            # Everything acknowledged is there; only the proof of its length is not.
            self._abandon_segment(error)

    def _abandon_segment(self, error: OSError) -> None:
        """After a failed write or sync, nothing about the file is believed but what was known before."""
        if self._segment is not None:
            logger.warning("segment %d of the journal is given up: %s", self._segment.number, error)
            self._segment.release()
            self._unstated = [(self._segment.number, self._segment.good, self._segment.proven)]
            self._segment = None

    # ---- between groups ----------------------------------------------------------------------------------------------

    def _idle_s(self) -> float:
        due = self._written_at + self.config.lease_s / 3
        if self._segment is not None and self._segment.dirty:
            due = min(due, self._synced_at + self.config.background_sync_s)
        return max(0.0, due - time.monotonic())

    def _tend(self) -> None:
        """Nothing waits: sync what durability `os` left, and show that the writer lives."""
        self._sync_in_background()
        if time.monotonic() < self._written_at + self.config.lease_s / 3:
            return
        try:
            segment = self._segment or self._open_segment()
            if segment.dirty:
                segment.sync()
            segment.write([(fmt.encode_record(records.Heartbeat(unix_s=time.time())), None, None, None)])
            segment.sync()
        except OSError as error:
            self._abandon_segment(error)
        self._written_at = self._synced_at = time.monotonic()

    def _sync_in_background(self) -> None:
        segment = self._segment
        if segment is None or not segment.dirty:
            return
        if time.monotonic() < self._synced_at + self.config.background_sync_s:
            return
        try:
            segment.sync()
        except OSError as error:
            self._abandon_segment(error)
        self._synced_at = time.monotonic()

    def _fail_queued(self, reason: JournalError | None = None) -> None:
        """Tell whoever is still in the queue why nothing more is written."""
        while True:
            try:
                batch = self._queue.get_nowait()
            except Empty:
                return
            if batch is not None:  # None is only a wake-up
                self._fail([batch], reason or self._refusal or JournalClosed("the journal is closed"))
                batch.port.settle(batch)

    def _fail(self, batches: list[Batch], reason: JournalError) -> None:
        """Note for each record of `batches` why it failed, unless that is noted already."""
        self._some_failed = True
        for batch in batches:
            for place, (_, _, _, log) in enumerate(batch.items):
                if place not in batch.failed:
                    batch.failed[place] = _again(reason)
                    if log is not None:
                        log.error = reason


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _again(error: BaseException) -> BaseException:
    """A copy for each waiter, so that their tracebacks don't grow into one another."""
    return type(error)(*error.args)


def open_writer(store: Store, config: WriterConfig | None = None, *, run_config: Any = None) -> Writer:
    """Open the run in `store` for writing, creating it if need be, under an epoch of its own."""
    config = config or WriterConfig()
    try:
        run = create_run(store, run_config)
        claim = claim_epoch(store, run.run, durability=config.durability, lease_s=config.lease_s)
        return Writer(store, run.run, claim.epoch, config)
    except OSError as error:
        raise failure(store, error) from error


def has_ended_here(run: str, epoch: int) -> bool:
    """Say whether `epoch` was this process's, and its writer writes no more."""
    return (run, epoch) in _ended


# ---- exit and fork ---------------------------------------------------------------------------------------------------

_open_writers: set[Writer] = set()
_ended: set[tuple[str, int]] = set()
"""(run, epoch) of the writers of this process that write no more, closed or broken."""
_hooks_are_set = False


def _close_at_exit(writer: Writer) -> None:
    """Flush and seal `writer` at interpreter exit, and disable it in forked children."""
    global _hooks_are_set
    if not _hooks_are_set:
        _hooks_are_set = True
        atexit.register(_close_all)
        os.register_at_fork(after_in_child=_disable_all)
    _open_writers.add(writer)


def _close_all() -> None:
    for writer in list(_open_writers):
        writer.close()


def _disable_all() -> None:
    for writer in _open_writers:
        writer.disable_after_fork()
    _open_writers.clear()
