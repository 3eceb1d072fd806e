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
from rolltape.values import arrays, classes, exceptions, history, lists, packed, pointer, standard, times
from rolltape.values.history import STRING_CHARS_MIN, Known, ListNote
from rolltape.values.lists import Entry
from rolltape.values.names import Types, name_of
from rolltape.values.pointer import Hop, Link
from rolltape.values.redact import BROKEN, DOLLAR, HIDDEN, REDACTED, Redactor

if TYPE_CHECKING:
    from rolltape.values.history import Memory

DEPTH_MAX = 200
"""How deep the written arrays and objects of one value may nest, tags included. jq stops reading at 256."""
OBJECT_LEVELS_MAX = 8
"""How many levels an object's own tag may take."""
INLINE_BYTES_MAX = 32 * 1024
"""Longer bytes go to the pack."""
INT_DIGITS_MAX = 4300
"""Python's own bound for reading integers."""

_encode = msgspec.json.Encoder().encode
encode_sorted = msgspec.json.Encoder(order="deterministic").encode

_SHORT = 8
"""No shorter string is a credential or a URL that holds one."""
AROUND_MAX = 4
"""Lists in that many remembered lists are not remembered themselves."""
_BULK = 8
"""From this length on it pays to look at the types of a list's items all at once."""

_KINDS_MAX = 4096
"""How many classes a walk knows its way with, before it finds out anew."""

Writer: TypeAlias = "Callable[[Encoder, Any, Link, int], Any]"
Writers: TypeAlias = "dict[type, Writer]"


class Encoder:
    """One walk over one value. Methods return the object that they were given where JSON can say it as it is."""

    __slots__ = (
        "around",
        "blobs",
        "chain",
        "copies",
        "exceptions",
        "hidden",
        "log",
        "memory",
        "objects",
        "odd",
        "redactor",
        "rules",
        "strict",
        "text",
        "types",
        "where",
    )

    def __init__(
        self,
        where: str,
        redactor: Redactor,
        memory: Memory | None,
        *,
        strict: bool,
        types: Types | None = None,
        chain: Writer | None = None,
    ) -> None:
        self.where = where
        self.redactor = redactor
        self.memory = memory
        self.strict = strict
        self.types = types or {}
        """Classes that the caller named."""
        self.chain = chain
        """Writes lists instead, for a fingerprint."""
        self.text = _encode if chain is None else encode_sorted
        self.log: list[Known | ListNote] = []
        """What a memory has to remember of this value."""
        self.blobs: dict[str, bytes] = {}
        self.hidden = 0
        """How many values were redacted so far."""
        self.odd = 0
        """How many were met that no list is remembered with: sets, exceptions, dicts with other keys than strings."""
        self.objects = 0
        """How many were met that `==` is not trusted with: such lists are compared by what they are written as."""
        self.exceptions = 0
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
        self.odd += 1
        pairs = self.pairs(value, at, "$map", depth)
        if self.chain is not None:
            pairs.sort(key=self.text)
        return {"$map": pairs}

    def pairs(self, value: dict[Any, Any], at: Link, tag: str, depth: int) -> list[Any]:
        """Write a dict as the pairs that stand under a tag."""
        if depth + 2 >= DEPTH_MAX:
            raise self.too_deep(at)
        aside = self.aside()
        pairs = []
        for i, (key, item) in enumerate(value.items()):
            shown = _shown(key)
            new_key = aside.value(key, (at, Hop(f"{tag}/{i}/0", shown)), depth + 3)
            new = REDACTED if self.redactor.hides(key, item) else item
            pairs.append([new_key, self.value(new, (at, Hop(f"{tag}/{i}/1", shown)), depth + 3)])
        return pairs

    def write_items(self, value: list[Any], at: Link, depth: int) -> Any:
        """Return the items of a list, as they are written; the same list where they are plain; a tag where packed."""
        if depth >= DEPTH_MAX:
            raise self.too_deep(at)
        _, _, plain, short, long, _ = self.rules
        if len(value) >= _BULK:
            kinds = set(map(type, value))
            if len(value) >= packed.PACKED_ITEMS_MIN and len(kinds) == 1:
                if float in kinds:
                    return packed.write_floats(self, value)
                if int in kinds and (tag := packed.write_ints(self, value)) is not None:
                    return tag
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
        if self.chain is not None:
            return self.chain(self, value, at, depth)
        if memory is None or self.around == AROUND_MAX or not _is_worth_remembering(value):
            return self.write_items(value, at, depth)
        key = lists.likeness(value[0])
        entry = Entry(len(value), self.where, at)
        base, n = memory.find(value, key, self.redactor, self.images)
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
        new = self.new_items(note, value, value[n:], (at, Hop("add", None, n)), depth + 1)
        added = _encode(new)
        whole = lists.extended(hashed, n, added)
        entry.hashed = whole, size + len(added) - 1 + (packed.inline_bytes(new) if type(new) is dict else 0)
        return {"$list": [*holder.position, place], "n": n, "add": msgspec.Raw(added), "hash": whole.hex()}

    def write_whole(self, value: list[Any], at: Link, depth: int, note: ListNote) -> Any:
        out = self.new_items(note, value, value, at, depth)
        if out is value:
            return value
        # What stands there is not what the copy would encode to: keep the hash of the text itself.
        text = _encode(out)
        note.entry.hashed = lists.digest(text), len(text) + (packed.inline_bytes(out) if type(out) is dict else 0)
        return msgspec.Raw(text)

    def new_items(self, note: ListNote, value: list[Any], new: list[Any], at: Link, depth: int) -> Any:
        """Walk the `new` items of a list, and note what a later one may extend, unless something odd is in them."""
        odd, hidden, objects = self.odd, self.hidden, self.objects
        self.around += 1
        out = self.write_items(new, at, depth)
        self.around -= 1
        if self.odd != odd:
            return out
        if self.objects != objects or (note.base is not None and note.base.is_images):
            note.is_images = True
            note.copies = self.images(value)
            self.log.append(note)
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

    def images(self, value: list[Any]) -> list[Any]:
        """Return what the items of a list are written as, were nothing referred to: what they are compared by."""
        aside = Encoder(self.where, self.redactor, None, strict=self.strict, types=self.types)
        items = aside.write_items([*value], None, 0)
        return lists.copy(items if type(items) is list else value, {})  # type: ignore[no-any-return]

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
        return self.blob(data)

    def blob(self, data: bytes) -> dict[str, Any]:
        """Write bytes as they are, with no look at what they say."""
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
        texts = sorted(self.text(aside.value(item, (at, "*"), depth + 2)) for item in value)
        return {"$" + type(value).__name__: [msgspec.Raw(text) for text in texts]}

    def aside(self) -> Encoder:
        """Return an encoder for what no pointer should lead into: it refers to nothing and remembers nothing."""
        aside = Encoder(self.where, self.redactor, None, strict=self.strict, types=self.types, chain=self.chain)
        aside.blobs = self.blobs
        return aside

    def unknown(self, value: Any, at: Link, depth: int) -> Any:
        raise self.refused(value, at, _advice(value))

    def refused(self, value: Any, at: Link, advice: str) -> EncodeError:
        """Return the error for a value that cannot be recorded, with what to do instead."""
        name = name_of(value if isinstance(value, type) else type(value)).replace(":", ".")
        what = "the class" if isinstance(value, type) else "a value of type"
        return EncodeError(f"{self.path(at)}: {what} {name} cannot be recorded. {advice}")

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


