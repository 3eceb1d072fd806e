"""One list that was recorded, in all the lengths at which it was: whether another list extends it.

The containers are copied and the leaves shared, so a message that was changed in place is found out. `==` decides, at
20 to 30 ns a message, except for numbers and bytes: 1 is neither True nor 1.0 here, nor 0.0 -0.0. The items that hold
any are laid out by their levels of nesting, so that C code can compare the types of all their values at once. (So a
message whose keys were put in another order counts as the same: it equals what was recorded.) Lists that hold objects
are compared by what they are written as, so that no `__eq__` but Python's own is believed, or called.
"""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right
from hashlib import blake2b
from operator import ne
from typing import Any

import msgspec

from rolltape.values.pointer import Link, Position, pointer

CONTAINERS = frozenset((dict, list, tuple))

SCALARS = frozenset((type(None), bool, int, float, bytes))

_COPIED = CONTAINERS | {set}
_TEXT = CONTAINERS | {str, type(None)}
_BUILTIN = _TEXT | {bool, int, float, bytes, set, frozenset}
_LEVELS_MAX = 200
_VALUES_MAX = 4_000_000
_encode = msgspec.json.Encoder().encode


def digest(text: bytes) -> bytes:
    """The hash in a reference: of a string's UTF-8, or of the text of a list that is written whole."""
    return blake2b(text, digest_size=8).digest()


def extended(base: bytes, n: int, added: bytes) -> bytes:
    """The hash of a list that is written as the first `n` items of another, whose hash is `base`, and what is added."""
    return blake2b(b"%b%d%b" % (base, n, added), digest_size=8).digest()


def copy(value: Any, done: dict[int, list[Any]]) -> Any:
    """Return a value whose containers are new and whose leaves are shared. Lists in `done`, by id, are copied."""
    kind = type(value)
    if kind is dict:
        return {key: copy(item, done) if type(item) in _COPIED else item for key, item in value.items()}
    if kind is list:
        if id(value) in done:
            return done[id(value)]
        return [copy(item, done) if type(item) in _COPIED else item for item in value]
    if kind is tuple:
        return tuple([copy(item, done) if type(item) in _COPIED else item for item in value])
    return set(value) if kind is set else value


class Entry:
    """The first `n` items of a remembered list, as one record holds them at the place `at` of its value `where`."""

    __slots__ = ("_place", "at", "hashed", "n", "position", "where")

    def __init__(self, n: int, where: str, at: Link, position: Position = (0, 0, 0)) -> None:
        self.n = n
        self.where = where
        self.at = at
        self.position = position
        self.hashed: tuple[bytes, int] | None = None
        """The hash of these items and the bytes that they would take inline, once known."""
        self._place = ""

    def pointer(self) -> str:
        if not self._place:
            self._place = pointer(self.where, self.at)
        return self._place


