"""Arguments that a step is declared to change (`mutates=`): recorded as it leaves them, and changed again on replay."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rolltape.errors import UsageError


def named(
    function: Callable[..., Any], names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of these names. UsageError: a name is none of the call's."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except ValueError as error:
        raise UsageError(f"mutates= needs a function whose parameters can be seen: {error}") from None
    missing = [name for name in names if name not in bound.arguments]
    if missing:
        has = ", ".join(bound.arguments) or "nothing"
        raise UsageError(f"mutates= names {', '.join(missing)}, and the call passes {has}")
    return {name: bound.arguments[name] for name in names}


def change(live: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
    """Change the arguments in place to what was recorded."""
    for name, now in recorded.items():
        _change(name, live[name], now)


def _change(name: str, live: Any, now: Any) -> None:
    match live:
        case list() | bytearray():
            live[:] = now
        case dict() | set():
            live.clear()
            live.update(now)
        case _ if hasattr(live, "__dict__") and type(live) is type(now):
            vars(live).clear()
            vars(live).update(vars(now))
        case _:
            raise UsageError(
                f"mutates={name!r}: a {type(live).__name__} cannot be changed in place on replay. Pass a list, a dict, "
                "a set, a bytearray or an object with attributes; or return what is new"
            )
