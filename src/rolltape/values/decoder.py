"""The walk that makes a value of its JSON: in place, on the tree that was just parsed."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import msgspec

from rolltape.errors import DamagedError, FormatError, UsageError
from rolltape.values import arrays, classes, exceptions, lists, packed, pointer, standard, times
from rolltape.values.encoder import DEPTH_MAX, OBJECT_LEVELS_MAX, pack_hash
from rolltape.values.names import Foreign, Types
from rolltape.values.pointer import Hop, Link, Position

if TYPE_CHECKING:
    from rolltape.values.recall import Recall

Blob: TypeAlias = Callable[[str, int], bytes]
"""Finds the bytes of a pack by hash and length."""

Reader: TypeAlias = "Callable[[Decoder, Any, Link, int], Any]"
Fields: TypeAlias = dict[str, type]
"""The fields of a tag and their types; object: any value."""
Readers: TypeAlias = "dict[str, tuple[Reader, Fields, Fields]]"
"""What reads a tag, the fields that it has, and those that it may have."""

_decode = msgspec.json.Decoder().decode


def parse(raw: bytes, where: str = "the text") -> Any:
    """Return the JSON value in `raw`, tags and all."""
    try:
        try:
            return _decode(raw)
        except msgspec.ValidationError:
            # msgspec counts the sign of an integer as a digit. It is also right: such a float does not exist.
            return json.loads(raw, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise DamagedError(f"{where} is no recorded value ({error}): {raw[:80]!r}") from error


class Decoder:
    """Turns the tree of one text into its value, in place."""

    __slots__ = ("blob", "foreign", "objects", "raw", "recall", "types", "where")

    def __init__(
        self,
        raw: bytes,
        blob: Blob | None,
        recall: Recall | None,
        where: str = "",
        *,
        types: Types | None = None,
        foreign: bool = False,
    ) -> None:
        self.types = types or {}
        self.foreign = foreign
        self.objects = 0
        """How many were met of other types than JSON's, bytes, tuples and sets."""
        self.raw = raw
        self.where = where
        self.blob = blob
        self.recall = recall

    def value(self, node: Any, at: Link = None, depth: int = 0) -> Any:
        kind = type(node)
        if kind is dict:
            tag = next(iter(node), "")
            if tag[:1] == "$":
                return self.tagged(tag, node, at, depth)
            return self.fields(node, at, depth)
        return self.items(node, at, depth) if kind is list else node

    def tagged(self, tag: str, node: dict[str, Any], at: Link, depth: int) -> Any:
        if tag not in _TAGS:
            raise FormatError(f"{self.place(at)}: unknown tag {tag!r}: a newer Rolltape wrote it. Upgrade to read it.")
        self.check_fields(tag, node, at)
        self.objects += tag not in _BASIC
        if depth >= DEPTH_MAX + OBJECT_LEVELS_MAX:
            self.damaged(at, f"nested more than {DEPTH_MAX} levels deep")
        try:
            return _TAGS[tag][0](self, node, at, depth)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # Unhashable members of a set, letters that are no base64, a pair with three sides.
            self.damaged(at, f"{tag} holds what it cannot ({error!r})", error)

    def fields(self, node: Any, at: Link, depth: int) -> dict[str, Any]:
        if depth >= DEPTH_MAX:
            self.damaged(at, f"nested more than {DEPTH_MAX} levels deep")
        for key, item in node.items():
            kind = type(item)
            if kind is dict or kind is list:
                node[key] = self.value(item, (at, key), depth + 1)
        return node  # type: ignore[no-any-return]

    def items(self, node: Any, at: Link, depth: int) -> list[Any]:
        if depth >= DEPTH_MAX:
            self.damaged(at, f"nested more than {DEPTH_MAX} levels deep")
        for i, item in enumerate(node):
            kind = type(item)
            if kind is dict or kind is list:
                node[i] = self.value(item, (at, i), depth + 1)
        return node  # type: ignore[no-any-return]

    def read_float(self, node: Any, at: Link, depth: int) -> float:
        if node["$float"] not in ("nan", "inf", "-inf"):
            self.damaged(at, f"$float has no name for {node['$float']!r}")
        return float(node["$float"])

    def read_bytes(self, node: Any, at: Link, depth: int) -> bytes:
        return base64.b64decode(node["$bytes"], validate=True)

    def read_str(self, node: Any, at: Link, depth: int) -> str:
        return base64.b64decode(node["$str"], validate=True).decode("utf-8", "surrogatepass")

    def read_pack(self, node: Any, at: Link, depth: int) -> bytes:
        if self.blob is None:
            raise UsageError(f"{self.place(at)}: the value holds packed bytes: pass blob= to read it.")
        data = self.blob(node["$pack"], node["bytes"])
        if pack_hash(data) != node["$pack"]:
            self.damaged(at, f"the pack holds other bytes than {node['$pack']}")
        return data

    def read_map(self, node: Any, at: Link, depth: int) -> dict[Any, Any]:
        return dict(self.pairs(node["$map"], at, "$map", depth))

    def pairs(self, pairs: list[Any], at: Link, tag: str, depth: int) -> Iterator[tuple[Any, Any]]:
        for i, (key, item) in enumerate(pairs):
            inner = (at, Hop(f"{tag}/{i}"))
            yield self.value(key, (inner, 0), depth + 3), self.value(item, (inner, 1), depth + 3)

    def read_dict(self, node: Any, at: Link, depth: int) -> dict[str, Any]:
        return self.fields(node["$dict"], (at, "$dict"), depth + 1)

    def read_tuple(self, node: Any, at: Link, depth: int) -> tuple[Any, ...]:
        return tuple(self.sequence(node["$tuple"], (at, "$tuple"), depth + 1))

    def read_set(self, node: Any, at: Link, depth: int) -> set[Any]:
        return set(self.items(node["$set"], (at, "$set"), depth + 1))

    def read_frozenset(self, node: Any, at: Link, depth: int) -> frozenset[Any]:
        return frozenset(self.items(node["$frozenset"], (at, "$frozenset"), depth + 1))

    def read_ref(self, node: Any, at: Link, depth: int) -> str:
        return self.recalled(at).string(*target(node["$ref"]), node["hash"])

    def read_list(self, node: Any, at: Link, depth: int) -> list[Any]:
        base = self.recalled(at).base(*target(node["$list"]), node["n"])
        self.whole_hash(node, base.digest, at)
        return [*self.recalled(at).copy(base, node["n"], self), *self.sequence(node["add"], (at, "add"), depth + 1)]

    def sequence(self, node: Any, at: Link, depth: int) -> list[Any]:
        """Return the items of an array, or of a list that was packed."""
        if type(node) is dict and next(iter(node), "") not in packed.READERS:
            self.damaged(at, "what should be a list is none")
        items = self.value(node, at, depth)
        if type(items) is not list:
            self.damaged(at, "what should be a list is none")
        return items

    def guarded(self, node: Any, at: Link, depth: int, build: Callable[[dict[str, Any]], Any]) -> Any:
        """Return what `build` makes of the values in a tag: a stand-in where it cannot and the caller wants one."""
        (tag, kind), *rest = node.items()
        parts = {name: self.value(part, (at, name), depth + 1) for name, part in rest}
        try:
            return build(parts)
        except FormatError:
            if not self.foreign:
                raise
            return Foreign(tag, kind, parts)

    def absent(self, node: Any, at: Link, depth: int, error: FormatError, cause: Exception | None = None) -> Any:
        """Raise `error`, or return a stand-in where the caller wants one."""

        def build(parts: dict[str, Any]) -> NoReturn:
            raise error from cause

        return self.guarded(node, at, depth, build)

    def whole_hash(self, node: Any, base: bytes, at: Link) -> bytes:
        """Return the hash of an extended list, once it is known to be right."""
        added = pointer.piece(self.raw, [*pointer.split(pointer.pointer("", at)), "add"])
        whole = lists.extended(base, node["n"], added)
        if whole.hex() != node["hash"]:
            self.damaged(at, f"the list that extends {node['$list']} has another hash than was recorded")
        return whole

    def check_fields(self, tag: str, node: dict[str, Any], at: Link) -> None:
        """Raise DamagedError if a tag has not the fields that it should have."""
        _, fields, more = _TAGS[tag]
        left = len(node) - len(fields)
        for name, kind in fields.items():
            if name not in node or (type(node[name]) is not kind and kind is not object):
                self.damaged(at, f"{tag} has not the fields {', '.join(fields)}")
        if left:
            for name in node.keys() - fields.keys():
                if name not in more or (type(node[name]) is not more[name] and more[name] is not object):
                    self.damaged(at, f"{tag} has a field {name!r} that it should not have, or not so")

    def place(self, at: Link) -> str:
        return pointer.path(self.where, at)[:200]

    def damaged(self, at: Link, what: str, cause: Exception | None = None) -> NoReturn:
        raise DamagedError(f"{self.place(at)}: {what}") from cause

    def recalled(self, at: Link) -> Recall:
        if self.recall is None:
            raise UsageError(f"{self.place(at)}: the value refers to an earlier record: pass recall= to decode it.")
        return self.recall


