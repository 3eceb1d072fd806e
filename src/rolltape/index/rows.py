"""One trajectory in one row."""

from __future__ import annotations

import re

import msgspec

from rolltape.index.marks import Fact, Marked
from rolltape.journal import Lineage

STEPS = {"done", "failed", "cancelled"}
"""The record types that end a step."""


class Row(msgspec.Struct, frozen=True):
    """A trajectory at a glance, as its own records say it."""

    key: str
    task: str
    visit: int
    sample: int
    status: str
    """How it ended, once its outcome is accepted; else `parked` or `unresolved`."""
    cause: str | None
    reward: float | None
    attempts: int
    steps: int
    """Finished steps that count: returned, raised or cancelled."""
    epoch: int
    """Of the newest attempt, or of the newest take where there is none yet."""
    started: float | None
    ended: float | None
    """When the last record that counts was made."""
    bytes: int
    """Of all its lines, stale ones included."""
    policies: list[tuple[str, int]]
    """(lineage, version) of each policy that took part, in order."""
    error: str
    """The first line of the outcome's error, or why it is parked."""
    damage: str
    """What is missing, if something is."""


def row_of(key: str, lineage: Lineage[Marked]) -> Row:
    """Apply the reading rule, and sum up what counts."""
    story = lineage.story()
    outcome = parked = None
    steps = 0
    started: float | None = None
    ended: float | None = None
    policies: set[tuple[str, int]] = set()
    identity = _identity_in(key)
    for entry in story.entries:
        type, mark = entry.envelope.type, entry.place.mark
        if type in STEPS:
            steps += 1
            if mark.policy is not None:
                policies.add(mark.policy)
        elif type == "attempt":
            parked = None
            if mark.fact is not None and mark.fact.task:
                identity = (mark.fact.task, mark.fact.visit, mark.fact.sample)
        elif type == "outcome":
            outcome = mark.fact
        elif type == "parked":
            parked = mark.fact
        elif type == "resolved":
            parked = None
        if mark.unix_ms:
            ended = max(ended or 0.0, mark.unix_ms / 1000)
    first = [e.place.mark.unix_ms for a in lineage.attempts.values() if (e := a.entries.get(0)) is not None]
    if first:
        started = min(first) / 1000
    outcome = outcome if story.accepted else None
    status = outcome.status if outcome else "parked" if parked else "unresolved"
    return Row(
        key=key,
        task=identity[0],
        visit=identity[1],
        sample=identity[2],
        status=status,
        cause=outcome.cause if outcome else None,
        reward=outcome.reward if outcome else None,
        attempts=len(lineage.attempts),
        steps=steps,
        epoch=story.newest[0] if story.newest else max((epoch for epoch, _ in lineage.takes), default=0),
        started=started,
        ended=ended,
        bytes=sum(e.place.place.size for a in lineage.attempts.values() for e in a.entries.values()),
        policies=sorted(policies),
        error=(outcome or parked or Fact()).error,
        damage=story.gaps[0] if story.gaps else "",
    )


_key = re.compile(r"(.*?)(?:@(\d{1,18}))?(?:#(\d{1,18}))?", re.DOTALL)


def _identity_in(key: str) -> tuple[str, int, int]:
    """Read `task@visit#sample`, for attempts that do not say it."""
    match = _key.fullmatch(key)
    assert match is not None  # every part of the pattern may be empty
    return match[1], int(match[2] or 0), int(match[3] or 0)
