"""Instances of the user's classes: enums, dataclasses, msgspec structs, pydantic models and named tuples.

What an instance holds is recorded, and it is made again without calling its class: no `__init__`, no validator and no
`__post_init__` runs. If the class has other fields by now, that is an error: nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

import msgspec

from rolltape.errors import FormatError
from rolltape.values.names import Foreign, describe, described, look_up, name_of, origin_of
from rolltape.values.pointer import Hop

if TYPE_CHECKING:
    from rolltape.values.decoder import Decoder, Fields, Readers
    from rolltape.values.encoder import Encoder, Writer, Writers
    from rolltape.values.pointer import Link

_SHAPES_MAX = 4096
_SCALARS = (str, int, float, bool)


class Shape:
    """What there is to know of a class: its tag, name and fields, and what makes an instance without calling it."""

    __slots__ = ("fields", "is_found", "kind", "make", "name", "of", "slots", "tag")

    def __init__(self, kind: type, tag: str, fields: tuple[str, ...] = (), make: Callable[..., Any] | None = None):
        self.kind = kind
        self.tag = tag
        self.fields = fields
        self.make = make
        self.slots = [
            (name, item)
            for base in reversed(kind.__mro__)
            for name, item in vars(base).items()
            if type(item) is MemberDescriptorType and base.__flags__ & HEAP and name[:2] != "__"
        ]
        origin = origin_of(kind)
        self.name = name_of(origin or kind)
        self.of = [describe(item) for item in kind.__pydantic_generic_metadata__["args"]] if origin else None  # type: ignore[attr-defined]
        self.is_found = look_up(self.name) is (origin or kind) and None not in (self.of or ())

    def held(self, value: Any) -> dict[str, Any]:
        """Return the attributes that an instance holds, without running code of its class."""
        out = dict(getattr(value, "__dict__", ()))
        for name, slot in self.slots:
            try:
                out[name] = slot.__get__(value)
            except AttributeError:
                continue
        out.pop("__orig_class__", None)  # what typing leaves behind where a generic class was called
        return out

    def put(self, value: Any, held: dict[str, Any]) -> None:
        """Set an instance's attributes, without running code of its class."""
        slots = dict(self.slots)
        for name, item in held.items():
            if name in slots:
                slots[name].__set__(value, item)
            else:
                value.__dict__[name] = item


HEAP = 1 << 9
"""The flag of classes that a `class` statement made."""
_SHAPES: dict[type, Shape | None] = {}


def shape_of(kind: type) -> Shape | None:
    """Return the shape of a class whose instances can be recorded."""
    if kind not in _SHAPES:
        if len(_SHAPES) >= _SHAPES_MAX:
            _SHAPES.clear()
        _SHAPES[kind] = _shape(kind)
    return _SHAPES[kind]


def _shape(kind: type) -> Shape | None:
    models = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    if issubclass(kind, enum.Enum):
        return Shape(kind, "$flag" if issubclass(kind, enum.Flag) else "$enum")
    if issubclass(kind, msgspec.Struct):
        return Shape(kind, "$struct", kind.__struct_fields__, _struct_maker(kind))
    if issubclass(kind, tuple) and isinstance(fields := getattr(kind, "_fields", None), tuple):
        return Shape(kind, "$namedtuple", fields, tuple.__new__)
    try:
        object.__new__(kind)
    except TypeError:  # it has a layout of its own, such as a dict's, or is abstract
        return None
    if models is not None and issubclass(kind, models):
        fields = getattr(kind, "__pydantic_fields__", None) or vars(kind).get("model_fields") or {}  # before 2.10
        return Shape(kind, "$model", tuple(fields), object.__new__)
    if dataclasses.is_dataclass(kind):
        return Shape(kind, "$dataclass", tuple(field.name for field in dataclasses.fields(kind)), object.__new__)
    return None


def _struct_maker(kind: Any) -> Callable[..., Any]:
    """Return what makes a struct of its fields. Only calling it does, so its `__post_init__` has to stand aside."""
    if not hasattr(kind, "__post_init__"):
        return lambda _, fields: kind(**fields)
    bare = msgspec.defstruct(kind.__name__, [], bases=(kind,), namespace={"__post_init__": lambda self: None})

    def make(_: type, fields: dict[str, Any]) -> Any:
        made = bare(**fields)
        object.__dict__["__class__"].__set__(made, kind)  # the struct's own __setattr__ may be frozen
        return made

    return make


