"""The walk that makes a value of its JSON: in place, on the tree that was just parsed."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import msgspec

from rolltape.errors import DamagedError, FormatError, UsageError
from rolltape.values import lists, pointer
from rolltape.values.encoder import DEPTH_MAX, pack_hash
from rolltape.values.pointer import Hop, Link, Position

if TYPE_CHECKING:
    from rolltape.values.recall import Recall

Blob: TypeAlias = Callable[[str, int], bytes]
"""Finds the bytes of a pack by hash and length."""

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

    __slots__ = ("blob", "raw", "recall", "where")

    def __init__(self, raw: bytes, blob: Blob | None, recall: Recall | None, where: str = "") -> None:
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
        try:
            return _TAGS[tag][0](self, node, at, depth)
        except (TypeError, ValueError) as error:
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
        out = {}
        for i, (key, item) in enumerate(node["$map"]):
            inner = (at, Hop(f"$map/{i}"))
            out[self.value(key, (inner, 0), depth + 3)] = self.value(item, (inner, 1), depth + 3)
        return out

    def read_dict(self, node: Any, at: Link, depth: int) -> dict[str, Any]:
        return self.fields(node["$dict"], (at, "$dict"), depth + 1)

    def read_tuple(self, node: Any, at: Link, depth: int) -> tuple[Any, ...]:
        return tuple(self.items(node["$tuple"], (at, "$tuple"), depth + 1))

    def read_set(self, node: Any, at: Link, depth: int) -> set[Any]:
        return set(self.items(node["$set"], (at, "$set"), depth + 1))

    def read_frozenset(self, node: Any, at: Link, depth: int) -> frozenset[Any]:
        return frozenset(self.items(node["$frozenset"], (at, "$frozenset"), depth + 1))

    def read_ref(self, node: Any, at: Link, depth: int) -> str:
        return self.recalled(at).string(*target(node["$ref"]), node["hash"])

    def read_list(self, node: Any, at: Link, depth: int) -> list[Any]:
        base = self.recalled(at).base(*target(node["$list"]), node["n"])
        self.whole_hash(node, base.digest, at)
        return [*lists.copy(base.items[: node["n"]], {}), *self.items(node["add"], (at, "add"), depth + 1)]

    def whole_hash(self, node: Any, base: bytes, at: Link) -> bytes:
        """Return the hash of an extended list, once it is known to be right."""
        added = pointer.piece(self.raw, [*pointer.split(pointer.pointer("", at)), "add"])
        whole = lists.extended(base, node["n"], added)
        if whole.hex() != node["hash"]:
            self.damaged(at, f"the list that extends {node['$list']} has another hash than was recorded")
        return whole

    def check_fields(self, tag: str, node: dict[str, Any], at: Link) -> None:
        """Raise DamagedError if a tag has not the fields that it should have."""
        fields = _TAGS[tag][1]
        if len(node) != len(fields) or not all(type(node.get(name)) is kind for name, kind in fields.items()):
            self.damaged(at, f"{tag} has not the fields {', '.join(fields)}")

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


_TAGS: dict[str, tuple[Callable[[Decoder, Any, Link, int], Any], dict[str, type]]] = {
    "$float": (Decoder.read_float, {"$float": str}),
    "$bytes": (Decoder.read_bytes, {"$bytes": str}),
    "$pack": (Decoder.read_pack, {"$pack": str, "bytes": int}),
    "$str": (Decoder.read_str, {"$str": str}),
    "$map": (Decoder.read_map, {"$map": list}),
    "$dict": (Decoder.read_dict, {"$dict": dict}),
    "$tuple": (Decoder.read_tuple, {"$tuple": list}),
    "$set": (Decoder.read_set, {"$set": list}),
    "$frozenset": (Decoder.read_frozenset, {"$frozenset": list}),
    "$ref": (Decoder.read_ref, {"$ref": list, "hash": str}),
    "$list": (Decoder.read_list, {"$list": list, "n": int, "add": list, "hash": str}),
}
