"""Bare: group commit for asyncio tasks, and nothing else. What the journal and the steps are measured against."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

RECORDS_A_WRITE = 256
"""`bare` writes up to 512 KB at a time. Linux may look for one piece of memory for a write of 2 MB, which can take ten
times as long as the write itself."""


class Count(NamedTuple):
    """What one round did."""

    records: int
    wall_s: float
    processor_s: float

    @property
    def per_second(self) -> float:
        return self.records / self.wall_s

    @property
    def processor_us(self) -> float:
        return self.processor_s / self.records * 1e6


class Bare:
    """Group commit and nothing else. Whoever waits gets a future; one thread writes; the loop is woken once a group."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[list[bytes], list[asyncio.Future[None]]]] = SimpleQueue()
        self._lines: list[bytes] = []
        self._futures: list[asyncio.Future[None]] = []
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._sync = sync
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def append(self, line: bytes) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        if not self._lines:
            self._loop.call_soon(self._hand_over)
        self._lines.append(line)
        self._futures.append(future)
        return future

    def close(self) -> None:
        self._queue.put(([], []))
        self._thread.join()
        os.close(self._fd)

    def _hand_over(self) -> None:
        self._queue.put((self._lines, self._futures))
        self._lines, self._futures = [], []

    def _serve(self) -> None:
        queue, fd, wake, release = self._queue, self._fd, self._loop.call_soon_threadsafe, self._release
        while True:
            lines, futures = queue.get()
            while not queue.empty():
                more_lines, more_futures = queue.get()
                lines += more_lines
                futures += more_futures
            if not lines:
                return
            for start in range(0, len(lines), RECORDS_A_WRITE):
                os.write(fd, b"".join(lines[start : start + RECORDS_A_WRITE]))
            if self._sync:
                os.fdatasync(fd)
            wake(release, futures)

    @staticmethod
    def _release(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            if not future.done():
                future.set_result(None)
