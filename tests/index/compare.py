"""What an index says, what one that was built from nothing says, and what the run itself says: all the same."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from rolltape.index import Catalogue, Query, Row, Updater
from rolltape.journal import Damage, Lineage, Place, Reader, survey

STEPS = {"done", "failed", "cancelled"}


class Says(NamedTuple):
    """All that can be asked of an index."""

    rows: dict[str, Row]
    parts: dict[str, set[Any]]
    """Of each trajectory, its records' places and marks."""
    damage: set[Damage]


def said_by(catalogue: Catalogue, updater: Updater) -> Says:
    """Return what an index says as it is, with the tails laid over it."""
    rows = list(catalogue.rows(Query(sort="key")))
    assert len({row.key for row in rows}) == len(rows) == catalogue.count(Query())
    assert rows == [catalogue.row(row.key) for row in rows]
    parts = {
        row.key: {(id, mark) for id, marks in updater.parts(row.key).items() for mark in marks}  #
        for row in rows
    }
    for row in rows:
        for marks in catalogue.parts(row.key).values():
            assert len(marks) == len(set(marks)), "some were indexed twice"
    return Says({row.key: row for row in rows}, parts, joined([*catalogue.damage(), *updater.damage]))


def joined(found: list[Damage]) -> set[Damage]:
    """Join parts that touch: what is met in two looks is two parts, and one in one."""
    whole: list[Damage] = []
    for part in sorted(set(found), key=lambda part: (part.file, part.reason, part.start, part.end)):
        last = whole[-1] if whole else None
        if last is not None and (last.file, last.reason, last.end) == (part.file, part.reason, part.start):
            whole[-1] = msgspec.structs.replace(last, end=part.end)
        else:
            whole.append(part)
    return set(whole)


def built_anew(reader: Reader) -> Says:
    """Return what an index says that begins with nothing."""
    catalogue = Catalogue(":memory:", reader.run)
    updater = Updater(catalogue, reader)
    assert updater.update()
    says = said_by(catalogue, updater)
    catalogue.close()
    return says


def check(catalogue: Catalogue, updater: Updater, reader: Reader, *, damage: bool = True) -> Says:
    """Check that an index which is up to date says what a new one says, and what the run says."""
    says, anew = said_by(catalogue, updater), built_anew(reader)
    assert says.rows == anew.rows
    assert says.parts == anew.parts
    if damage:
        assert says.damage == anew.damage
    check_against_the_run(says, reader)
    return says


def check_against_the_run(says: Says, reader: Reader) -> None:
    """Compare with a survey of every line, by a second way of computing what a row shows."""
    found: list[Damage] = []
    lineages = survey(reader, found.append)
    assert says.rows.keys() == lineages.keys()
    assert says.damage == joined(found)
    for key, lineage in lineages.items():
        row = says.rows[key]
        assert brief(row) == told(reader, key, lineage)
        places = {entry.place for attempt in lineage.attempts.values() for entry in attempt.entries.values()}
        assert {Place(*id, mark.offset, mark.size) for id, mark in says.parts[key] if mark.seq >= 0} >= places


def brief(row: Row) -> dict[str, Any]:
    """Return what a row says, its names aside."""
    plain = msgspec.structs.asdict(row)
    for name in ("key", "task", "visit", "sample"):
        del plain[name]
    return plain


def told(reader: Reader, key: str, lineage: Lineage[Place]) -> dict[str, Any]:
    """Return what a row has to say of a trajectory, from its own lines."""
    story = lineage.story()
    lines = [msgspec.json.decode(reader.line_at(*entry.place).raw) for entry in story.entries]
    types = [line["type"] for line in lines]
    outcome: dict[str, Any] = next((line for line in reversed(lines) if line["type"] == "outcome"), {})
    decided = [type for type in types if type in ("parked", "resolved", "attempt")]
    status = "parked" if decided and decided[-1] == "parked" else "unresolved"
    parked = next((line for line in reversed(lines) if line["type"] == "parked"), {}) if status == "parked" else {}
    if not story.accepted:
        outcome = {}
    error = outcome.get("error", {}) if outcome else {"type": parked.get("reason", "")}
    firsts = [reader.line_at(*a.entries[0].place) for a in lineage.attempts.values() if 0 in a.entries]
    begun = [msgspec.json.decode(line.raw).get("unix_s", 0.0) for line in firsts]
    times = [time for line in lines if (time := line.get("unix_s", 0.0))]
    return {
        "status": outcome.get("status", status),
        "cause": outcome.get("cause"),
        "reward": outcome.get("reward"),
        "attempts": len(lineage.attempts),
        "steps": sum(type in STEPS for type in types),
        "epoch": story.newest[0] if story.newest else max((epoch for epoch, _ in lineage.takes), default=0),
        "started": round(min(begun) * 1000) / 1000 if begun else None,
        "ended": round(max(times) * 1000) / 1000 if times else None,
        "bytes": sum(entry.place.size for entry in (*story.entries, *story.stale)),
        "policies": sorted({tuple(line["policy"]) for line in lines if line["type"] in STEPS and "policy" in line}),
        "error": ": ".join(part.split("\n")[0] for part in error.values() if part),
        "damage": story.gaps[0] if story.gaps else "",
    }
