"""Whether a failed call is tried again, and when: by what the error says of itself."""

from __future__ import annotations

import math
import socket
import time
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest

from rolltape import Retry
from rolltape.errors import DivergenceError, UsageError
from rolltape.trajectory.retry import cause_of, delivery_of, kind_of


class StatusError(Exception):
    """As openai, anthropic and httpx have it."""

    def __init__(self, status_code: int, **headers: str) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code
        self.response = SimpleNamespace(headers={name.replace("_", "-"): value for name, value in headers.items()})


def status_error(name: str, value: Any) -> Exception:
    error = Exception("of a client")
    setattr(error, name, value)
    return error


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_these_statuses_are_transient(status: int):
    assert kind_of(StatusError(status)) == "transient"
    assert cause_of(StatusError(status)) == "infrastructure"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_these_are_permanent(status: int):
    assert kind_of(StatusError(status)) == "permanent"


def test_a_status_is_found_where_clients_put_it_and_other_numbers_are_none():
    assert kind_of(status_error("status", 503)) == "transient"  # aiohttp
    assert kind_of(status_error("response", SimpleNamespace(status_code=404))) == "permanent"  # requests
    for name, value in [("status_code", 200), ("status", "503"), ("status", True), ("status_code", 7)]:
        assert kind_of(status_error(name, value)) == "unknown"


def test_errors_are_judged_by_their_class():
    for error in (
        TimeoutError(),
        ConnectionResetError(),
        socket.gaierror(),
        type("APITimeoutError", (Exception,), {})(),
    ):
        assert kind_of(error) == "transient"
    for error in (TypeError(), AssertionError(), ModuleNotFoundError(), DivergenceError()):
        assert kind_of(error) == "permanent"
    for error in (ValueError(), OSError(), KeyError()):
        assert kind_of(error) == "unknown"


def test_a_group_is_as_permanent_as_the_worst_in_it():
    assert kind_of(ExceptionGroup("", [TimeoutError(), ExceptionGroup("", [StatusError(503)])])) == "transient"
    assert kind_of(ExceptionGroup("", [TimeoutError(), ValueError()])) == "unknown"
    assert kind_of(ExceptionGroup("", [TimeoutError(), ValueError(), TypeError()])) == "permanent"


def test_waits_double_up_to_the_bound_however_often():
    retry = Retry(max_retries=100_000, backoff_s=1, backoff_max_s=60, jitter=0)
    waits = [retry.wait_s(tries, ValueError()) for tries in (1, 2, 3, 6, 7, 8, 2000, 100_000)]
    assert waits == [1, 2, 4, 32, 60, 60, 60, 60]


def test_jitter_keeps_to_its_share_on_both_sides():
    waits = [Retry(backoff_s=1, jitter=0.5).wait_s(2, ValueError()) for _ in range(1000)]
    assert all(wait is not None and 1 <= wait <= 3 for wait in waits)
    assert min(waits) < 1.5 and max(waits) > 2.5  # type: ignore[type-var, operator]


def test_after_the_last_retry_and_for_permanent_errors_there_is_no_wait():
    assert Retry(max_retries=2).wait_s(2, ValueError()) is not None
    assert Retry(max_retries=2).wait_s(3, ValueError()) is None
    assert Retry().wait_s(1, StatusError(401)) is None
    assert Retry(permanent=("LookupError",)).wait_s(1, KeyError()) is None
    assert Retry(permanent=("Lookup",)).wait_s(1, KeyError()) is not None


def test_a_server_that_says_when_is_heard_within_the_bound():
    retry = Retry(backoff_s=0.1, backoff_max_s=60, jitter=0)

    def wait_s(asked: str) -> float:
        return retry.wait_s(1, StatusError(429, retry_after=asked)) or 0

    assert wait_s("7") == 7
    assert wait_s("1.5") == 1.5
    assert wait_s("100000") == wait_s("inf") == 60
    for nonsense in ("", "-3", "nan", "soon", "0"):
        assert wait_s(nonsense) == 0.1
    assert 25 < wait_s(formatdate(time.time() + 30, usegmt=True)) <= 30
    assert wait_s(formatdate(time.time() - 30, usegmt=True)) == 0.1


def test_not_all_come_back_at_the_moment_that_a_server_names():
    waits = {Retry(backoff_s=0).wait_s(1, StatusError(503, retry_after="4")) for _ in range(20)}
    assert len(waits) > 1
    assert all(wait is not None and 4 <= wait <= 5 for wait in waits)


def test_whether_it_reached_anybody():
    assert delivery_of(ConnectionRefusedError()) == "not_sent"
    assert delivery_of(StatusError(500)) == "delivered"
    assert delivery_of(TimeoutError()) == "possibly_delivered"
    try:
        raise RuntimeError("the client's own") from ConnectionRefusedError()
    except RuntimeError as error:
        assert delivery_of(error) == "not_sent"


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        ({"max_retries": -1}, "use 0 for no second try"),
        ({"backoff_s": -1}, "0 or more seconds"),
        ({"backoff_s": math.nan}, "0 or more seconds"),
        ({"backoff_max_s": math.inf}, "0 or more seconds"),
        ({"jitter": 1.5}, "a share between 0 and 1"),
        ({"permanent": "ValueError"}, "use a tuple of names"),
    ],
)
def test_misuse_is_told_what_to_write(misuse: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        Retry(**misuse)
