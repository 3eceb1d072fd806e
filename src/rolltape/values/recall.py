"""What a trajectory's values refer to: the reader's side of `rolltape.values.history`.

Every reference is checked against its hash, so what comes back is what was recorded, or a DamagedError that names the
record and the place. Recalled lists are kept, each as a length of the longest list that extends it, so that reading a
history of n turns decodes n messages. They are private: `decode` hands out copies of their containers (strings and
other leaves are shared), so that changing a decoded value changes no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from rolltape.errors import DamagedError
from rolltape.values import lists, packed, pointer
from rolltape.values.decoder import Decoder, parse, target
from rolltape.values.lists import digest
from rolltape.values.pointer import Position

Record: TypeAlias = bytes | Mapping[str, msgspec.Raw]
"""A journal line, or its top-level fields."""

LINES_BYTES_MAX = 32 * 1024 * 1024
"""How much of the records is kept, where they can be fetched again."""
LISTS_MAX = 4096
TREES_MAX = 16


class Odd(NamedTuple):
    """A part of a recorded list that holds objects, which cannot be copied: it is decoded anew for each reader."""

    start: int
    end: int
    position: Position
    raw: bytes


class Base:
    """A recorded list, expanded: the first `n` of `items`, which longer ones share."""

    __slots__ = ("digest", "items", "n", "odd")

    def __init__(self, items: list[Any], n: int, hashed: bytes, odd: list[Odd]) -> None:
        self.items = items
        self.n = n
        self.digest = hashed
        self.odd = odd


class Recall:
    """The records that one trajectory's values may refer to.

    `missing` fetches the line of a record that was not learned, or gives None where there is none; with it only
    `LINES_BYTES_MAX` of the learned records are kept. `blob` finds packed bytes that an earlier record holds.
    """

    def __init__(
        self,
        missing: Callable[[Position], bytes | None] | None = None,
        blob: Callable[[Position, str, int], bytes] | None = None,
    ) -> None:
        self._missing = missing
        self._blob = blob
        self._lines: dict[Position, Record] = {}
        self._bytes = 0
        self._trees: dict[Position, Any] = {}
        self._lists: dict[tuple[Position, str], Base] = {}

    def learn(self, position: Position, record: Record) -> None:
        """Keep the record at `position`: its line, or its top-level fields."""
        self._bytes += _size(record) - _size(self._lines.get(position, b""))
        self._lines[position] = record
        while self._missing is not None and self._bytes > LINES_BYTES_MAX and len(self._lines) > 1:
            self._bytes -= _size(self._lines.pop(next(iter(self._lines))))

    def string(self, position: Position, place: str, hashed: str) -> str:
        """Return the string that a reference means."""
        node = self._tree(position)
        try:
            for token in pointer.split(place):
                node = node[int(token)] if type(node) is list else node[token]
        except (LookupError, TypeError, ValueError) as error:
            raise DamagedError(f"record {position} has nothing at {place}, where a value refers to") from error
        if type(node) is dict and "$str" in node:
            node = Decoder(b"", None, None).value(node)
        if type(node) is not str or digest(node.encode("utf-8", "surrogatepass")).hex() != hashed:
            raise DamagedError(f"record {position} holds another string at {place} than a value refers to")
        return node

    def base(self, position: Position, place: str, n: int) -> Base:
        """Return a list that has the `n` items that a reference means. It is not the caller's to change."""
        found = self._lists.get((position, place)) or self._resolve(position, place)
        if not 0 <= n <= found.n:
            raise DamagedError(f"record {position} holds {found.n} items at {place}, but a value extends {n} of them")
        return found

    def copy(self, base: Base, n: int, reader: Decoder) -> list[Any]:
        """Return the first `n` items of a list for a reader, as its own."""
        out: list[Any] = lists.copy(base.items[:n], {})
        for start, end, position, raw in base.odd:
            if start < n:
                again = Decoder(
                    raw, self._packed(position), self, reader.where, types=reader.types, foreign=reader.foreign
                )
                out[start:end] = again.sequence(parse(raw), None, 0)[: end - start]
        return out[:n]

    def _packed(self, position: Position) -> Callable[[str, int], bytes] | None:
        blob = self._blob
        return None if blob is None else lambda name, size: blob(position, name, size)

    def _resolve(self, position: Position, place: str) -> Base:
        """Expand a list and all that it builds on, the oldest first: without recursion, however long the chain."""
        while len(self._lists) > LISTS_MAX:
            del self._lists[next(iter(self._lists))]
        waiting = [self._parse(position, place)]
        while waiting:
            key, raw, node = waiting[-1]
            if key in self._lists:
                waiting.pop()
                continue
            needs = [need for need in _bases(node) if need not in self._lists] if b'"$list"' in raw else []
            for need in needs:
                if need[0] >= key[0]:
                    raise DamagedError(f"record {key[0]} refers at {key[1]} to {need[0]}, which is no earlier record")
            if needs:
                waiting += [self._parse(*need) for need in needs]
            else:
                self._lists[key] = self._expand(key, raw, node)
                waiting.pop()
        return self._lists[position, place]

    def _parse(self, position: Position, place: str) -> tuple[tuple[Position, str], bytes, Any]:
        record = self._record(position)
        tokens = pointer.split(place)
        try:
            text = record if isinstance(record, bytes) else record[tokens.pop(0)]
            raw = pointer.piece(text, tokens)
        except LookupError as error:
            raise DamagedError(f"record {position} has nothing at {place}, where a value refers to") from error
        return (position, place), raw, parse(raw, f"record {position} at {place}")

    def _expand(self, key: tuple[Position, str], raw: bytes, node: Any) -> Base:
        position, place = key
        decoder = Decoder(raw, self._packed(position), self, f"record {position} at {place}", foreign=True)
        tag = next(iter(node), "") if type(node) is dict else ""
        if type(node) is list or tag in packed.READERS:
            items = decoder.sequence(node, None, 0)
            return Base(items, len(items), digest(raw), [Odd(0, len(items), position, raw)] * bool(decoder.objects))
        if tag != "$list":
            raise DamagedError(f"record {position} holds no list at {place}, where a value refers to one")
        decoder.check_fields("$list", node, None)
        base = self.base(*target(node["$list"]), node["n"])
        whole = decoder.whole_hash(node, base.digest, None)
        added = decoder.sequence(node["add"], (None, "add"), 1)
        n = node["n"]
        items = base.items if len(base.items) == n else base.items[:n]
        items += added
        odd = [part._replace(end=min(part.end, n)) for part in base.odd if part.start < n]
        if decoder.objects:
            odd.append(Odd(n, len(items), position, pointer.piece(raw, ["add"])))
        return Base(items, len(items), whole, odd)

    def _tree(self, position: Position) -> Any:
        tree = self._trees.get(position)
        if tree is None:
            record = self._record(position)
            tree = parse(record if type(record) is bytes else msgspec.json.encode(record), f"record {position}")
            if len(self._trees) >= TREES_MAX:
                del self._trees[next(iter(self._trees))]
            self._trees[position] = tree
        return tree

    def _record(self, position: Position) -> Record:
        record: Record | None = self._lines.get(position)
        if record is None and self._missing is not None:
            record = self._missing(position)
            if record is not None:
                self.learn(position, record)
        if record is None:
            raise DamagedError(f"record {position} is missing, and a later value refers to it")
        return record


def _bases(node: Any) -> list[tuple[Position, str]]:
    """Return the lists that the values in a tree extend."""
    found: list[tuple[Position, str]] = []
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if type(node) is list:
            waiting += node
        elif type(node) is dict:
            tag = next(iter(node), "")
            if tag == "$list":
                found.append(target(node[tag]))
            inside = node[tag] if tag == "$dict" else node  # the keys in there are the user's own
            waiting += inside.values() if type(inside) is dict else []
    return found


def _size(record: Record) -> int:
    return len(record) if isinstance(record, bytes) else sum(memoryview(raw).nbytes for raw in record.values())
