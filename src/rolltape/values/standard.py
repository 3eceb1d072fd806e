"""More of the standard library: numbers, paths, collections, and constants that stand for "not given"."""

from __future__ import annotations

import pathlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from rolltape.errors import FormatError
from rolltape.values.names import look_up
from rolltape.values.pointer import Hop

if TYPE_CHECKING:
    from rolltape.values.decoder import Decoder, Readers
    from rolltape.values.encoder import Encoder, Writer, Writers
    from rolltape.values.pointer import Link

_PATHS: dict[str, type[pathlib.PurePath]] = {
    kind.__name__: kind
    for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)
}
_FACTORIES: dict[str, type] = {
    kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, dict, tuple, set, frozenset)
}
_CONSTANTS = {
    f"{module}:{name}" for module in ("openai", "anthropic") for name in ("NOT_GIVEN", "not_given", "omit")
} | {"builtins:Ellipsis", "builtins:NotImplemented", "msgspec:UNSET"}
"""Values of which there is one, by the name that finds it."""


def write_complex(encoder: Encoder, value: complex, at: Link, depth: int) -> dict[str, Any]:
    return {"$complex": [encoder.value(value.real), encoder.value(value.imag)]}


def write_decimal(encoder: Encoder, value: Decimal, at: Link, depth: int) -> dict[str, Any]:
    return {"$decimal": str(value)}


def write_uuid(encoder: Encoder, value: UUID, at: Link, depth: int) -> dict[str, Any]:
    return {"$uuid": str(value)}


def write_path(encoder: Encoder, value: pathlib.PurePath, at: Link, depth: int) -> dict[str, Any]:
    return {"$path": type(value).__name__, "path": encoder.value(str(value), (at, Hop("path")), depth + 1)}


def write_range(encoder: Encoder, value: range, at: Link, depth: int) -> dict[str, Any]:
    return {"$range": [encoder.value(n, at, depth + 1) for n in (value.start, value.stop, value.step)]}


def write_bytearray(encoder: Encoder, value: bytearray, at: Link, depth: int) -> dict[str, Any]:
    return {"$bytearray": encoder.value(bytes(value), at, depth + 1)}


def write_deque(encoder: Encoder, value: deque[Any], at: Link, depth: int) -> dict[str, Any]:
    out = {"$deque": encoder.write_items([*value], (at, Hop("$deque")), depth + 1)}
    return out if value.maxlen is None else out | {"maxlen": value.maxlen}


def write_counter(encoder: Encoder, value: Counter[Any], at: Link, depth: int) -> dict[str, Any]:
    return {"$counter": encoder.value(dict(value), (at, Hop("$counter")), depth + 1)}


def write_ordered(encoder: Encoder, value: OrderedDict[Any, Any], at: Link, depth: int) -> dict[str, Any]:
    """As pairs, since its order is part of what it is."""
    return {"$ordereddict": encoder.pairs(value, at, "$ordereddict", depth)}


def write_defaultdict(encoder: Encoder, value: defaultdict[Any, Any], at: Link, depth: int) -> dict[str, Any]:
    factory = value.default_factory
    if factory is not None and not any(kind is factory for kind in _FACTORIES.values()):
        raise encoder.refused(value, at, "Its default_factory is code: pass dict(...) of it, or use a builtin type.")
    out = {"$defaultdict": encoder.value(dict(value), (at, Hop("$defaultdict")), depth + 1)}
    return out if factory is None else out | {"factory": factory.__name__}


def find(kind: type) -> Writer | None:
    return write_constant if kind.__name__ in ("NotGiven", "Omit") else None


def write_constant(encoder: Encoder, value: Any, at: Link, depth: int) -> dict[str, Any]:
    for name in sorted(_CONSTANTS):
        if look_up(name) is value:
            return {"$constant": name}
    raise encoder.refused(value, at, f"Only these constants can: {', '.join(sorted(_CONSTANTS))}.")


