"""Segments under their one name and their own offsets, whether they lie there as lines or compressed.

`SegmentFiles` stands between a reader and its store. It lists `00000001.jsonl` where only a compressed copy of it is
there, with the size of the content, and reads any range of the content from the copy. A segment may be replaced between
any two calls, and during one: what is returned is the same. Nothing here creates or changes a file.

Bytes of a frame that is not as it was written come back as filler that is no sound line, so that whoever checks lines
finds the damage where it is and reads on behind it (`docs/design/compress.md`).
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from rolltape.journal import format as fmt
from rolltape.journal import seekable

if TYPE_CHECKING:
    from rolltape.store import Store

T = TypeVar("T")

_TABLES_MAX = 64
_FRAMES_MAX = 4
_TRIES = 4
"""A segment is replaced once, or twice where two processes compress it at the same time."""

_epoch_folder = re.compile(rf"{fmt.JOURNAL}/[0-9]{{8}}")
_segment = re.compile(rf"{fmt.JOURNAL}/[0-9]{{8}}/[0-9]{{8}}\.jsonl")


class Copy(NamedTuple):
    """A compressed segment: the name of its file, and how long that is."""

    name: str
    file_bytes: int


class SegmentFiles:
    """A `Store` whose segments may be compressed, for reading. Any thread may use it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._copies: dict[str, Copy] = {}
        """By the segment's name: those that were found to be there compressed only."""
        self._content_bytes: dict[Copy, int] = {}
        self._tables: _Recent[Copy, seekable.Table] = _Recent(_TABLES_MAX)
        self._frames: _Recent[tuple[Copy, int], bytes] = _Recent(_FRAMES_MAX)

    @classmethod
    def over(cls, store: Store) -> SegmentFiles:
        """Return `store` itself if it is one already."""
        return store if isinstance(store, SegmentFiles) else cls(store)

    def __str__(self) -> str:
        return str(self._store)

    # ---- what is different -------------------------------------------------------------------------------------------

    def list(self, folder: str) -> dict[str, int]:
        if _epoch_folder.fullmatch(folder) is None:
            return self._store.list(folder)
        for _ in range(_TRIES):
            # Twice: one listing may miss a segment that is replaced meanwhile, under both of its names. The copy is
            # there before the lines go, so that a listing which begins after them finds it.
            found = {**self._store.list(folder), **self._store.list(folder)}
            try:
                return self._presented(folder, found)
            except FileNotFoundError as error:  # a copy went, so that a newer one is there
                gone = error
        raise gone

    def read(self, name: str, start: int, end: int) -> bytes:
        def doing(copy: Copy | None) -> bytes:
            return self._store.read(name, start, end) if copy is None else self._content(copy, start, end)

        return self._with_its_file(name, doing)

    def sync(self, name: str) -> None:
        self._with_its_file(name, lambda copy: self._store.sync(name if copy is None else copy.name))

    # ---- what else there is to know ----------------------------------------------------------------------------------

    def file_of(self, name: str) -> str:
        """Return the name of the file in which `name` was found last."""
        copy = self._copies.get(name)
        return name if copy is None else copy.name

    def complete_bytes(self, name: str) -> int:
        """Return how long a compressed segment is, all of which was on disk once; 0 where it was found as lines."""
        copy = self._copies.get(name)
        return 0 if copy is None else self._size(copy)

    def fault(self, name: str) -> str:
        """Return what is wrong with the file of a compressed segment, other than with its frames. "" if nothing is."""
        copy = self._copies.get(name)
        return "" if copy is None else self._table(copy).fault

    # ---- what is passed on -------------------------------------------------------------------------------------------

    def put_new(self, name: str, data: bytes) -> None:
        self._store.put_new(name, data)

    def append(self, name: str, data: bytes) -> None:
        self._store.append(name, data)

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def release(self, name: str) -> None:
        self._store.release(name)

    def close(self) -> None:
        self._store.close()

    # ---- finding a segment's file ------------------------------------------------------------------------------------

    def _presented(self, folder: str, found: dict[str, int]) -> dict[str, int]:
        best: dict[int, tuple[int, Copy]] = {}
        files: dict[str, int] = {}
        for file, size in found.items():
            if (place := fmt.copy_of(file)) is None:
                files[file] = size
                self._copies.pop(f"{folder}/{file}", None)
            elif place[0] not in best or place[1] > best[place[0]][0]:
                best[place[0]] = (place[1], Copy(f"{folder}/{file}", size))
        for number, (_, copy) in best.items():
            file = f"{number:08d}.jsonl"
            if file not in files:
                self._copies[f"{folder}/{file}"] = copy
                files[file] = -1 if copy.file_bytes < 0 else self._listed_size(copy)
        return files

    def _listed_size(self, copy: Copy) -> int:
        try:
            return self._size(copy)
        except FileNotFoundError:
            raise
        except OSError:
            return 0  # whoever reads it is told; a listing needs no permission to read what it lists

    def _with_its_file(self, name: str, doing: Callable[[Copy | None], T]) -> T:
        """Do something with the file in which a segment lies: its lines (None) or a copy."""
        for _ in range(_TRIES):
            copy = self._copies.get(name)
            try:
                return doing(copy)
            except FileNotFoundError as error:
                if _segment.fullmatch(name) is None:
                    raise
                gone = error
                self._copies.pop(name, None)
                self.list(name.rpartition("/")[0])
                if copy is None and name not in self._copies:
                    break
        raise gone

    # ---- reading a copy ----------------------------------------------------------------------------------------------

    def _content(self, copy: Copy, start: int, end: int) -> bytes:
        table = self._table(copy)
        parts: list[bytes] = []
        for number in table.covering(start, end):
            frame = table.frame(number)
            content = self._frame(copy, number, frame)
            parts.append(content[max(0, start - frame.start) : end - frame.start])
        return b"".join(parts)

    def _frame(self, copy: Copy, number: int, frame: seekable.Frame) -> bytes:
        if (content := self._frames.get((copy, number))) is not None:
            return content
        content = seekable.unpack(self._store.read(copy.name, frame.at, frame.at + frame.stored), frame)
        if content is None:
            # No part of a line, and the newline ends what it may have been part of.
            return b"\0" * (frame.size - 1) + b"\n"[: frame.size]
        self._frames.put((copy, number), content)
        return content

    def _table(self, copy: Copy) -> seekable.Table:
        if (table := self._tables.get(copy)) is None:
            if copy.file_bytes < 0:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), copy.name)
            table = seekable.read_table(lambda start, end: self._store.read(copy.name, start, end), copy.file_bytes)
            self._tables.put(copy, table)
            self._content_bytes[copy] = table.size
        return table

    def _size(self, copy: Copy) -> int:
        size = self._content_bytes.get(copy)
        return self._table(copy).size if size is None else size


K = TypeVar("K")


class _Recent(Generic[K, T]):
    """The last few of something."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[K, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> T | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: K, value: T) -> None:
        with self._lock:
            self._kept[key] = value
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
