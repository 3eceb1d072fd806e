"""Classes by name: `module:qualname`. Nothing is ever imported, and no code of a module runs, to find one.

A class is found where the caller named it (`returns=`), else in a module that is already imported.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from types import ModuleType, NoneType, UnionType
from typing import Any, TypeAlias

Types: TypeAlias = Mapping[str, type]
"""Classes that the caller named, by name."""

_WALKED_MAX = 10_000


def name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def look_up(name: str) -> Any:
    """Return what stands under a name in the imported modules, None if nothing does."""
    module, _, qualname = name.partition(":")
    here: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if not isinstance(here, ModuleType | type):
            return None
        here = vars(here).get(part)  # getattr would run a module's __getattr__, which may import
    return here


def named(returns: Any) -> Types:
    """Return the classes in a type, an annotation or a tuple of these, and those that their fields are annotated with.

    So local classes are found too, which no module holds.
    """
    if returns is None:
        return {}
    try:
        return _named(returns)
    except TypeError:  # not hashable
        return _collect(returns)


def describe(kind: Any) -> Any:
    """Return a type argument of a generic class as JSON: a name, or a list of what it is made of. None: it has none."""
    if kind is NoneType:
        return "None"
    origin = typing.get_origin(kind)
    if origin is typing.Union or origin is UnionType:  # two things before Python 3.14
        parts = ["|" if origin is UnionType else "Union", *map(describe, typing.get_args(kind))]
    elif origin is not None:
        parts = [describe(origin), *map(describe, typing.get_args(kind))]
    elif (generic := origin_of(kind)) is not None:
        parts = [describe(generic), *map(describe, kind.__pydantic_generic_metadata__["args"])]
    else:
        name = name_of(kind) if isinstance(kind, type) else None
        return name if name and look_up(name) is kind else None
    return None if None in parts else parts


def described(text: Any, types: Types) -> Any:
    """Return the type that `describe` described, None if it is not here."""
    if text == "None":
        return NoneType
    if isinstance(text, str):
        return types.get(text) or look_up(text)
    parts = [described(part, types) for part in text[1:]]
    if None in parts:
        return None
    if text[0] == "|":
        return reduce(or_, parts)
    if text[0] == "Union":
        return typing.Union[tuple(parts)]  # noqa: UP007  # of a computed number of types
    origin = described(text[0], types)
    return None if origin is None else origin[tuple(parts) if len(parts) > 1 else parts[0]]


def origin_of(kind: Any) -> type | None:
    """Return the generic class of which a pydantic model is a parametrization."""
    found: type | None = (getattr(kind, "__pydantic_generic_metadata__", None) or {}).get("origin")
    return found


@dataclass(frozen=True)
class Foreign:
    """A value whose class is not here, as it was recorded: for tools that show runs without the user's code."""

    tag: str
    """What kind of thing it is, as in docs/design/values.md: `$dataclass`, `$model`, `$array`, …"""
    type: Any
    """The class, as `module:qualname`; for an array, its dtype."""
    parts: dict[str, Any]

    @property
    def fields(self) -> dict[str, Any]:
        """The fields, where it has any."""
        found: dict[str, Any] = self.parts.get("fields", self.parts)
        return found

    def __hash__(self) -> int:
        return hash((self.tag, str(self.type)))

    def __repr__(self) -> str:
        if self.tag == "$unrecorded":
            return f"<{self.type}, not recorded>"
        fields = ", ".join(f"{name}={item!r}" for name, item in self.fields.items())
        return f"<{self.type}({fields}), not imported>"


@lru_cache(maxsize=256)
def _named(returns: Any) -> Types:
    return _collect(returns)


def _collect(returns: Any) -> Types:
    found: dict[str, type] = {}
    waiting: list[Any] = [returns]
    seen: set[int] = set()
    while waiting and len(seen) < _WALKED_MAX:
        kind = waiting.pop()
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        if isinstance(kind, tuple | list):
            waiting += kind
        waiting += [typing.get_origin(kind), *typing.get_args(kind)]
        if isinstance(kind, type) and not hasattr(kind, "__origin__"):
            found.setdefault(name_of(kind), kind)
            waiting += _annotations(kind)
    return found


def _annotations(kind: type) -> Iterable[Any]:
    """Return what a class's fields are annotated with, as far as that can be known."""
    if kind.__module__ in sys.stdlib_module_names:
        return ()
    if fields := getattr(kind, "__pydantic_fields__", None):
        return [field.annotation for field in fields.values()]
    try:
        return typing.get_type_hints(kind).values()
    except Exception:
        # Evaluating annotations is running code, which may raise anything: names that are local, most often.
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        return [field.type for field in fields if not isinstance(field.type, str)]
