"""The reading rule: each sentence of `rolltape.journal.lineage`, by example, and all of it against a plain model."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.journal import Lineage, Story
from rolltape.records import Envelope, Point

Id = tuple[int, int]


def begin(id: Id, after: Point | None = None) -> Envelope:
    return Envelope(type="attempt", key="k#0", epoch=id[0], attempt=id[1], seq=0, continues=after)


def done(id: Id, *seqs: int) -> list[Envelope]:
    return [Envelope(type="done", key="k#0", epoch=id[0], attempt=id[1], seq=seq) for seq in seqs]


def one(kind: str, id: Id, seq: int = -1) -> Envelope:
    return Envelope(type=kind, key="k#0", epoch=id[0], attempt=id[1], seq=seq)


def taken_back(id: Id, seq: int, back_to: Point, *kept: Point) -> Envelope:
    made = one("resampled", id, seq)
    made.back_to, made.kept = back_to, list(kept)
    return made


def lineage_of(records: list[Envelope]) -> Lineage[int]:
    lineage: Lineage[int] = Lineage()
    for place, record in enumerate(records):
        lineage.add(record, place)
    return lineage


def story_of(*records: Envelope | list[Envelope]) -> Story[int]:
    flat = [r for record in records for r in (record if isinstance(record, list) else [record])]
    return lineage_of(flat).story()


def counted(story: Story[int]) -> list[Point]:
    return [entry.point for entry in story.entries]


def stale(story: Story[int]) -> list[Point]:
    return [entry.point for entry in story.stale]


def points(id: Id, *seqs: int) -> list[Point]:
    return [(*id, seq) for seq in seqs]


A, B, C, D = (1, 1), (2, 1), (2, 2), (3, 1)


class Case(NamedTuple):
    """Records, and what the rule makes of them."""

    records: list[Envelope]
    counts: Id | None
    entries: list[Point]
    stale: tuple[Point, ...] = ()
    accepted: bool = False


SOUND = {
    "nothing was read": Case([], None, []),
    "one attempt is its own story": Case([begin(A), *done(A, 1, 2)], A, points(A, 0, 1, 2)),
    "a continuation goes on after the point that it names": Case(
        [begin(A), *done(A, 1, 2), begin(B, (*A, 2)), *done(B, 1)], B, points(A, 0, 1, 2) + points(B, 0, 1)
    ),
    "what the older attempt adds after that point is stale": Case(
        [begin(A), *done(A, 1, 2), begin(B, (*A, 1)), *done(B, 1), *done(A, 3)],
        B,
        points(A, 0, 1) + points(B, 0, 1),
        points(A, 2, 3),
    ),
    "what a resampled record takes back does not count, and what follows it does": Case(
        [begin(A), *done(A, 1, 2, 3), taken_back(A, 4, (*A, 2)), *done(A, 5)],
        A,
        points(A, 0, 1, 4, 5),
        points(A, 2, 3),
    ),
    "it reaches into the attempt before, and keeps what it names and where attempts begin": Case(
        [begin(A), *done(A, 1, 2, 3), begin(B, (*A, 3)), *done(B, 1), taken_back(B, 2, (*A, 2), (*A, 3)), *done(B, 3)],
        B,
        points(A, 0, 1, 3) + points(B, 0, 2, 3),
        tuple(points(A, 2) + points(B, 1)),
    ),
    "one that is stale itself takes nothing back": Case(
        [begin(A), *done(A, 1, 2), taken_back(A, 3, (*A, 1)), begin(B, (*A, 2)), *done(B, 1)],
        B,
        points(A, 0, 1, 2) + points(B, 0, 1),
        points(A, 3),
    ),
    "a late outcome of the older attempt is as stale as a late step": Case(
        [begin(A), *done(A, 1), begin(B, (*A, 1)), one("outcome", A, 2)],
        B,
        points(A, 0, 1) + points(B, 0),
        points(A, 2),
    ),
    "a chain goes through epochs and attempts": Case(
        [begin(A), *done(A, 1), begin(B, (*A, 1)), *done(B, 1, 2), begin(C, (*B, 1)), begin(D, (*C, 0)), *done(D, 1)],
        D,
        points(A, 0, 1) + points(B, 0, 1) + points(C, 0) + points(D, 0, 1),
        points(B, 2),
    ),
    "a continuation may go back over its predecessor": Case(
        [begin(A), *done(A, 1, 2), begin(B, (*A, 2)), *done(B, 1), begin(D, (*A, 1))],
        D,
        points(A, 0, 1) + points(D, 0),
        points(A, 2) + points(B, 0, 1),
    ),
    "an attempt that continues nothing starts again": Case(
        [begin(A), *done(A, 1, 2), begin(B)], B, points(B, 0), points(A, 0, 1, 2)
    ),
    "the epoch comes before the attempt": Case(
        [begin((1, 9)), *done((1, 9), 1), begin((2, 1))], (2, 1), [(2, 1, 0)], points((1, 9), 0, 1)
    ),
    "within an epoch the higher attempt is newer": Case(
        [begin((1, 9)), begin((1, 10))], (1, 10), [(1, 10, 0)], [(1, 9, 0)]
    ),
    "an outcome that was not accepted counts once somebody continues after it": Case(
        [begin(A), one("outcome", A, 1), begin(B, (*A, 1))], B, points(A, 0, 1) + points(B, 0)
    ),
    "an outcome that was not accepted is stale once somebody continues before it": Case(
        [begin(A), one("outcome", A, 1), begin(B, (*A, 0))], B, points(A, 0) + points(B, 0), points(A, 1)
    ),
    "an accepted outcome stands": Case(
        [begin(A), one("outcome", A, 1), one("accepted", A, 2)], A, points(A, 0, 1, 2), accepted=True
    ),
    "an accepted outcome stands whatever comes later": Case(
        [begin(A), one("outcome", A, 1), begin(B, (*A, 0)), *done(B, 1), one("accepted", A, 2), begin(D, (*B, 1))],
        A,
        points(A, 0, 1, 2),
        points(B, 0, 1) + points(D, 0),
        accepted=True,
    ),
    "of two accepted outcomes the lowest stands": Case(
        [
            *(begin(A), one("outcome", A, 1), one("accepted", A, 2)),
            *(begin(B), one("outcome", B, 1), one("accepted", B, 2)),
        ],
        A,
        points(A, 0, 1, 2),
        points(B, 0, 1, 2),
        accepted=True,
    ),
    "an accepted outcome brings the past that its attempt continues": Case(
        [begin(A), *done(A, 1, 2), begin(B, (*A, 1)), one("outcome", B, 1), one("accepted", B, 2), begin(D, (*B, 0))],
        B,
        points(A, 0, 1) + points(B, 0, 1, 2),
        points(A, 2) + points(D, 0),
        accepted=True,
    ),
    "a gap among what is stale anyway is no damage": Case(
        [begin(A), *done(A, 1, 5), begin(B, (*A, 1))], B, points(A, 0, 1) + points(B, 0), points(A, 5)
    ),
    "a stale attempt whose first record is lost is no damage": Case(
        [*done(A, 3), begin(B), *done(B, 1)], B, points(B, 0, 1), points(A, 3)
    ),
    "a record of a type that is not known yet keeps its place": Case(
        [begin(A), one("of a later version", A, 1), *done(A, 2)], A, points(A, 0, 1, 2)
    ),
}


@pytest.mark.parametrize("case", SOUND.values(), ids=SOUND.keys())
def test_what_counts_and_what_is_stale_is_decided_by_what_the_records_say(case: Case):
    """One sentence of the rule, in the order of writing and in the opposite one."""
    for records in (case.records, case.records[::-1]):
        story = story_of(records)
        assert story.counts == case.counts
        assert counted(story) == case.entries
        assert stale(story) == list(case.stale)
        assert story.accepted == case.accepted
        assert story.gaps == []
        assert story.newest == max(((r.epoch, r.attempt) for r in case.records), default=None)
        assert story.last == (case.entries[-1] if case.entries else None)


DAMAGED = {
    "a record in the middle is missing": (
        [begin(A), *done(A, 1, 3)],
        points(A, 0, 1, 3),
        ["record 2 is missing in attempt 1 of epoch 1"],
    ),
    "several are missing": (
        [begin(A), *done(A, 1, 4, 6)],
        points(A, 0, 1, 4, 6),
        ["records 2 to 3 are missing in attempt 1 of epoch 1", "record 5 is missing in attempt 1 of epoch 1"],
    ),
    "the point that is continued is missing": (
        [begin(A), *done(A, 1), begin(B, (*A, 3))],
        points(A, 0, 1) + points(B, 0),
        ["records 2 to 3 are missing in attempt 1 of epoch 1"],
    ),
    "a record before the point that is continued is missing": (
        [begin(A), *done(A, 2), begin(B, (*A, 2))],
        points(A, 0, 2) + points(B, 0),
        ["record 1 is missing in attempt 1 of epoch 1"],
    ),
    "an attempt lost its own record": (
        [begin(A), *done(A, 1), *done(B, 1, 2)],
        points(A, 0, 1) + points(B, 1, 2),
        ["the first record of attempt 1 of epoch 2 is missing"],
    ),
    "an attempt that is continued lost its own record": (
        [*done(A, 1, 2), begin(B, (*A, 1))],
        points(A, 1) + points(B, 0),
        ["the first record of attempt 1 of epoch 1 is missing"],
    ),
    "an attempt that is continued is missing altogether": (
        [begin(A), begin(D, (*B, 2)), *done(D, 1)],
        points(A, 0) + points(D, 0, 1),
        ["attempt 1 of epoch 2 is missing, and a later one continues it"],
    ),
    "an attempt says that it continues itself": (
        [begin(A, (*A, 1)), *done(A, 1)],
        points(A, 0, 1),
        ["attempt 1 of epoch 1 says that it continues a later one"],
    ),
    "two attempts say that they continue each other": (
        [begin(A, (*B, 0)), begin(B, (*A, 0))],
        points(A, 0) + points(B, 0),
        ["attempt 1 of epoch 1 says that it continues a later one"],
    ),
    "an accepted outcome lost the outcome": (
        [begin(A), one("accepted", A, 2)],
        points(A, 0, 2),
        ["record 1 is missing in attempt 1 of epoch 1"],
    ),
}


@pytest.mark.parametrize(("records", "entries", "gaps"), DAMAGED.values(), ids=DAMAGED.keys())
def test_what_is_missing_is_said_in_words_and_the_rest_is_shown(records, entries, gaps):
    """`gaps` not empty is what parks a trajectory, so each kind of hole has to fill it; whatever is there is shown."""
    for given_records in (records, records[::-1]):
        story = story_of(given_records)
        assert story.gaps == gaps
        assert counted(story) == entries


def test_a_take_alone_changes_no_reading():
    """Somebody who is about to continue has not done so; only the attempt's own record makes it the newest."""
    before = story_of(begin(A), done(A, 1))
    lineage = lineage_of([begin(A), *done(A, 1), one("take", B), one("take", D)])
    assert lineage.story() == before
    assert lineage.takes == {B, D}
    assert story_of(one("take", A)) == story_of()


