"""The walk that makes JSON of a value: one dispatch by exact type, and no copy where JSON can say it as it is."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from hashlib import blake2b
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from rolltape.errors import EncodeError, LimitError
from rolltape.values import history, lists, pointer
from rolltape.values.history import STRING_CHARS_MIN, Known, ListNote
from rolltape.values.lists import Entry
from rolltape.values.pointer import Hop, Link
from rolltape.values.redact import BROKEN, DOLLAR, HIDDEN, REDACTED, Redactor

if TYPE_CHECKING:
    from rolltape.values.history import Memory

DEPTH_MAX = 200
"""How deep the written arrays and objects of one value may nest, tags included. jq stops reading at 256."""
INLINE_BYTES_MAX = 32 * 1024
"""Longer bytes go to the pack."""
INT_DIGITS_MAX = 4300
"""Python's own bound for reading integers."""

_encode = msgspec.json.Encoder().encode

_SHORT = 8
"""No shorter string is a credential or a URL that holds one."""
AROUND_MAX = 4
"""Lists in that many remembered lists are not remembered themselves."""
_BULK = 8
"""From this length on it pays to look at the types of a list's items all at once."""

_Handler: TypeAlias = "Callable[[Encoder, Any, Link, int], Any]"


class Encoder:
    """One walk over one value. Methods return the object that they were given where JSON can say it as it is."""

    __slots__ = ("around", "blobs", "copies", "hidden", "log", "memory", "odd", "redactor", "rules", "strict", "where")

    def __init__(self, where: str, redactor: Redactor, memory: Memory | None, *, strict: bool) -> None:
        self.where = where
        self.redactor = redactor
        self.memory = memory
        self.strict = strict
        self.log: list[Known | ListNote] = []
        """What a memory has to remember of this value."""
        self.blobs: dict[str, bytes] = {}
        self.hidden = 0
        """How many values were redacted so far."""
        self.odd = 0
        """How many were met that no list is remembered with: sets, and dicts with other keys than strings."""
        self.around = 0
        """How many lists that will be remembered the walk is inside of."""
        self.copies: dict[int, list[Any]] = {}
        """The copies of the lists inside of these, by id: shared, or each level would copy all below it again."""
        keys = redactor.keys
        if strict:
            self.rules = keys, keys.plain, _STRICTLY_PLAIN, 0, 0, self.log
        else:
            long = sys.maxsize if memory is None else STRING_CHARS_MIN
            self.rules = keys, keys.plain, _PLAIN, _SHORT, long, self.log

    def value(self, value: Any, at: Link = None, depth: int = 0) -> Any:
        return _KINDS[type(value)](self, value, at, depth)

    def write_dict(self, value: dict[Any, Any], at: Link, depth: int, odd: int = DOLLAR | BROKEN) -> Any:
        if depth >= DEPTH_MAX:
            raise self.too_deep(at)
        keys, plain_keys, plain, short, long, log = self.rules
        out: dict[Any, Any] | None = None
        mark = len(log)
        for key, item in value.items():
            if type(key) is not str:
                return self.write_odd_dict(value, at, depth, mark)
            if key not in plain_keys:
                asks = keys[key]
                if asks & odd:
                    return self.write_odd_dict(value, at, depth, mark)
                if asks & HIDDEN and self.redactor.hides(key, item):
                    self.hidden += 1
                    out = value.copy() if out is None else out
                    out[key] = REDACTED
                    continue
            kind = type(item)
            if kind is str:
                size = len(item)
                if size < short or (size < long and item[0] not in "Bb" and "@" not in item):
                    continue
                new = self.write_str(item, (at, key), depth)
            elif kind in plain:
                continue
            elif kind is dict:
                new = self.write_dict(item, (at, key), depth + 1)
            else:
                new = _KINDS[kind](self, item, (at, key), depth + 1)
            if new is not item:
                out = value.copy() if out is None else out
                out[key] = new
        return value if out is None else out

    def write_odd_dict(self, value: dict[Any, Any], at: Link, depth: int, mark: int) -> Any:
        """Write a dict that only a tag can say, from its beginning again."""
        del self.log[mark:]
        keys = self.redactor.keys
        if not any(type(key) is not str or keys[key] & BROKEN for key in value):
            return {"$dict": self.write_dict(value, (at, Hop("$dict")), depth + 1, odd=0)}
        if depth + 2 >= DEPTH_MAX:
            raise self.too_deep(at)
        self.odd += 1
        aside = self.aside()
        pairs = []
        for i, (key, item) in enumerate(value.items()):
            shown = _shown(key)
            new_key = aside.value(key, (at, Hop(f"$map/{i}/0", shown)), depth + 3)
            new = REDACTED if self.redactor.hides(key, item) else item
            pairs.append([new_key, self.value(new, (at, Hop(f"$map/{i}/1", shown)), depth + 3)])
        return {"$map": pairs}

    def write_items(self, value: list[Any], at: Link, depth: int) -> list[Any]:
        """Return the items of a list, as they are written; the same list where they are plain."""
        if depth >= DEPTH_MAX:
            raise self.too_deep(at)
        _, _, plain, short, long, _ = self.rules
        if len(value) >= _BULK:
            kinds = set(map(type, value))
            if kinds <= plain or (kinds == _FLOAT and isfinite(sum(value))):
                return value
        out: list[Any] | None = None
        for i, item in enumerate(value):
            kind = type(item)
            if kind is str:
                size = len(item)
                if size < short or (size < long and item[0] not in "Bb" and "@" not in item):
                    continue
                new = self.write_str(item, (at, i), depth)
            elif kind in plain:
                continue
            elif kind is dict:
                new = self.write_dict(item, (at, i), depth + 1)
            else:
                new = _KINDS[kind](self, item, (at, i), depth + 1)
            if new is not item:
                out = value[:] if out is None else out
                out[i] = new
        return value if out is None else out

    def write_list(self, value: list[Any], at: Link, depth: int) -> Any:
        memory = self.memory
        if memory is None or self.around == AROUND_MAX or not _is_worth_remembering(value):
            return self.write_items(value, at, depth)
        key = lists.likeness(value[0])
        entry = Entry(len(value), self.where, at)
        base, n = memory.find(value, key, self.redactor)
        note = ListNote(entry, key, base, n)
        if base is None:
            return self.write_whole(value, at, depth, note)
        holder = base.holding(n)
        hashed, size = base.hashed(holder)
        size = size * n // holder.n  # what they take inline, if the items are alike
        place = holder.pointer()
        if size <= history.REFERENCE_BYTES + len(place):
            return self.write_whole(value, at, depth, note)
        if depth + base.height >= DEPTH_MAX:
            raise self.too_deep(at)
        added = _encode(self.new_items(note, value, value[n:], (at, Hop("add", None, n)), depth + 1))
        whole = lists.extended(hashed, n, added)
        entry.hashed = whole, size + len(added) - 1
        return {"$list": [*holder.position, place], "n": n, "add": msgspec.Raw(added), "hash": whole.hex()}

    def write_whole(self, value: list[Any], at: Link, depth: int, note: ListNote) -> Any:
        out = self.new_items(note, value, value, at, depth)
        if out is value:
            return value
        # What stands there is not what the copy would encode to: keep the hash of the text itself.
        text = _encode(out)
        note.entry.hashed = lists.digest(text), len(text)
        return msgspec.Raw(text)

    def new_items(self, note: ListNote, value: list[Any], new: list[Any], at: Link, depth: int) -> list[Any]:
        """Walk the `new` items of a list, and note what a later one may extend, unless something odd is in them."""
        odd, hidden = self.odd, self.hidden
        self.around += 1
        out = self.write_items(new, at, depth)
        self.around -= 1
        if self.odd != odd:
            return out
        copies = value[note.n :] if new is value and note.n else new
        if self.hidden != hidden:
            note.scrubbed = True
            copies = self.redactor.scrub(copies)
        note.copies = lists.copy(copies, self.copies)
        if self.around:
            self.copies[id(value)] = note.copies if note.base is None else note.base.items[: note.n] + note.copies
        self.log.append(note)
        return out

    def write_str(self, value: str, at: Link, depth: int) -> Any:
        if value[:1] in "Bb" or "@" in value:
            clean = self.redactor.text(value)
            self.hidden += clean is not value
            value = clean
        if self.memory is not None and len(value) >= STRING_CHARS_MIN:
            known = self.memory.string(value)
            self.log.append(known or Known(value, self.where, at))
            if known is not None and (tag := known.reference()) is not None:
                return tag
        if self.strict:
            try:
                value.encode()
            except UnicodeEncodeError:
                return {"$str": _base64(value.encode("utf-8", "surrogatepass"))}
        return value

    def write_plain(self, value: bool | None, at: Link, depth: int) -> Any:
        return value

    def write_float(self, value: float, at: Link, depth: int) -> Any:
        return value if value - value == 0.0 else {"$float": repr(value)}

    def write_int(self, value: int, at: Link, depth: int) -> Any:
        digits = min(INT_DIGITS_MAX, sys.get_int_max_str_digits() or INT_DIGITS_MAX)
        if value.bit_length() > 3 * digits and abs(value) >= 10**digits:
            raise LimitError(
                f"{self.path(at)}: an integer may have {digits} digits. Pass it as bytes, or as a hexadecimal string."
            )
        return value

    def write_bytes(self, value: bytes, at: Link, depth: int) -> Any:
        data = self.redactor.octets(value)
        if data is not value:
            self.hidden += 1
        if len(data) <= INLINE_BYTES_MAX:
            return {"$bytes": _base64(data)}
        name = pack_hash(data)
        self.blobs[name] = data
        return {"$pack": name, "bytes": len(data)}

    def write_tuple(self, value: tuple[Any, ...], at: Link, depth: int) -> Any:
        return {"$tuple": self.write_items([*value], (at, Hop("$tuple")), depth + 1)}

    def write_set(self, value: set[Any] | frozenset[Any], at: Link, depth: int) -> Any:
        if depth + 1 >= DEPTH_MAX:
            raise self.too_deep(at)
        self.odd += 1
        aside = self.aside()
        texts = sorted(_encode(aside.value(item, (at, "*"), depth + 2)) for item in value)
        return {"$" + type(value).__name__: [msgspec.Raw(text) for text in texts]}

    def aside(self) -> Encoder:
        """Return an encoder for what no pointer should lead into: it refers to nothing and remembers nothing."""
        aside = Encoder(self.where, self.redactor, None, strict=self.strict)
        aside.blobs = self.blobs
        return aside

    def unknown(self, value: Any, at: Link, depth: int) -> Any:
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise EncodeError(f"{self.path(at)}: a value of type {name} cannot be recorded. {_advice(value)}")

    def too_deep(self, at: Link) -> LimitError:
        place = self.path(at)
        if len(place) > 120:
            place = f"{place[:60]} ... {place[-40:]}"
        return LimitError(
            f"{place}: a value may nest {DEPTH_MAX} levels deep. If it holds itself, pass what it says instead; "
            "if it is a tree, pass it as a flat list of nodes, or as a string."
        )

    def path(self, at: Link) -> str:
        return pointer.path(self.where, at)


