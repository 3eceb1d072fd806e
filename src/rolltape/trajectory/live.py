"""The end of a run, and what comes after it, without reading what came before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from rolltape.journal import Damage, Follower, Line, Reader, SegmentScan
from rolltape.journal import format as fmt
from rolltape.journal.epochs import epochs

WINDOW_BYTES = 1 << 18

OF_FILES = {"segment", "seal", "heartbeat", "pack"}
"""Records about files and writers, which say nothing about what happened in the run."""


class _Head(msgspec.Struct):
    type: str
    unix_s: float = 0.0


_heads = msgspec.json.Decoder(_Head)


class Live:
    """Reads on from the last `number` records of a run."""

    def __init__(self, reader: Reader, is_gone: Callable[[int], bool], number: int) -> None:
        self._last: list[tuple[float, Line]] = []
        cursor: dict[int, tuple[int, int]] = {}
        for epoch in epochs(reader.store):
            gone = is_gone(epoch)
            lines, after = _end_of(reader, epoch, number)
            cursor[epoch] = (fmt.NUMBER_MAX + 1, 0) if gone else after  # nothing will be added to one that is gone
            self._last += lines
        self._last.sort(key=lambda timed: timed[0])
        self._last = self._last[-number:] if number else []
        self._follower = Follower(reader, _not_shown, cursor)

    def last(self) -> list[Line]:
        """Return the last lines, in the order of the times that they state."""
        return [line for _, line in self._last]

    def new(self) -> list[Line]:
        """Return what came since."""
        return [line for line in self._follower.poll() if _heads.decode(line.raw).type not in OF_FILES]


def _end_of(reader: Reader, epoch: int, number: int) -> tuple[list[tuple[float, Line]], tuple[int, int]]:
    """Return the last lines of an epoch with their times, and the segment and position after them."""
    found: deque[tuple[float, Line]] = deque()
    after = (0, 0)
    try:
        segments = reader.segments(epoch)
    except OSError:  # `RecordedRun.damage` tells it
        return [], after
    for segment in reversed(segments):
        try:
            lines, position = _end_of_segment(reader, epoch, segment, number - len(found))
        except OSError:  # the same
            continue
        found.extendleft(reversed(lines))
        after = after if after[0] else (segment, position)
        if len(found) >= number:
            break
    return _without_going_back(found), after


def _end_of_segment(reader: Reader, epoch: int, segment: int, number: int) -> tuple[list[tuple[float, Line]], int]:
    window = WINDOW_BYTES
    while True:
        start = reader.near_end(epoch, segment, window)
        scan = SegmentScan(reader, epoch, segment, _not_shown, start=start)
        lines: deque[tuple[float, Line]] = deque(maxlen=number)
        proven = scan.stated_proven
        for line in scan:
            head = _heads.decode(line.raw)
            proven = max(proven, scan.position if head.type == "seal" else fmt.dur_of(line.raw))
            if head.type not in OF_FILES:
                lines.append((head.unix_s, line))
        # Unless something proves that what lies before `start` was on disk, a torn tail may begin there.
        if start == 0 or (len(lines) >= number and proven >= start):
            return list(lines), scan.position
        window *= 4


def _without_going_back(lines: deque[tuple[float, Line]]) -> list[tuple[float, Line]]:
    """Let no line state an earlier time than one before it, so that sorting keeps each epoch's own order."""
    latest = 0.0
    timed = []
    for unix_s, line in lines:
        latest = max(latest, unix_s)
        timed.append((latest, line))
    return timed


def _not_shown(damage: Damage) -> None:
    """Damage is `RecordedRun.damage` and `rolltape verify`; the end of a run is shown all the same."""
