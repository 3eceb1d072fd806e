"""How a trajectory ended, and how an error is recorded."""

from __future__ import annotations

import traceback
from typing import Any

import msgspec

from rolltape import records
from rolltape.errors import EncodeError, LimitError
from rolltape.values import encode

ERROR_CHARS_MAX = 256 * 1024
"""How much is kept of the text of an error that no replay raises: an outcome's."""


class Outcome(msgspec.Struct, frozen=True):
    """How a trajectory ended."""

    status: records.OutcomeStatus
    result: Any = None
    """What `finish` was given."""
    reward: float | None = None
    """The result, if it is a number."""
    cause: records.Cause | None = None
    error: Any = None
    """What ended it: {"type", "message", "traceback", …}."""


def reward_of(result: Any) -> float | None:
    """Return the reward that a result is: a number, but not a truth value."""
    return float(result) if isinstance(result, (int, float)) and not isinstance(result, bool) else None


def described(error: BaseException, *, for_replay: bool = False) -> dict[str, Any]:
    """Return an error as it is recorded: what people read of it, and the error itself, where that can be recorded.

    `for_replay`: that is needed, and EncodeError or LimitError is raised later where it cannot be.
    """
    try:
        message = str(error)
    except Exception as broken:  # a user's own __str__ must not hide what happened
        message = f"<its message cannot be shown: {type(broken).__name__}>"
    lines = "".join(traceback.format_exception(error))
    told = {"type": type(error).__qualname__, "message": message, "traceback": lines, "exception": error}
    if not for_replay:
        told["message"], told["traceback"] = message[:ERROR_CHARS_MAX], lines[-ERROR_CHARS_MAX:]
        try:
            if len(encode(error).json) > ERROR_CHARS_MAX:
                del told["exception"]
        except (EncodeError, LimitError):
            del told["exception"]
    return told
