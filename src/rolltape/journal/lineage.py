"""The reading rule: which attempt at a trajectory counts, which of its records do, and what is stale.

This module alone decides it. Records may be given in any order; what counts depends on what they say, never on when
they were written or read:

- The newest attempt is the one with the highest (epoch, attempt). An accepted outcome stands whatever comes later: if
  there is one, the attempt that has it counts (the lowest, should a misjudged process have left two).
- Its story is its own records, before them those of the attempt that it continues up to the point named, and so on.
- What a `resampled` record of the story takes back does not count: from the record that it names on, up to itself, but
  for the records that it keeps and those that begin an attempt.
- Everything else of the trajectory is stale: kept, shown, never believed.
- `seq` has no gaps. A gap, or a named point that is not there, is damage: the trajectory must not be run on from it.
- A take without an attempt changes no reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from rolltape.records import Envelope, Point

P = TypeVar("P")
"""Where a record lies, as the caller likes it: a line, or a place in a file."""

AttemptId = tuple[int, int]
"""(epoch, attempt)."""


class Entry(NamedTuple, Generic[P]):
    """One record that counts."""

    point: Point
    envelope: Envelope
    place: P


class Attempt(Generic[P]):
    """What was read of one attempt."""

    def __init__(self, id: AttemptId) -> None:
        self.id = id
        self.begun = False
        """Its own record, which says what it continues, was read."""
        self.continues: Point | None = None
        self.entries: dict[int, Entry[P]] = {}
        self.accepted = False

    @property
    def last(self) -> int:
        """The highest `seq` that was read."""
        return max(self.entries, default=-1)


class Story(NamedTuple, Generic[P]):
    """What counts of one trajectory."""

    newest: AttemptId | None
    """The newest attempt, which a new one would continue."""
    counts: AttemptId | None
    """The attempt whose story this is: the newest, or the one with the accepted outcome."""
    entries: list[Entry[P]]
    """The records that count, first to last."""
    stale: list[Entry[P]]
    """The records that do not, in order of (epoch, attempt, seq)."""
    accepted: bool
    gaps: list[str]
    """What is missing, in words. Not empty: the trajectory is damaged."""

    @property
    def last(self) -> Point | None:
        """The point that a new attempt would continue."""
        return self.entries[-1].point if self.entries else None


class Lineage(Generic[P]):
    """Everything that was read of one trajectory, until `story` says what of it counts."""

    def __init__(self) -> None:
        self.attempts: dict[AttemptId, Attempt[P]] = {}
        self._taken: set[AttemptId] = set()
        self._withdrawn: set[AttemptId] = set()

    @property
    def takes(self) -> set[AttemptId]:
        """The takes that neither became an attempt nor were withdrawn."""
        return self._taken - self._withdrawn - self.attempts.keys()

    def add(self, envelope: Envelope, place: P) -> None:
        """Take in one record of this trajectory."""
        id = (envelope.epoch, envelope.attempt)
        if envelope.type == "take":
            self._taken.add(id)
            return
        if envelope.type == "withdrawn":
            self._withdrawn.add(id)
            return
        if envelope.seq < 0:  # of a type that a newer version added, with no place in the order
            return
        attempt = self.attempts.get(id)
        if attempt is None:
            attempt = self.attempts[id] = Attempt(id)
        if envelope.type == "attempt":
            attempt.begun, attempt.continues = True, envelope.continues
        elif envelope.type == "accepted":
            attempt.accepted = True
        # A record is written once. Should damage make one visible twice (docs/design/journal.md), the first stands.
        attempt.entries.setdefault(envelope.seq, Entry((*id, envelope.seq), envelope, place))

    def story(self) -> Story[P]:
        """Apply the reading rule."""
        newest = max(self.attempts, default=None)
        accepted = min((a.id for a in self.attempts.values() if a.accepted), default=None)
        counts = accepted or newest
        gaps: list[str] = []
        parts: list[list[Entry[P]]] = []
        for attempt, upto in self._chain(counts, gaps):
            parts.append(self._part(attempt, upto, gaps))
        entries = _without_resampled([entry for part in reversed(parts) for entry in part])
        believed = {entry.point for entry in entries}
        stale = sorted(
            (e for a in self.attempts.values() for e in a.entries.values() if e.point not in believed),
            key=lambda entry: entry.point,
        )
        return Story(newest, counts, entries, stale, accepted is not None, gaps)

    def _chain(self, counts: AttemptId | None, gaps: list[str]) -> Iterator[tuple[Attempt[P], int | None]]:
        """Yield the attempts of the story, last first, each with the `seq` up to which it counts (None: all)."""
        id, upto = counts, None
        while id is not None:
            attempt = self.attempts.get(id)
            if attempt is None:
                gaps.append(f"attempt {id[1]} of epoch {id[0]} is missing, and a later one continues it")
                attempt = Attempt(id)
            yield attempt, upto
            if attempt.begun:
                before, upto = (
                    (None, None) if attempt.continues is None else (attempt.continues[:2], attempt.continues[2])
                )
            else:
                # What it continued is lost. The best that can still be shown is everything before it; it is damaged.
                if attempt.entries:
                    gaps.append(f"the first record of attempt {id[1]} of epoch {id[0]} is missing")
                before, upto = max((a for a in self.attempts if a < id), default=None), None
            if before is not None and before >= id:
                gaps.append(f"attempt {id[1]} of epoch {id[0]} says that it continues a later one")
                return
            id = before

    def _part(self, attempt: Attempt[P], upto: int | None, gaps: list[str]) -> list[Entry[P]]:
        end = attempt.last if upto is None else upto
        part = [attempt.entries[seq] for seq in sorted(attempt.entries) if seq <= end]
        expected = 0
        for seq in (*(entry.envelope.seq for entry in part), end + 1):
            if seq > expected and attempt.begun:
                what = f"record {expected} is" if seq == expected + 1 else f"records {expected} to {seq - 1} are"
                gaps.append(f"{what} missing in attempt {attempt.id[1]} of epoch {attempt.id[0]}")
            expected = seq + 1
        return part


def _without_resampled(entries: list[Entry[P]]) -> list[Entry[P]]:
    """Take out what later records of the story take back."""
    counted: list[Entry[P]] = []
    for entry in entries:
        if (back_to := entry.envelope.back_to) is not None:
            start = next((n for n, before in enumerate(counted) if before.point == back_to), len(counted))
            kept = {tuple(point) for point in entry.envelope.kept}
            counted[start:] = [e for e in counted[start:] if e.envelope.type == "attempt" or e.point in kept]
        counted.append(entry)
    return counted