def test_a_take_is_open_until_its_attempt_begins_or_it_is_withdrawn():
    """`takes` is what a taker has to wait for: it holds those that are not decided, and no others."""
    lineage = lineage_of([one("take", A), begin(A), one("take", B), one("withdrawn", B), one("take", D)])
    assert lineage.takes == {D}
    assert lineage.story().newest == A


def test_a_take_whose_attempt_or_withdrawal_was_read_first_is_not_open():
    """Records may be given in any order."""
    assert lineage_of([begin(A), one("take", A)]).takes == set()
    assert lineage_of([one("withdrawn", B), one("take", B)]).takes == set()


def test_the_same_record_seen_twice_counts_once_and_the_first_place_stands():
    """A reader may meet a line again, say in a segment that was given up and written again."""
    story = story_of(begin(A), done(A, 1), begin(A), done(A, 1), done(A, 2))
    assert counted(story) == points(A, 0, 1, 2)
    assert [entry.place for entry in story.entries] == [0, 1, 4]
    assert story.gaps == []


def test_a_record_of_an_unknown_type_without_a_place_in_the_order_changes_no_reading():
    """A later version may add what belongs to a trajectory and has no `seq`, as takes; readers of today skip it."""
    assert story_of(begin(A), done(A, 1), one("of a later version", B)) == story_of(begin(A), done(A, 1))