def target(node: Any) -> tuple[Position, str]:
    """Return the record and the place in it that a reference names."""
    if type(node) is not list or [type(part) for part in node] != [int, int, int, str]:
        raise DamagedError(f"{str(node)[:80]} is no reference to a record")
    return (node[0], node[1], node[2]), node[3]


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"no number: {text}")
    return number


_BASIC: Readers = {
    "$float": (Decoder.read_float, {"$float": str}, {}),
    "$bytes": (Decoder.read_bytes, {"$bytes": str}, {}),
    "$pack": (Decoder.read_pack, {"$pack": str, "bytes": int}, {}),
    "$str": (Decoder.read_str, {"$str": str}, {}),
    "$map": (Decoder.read_map, {"$map": list}, {}),
    "$dict": (Decoder.read_dict, {"$dict": dict}, {}),
    "$tuple": (Decoder.read_tuple, {"$tuple": object}, {}),
    "$set": (Decoder.read_set, {"$set": list}, {}),
    "$frozenset": (Decoder.read_frozenset, {"$frozenset": list}, {}),
    "$ref": (Decoder.read_ref, {"$ref": list, "hash": str}, {}),
    "$list": (Decoder.read_list, {"$list": list, "n": int, "add": object, "hash": str}, {}),
    **packed.READERS,
}
_TAGS: Readers = _BASIC | times.READERS | standard.READERS | classes.READERS | exceptions.READERS | arrays.READERS
