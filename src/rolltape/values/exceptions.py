"""Exceptions, so that `except` and the attributes work on replay as live.

One is made again by the `__new__` and `__init__` of the builtin exception that it is, never by those of its own class.
What cannot be recorded of its arguments and attributes (an HTTP response, say) is replaced by a `Foreign` that says
so: no exception is refused for what it holds. Tracebacks are recorded elsewhere, as text.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from rolltape.errors import EncodeError, LimitError
from rolltape.values.classes import HEAP, Shape, changed, class_of, head
from rolltape.values.names import name_of
from rolltape.values.pointer import Hop
from rolltape.values.redact import REDACTED

if TYPE_CHECKING:
    from rolltape.values.decoder import Decoder, Readers
    from rolltape.values.encoder import Encoder, Writer
    from rolltape.values.pointer import Link

EXCEPTIONS_MAX = 16
"""How many exceptions are recorded that one was raised from or while handling: the nearest."""
HELD_MAX = 1000
"""How many exceptions may be inside one."""

_MEMBERS: tuple[tuple[type[BaseException], tuple[str, ...]], ...] = (
    (OSError, ("filename", "filename2")),
    (ImportError, ("name", "path", "name_from")),
    (AttributeError, ("name",)),
    (NameError, ("name",)),
)
"""What builtin exceptions hold that neither their `args` nor their `__dict__` has."""


def find(kind: type) -> Writer | None:
    if not issubclass(kind, BaseException):
        return None
    if kind is _validation_error():
        return write_validation_error
    native = _native(kind)
    try:
        native.__new__(kind, *(("", [Exception()]) if issubclass(kind, BaseExceptionGroup) else ()))
    except TypeError:  # an extension's, with a layout of its own
        return None
    return write_exception


def write_exception(encoder: Encoder, value: BaseException, at: Link, depth: int) -> dict[str, Any]:
    shape = Shape(type(value), "$exception")
    out = head(encoder, value, shape, at)
    encoder.odd += 1
    inner = encoder if encoder.memory is None else encoder.aside()
    if inner.exceptions == HELD_MAX:
        raise encoder.refused(value, at, f"More than {HELD_MAX} exceptions are in one: it may hold itself.")
    inner.exceptions += 1
    args, place = [], (at, Hop("args"))
    for i, item in enumerate(value.args):
        if i and isinstance(value, BaseExceptionGroup):
            count = inner.exceptions
            args.append(inner.value(item, (place, i), depth + 2))  # without these it would be no group
            inner.exceptions = count  # each of them has causes of its own
        else:
            args.append(_part(inner, item, (place, i), depth + 2))
    out["args"] = args
    held = shape.held(value)
    for kind, names in _MEMBERS:
        if isinstance(value, kind):
            held |= {name: item for name in names if (item := getattr(value, name, None)) is not None}
    if attributes := {
        name: REDACTED if inner.redactor.hides(name, item) else _part(inner, item, (at, name), depth + 2)
        for name, item in held.items()
        if _is_attribute(name)
    }:
        out["attributes"] = attributes
    return out | _origins(inner, value, at, depth)


def _origins(encoder: Encoder, value: BaseException, at: Link, depth: int) -> dict[str, Any]:
    """Return what it was raised from, and while handling what, as far as the bound allows."""
    out: dict[str, Any] = {}
    cause, context = value.__cause__, value.__context__
    if cause is not None and encoder.exceptions < EXCEPTIONS_MAX:
        out["cause"] = _part(encoder, cause, (at, "__cause__"), depth + 1)
    if context is not None and context is not cause and encoder.exceptions < EXCEPTIONS_MAX:
        out["context"] = _part(encoder, context, (at, "__context__"), depth + 1)
    elif context is None and cause is not None:
        out["context"] = None
    if value.__suppress_context__ != (cause is not None):
        out["suppress"] = value.__suppress_context__
    return out


def _part(encoder: Encoder, value: Any, at: Link, depth: int) -> Any:
    blobs = set(encoder.blobs)
    try:
        if isinstance(value, BaseException) and encoder.exceptions >= EXCEPTIONS_MAX:
            raise encoder.refused(value, at, "It is too far from the first.")
        return encoder.value(value, at, depth)
    except (EncodeError, LimitError):
        for name in encoder.blobs.keys() - blobs:
            del encoder.blobs[name]
        return {"$unrecorded": name_of(type(value))}


def read_exception(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    def build(parts: dict[str, Any]) -> Any:
        kind = class_of(decoder, node, at)
        if not issubclass(kind, BaseException):
            raise changed(decoder, at, node["$exception"], "it was recorded as an exception, and is none now")
        if kind is _validation_error():
            return _make_validation_error(kind, *parts["args"])
        native, args = _native(kind), parts["args"]
        error: BaseException = native.__new__(kind, *args)
        with contextlib.suppress(TypeError, ValueError):  # its own class may have had other arguments in mind
            native.__init__(error, *args)
        error.args = tuple(args)
        for name, item in parts.get("attributes", {}).items():
            if _is_attribute(name):
                BaseException.__setattr__(error, name, item)
        cause = parts.get("cause")
        context = parts.get("context", cause)
        if isinstance(cause, BaseException):
            error.__cause__ = cause
        error.__context__ = context if isinstance(context, BaseException) else None
        error.__suppress_context__ = parts.get("suppress", "cause" in parts)
        return error

    return decoder.guarded(node, at, depth, build)


def _is_attribute(name: str) -> bool:
    return name[:1] != "$" and (name[:2] != "__" or name == "__notes__")


def _native(kind: type) -> Any:
    """Return the builtin exception that a class is."""
    return next(base for base in kind.__mro__ if not base.__flags__ & HEAP)


def _validation_error() -> Any:
    return getattr(sys.modules.get("pydantic_core"), "ValidationError", None)


def write_validation_error(encoder: Encoder, value: Any, at: Link, depth: int) -> dict[str, Any]:
    """Pydantic's own, which is no Python object: its title and what it says of each place."""
    encoder.odd += 1
    inner = encoder if encoder.memory is None else encoder.aside()
    inner.exceptions += 1
    places = [
        {name: _part(inner, item, (((at, Hop("args")), 1), i), depth + 4) for name, item in problem.items()}
        for i, problem in enumerate(value.errors(include_url=False))
    ]
    out = head(encoder, value, Shape(type(value), "$exception"), at)
    return out | {"args": [value.title, places]} | _origins(inner, value, at, depth)


def _make_validation_error(kind: Any, title: str, places: list[dict[str, Any]]) -> Any:
    problems = []
    for place in places:
        problem = {name: place[name] for name in ("type", "loc", "input", "ctx") if name in place}
        try:
            kind.from_exception_data(title, [problem])
        except (KeyError, TypeError, ValueError):  # not one of pydantic's types: a validator made it up
            custom = vars(sys.modules["pydantic_core"])["PydanticCustomError"]
            problem["type"] = custom(place["type"], place["msg"], place.get("ctx"))
        problems.append(problem)
    return kind.from_exception_data(title, problems)


READERS: Readers = {
    "$exception": (
        read_exception,
        {"$exception": str, "args": list},
        {"of": list, "attributes": dict, "cause": object, "context": object, "suppress": bool},
    ),
}