class _Level:
    """The values at one depth of nesting, side by side."""

    __slots__ = ("inner", "marks", "types", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.types: list[type] = []
        self.inner: list[int] = []
        """Which of the values are containers."""
        self.marks: list[tuple[int, Any]] = []
        """What equal values and types do not tell: the sign of zero, the order of some dicts' keys."""

    def add(self, flat: list[Any]) -> list[Any]:
        """Add values; return what they hold."""
        start = len(self.values)
        types = list(map(type, flat))
        self.values += flat
        self.types += types
        if float in types or dict in types:
            self.marks += [(i, _mark(value)) for i, value in enumerate(flat, start) if _needs_mark(value)]
        if CONTAINERS.isdisjoint(types):
            return []
        inner = [i for i, kind in enumerate(types) if kind in CONTAINERS]
        self.inner += [start + i for i in inner] if start else inner
        return gc.get_referents(*map(flat.__getitem__, inner))

    def first(self, end: int) -> _Level:
        new = _Level()
        new.values = self.values[:end]
        new.types = self.types[:end]
        new.inner = self.inner[: bisect_left(self.inner, end)]
        new.marks = [(i, mark) for i, mark in self.marks if i < end]
        return new


class Remembered:
    """A recorded list, and what it takes to find out whether another begins with it."""

    __slots__ = (
        "_ends",
        "_lengths",
        "_levels",
        "_numeric",
        "entries",
        "height",
        "is_images",
        "items",
        "key",
        "prints",
        "scrubbed",
        "weight",
    )

    def __init__(self, key: int) -> None:
        self.key = key
        """What lists that may extend this one have in common: see `likeness`."""
        self.scrubbed = False
        """Whether some item was redacted, so that lists have to be redacted before they are compared."""
        self.is_images = False
        """Whether the items are not those of the list, but what these are written as."""
        self.prints: list[bytes] = []
        """The fingerprint of the first item, of the first two, and so on, as far as somebody asked."""
        self.items: list[Any] = []
        self.entries: list[Entry] = []
        """The recorded lengths, in growing order."""
        self.weight = 0
        """How many values are kept, for the memory's bound."""
        self.height = 0
        """How many levels deep the items go, once they were compared."""
        self._numeric: list[int] = []
        """Which of the items hold numbers or bytes."""
        self._levels: list[_Level] = []
        """The values of these."""
        self._lengths: list[int] = []
        """Lengths up to which a list can be compared at once: all that were recorded, or begin one that was."""
        self._ends: list[list[int]] = []
        """Where these lengths end on each level, as far as they are laid out."""

    @classmethod
    def of_images(cls, key: int, items: list[Any], known: Remembered | None) -> Remembered:
        """Return a new list that starts with these images of the first items of `known`."""
        new = cls(key)
        new.is_images = True
        new.items = items
        new.weight = len(items)
        if known is not None:
            new.scrubbed = known.scrubbed
            new.entries = known.entries[: bisect_right(known.entries, len(items), key=_length)]
            new.prints = known.prints[: len(items)]
            new._lengths = [len(items)]
        return new

    def add(self, items: list[Any], entry: Entry) -> None:
        self.items += items
        self.weight += len(items)
        self.entries.append(entry)
        self._lengths.append(len(self.items))

    def fork(self, n: int) -> Remembered:
        """Return a new list that starts with the first `n` items."""
        new = Remembered(self.key)
        new.scrubbed = self.scrubbed
        new.is_images = self.is_images
        new.prints = self.prints[:n]
        new.items = self.items[:n]
        new.entries = self.entries[: bisect_right(self.entries, n, key=_length)]
        new.weight = self.weight * n // len(self.items)
        new.height = self.height
        new._lengths = self._lengths[: bisect_right(self._lengths, n)]
        new._ends = self._ends[: len(new._lengths)]
        if new._ends:
            new._levels = [level.first(end) for level, end in zip(self._levels, new._ends[-1], strict=False)]
            new._numeric = self._numeric[: new._ends[-1][0] if new._ends[-1] else 0]
        if new._lengths[-1:] != [n]:
            new._lengths.append(n)
        return new

    def holding(self, n: int) -> Entry:
        """Return the shortest recorded length that has the first `n` items."""
        return self.entries[bisect_left(self.entries, n, key=_length)]

    def hashed(self, entry: Entry) -> tuple[bytes, int]:
        """Return the hash of the first items and the bytes that they take inline.

        Most lists are never referred to, so a list that was written plainly is hashed only when one is: encoding the
        copy gives the text that was written.
        """
        if entry.hashed is None:
            text = _encode(self.items[: entry.n])
            entry.hashed = digest(text), len(text)
        return entry.hashed

    def match(self, live: list[Any]) -> int:
        """Return with how many of these items `live` begins."""
        most = len(self.items)
        if len(live) >= most and self._is_same(live, len(self._lengths) - 1):
            return most
        if live[0] != self.items[0]:
            return 0
        # It was cut, or an item changed: what is recorded of it up to there still serves.
        size = min(len(live), most)
        equal = next((i for i, differs in enumerate(map(ne, live, self.items)) if differs), size)
        known = bisect_right(self._lengths, equal)
        if known and not self._is_same(live, known - 1):
            known = bisect_right(range(known), False, key=lambda i: not self._is_same(live, i))
        start = n = self._lengths[known - 1] if known else 0
        while n < equal and _is_exact(live[n], self.items[n]):
            n += 1
        self.height = max(self.height, _survey(self.items[start:n])[1])
        return n

    def _is_same(self, live: list[Any], length: int) -> bool:
        """Whether `live` begins with as many of the items as this length has."""
        n = self._lengths[length]
        flat = live if len(live) == n else live[:n]
        if flat != (self.items if len(self.items) == n else self.items[:n]):
            return False
        if len(self._ends) <= length:
            self._lay_out(length)
        ends = self._ends[length]
        if not ends:
            return True
        if ends[0] < n:
            flat = list(map(live.__getitem__, self._numeric[: ends[0]]))
        for depth, end in enumerate(ends):
            level = self._levels[depth]
            whole = len(level.types) == end
            if depth and flat != (level.values if whole else level.values[:end]):
                return False
            if list(map(type, flat)) != (level.types if whole else level.types[:end]):
                return False
            if level.marks and any(_mark(flat[i]) != mark for i, mark in level.marks if i < end):
                return False
            if depth and whole:
                # Next time the containers of an untouched history are the very same, and so equal at once.
                level.values = flat
            # The values of many dicts in one call, in order; also a dict's keys as soon as one of them is no exact
            # string. Those kept here have none such, so another dict shows by the number of values.
            inner = level.inner if whole else level.inner[: bisect_left(level.inner, end)]
            flat = gc.get_referents(*map(flat.__getitem__, inner))
        return True

    def _lay_out(self, length: int) -> None:
        """Spread out what was added up to there since the last comparison: only lists that come back are worth it."""
        for i in range(len(self._ends), length + 1):
            start = self._lengths[i - 1] if i else 0
            new = self.items[start : self._lengths[i]]
            is_text, height, count = _survey(new)
            self.height = max(self.height, height)
            self.weight += count - len(new)
            if not is_text:
                numeric = [j for j, item in enumerate(new) if _is_numeric(item)]
                self._numeric += [start + j for j in numeric]
                flat, depth = [new[j] for j in numeric], 0
                while flat:
                    if depth == len(self._levels):
                        self._levels.append(_Level())
                    self.weight += len(flat)
                    flat = self._levels[depth].add(flat)
                    depth += 1
            self._ends.append([len(level.values) for level in self._levels])


def is_builtin(items: list[Any]) -> bool:
    """Whether there are only values of Python's own types in these, so that comparing them runs nobody's code."""
    for _ in range(_LEVELS_MAX):
        kinds = set(map(type, items))
        if not kinds <= _BUILTIN or len(items) > _VALUES_MAX:
            return False
        if kinds.isdisjoint(_COPIED):
            return True
        items = gc.get_referents(*items)
    return False


def builtin_start(items: list[Any]) -> list[Any]:
    """Return the items before the first that has another value in it."""
    return items[: next((i for i, item in enumerate(items) if not is_builtin([item])), len(items))]


def _is_numeric(item: Any) -> bool:
    """Whether there are numbers or bytes in it, so that equality does not say it all."""
    kind = type(item)
    return not _survey([item])[0] if kind in CONTAINERS else kind not in _TEXT


def _survey(items: list[Any]) -> tuple[bool, int, int]:
    """Return whether there are only strings and None in these, how deep they go, and how many values that is."""
    is_text, height, count = True, 0, 0
    while items:
        kinds = set(map(type, items))
        is_text = is_text and kinds <= _TEXT
        height += 1
        count += len(items)
        if kinds.isdisjoint(CONTAINERS):
            break
        items = gc.get_referents(*[item for item in items if type(item) in CONTAINERS])
    return is_text, height, count


def _is_exact(live: Any, known: Any) -> bool:
    """Whether two values that are equal are the same in the order, and the numbers and bytes, that they hold, too."""
    kind = type(known)
    if kind is dict:
        return list(live) == list(known) and all(_is_exact(live[key], item) for key, item in known.items())
    if kind is list or kind is tuple:
        return all(map(_is_exact, live, known))
    return kind in _TEXT or (type(live) is kind and (kind is not float or repr(live) == repr(known)))


def likeness(first: Any) -> int:
    """Return a number that a list's extensions share, from its first item: which lists to compare it with at all."""
    kind = type(first)
    if kind is dict:
        return hash(tuple(first))
    return hash((kind, first)) if kind is str or kind is int or kind is float else hash(kind)


def _length(entry: Entry) -> int:
    return entry.n


def _needs_mark(value: Any) -> bool:
    if type(value) is not dict:
        return type(value) is float and value == 0.0
    # Leaves that all differ tell the order of the keys, up to one container among them.
    leaves = [item for item in value.values() if type(item) not in CONTAINERS]
    return len(set(leaves)) < len(leaves) or len(leaves) + 1 < len(value)


def _mark(value: Any) -> Any:
    return tuple(value) if type(value) is dict else repr(value)
