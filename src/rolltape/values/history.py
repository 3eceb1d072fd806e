"""What a trajectory has recorded already, so that the next record can refer to it.

A message history is passed whole at every step. Written whole it would fill the journal quadratically, so a list that
extends a recorded one is written as a reference and what is new, and a long string that was recorded before as a
reference. `Memory` is the writer's side (`Recall` is the reader's): one for each trajectory, used by one thread at a
time. Invariants:

- `encode` only reads it. What an encoded value would add is in `Encoded.notes`, and nothing is referable before
  `commit`, so an encode that failed and a record that was not taken leave no trace, and no record refers to itself.
- It keeps copies of the containers, sharing the leaves, so that a message changed in place is found out. Of lists that
  hold objects it keeps what they were written as, and compares that.
- A list is referred to only if it begins with what was recorded: `lists.py` says what counts as the same. Where that
  is not certain it is written again, which is never wrong.
- It holds at most `STRINGS_MAX` strings of together `STRING_CHARS_MAX` characters and `LISTS_MAX` lists of together
  `LIST_VALUES_MAX` values; the least recently used go first, and are merely written again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from rolltape.errors import RolltapeError
from rolltape.values import lists
from rolltape.values.lists import Entry, Remembered, digest
from rolltape.values.pointer import Link, Position, pointer
from rolltape.values.redact import Redactor

STRING_CHARS_MIN = 64
"""Shorter strings are never referred to."""
REFERENCE_BYTES = 96
"""What a reference takes besides its pointer, at most: what is no longer than that is written again."""
STRINGS_MAX = 4096
STRING_CHARS_MAX = 8 * 1024 * 1024
LISTS_MAX = 64
LISTS_ALIKE_MAX = 6
"""How many remembered lists may begin alike: the branches of one conversation."""
LIST_VALUES_MAX = 1_000_000
LIST_ITEMS_MIN = 16
"""A list of short scalars is remembered from this length on, any other from two items on."""


class Known:
    """A long string that was recorded: where, and the reference to it once one was needed."""

    __slots__ = ("_at", "_tag", "_where", "position", "text")

    def __init__(self, text: str, where: str, at: Link) -> None:
        self.text = text
        self.position: Position | None = None
        self._where = where
        self._at = at
        self._tag: dict[str, Any] | None = None

    def reference(self) -> dict[str, Any] | None:
        """Return what to write instead, or None where that would not be shorter."""
        if self._tag is None:
            assert self.position is not None, "a string is referred to once its record was taken"
            place = pointer(self._where, self._at)
            if len(self.text) <= REFERENCE_BYTES + len(place):
                return None
            hashed = digest(self.text.encode("utf-8", "surrogatepass")).hex()
            self._tag = {"$ref": [*self.position, place], "hash": hashed}
        return self._tag


class ListNote:
    """A list that an encoded value holds: its place and hash, and copies of what it adds to a remembered list."""

    __slots__ = ("base", "base_items", "copies", "entry", "is_images", "key", "n", "scrubbed")

    def __init__(self, entry: Entry, key: int, base: Remembered | None, n: int) -> None:
        self.entry = entry
        self.key = key
        self.base = base
        self.n = n
        """How many items of `base` it begins with."""
        self.base_items = 0 if base is None else len(base.items)
        self.copies: list[Any] = []
        self.scrubbed = False
        self.is_images = False
        """Whether `copies` are what all the items of the list are written as: objects are compared by that."""


Notes: TypeAlias = "list[Known | ListNote]"
"""What one encoded value would add to the memory."""


class Memory:
    """What one trajectory has recorded, as far as it can be referred to."""

    def __init__(self) -> None:
        self._strings: dict[str, Known] = {}
        self._chars = 0
        self._lists: dict[int, list[Remembered]] = {}
        self._count = 0

    def commit(self, position: Position, *notes: Notes | None) -> None:
        """Make what the record at `position` holds referable: called once it was taken, with the `Encoded.notes` of
        all its values. For a record that was not taken there is nothing to do."""
        for log in notes:
            for note in log or ():
                if type(note) is Known:
                    self._keep_string(note, position)
                elif type(note) is ListNote:
                    self._keep_list(note, position)

    def string(self, text: str) -> Known | None:
        """Return where `text` was recorded, if it was."""
        return self._strings.get(text)

    def find(
        self, live: list[Any], key: int, redactor: Redactor, images: Callable[[list[Any]], list[Any]]
    ) -> tuple[Remembered | None, int]:
        """Return the recorded list that has most of the items with which `live` begins, and how many."""
        best: Remembered | None = None
        most = 0
        alike = self._lists.get(key)
        if not alike:
            return None, 0
        # No method of a class that is not Python's own is asked what equals what.
        plain = live if lists.is_builtin(live) else lists.builtin_start(live)
        written: list[Any] = []
        if any(known.is_images for known in alike):
            try:
                written = images(live)
            except RolltapeError:
                return None, 0  # encoding it says why
        for known in alike:
            wanted = written if known.is_images else plain
            try:
                if known.scrubbed and not known.is_images:
                    wanted = [redactor.scrub(item) for item in plain]
                if most and (len(known.items) <= most or wanted[most : most + 1] != known.items[most : most + 1]):
                    continue  # it holds no more of it than the best so far
                n = known.match(wanted) if wanted else 0
            except RecursionError:
                return None, 0  # encoding it says why
            if n > most:
                best, most = known, n
                if n == len(known.items) or n > 0.9 * len(live):
                    break
        return best, most

    def _keep_string(self, new: Known, position: Position) -> None:
        text = new.text
        known = self._strings.pop(text, None)
        if known is None:
            known = new
            known.position = known.position or position
            self._chars += len(text)
        self._strings[text] = known
        while self._chars > STRING_CHARS_MAX or len(self._strings) > STRINGS_MAX:
            oldest = next(iter(self._strings))
            del self._strings[oldest]
            self._chars -= len(oldest)

    def _keep_list(self, note: ListNote, position: Position) -> None:
        known, entry, new = note.base, note.entry, note.copies
        entry.position = position
        if note.is_images:
            if known is None or not known.is_images:
                known = Remembered.of_images(note.key, new[: note.n], known)
            new = new[note.n :]
        if known is None:
            known = Remembered(note.key)
        elif new and len(known.items) != note.n:
            n = note.n
            if len(known.items) != note.base_items:
                # It was extended since, perhaps by this very record, which may hold the list twice.
                whole = known.items[:n] + new
                n = known.match(whole)
                new = whole[n:]
            known = known if n == len(known.items) else known.fork(n)
        if new:
            known.add(new, entry)
        known.scrubbed = known.scrubbed or note.scrubbed
        self._touch(known)
        if self._count > LISTS_MAX or known.weight > LIST_VALUES_MAX // LISTS_MAX:
            self._forget()

    def _touch(self, known: Remembered) -> None:
        """Make it the most recently used, of its likes and of all."""
        alike = self._lists.pop(known.key, [])
        self._lists[known.key] = alike
        if not alike or alike[0] is not known:
            self._count -= len(alike)
            alike[:] = [known, *(other for other in alike if other is not known)][:LISTS_ALIKE_MAX]
            self._count += len(alike)

    def _forget(self) -> None:
        """Drop the least recently used until the rest is within bounds."""
        while self._lists and (self._count > LISTS_MAX or self._weight() > LIST_VALUES_MAX):
            key = next(iter(self._lists))
            self._lists[key].pop()
            self._count -= 1
            if not self._lists[key]:
                del self._lists[key]

    def _weight(self) -> int:
        return sum(known.weight for alike in self._lists.values() for known in alike)
