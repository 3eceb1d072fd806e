"""What a call's arguments are known by: a hash that any process computes alike, and where two calls differ, in words.

Equal arguments have equal fingerprints, however they are recorded: whole, or as references. The order of a dict's keys
does not count; types do: 1, True and 1.0 are three values, so are 0.0 and -0.0, a list and a tuple. NaN equals NaN.
A secret that is not recorded is not part of it.

A list that holds more than short scalars is hashed item by item, each hash over the one before, so that a history
which a `Memory` knows costs what it adds.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from rolltape.values import lists, names, packed
from rolltape.values.codec import encode, written
from rolltape.values.decoder import Decoder, parse
from rolltape.values.encoder import DEPTH_MAX, Encoder, encode_sorted
from rolltape.values.history import STRING_CHARS_MIN
from rolltape.values.pointer import Link
from rolltape.values.redact import DEFAULT, Redactor

if TYPE_CHECKING:
    from rolltape.values.codec import Encoded
    from rolltape.values.history import Memory

SHOWN_CHARS_MAX = 60
"""How much of each side of a difference is shown."""
_BEFORE = 12
"""How many characters before the difference, for two long strings that begin alike."""


def fingerprint(value: Any, *, redact: Redactor = DEFAULT, memory: Memory | None = None, returns: Any = None) -> str:
    """Return the fingerprint of `value`: 32 hexadecimal digits. Raises what `encode` does.

    With `memory` it is the same, and cheaper. `returns` is what `encode` takes.
    """
    types = names.named(returns)

    def chain(encoder: Encoder, items: list[Any], at: Link, depth: int) -> Any:
        return _chain(encoder, items, at, depth, memory)

    _, text = written(value, lambda strict: Encoder("", redact, None, strict=strict, types=types, chain=chain))
    return blake2b(text, digest_size=16).hexdigest()


def of_arguments(told: dict[str, Any], encoded: Encoded, *, memory: Memory | None, returns: Any = None) -> str:
    """Return the fingerprint of a call's arguments, which `encoded` has already: nearly always that is their text."""
    if "kwargs" not in told and b"$" not in encoded.json and all(map(_is_short, told["args"])):
        return blake2b(encoded.json, digest_size=16).hexdigest()
    return fingerprint(told, memory=memory, returns=returns)


def _is_short(value: Any) -> bool:
    kind = type(value)
    return len(value) < STRING_CHARS_MIN if kind is str else kind in lists.SCALARS


def difference(recorded: Any, now: Any, *, redact: Redactor = DEFAULT, returns: Any = None) -> str | None:
    """Return in words where two calls' arguments first differ, None if they do not.

    `recorded` may hold `Foreign` values: what is compared is how both are written.
    """
    sides = (encode(value, redact=redact, returns=returns) for value in (recorded, now))
    then, current = (_unpacked(parse(side.json), side.blobs) for side in sides)
    return _differ(then, current, "")


def _unpacked(node: Any, blobs: dict[str, bytes]) -> Any:
    """Return what a value is written as, long lists of numbers as such: nobody knows these by their bytes."""
    if type(node) is list:
        return [_unpacked(item, blobs) for item in node]
    if type(node) is not dict:
        return node
    if _tag(node) in packed.READERS:
        return Decoder(b"", lambda name, size: blobs[name], None).value(node)
    if _tag(node) == "$dict":
        return _Literal({name: _unpacked(item, blobs) for name, item in node["$dict"].items()})
    out = {name: _unpacked(item, blobs) for name, item in node.items()}
    if _tag(node) == "$map":
        out["$map"].sort(key=encode_sorted)
    return out


class _Literal(dict[str, Any]):
    """A dict whose keys are the user's own, though they begin with $."""


def _chain(encoder: Encoder, value: list[Any], at: Link, depth: int, memory: Memory | None) -> Any:
    if depth >= DEPTH_MAX:
        raise encoder.too_deep(at)
    if not _is_chained(value):
        return encoder.write_items(value, at, depth)
    known, n = (
        (None, 0) if memory is None else memory.find(value, lists.likeness(value[0]), encoder.redactor, encoder.images)
    )
    prints = [] if known is None else known.prints
    done = min(n, len(prints))
    state = prints[done - 1] if done else b""
    for i in range(done, len(value)):
        text = encoder.text(encoder.value(value[i], (at, i), depth + 1))
        state = blake2b(state + text, digest_size=16).digest()
        if i < n:
            prints.append(state)
    return {"$chain": state.hex()}


def _is_chained(value: list[Any]) -> bool:
    """Whether a list is hashed item by item: whatever its length, so that a longer one can go on from it."""
    kinds = set(map(type, value))
    if kinds <= lists.SCALARS:
        return False
    return kinds - lists.SCALARS != {str} or any(type(item) is str and len(item) >= STRING_CHARS_MIN for item in value)


def _differ(then: Any, now: Any, path: str) -> str | None:
    if isinstance(then, dict) and isinstance(now, dict) and _tag(then) == _tag(now):
        return _differ_in_fields(then, now, path)
    if type(then) is list and type(now) is list:
        for i, (old, new) in enumerate(zip(then, now, strict=False)):
            if found := _differ(old, new, f"{path}[{i}]"):
                return found
        if len(then) == len(now):
            return None
        i = min(len(then), len(now))
        return _say(f"{path}[{i}]", then[i] if len(then) > i else _NOTHING, now[i] if len(now) > i else _NOTHING)
    return None if type(then) is type(now) and repr(then) == repr(now) else _say(path, then, now)


def _differ_in_fields(then: dict[str, Any], now: dict[str, Any], path: str) -> str | None:
    for name in [*then, *(name for name in now if name not in then)]:
        # What a tag is made of is no name that the user knows.
        hidden = _tag(then) is not None and (name[:1] == "$" or name == "fields")
        inside = path if hidden else f"{path}.{name}" if path else name
        if name not in then or name not in now:
            return _say(inside, then.get(name, _NOTHING), now.get(name, _NOTHING))
        if found := _differ(then[name], now[name], inside):
            return found
    return None


_NOTHING = object()


def _tag(node: dict[str, Any]) -> str | None:
    first = next(iter(node), "")
    return first if first[:1] == "$" and type(node) is dict else None


def _say(path: str, then: Any, now: Any) -> str:
    start = 0
    if type(then) is str and type(now) is str:
        same = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), min(len(then), len(now)))
        start = same - _BEFORE if same + _BEFORE > SHOWN_CHARS_MAX else 0
    return f"{path or 'the value'}: {_show(then, start)} was recorded, {_show(now, start)} is passed now"


def _show(value: Any, start: int) -> str:
    if value is _NOTHING:
        return "nothing"
    if type(value) is str:
        cut = value[start : start + SHOWN_CHARS_MAX]
        more = "…" if start + SHOWN_CHARS_MAX < len(value) else ""
        text = msgspec.json.encode(cut).decode()[1:-1]
        return f'"{"…" if start else ""}{text}{more}"'
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
