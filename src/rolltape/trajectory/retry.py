"""Whether a failed call is tried again, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Literal

import msgspec

from rolltape.errors import RolltapeError, UsageError
from rolltape.records import Cause, Delivery

Kind = Literal["transient", "permanent", "unknown"]
Rewind = Literal["last_model_call"]

_TRANSIENT_STATUS = {408, 409, 425, 429}
_PERMANENT = (TypeError, AttributeError, NameError, ImportError, SyntaxError, AssertionError, NotImplementedError)
_TRANSIENT = (TimeoutError, ConnectionError)
_TRANSIENT_NAMES = {
    "APIConnectionError",
    "APITimeoutError",
    "TransportError",
    "TimeoutException",
    "ClientConnectionError",
}
"""Classes of clients that we don't import: openai, anthropic, httpx, httpx2, aiohttp."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a failed call is tried again, and how long to wait before each try. Waits double, with jitter."""

    max_retries: int = 3
    backoff_s: float = 0.5
    backoff_max_s: float = 60.0
    jitter: float = 0.25
    """Each wait is up to this share shorter or longer."""
    permanent: tuple[str, ...] = ()
    """Names of exception classes that are never tried again, beyond those that `kind_of` knows."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise UsageError(f"max_retries is {self.max_retries}: use 0 for no second try")
        for name in ("backoff_s", "backoff_max_s"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is {getattr(self, name)!r}: use 0 or more seconds")
        if not 0 <= self.jitter <= 1:
            raise UsageError(f"jitter is {self.jitter!r}: use a share between 0 and 1")

    def wait_s(self, tries: int, error: BaseException) -> float | None:
        """Return how long to wait after the `tries`-th try failed with `error`; None: it is not tried again."""
        if tries > self.max_retries or kind_of(error) == "permanent":
            return None
        if any(cls.__name__ in self.permanent for cls in type(error).__mro__):
            return None
        wait_s: float = min(self.backoff_max_s, self.backoff_s * 2 ** (tries - 1))
        wait_s *= 1 + random.uniform(-self.jitter, self.jitter)
        return max(wait_s, _asked_for(error))


NEVER = Retry(max_retries=0)


def kind_of(error: BaseException) -> Kind:
    """Say whether trying again may help, as far as the error tells: by HTTP status, then by class."""
    return next(iter(_kinds(error)), "unknown")


def _kinds(error: BaseException) -> Iterator[Kind]:
    if isinstance(error, (RolltapeError, asyncio.CancelledError)):
        yield "permanent"
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        yield "transient" if status in _TRANSIENT_STATUS or status >= 500 else "permanent"
    if isinstance(error, _TRANSIENT) or any(cls.__name__ in _TRANSIENT_NAMES for cls in type(error).__mro__):
        yield "transient"
    if isinstance(error, _PERMANENT):
        yield "permanent"


def _asked_for(error: BaseException) -> float:
    """Return what `Retry-After` asks for, in seconds; 0 if nothing does."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    try:
        return max(0.0, float(headers.get("retry-after", 0))) if headers is not None else 0.0
    except (TypeError, ValueError, AttributeError):
        return 0.0  # a date, or headers of a kind that we don't know


def delivery_of(error: BaseException) -> Delivery:
    """Say whether the call reached whom it was for, as far as the error tells."""
    if any(cls.__name__ in ("ConnectError", "ConnectTimeout", "ConnectionRefusedError") for cls in type(error).__mro__):
        return "not_sent"
    if isinstance(getattr(error, "status_code", None), int):
        return "delivered"
    return "possibly_delivered"


def cause_of(error: BaseException) -> Cause:
    """Say who is to blame, as far as the error tells."""
    return "infrastructure" if kind_of(error) == "transient" else "unknown"
