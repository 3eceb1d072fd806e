"""A Python value as the JSON text that stands in a journal line, and back: equal, and of the same types.

`encode` walks a value once, by exact type. Where every part is what JSON can say, the value itself is encoded, with no
copy; where something needs a tag, only the containers on the way to it are copied. The tags are the file format and
are specified in `docs/design/values.md`. What is not listed there is refused, live, with its place and what to do:
nothing is guessed, and no value comes back as something else.

A new kind of value is one more line in the table that ends `encoder.py` and one in that of `decoder.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from rolltape.errors import DamagedError, LimitError
from rolltape.values import names, pointer
from rolltape.values.decoder import Blob, Decoder, parse
from rolltape.values.encoder import DEPTH_MAX, INT_DIGITS_MAX, Encoder
from rolltape.values.history import Notes
from rolltape.values.pointer import Position
from rolltape.values.redact import DEFAULT, Redactor

if TYPE_CHECKING:
    from rolltape.values.history import Memory
    from rolltape.values.recall import Recall

__all__ = ["Encoded", "decode", "encode", "learn"]


class Encoded(msgspec.Struct, gc=False):
    """A value, ready to be embedded in a record."""

    json: bytes
    blobs: dict[str, bytes]
    """The long bytes that `json` names by hash: to be in the segment's pack before the line is."""
    notes: Notes | None = None
    """What `Memory.commit` needs once the record was taken."""


def encode(
    value: Any, *, where: str = "", redact: Redactor = DEFAULT, memory: Memory | None = None, returns: Any = None
) -> Encoded:
    """Return the text of `value`, which will stand at the pointer `where` of its record.

    With `memory`, what the trajectory recorded before is referred to. `returns` is a type, an annotation or a tuple of
    these: the classes in it may be local ones, which a replay finds only if it passes them too. Raises EncodeError for
    what cannot be recorded and LimitError for what is nested too deep (cyclic values are) or an integer that is too
    long; both name the place.
    """
    types = None if returns is None else names.named(returns)
    encoder = Encoder(where, redact, memory, strict=sys.get_int_max_str_digits() != INT_DIGITS_MAX, types=types)
    try:
        text = encoder.text(encoder.value(value))
    except (ValueError, RecursionError):
        encoder, text = written(value, lambda strict: Encoder(where, redact, memory, strict=strict, types=types))
    return Encoded(text, encoder.blobs, None if memory is None else encoder.log)


def written(value: Any, start: Callable[[bool], Encoder]) -> tuple[Encoder, bytes]:
    """Return a value's text, and the encoder that walked it: `start` makes one, strict or not."""
    encoder = start(sys.get_int_max_str_digits() != INT_DIGITS_MAX)
    try:
        try:
            return encoder, encoder.text(encoder.value(value))
        except ValueError:
            # A lone surrogate or an integer too long, which are too rare to look for in every value.
            encoder = start(True)
            return encoder, encoder.text(encoder.value(value))
    except RecursionError as error:
        raise LimitError(
            f"{pointer.path(encoder.where, None)}: Python's stack ended before the {DEPTH_MAX} levels that a value may "
            "nest. Call from a shallower stack, or raise it with sys.setrecursionlimit."
        ) from error


def decode(
    raw: bytes | msgspec.Raw,
    *,
    blob: Blob | None = None,
    recall: Recall | None = None,
    returns: Any = None,
    foreign: bool = False,
) -> Any:
    """Return the value whose text is `raw`: fresh containers each time, so that the caller may change it.

    `blob` finds packed bytes, `recall` what the value refers to. A class is looked for in `returns` (see `encode`) and
    in the modules that are imported already. One that is not here, or is another by now, is a FormatError; with
    `foreign` its values come back as `Foreign`, which says what was recorded. Raises DamagedError for a text that is no
    value or whose references do not lead to what they promise, FormatError for a tag that this version does not know.
    """
    raw = bytes(raw)
    tree = parse(raw)
    if b"$" not in raw or b'"$' not in raw:  # a single byte is found ten times as fast
        return tree
    try:
        return Decoder(raw, blob, recall, types=names.named(returns), foreign=foreign).value(tree)
    except RecursionError as error:
        raise DamagedError("Python's stack ended in a deeply nested value: read it from a shallower one") from error


def learn(
    memory: Memory,
    position: Position,
    parts: Iterable[tuple[str, Any, bytes | msgspec.Raw]],
    *,
    redact: Redactor = DEFAULT,
    returns: Any = None,
) -> bool:
    """Feed `memory` with the record at `position` that was read and not written: (where, value, text) of its values.

    A value that would be written today as it was written then is remembered as it was then: so live and replay feed a
    memory equally. Any other is not, and False is returned; it will be written whole when it comes again.
    """
    same, notes = True, []
    for where, value, raw in parts:
        again = encode(value, where=where, redact=redact, memory=memory, returns=returns)
        if again.json == bytes(raw):
            notes.append(again.notes)
        else:
            same = False
    memory.commit(position, *notes)
    return same