_PLAIN: frozenset[type] = frozenset((type(None), bool, int))
_STRICTLY_PLAIN: frozenset[type] = frozenset((type(None), bool))
_FLOAT: frozenset[type] = frozenset((float,))


class _Kinds(dict[type, _Handler]):
    def __missing__(self, kind: type) -> _Handler:
        return Encoder.unknown


_KINDS = _Kinds(
    {
        type(None): Encoder.write_plain,
        bool: Encoder.write_plain,
        int: Encoder.write_int,
        float: Encoder.write_float,
        str: Encoder.write_str,
        bytes: Encoder.write_bytes,
        dict: Encoder.write_dict,
        list: Encoder.write_list,
        tuple: Encoder.write_tuple,
        set: Encoder.write_set,
        frozenset: Encoder.write_set,
    }
)


def _is_worth_remembering(value: list[Any]) -> bool:
    """Whether a reference may be shorter: not where a long string, which is referred to by itself, is all there is."""
    if len(value) >= history.LIST_ITEMS_MIN:
        return True
    if len(value) < 2:
        return False
    for item in value:
        kind = type(item)
        if kind in lists.CONTAINERS or (kind is str and len(item) >= STRING_CHARS_MIN):
            return True
    return False


def _shown(key: Any) -> str:
    """Return a dict's key for the path in an error: without calling code that is not ours."""
    kind = type(key)
    if kind is str:
        return pointer.escape(key)
    if kind in (type(None), bool, float, bytes) or (kind is int and key.bit_length() < 256):
        return repr(key)[:80]
    return f"<{kind.__qualname__}>"


def _advice(value: Any) -> str:
    if isinstance(value, bytearray | memoryview):
        return "It would come back as bytes: pass bytes(...) of it."
    for kind in (bool, int, float, str, bytes, dict, list, tuple, frozenset, set):
        if isinstance(value, kind):
            name = kind.__name__
            return f"It is a {name}, but would come back as a plain one: pass {name}(...) of it."
    return (
        "Pass what it holds as None, bool, int, float, str, bytes, or a list, tuple, dict, set or frozenset of these."
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pack_hash(data: bytes) -> str:
    """Return the name under which long bytes lie in the pack."""
    return blake2b(data, digest_size=16).hexdigest()