def _object(write: Writer) -> Writer:
    def write_object(self: Encoder, value: Any, at: Link, depth: int) -> Any:
        if depth + OBJECT_LEVELS_MAX >= DEPTH_MAX:
            raise self.too_deep(at)
        self.objects += 1
        return write(self, value, at, depth)

    return write_object


class _Kinds(dict[type, Writer]):
    """The writers by exact type. Those of classes that are not ours are found when the first such value comes."""

    def __missing__(self, kind: type) -> Writer:
        for find in (exceptions.find, arrays.find, times.find, standard.find, classes.find):
            if (write := find(kind)) is not None:
                if len(self) >= _KINDS_MAX:
                    self.clear()
                    self.update(_KNOWN)
                self[kind] = _object(write)
                return self[kind]
        return Encoder.unknown


_KNOWN = {
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
} | {kind: _object(write) for family in (times, standard, classes) for kind, write in family.WRITERS.items()}
_KINDS = _Kinds(_KNOWN)


def _is_worth_remembering(value: list[Any]) -> bool:
    """Whether a reference may be shorter: not where a long string, which is referred to by itself, is all there is."""
    if len(value) >= history.LIST_ITEMS_MIN:
        return True
    if len(value) < 2:
        return False
    for item in value:
        kind = type(item)
        if (len(item) >= STRING_CHARS_MIN) if kind is str else kind not in lists.SCALARS:
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
    if isinstance(value, memoryview):
        return "It would come back as bytes: pass bytes(...) of it."
    if callable(value):
        return "It is code: pass its name."
    for kind in (bool, int, float, str, bytes, dict, list, tuple, frozenset, set):
        if isinstance(value, kind):
            name = kind.__name__
            return f"It is a {name}, but would come back as a plain one: pass {name}(...) of it."
    return "Pass what it holds as plain values in a dict, or make it a dataclass, a msgspec.Struct or a pydantic model."


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pack_hash(data: bytes) -> str:
    """Return the name under which long bytes lie in the pack."""
    return blake2b(data, digest_size=16).hexdigest()