def find(kind: type) -> Writer | None:
    """Return what writes instances of a class, or a class itself."""
    if issubclass(kind, type):
        return write_type
    shape = shape_of(kind)
    if shape is None:
        return None
    if shape.tag == "$enum":
        return write_enum
    return write_flag if shape.tag == "$flag" else write_instance


def head(encoder: Encoder, value: Any, shape: Shape, at: Link) -> dict[str, Any]:
    """Return the beginning of an instance's tag: its class. EncodeError if a replay would not find that."""
    full = name_of(shape.kind)
    if encoder.types.get(full) is shape.kind:
        return {shape.tag: full}
    if not shape.is_found:
        raise encoder.refused(
            value,
            at,
            "A replay could not find its class under that name: name it in returns=, or define it in a module under "
            "its own name, outside of functions.",
        )
    return {shape.tag: shape.name} if shape.of is None else {shape.tag: shape.name, "of": shape.of}


def write_type(encoder: Encoder, value: type, at: Link, depth: int) -> dict[str, Any]:
    return head(encoder, value, Shape(value, "$type"), at)


def write_enum(encoder: Encoder, value: Any, at: Link, depth: int) -> dict[str, Any]:
    shape = shape_of(type(value))
    assert shape is not None, "only what has a shape is written here"
    out = head(encoder, value, shape, at) | {"name": value._name_}
    if type(value._value_) in _SCALARS:
        out["value"] = encoder.value(value._value_, (at, "value"), depth + 1)
    return out


def write_flag(encoder: Encoder, value: Any, at: Link, depth: int) -> dict[str, Any]:
    shape = shape_of(type(value))
    assert shape is not None, "only what has a shape is written here"
    return head(encoder, value, shape, at) | {"names": _bits(value), "value": value._value_}


def write_instance(encoder: Encoder, value: Any, at: Link, depth: int) -> dict[str, Any]:
    shape = shape_of(type(value))
    assert shape is not None, "only what has a shape is written here"
    out = head(encoder, value, shape, at)
    held = shape.held(value)
    if shape.tag == "$namedtuple":
        held |= zip(shape.fields, tuple.__iter__(value), strict=True)
    elif shape.tag == "$struct" and not all(name in held for name in shape.fields):
        raise encoder.refused(value, at, "One of its fields has no value: give it one.")
    fields = {name: held.pop(name) for name in shape.fields if name in held}
    parts: dict[str, Any] = {"more": held} if held else {}
    if len(fields) < len(shape.fields):
        out["missing"] = [name for name in shape.fields if name not in fields]
    if shape.tag == "$model":
        given = _get(value, "__pydantic_fields_set__") or set()
        if unset := [name for name in fields if name not in given]:
            out["unset"] = unset
        if given := sorted(given - fields.keys()):
            out["set"] = given
        parts["extra"] = _get(value, "__pydantic_extra__")
        parts["private"] = _get(value, "__pydantic_private__")
    out["fields"] = encoder.value(fields, (at, Hop("fields")), depth + 1)
    for name, part in parts.items():
        if part is not None:
            out[name] = encoder.value(part, (at, Hop(name)), depth + 1)
    return out


def write_foreign(encoder: Encoder, value: Foreign, at: Link, depth: int) -> dict[str, Any]:
    """As it stood in the text that it was read from."""
    parts = {name: encoder.value(part, (at, Hop(name)), depth + 1) for name, part in value.parts.items()}
    return {value.tag: value.type, **parts}


def class_of(decoder: Decoder, node: Any, at: Link) -> type:
    """Return the class that a tag names. FormatError if it is not here, or is of another kind by now."""
    tag = next(iter(node))
    name = node[tag]
    found: Any = decoder.types.get(name) or look_up(name)
    if "of" in node and found is not None:
        found = described([name, *node["of"]], decoder.types)
    if found is None:
        module = name.partition(":")[0]
        raise FormatError(
            f"{decoder.place(at)}: the class {name} is not here. Import {module} first, or name it in returns=."
        )
    shape = shape_of(found) if isinstance(found, type) and tag not in ("$type", "$exception") else None
    if not isinstance(found, type) or (shape is None and tag not in ("$type", "$exception")):
        raise changed(decoder, at, name, f"it was recorded as a {tag[1:]}, and is none now")
    if shape is not None and shape.tag != tag:
        raise changed(decoder, at, name, f"it was recorded as a {tag[1:]}, and is a {shape.tag[1:]} now")
    return found


