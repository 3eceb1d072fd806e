"""Whether a failed call is tried again, and when."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import msgspec

from rolltape.errors import RolltapeError, UsageError
from rolltape.records import Cause, Delivery

Kind = Literal["transient", "permanent", "unknown"]

_TRANSIENT_STATUS = {408, 409, 425, 429}
_PERMANENT = (TypeError, AttributeError, NameError, ImportError, SyntaxError, AssertionError, NotImplementedError)
_TRANSIENT = (TimeoutError, ConnectionError)
_DOUBLINGS_MAX = 100
"""More would overflow a float, and no bound on the wait is that far."""
_TRANSIENT_NAMES = {
    "APIConnectionError",
    "APITimeoutError",
    "TransportError",
    "TimeoutException",
    "ClientConnectionError",
    "gaierror",
}
"""Classes of clients that we don't import: openai, anthropic, httpx, httpx2, aiohttp, socket."""
_CAUSES_MAX = 8
_NOT_SENT_NAMES = {"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "ClientConnectorError", "gaierror"}


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a failed call is tried again, and how long to wait before each try.

    Waits double, with jitter, up to `backoff_max_s`. A server's `Retry-After` is waited for, up to the same bound.
    """

    max_retries: int = 3
    backoff_s: float = 0.5
    backoff_max_s: float = 60.0
    jitter: float = 0.25
    """Each wait is up to this share shorter or longer; one that a server asked for, longer only."""
    permanent: tuple[str, ...] = ()
    """Names of exception classes that are never tried again, beyond those that `kind_of` knows."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise UsageError(f"max_retries is {self.max_retries}: use 0 for no second try")
        for name in ("backoff_s", "backoff_max_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)!r}: use 0 or more seconds")
        if not 0 <= self.jitter <= 1:
            raise UsageError(f"jitter is {self.jitter!r}: use a share between 0 and 1")
        if type(self.permanent) is not tuple:
            raise UsageError(f"permanent is {self.permanent!r}: use a tuple of names")

    def wait_s(self, tries: int, error: BaseException) -> float | None:
        """Return how long to wait after the `tries`-th try failed with `error`; None: it is not tried again."""
        if tries > self.max_retries or kind_of(error) == "permanent":
            return None
        if any(cls.__name__ in self.permanent for cls in type(error).__mro__):
            return None
        wait_s: float = min(self.backoff_max_s, self.backoff_s * 2.0 ** min(tries - 1, _DOUBLINGS_MAX))
        wait_s *= 1 + random.uniform(-self.jitter, self.jitter)
        asked_s = min(self.backoff_max_s, _asked_for(error)) * (1 + random.uniform(0, self.jitter))
        return max(wait_s, asked_s)


NEVER = Retry(max_retries=0)


def kind_of(error: BaseException) -> Kind:
    """Say whether trying again may help, as far as the error tells: by HTTP status, then by class.

    A group is as permanent as the worst in it: that one would fail again.
    """
    if isinstance(error, BaseExceptionGroup):
        kinds = {kind_of(one) for one in error.exceptions}
        return "permanent" if "permanent" in kinds else "unknown" if "unknown" in kinds else "transient"
    return next(_kinds(error), "unknown")


def _kinds(error: BaseException) -> Iterator[Kind]:
    if isinstance(error, (RolltapeError, asyncio.CancelledError)):
        yield "permanent"
    if (status := _status_of(error)) is not None:
        yield "transient" if status in _TRANSIENT_STATUS or status >= 500 else "permanent"
    if isinstance(error, _TRANSIENT) or any(cls.__name__ in _TRANSIENT_NAMES for cls in type(error).__mro__):
        yield "transient"
    if isinstance(error, _PERMANENT):
        yield "permanent"


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error is about: openai, anthropic and requests name it so, aiohttp `status`."""
    response = getattr(error, "response", None)
    for status in (
        getattr(error, "status_code", None),
        getattr(response, "status_code", None),
        getattr(error, "status", None),
    ):
        if isinstance(status, int) and 400 <= status <= 599:
            return status
    return None


def _asked_for(error: BaseException) -> float:
    """Return what `Retry-After` asks for, in seconds; 0 if nothing does."""
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
    if not isinstance(headers, Mapping):
        return 0.0
    asked: Any = headers.get("retry-after") or headers.get("Retry-After")
    try:
        wait_s = float(asked)
    except (TypeError, ValueError):
        wait_s = _until(str(asked))
    return wait_s if wait_s > 0 else 0.0


def _until(date: str) -> float:
    """Return how many seconds lie between now and an HTTP date; 0 if it is none."""
    try:
        then = parsedate_to_datetime(date)
    except ValueError:
        return 0.0
    return then.timestamp() - time.time()


def delivery_of(error: BaseException) -> Delivery:
    """Say whether the call reached whom it was for, as far as the error, and what it was raised from, tells."""
    if _status_of(error) is not None:
        return "delivered"
    raised: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if raised is None:
            break
        if any(cls.__name__ in _NOT_SENT_NAMES for cls in type(raised).__mro__):
            return "not_sent"
        raised = raised.__cause__
    return "possibly_delivered"


def cause_of(error: BaseException) -> Cause:
    """Say who is to blame, as far as the error tells."""
    return "infrastructure" if kind_of(error) == "transient" else "unknown"
