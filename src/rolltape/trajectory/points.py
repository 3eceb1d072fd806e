"""The points of the fencing protocol at which a test can stop or kill this process (`rolltape.testing.points`)."""

from __future__ import annotations

from collections.abc import Callable

POINTS = ("judge", "read", "take", "attempt", "outcome", "check", "accepted")
"""judge     the owners of what others work on have been judged; the journals have not been read yet
read      the journals have been read, and say that the trajectory may be continued
take      the take is on disk
attempt   the attempt's first record is on disk
outcome   the outcome is on disk
check     the look at the disk has said that nobody else has the trajectory
accepted  the `accepted` line is on disk, and nobody has been told"""

on_point: Callable[[str, str], None] | None = None
"""Called with a point and the trajectory's key ("" at `judge`) when it is reached. None costs nothing."""


def reached(point: str, key: str = "") -> None:
    if on_point is not None:
        on_point(point, key)
