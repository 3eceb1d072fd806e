"""From lines to trajectories: the whole run at once, or one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rolltape.journal import format as fmt
from rolltape.journal.epochs import find_run
from rolltape.journal.lineage import Lineage, Story
from rolltape.journal.reader import Damage, Line, OnDamage, Reader

if TYPE_CHECKING:
    from rolltape.records import Envelope
    from rolltape.store import Store


class Place(NamedTuple):
    """Where a line lies."""

    epoch: int
    segment: int
    offset: int
    size: int


def open_reader(store: Store, on_damage: OnDamage) -> Reader:
    """Open the run for reading even where `run.json` is damaged, which is then reported."""
    return Reader(store, run=find_run(store, lambda reason: on_damage(Damage(fmt.RUN_FILE, 0, 0, reason))))


def survey(reader: Reader, on_damage: OnDamage) -> dict[str, Lineage[Place]]:
    """Read the whole run once, from the newest epoch down, and return each trajectory's records by key.

    Memory grows with the number of records, not with their size.
    """
    found: dict[str, Lineage[Place]] = {}
    for line in reader.scan(on_damage, newest_first=True):
        envelope = _envelope(line, on_damage)
        if envelope is not None and envelope.key:
            place = Place(line.epoch, line.segment, line.offset, len(line.raw))
            found.setdefault(envelope.key, Lineage()).add(envelope, place)
    return found


def story_of(reader: Reader, key: str, on_damage: OnDamage) -> Story[Line]:
    """Read one trajectory, its lines included. Damage anywhere in the run is reported: it may have been of this one."""
    lineage: Lineage[Line] = Lineage()
    written = b'"key":%b,' % msgspec.json.encode(key)
    for line in reader.scan(on_damage, newest_first=True):
        if written in line.raw:
            envelope = _envelope(line, on_damage)
            if envelope is not None and envelope.key == key:
                lineage.add(envelope, line)
    return lineage.story()


def _envelope(line: Line, on_damage: OnDamage) -> Envelope | None:
    try:
        return line.envelope()
    except msgspec.DecodeError as error:
        # Sound, so it was written like this: by another version, or by nobody of ours.
        on_damage(Damage(fmt.segment_name(line.epoch, line.segment), line.offset, line.offset, f"no record: {error}"))
        return None