def read_complex(decoder: Decoder, node: Any, at: Link, depth: int) -> complex:
    real, imaginary = decoder.value(node["$complex"], (at, "$complex"), depth + 1)
    return complex(real, imaginary)


def read_decimal(decoder: Decoder, node: Any, at: Link, depth: int) -> Decimal:
    return Decimal(node["$decimal"])


def read_uuid(decoder: Decoder, node: Any, at: Link, depth: int) -> UUID:
    return UUID(node["$uuid"])


def read_path(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    kind = _PATHS[node["$path"]]
    try:
        return kind(decoder.value(node["path"], (at, "path"), depth + 1))
    except NotImplementedError as error:  # UnsupportedOperation, from Python 3.13 on
        refusal = FormatError(f"{decoder.place(at)}: a {node['$path']} cannot be made on {sys.platform}.")
        return decoder.absent(node, at, depth, refusal, error)


def read_range(decoder: Decoder, node: Any, at: Link, depth: int) -> range:
    start, stop, step = node["$range"]
    return range(start, stop, step)


def read_bytearray(decoder: Decoder, node: Any, at: Link, depth: int) -> bytearray:
    return bytearray(decoder.value(node["$bytearray"], (at, "$bytearray"), depth + 1))


def read_deque(decoder: Decoder, node: Any, at: Link, depth: int) -> deque[Any]:
    return deque(decoder.value(node["$deque"], (at, "$deque"), depth + 1), node.get("maxlen"))


def read_counter(decoder: Decoder, node: Any, at: Link, depth: int) -> Counter[Any]:
    out: Counter[Any] = Counter()
    dict.update(out, decoder.value(node["$counter"], (at, "$counter"), depth + 1))
    return out


def read_ordered(decoder: Decoder, node: Any, at: Link, depth: int) -> OrderedDict[Any, Any]:
    return OrderedDict(decoder.pairs(node["$ordereddict"], at, "$ordereddict", depth))


def read_defaultdict(decoder: Decoder, node: Any, at: Link, depth: int) -> defaultdict[Any, Any]:
    factory = _FACTORIES[node["factory"]] if "factory" in node else None
    return defaultdict(factory, decoder.value(node["$defaultdict"], (at, "$defaultdict"), depth + 1))


def read_constant(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    name = node["$constant"]
    if name not in _CONSTANTS:
        raise ValueError(name)
    value = look_up(name)
    if value is not None:
        return value
    refusal = FormatError(f"{decoder.place(at)}: the value is {name}, and {name.partition(':')[0]} is not imported.")
    return decoder.absent(node, at, depth, refusal)


WRITERS: Writers = {
    complex: write_complex,
    Decimal: write_decimal,
    UUID: write_uuid,
    range: write_range,
    bytearray: write_bytearray,
    deque: write_deque,
    Counter: write_counter,
    OrderedDict: write_ordered,
    defaultdict: write_defaultdict,
    type(...): write_constant,
    type(NotImplemented): write_constant,
    type(msgspec.UNSET): write_constant,
    **dict.fromkeys(_PATHS.values(), write_path),
}
READERS: Readers = {
    "$complex": (read_complex, {"$complex": list}, {}),
    "$decimal": (read_decimal, {"$decimal": str}, {}),
    "$uuid": (read_uuid, {"$uuid": str}, {}),
    "$path": (read_path, {"$path": str, "path": object}, {}),
    "$range": (read_range, {"$range": list}, {}),
    "$bytearray": (read_bytearray, {"$bytearray": object}, {}),
    "$deque": (read_deque, {"$deque": object}, {"maxlen": int}),
    "$counter": (read_counter, {"$counter": dict}, {}),
    "$ordereddict": (read_ordered, {"$ordereddict": list}, {}),
    "$defaultdict": (read_defaultdict, {"$defaultdict": dict}, {"factory": str}),
    "$constant": (read_constant, {"$constant": str}, {}),
}