# ---- the whole rule against a plain model ----------------------------------------------------------------------------


class Told(NamedTuple):
    """A history of sound records, and its story as a plain list that was kept while it happened."""

    records: list[Envelope]
    counts: Id | None
    entries: list[Point]


@st.composite
def histories(draw: st.DrawFn) -> Told:
    """Attempts begin anywhere in anybody's story, any attempt adds records at any time, some are accepted."""
    records: list[Envelope] = []
    stories: dict[Id, list[Point]] = {}
    accepted: set[Id] = set()
    id = (1, 1)
    for _ in range(draw(st.integers(0, 25))):
        action = draw(st.sampled_from(["begin", "continue", "add", "add", "add", "accept"]))
        if action in ("begin", "continue") or not stories:
            id = draw(st.sampled_from([(id[0], id[1] + 1), (id[0] + 1, 1), (id[0] + 2, id[1])])) if stories else id
            past: list[Point] = []
            if action == "continue" and stories:
                whole = stories[draw(st.sampled_from(sorted(stories)))]
                past = whole[: draw(st.integers(1, len(whole)))]
            records.append(begin(id, past[-1] if past else None))
            stories[id] = [*past, (*id, 0)]
            continue
        who = draw(st.sampled_from(sorted(stories)))
        seq = stories[who][-1][2] + 1
        records.append(one("accepted" if action == "accept" else "done", who, seq))
        stories[who].append((*who, seq))
        if action == "accept":
            accepted.add(who)
    counts = min(accepted) if accepted else max(stories, default=None)
    return Told(records, counts, stories[counts] if counts else [])


