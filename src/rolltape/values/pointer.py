"""Where a piece of a value stands: RFC 6901 pointers into a record's text, and paths into the user's value.

The two differ, because a tag adds levels that the user never wrote. While a value is walked its place is a chain of
links, `(outer link, key)`, which costs 25 ns a container; text is made of it only when somebody needs to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from rolltape.errors import DamagedError

Position: TypeAlias = tuple[int, int, int]
"""A record's place in its trajectory: (epoch, attempt, seq)."""

Link: TypeAlias = "tuple[Link, str | int | Hop] | None"
"""A place inside a value; None is the value itself."""


class Hop(NamedTuple):
    """A step into a tag: part of the pointer, but not of the path that a user reads."""

    raw: str
    """The pointer's tokens, without the leading slash: `$tuple`, `$map/3/1`."""
    shown: str | None = None
    """What the path says instead, if anything."""
    shift: int = 0
    """What the path adds to the next index: the items of a list that are referred to and not written."""


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def pointer(where: str, at: Link) -> str:
    """Return the pointer into the record's text of the place `at` in the value that stands at `where`."""
    parts: list[str] = []
    while at is not None:
        at, key = at
        parts.append(key.raw if type(key) is Hop else escape(key) if type(key) is str else str(key))
    return "/".join([where, *reversed(parts)])


def path(where: str, at: Link) -> str:
    """Return the place as the user knows it, for error messages."""
    parts: list[str] = []
    inner: str | int = ""
    while at is not None:
        at, key = at
        if type(key) is Hop:
            if key.shift and type(inner) is int:
                parts[-1] = str(inner + key.shift)
            if key.shown is not None:
                parts.append(key.shown)
        else:
            parts.append(escape(str(key)))
            inner = key  # type: ignore[assignment]  # mypy does not narrow a NamedTuple by exact type
    return "/".join([where, *reversed(parts)]) or "the value"


def escape(token: str) -> str:
    """Return `token` as RFC 6901 writes it."""
    return token.replace("~", "~0").replace("/", "~1") if "/" in token or "~" in token else token


def split(text: str) -> list[str]:
    """Return the tokens of a pointer."""
    if text and text[0] != "/":
        raise DamagedError(f"{text!r} is not a JSON pointer: it has to start with a slash")
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def piece(text: bytes | msgspec.Raw, tokens: Sequence[str]) -> bytes:
    """Return the bytes that stand at a pointer's tokens, exactly as written. KeyError where there is nothing."""
    for token in tokens:
        try:
            is_list = bytes(memoryview(text)[:1]) == b"["
            text = _items(text)[int(token)] if is_list else _fields(text)[token]
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, LookupError, RecursionError) as error:
            raise KeyError(token) from error
    return bytes(text)