def changed(decoder: Decoder, at: Link, name: str, how: str) -> FormatError:
    return FormatError(
        f"{decoder.place(at)}: {name} has changed since this was recorded: {how}. Go back to the version that recorded "
        "it, or give the changed class another name."
    )


def read_type(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    return decoder.guarded(node, at, depth, lambda parts: class_of(decoder, node, at))


def read_enum(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    def build(parts: dict[str, Any]) -> Any:
        kind: Any = class_of(decoder, node, at)
        member = kind._member_map_.get(parts["name"])
        if member is None:
            raise changed(decoder, at, node["$enum"], f"it has no member {parts['name']!r}")
        now = member._value_
        then = parts.get("value", now)
        if type(now) is not type(then) or (now != then and now == now):
            raise changed(decoder, at, node["$enum"], f"{parts['name']} was {then!r}, and is {now!r} now")
        return member

    return decoder.guarded(node, at, depth, build)


def read_flag(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    def build(parts: dict[str, Any]) -> Any:
        kind: Any = class_of(decoder, node, at)
        try:
            value = kind(parts["value"])
        except ValueError:
            value = None
        if value is None or _bits(value) != parts["names"]:
            was = " | ".join(parts["names"]) or "none"
            raise changed(decoder, at, node["$flag"], f"{parts['value']} was {was}, and is not now")
        return value

    return decoder.guarded(node, at, depth, build)


def read_instance(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    def build(parts: dict[str, Any]) -> Any:
        kind = class_of(decoder, node, at)
        shape = shape_of(kind)
        assert shape is not None and shape.make is not None, "class_of gives no other"
        fields: dict[str, Any] = parts["fields"]
        _check_fields(decoder, at, shape, {*fields, *parts.get("missing", ())})
        if shape.tag == "$namedtuple":
            fields = {name: fields[name] for name in shape.fields}
            value = shape.make(kind, fields.values())
        elif shape.tag == "$struct":
            value = shape.make(kind, fields)
        else:
            value = shape.make(kind)
            shape.put(value, fields)
        shape.put(value, parts.get("more", {}))
        if shape.tag == "$model":
            _fill_model(value, parts)
        return value

    return decoder.guarded(node, at, depth, build)


def read_unrecorded(decoder: Decoder, node: Any, at: Link, depth: int) -> Foreign:
    return Foreign("$unrecorded", node["$unrecorded"], {})


def _check_fields(decoder: Decoder, at: Link, shape: Shape, recorded: set[str]) -> None:
    now = set(shape.fields)
    if now != recorded:
        added = [f"{name} came" for name in shape.fields if name not in recorded]
        gone = [f"{name} went" for name in sorted(recorded - now)]
        raise changed(decoder, at, shape.name, "of its fields " + ", ".join(added + gone))


def _fill_model(value: Any, parts: dict[str, Any]) -> None:
    fields = parts["fields"]
    given = (fields.keys() - parts.get("unset", ())) | set(parts.get("set", ()))
    object.__setattr__(value, "__pydantic_fields_set__", given)
    for name in ("extra", "private"):
        # A RootModel has no place for these, but the class says None.
        if name in parts or _get(value, f"__pydantic_{name}__", ...) is ...:
            object.__setattr__(value, f"__pydantic_{name}__", parts.get(name))


def _get(value: Any, name: str, otherwise: Any = None) -> Any:
    """Return what is in one of the slots in which pydantic keeps what a model holds."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return otherwise


def _bits(value: Any) -> list[str]:
    return [member._name_ for member in type(value) if member._value_ and member._value_ & value._value_]


_INSTANCE: Fields = {"fields": dict}
_REST: Fields = {"of": list, "missing": list, "more": dict}
WRITERS: Writers = {Foreign: write_foreign, type: write_type}
READERS: Readers = {
    "$type": (read_type, {"$type": str}, {"of": list}),
    "$enum": (read_enum, {"$enum": str, "name": str}, {"value": object}),
    "$flag": (read_flag, {"$flag": str, "names": list, "value": int}, {}),
    "$dataclass": (read_instance, {"$dataclass": str, **_INSTANCE}, _REST),
    "$struct": (read_instance, {"$struct": str, **_INSTANCE}, _REST),
    "$namedtuple": (read_instance, {"$namedtuple": str, **_INSTANCE}, _REST),
    "$model": (
        read_instance,
        {"$model": str, **_INSTANCE},
        {**_REST, "unset": list, "set": list, "extra": dict, "private": dict},
    ),
    "$unrecorded": (read_unrecorded, {"$unrecorded": str}, {}),
}