@given(told=histories(), data=st.data())
@settings(deadline=None, max_examples=200)
def test_the_story_is_the_same_in_whatever_order_the_records_are_read(told: Told, data: st.DataObject):
    """Segments are read from the newest epoch down, live, or in pieces: what counts may not depend on it."""
    story = story_of(data.draw(st.permutations(told.records)))
    everything = {(r.epoch, r.attempt, r.seq) for r in told.records}
    assert story.counts == told.counts
    assert counted(story) == told.entries
    assert stale(story) == sorted(everything - set(told.entries))
    assert story.gaps == []


@given(told=histories(), data=st.data())
@settings(deadline=None, max_examples=200)
def test_a_lost_record_that_counts_never_goes_unnoticed_unless_it_was_the_last_of_its_attempt(
    told: Told, data: st.DataObject
):
    """What follows a hole proves it: later records of the attempt, or the attempt that continues after it."""
    after = set(told.entries)
    provable = [
        r
        for r in told.records
        if (r.epoch, r.attempt, r.seq) in after and _is_followed(r, told) and r.type != "accepted"
    ]
    if not provable:
        return
    lost = data.draw(st.sampled_from(provable))
    story = story_of([r for r in told.records if r is not lost])
    assert story.gaps
    assert (lost.epoch, lost.attempt, lost.seq) not in counted(story)


def _is_followed(record: Envelope, told: Told) -> bool:
    here = told.entries.index((record.epoch, record.attempt, record.seq))
    return here + 1 < len(told.entries)


@given(
    records=st.lists(
        st.builds(
            Envelope,
            type=st.sampled_from(["take", "withdrawn", "attempt", "done", "outcome", "accepted", "later"]),
            key=st.just("k#0"),
            epoch=st.integers(1, 3),
            attempt=st.integers(1, 2),
            seq=st.integers(0, 4),
            continues=st.none() | st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(-1, 5)),
        ),
        max_size=20,
    )
)
@settings(deadline=None, max_examples=300)
def test_whatever_the_records_say_each_of_them_either_counts_or_is_stale_once(records: list[Envelope]):
    """Nonsense, as damage may leave it, ends too: nothing is lost, nothing is shown twice, nothing is invented."""
    story = story_of(records)
    shown = counted(story) + stale(story)
    said = {(r.epoch, r.attempt, r.seq) for r in records if r.type not in ("take", "withdrawn")}
    assert sorted(shown) == sorted(said)
