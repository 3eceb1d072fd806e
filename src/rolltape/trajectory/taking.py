"""Who else works on this run: reading it before an attempt is made, judging owners, and checking ownership on disk.

Everything here runs on one thread of the process's own, in rounds: whoever asks before a round begins is answered from
what that round read. So a thousand trajectories that start at once cost one look at the directories.

A round judges every other process first and reads the journals afterwards, since what an owner did before it was seen
to be dead is then in what is read. A journal may grow while another one is read: so a link is believed to be broken
only once it is so in two readings (`docs/design.md` §6, `tests/model/model.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple, TypeVar

from rolltape import records
from rolltape.errors import DamagedError, JournalClosed
from rolltape.index import Catalogue, Marked, Updater, lineage_of
from rolltape.journal import Damage, Follower, Lineage, Reader, Story, has_ended_here, rely_on
from rolltape.journal import format as fmt
from rolltape.journal.epochs import epochs, provably_gone, read_claim, same_machine
from rolltape.journal.failures import failure
from rolltape.journal.lineage import AttemptId
from rolltape.trajectory.points import reached

logger = logging.getLogger("rolltape.run")

T = TypeVar("T")

LEASE_S = 30.0
"""Where a claim can't be read, its writer is given this long to show that it lives."""

MARGIN_S = 2.0
"""What an observer waits beyond the lease: a loaded machine's threads are late."""

WATCH_S = 1.0
"""How often newer epochs are looked at, so that whoever was superseded is told."""

IN_MEMORY = ":memory:"


# ---- judging ---------------------------------------------------------------------------------------------------------


class Judgement(NamedTuple):
    """What is known of an epoch's writer."""

    dead: bool
    who: str
    gone: bool = False
    """It certainly writes no more. Else `dead` may be wrong: then it is the newest attempt that counts."""
    wait_s: float = 0.0
    """How long until it counts as dead if it shows no sign of life; 0: it is known to live, or it is dead."""


class Observer:
    """Judges by signs of life: a process that is seen to be gone, or a journal that does not grow for a lease.

    The epochs below `take_over_below` are dead because the user says so.
    """

    def __init__(self, reader: Reader, *, take_over_below: int = 0) -> None:
        self._reader = reader
        self._take_over_below = take_over_below
        self._dead: dict[int, Judgement] = {}
        self._claims: dict[int, records.Claim | None] = {}
        self._grown: dict[int, tuple[int, float, bool]] = {}
        """By epoch: the length of its journal, since when, and whether it was seen to grow."""

    def judge(self, epoch: int) -> Judgement:
        """Judge the writer of `epoch` now. Once dead, always dead."""
        if (known := self._dead.get(epoch)) is not None and known.gone:
            return known
        claim = self._claim(epoch)
        if self._is_gone(epoch, claim):
            known = Judgement(True, _name(epoch, claim), gone=True)
        elif known is None:
            known = self._by_signs_of_life(epoch, claim)
        if known.dead:
            self._dead[epoch] = known
        return known

    def _is_gone(self, epoch: int, claim: records.Claim | None) -> bool:
        if claim is not None and provably_gone(claim):
            return True
        if claim is not None and _is_mine(claim):
            return has_ended_here(self._reader.run, epoch)
        return self._reader.is_closed(epoch)

    def _by_signs_of_life(self, epoch: int, claim: records.Claim | None) -> Judgement:
        who = _name(epoch, claim)
        if epoch < self._take_over_below:
            return Judgement(True, who)
        if claim is not None and same_machine(claim):
            return Judgement(False, who)
        lease_s = (LEASE_S if claim is None else claim.lease_s) + MARGIN_S
        size = sum(max(0, size) for size in self._reader.store.list(fmt.epoch_folder(epoch)).values())
        now = time.monotonic()
        before, since, grew = self._grown.get(epoch, (size, now, False))
        if size != before:
            since, grew = now, True
        self._grown[epoch] = (size, since, grew)
        wait_s = max(0.0, since + lease_s - now)
        return Judgement(wait_s == 0.0, who, wait_s=0.0 if grew else wait_s)

    def _claim(self, epoch: int) -> records.Claim | None:
        if epoch not in self._claims:
            try:
                self._claims[epoch] = read_claim(self._reader.store, self._reader.run, epoch)
            except DamagedError:
                self._claims[epoch] = None
        return self._claims[epoch]


def _name(epoch: int, claim: records.Claim | None) -> str:
    if claim is None:
        return f"a process that cannot be named (epoch {epoch})"
    if _is_mine(claim):
        return f"this process itself, which has the run open more than once (epoch {epoch})"
    return f"process {claim.pid} on {claim.host} (epoch {epoch})"


def _is_mine(claim: records.Claim) -> bool:
    return claim.pid == os.getpid() and same_machine(claim)


# ---- what a round saw ------------------------------------------------------------------------------------------------


Way = Literal["free", "ended", "newer", "in use", "unknown", "undecided"]
"""free       nobody has it: continue it
ended      it has an accepted outcome
newer      somebody has taken it after us: withdraw, and look again later
in use     its owner lives
unknown    its owner is silent, and not long enough to be dead
undecided  a living process has taken it, and has not begun: look again"""


class Sight(NamedTuple):
    """One trajectory as a round saw it."""

    lineage: Lineage[Marked]
    story: Story[Marked]
    alive: dict[int, Judgement]
    """The other processes' epochs that were not judged dead before the reading began."""
    damage: list[Damage]

    @property
    def top(self) -> AttemptId:
        """The newest attempt or undecided take."""
        return max((*self.lineage.attempts, *self.lineage.takes), default=(0, 0))

    def way(self, me: AttemptId | None) -> tuple[Way, Judgement | None]:
        """Say whether the take `me`, if there is one yet, may become an attempt, and else whose doing that is."""
        if self.story.accepted:
            return "ended", None
        if me is not None and self.top > me:
            return "newer", self.alive.get(self.top[0])
        newest = self.story.newest
        if newest is not None and (owner := self.alive.get(newest[0])) is not None:
            return ("unknown" if owner.wait_s else "in use"), owner
        others = [self.alive[id[0]] for id in self.lineage.takes if id != me and id[0] in self.alive]
        return ("undecided", others[0]) if others else ("free", None)

    def check(self, key: str) -> None:
        """Raise DamagedError if a finished step of it may be among what is missing or damaged."""
        if self.story.gaps:
            raise DamagedError(f"{key} cannot be continued: {self.story.gaps[0]} (`rolltape verify` lists all damage)")
        if self.story.accepted:
            return
        if (damage := next(filter(self._concerns, self.damage), None)) is not None:
            raise DamagedError(
                f"{key} is not continued, since a finished step of it may be among what is damaged: {damage} "
                "(`rolltape verify` lists all)"
            )

    def _concerns(self, damage: Damage) -> bool:
        """Say whether records of this trajectory may be missing there and be missed nowhere.

        The newest attempt names what it continues and numbers what it adds. So what lies before its last record is
        either there, or a gap, or stale.
        """
        place = _place_of(damage)
        if self.story.newest is None or place is None:
            return True
        entries = self.lineage.attempts[self.story.newest].entries
        return place > entries[max(entries)].place.place[:3]


def _place_of(damage: Damage) -> tuple[int, int, int] | None:
    found = re.match(r"journal/(\d{8})(?:/(\d{8})\..*)?$", damage.file)
    if found is None:
        return None
    return int(found[1]), int(found[2] or fmt.NUMBER_MAX), damage.start


class Held:
    """A trajectory that this process takes or has, and what newer epochs have said of it since."""

    def __init__(self, key: str, id: AttemptId) -> None:
        self.key = key
        self.id = id
        self.newer: dict[AttemptId, bool] = {}
        """Their takes, and whether an attempt followed."""
        self.on_lost: Callable[[], None] | None = None
        """Called once when another attempt is seen, on another thread."""


Standing = Literal["go", "wait", "stop"]


class _Question(NamedTuple):
    answer: Callable[[], Any]
    future: Future[Any]
    reads: bool = False
    """It is answered from the journals, read after it was asked."""
    checks: bool = False
    """It is answered from what newer epochs have added, read after it was asked."""
    own: bool = False
    """This process's own journals too."""


class World:
    """What this process knows of the others, for `own`, its epochs."""

    def __init__(
        self, reader: Reader, own: int, open_index: Callable[[], Catalogue], *, take_over: bool = False
    ) -> None:
        self._reader = reader
        self._own = {own}
        self._observer = Observer(reader, take_over_below=own if take_over else 0)
        self._newer = _Newer(reader, own)
        self._open_index = open_index
        self._updater: Updater | None = None
        self._catalogue: Catalogue
        self._settled: set[int] = set()
        """Gone, and read to the end since: nothing more comes of them."""
        self._alive: dict[int, Judgement] = {}
        self._synced: dict[tuple[int, int], int] = {}
        """How much of a segment is known to be on disk, because this process has synced it."""
        self._held: dict[str, Held] = {}
        self._asked: list[_Question] = []
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Answer what was asked, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    # ---- asking: from any event loop ---------------------------------------------------------------------------------

    async def look(self, key: str, then: Callable[[Sight], T], *, own: bool) -> T:
        """Return what `then` makes of what is on disk of a trajectory, judged and read after this call.

        `then` is called on the world's thread. `own`: this process has worked on the trajectory before.
        """
        looked: T = await self._ask(_Question(lambda: then(self._sight(key, own)), Future(), reads=True, own=own))
        return looked

    async def standing(self, held: Held) -> Standing:
        """Say whether the attempt may act, as far as this process and newer epochs' journals say after this call.

        stop: there is a newer attempt, or a take of a dead process. wait: a living process may be about to begin one.
        """
        standing: Standing = await self._ask(_Question(lambda: self._standing(held), Future(), checks=True))
        return standing

    async def do(self, work: Callable[[], T]) -> T:
        """Call `work` on the world's thread."""
        done: T = await self._ask(_Question(work, Future()))
        return done

    async def _ask(self, question: _Question) -> Any:
        with self._changed:
            if self._closing:
                raise JournalClosed("the run is closed: open it again")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="rolltape-world", daemon=True)
                self._thread.start()
            self._asked.append(question)
            self._changed.notify()
        return await asyncio.wrap_future(question.future)

    def hold(self, key: str, id: AttemptId) -> Held:
        """Note what newer epochs say of a trajectory from now on. To be called before it is taken."""
        held = self._held[key] = Held(key, id)
        return held

    def let_go(self, held: Held) -> None:
        """End that: this attempt does nothing more."""
        if self._held.get(held.key) is held:
            del self._held[held.key]

    def add_own(self, epoch: int) -> None:
        """Note that this process has a further epoch."""
        self._own.add(epoch)

    # ---- answering: on the world's thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        due = time.monotonic() + WATCH_S
        while True:
            with self._changed:
                if not (self._asked or self._closing):
                    self._changed.wait(max(0.0, due - time.monotonic()) if self._held else None)
                asked, self._asked = self._asked, []
                if self._closing and not asked:
                    break
            self._answer(asked)
            if time.monotonic() >= due:
                self._watch()
                due = time.monotonic() + WATCH_S
        if self._updater is not None:
            self._catalogue.close()

    def _answer(self, asked: list[_Question]) -> None:
        """Answer what was asked before now, from one look at the disk."""
        reading = [question for question in asked if question.reads]
        not_read = _failed(lambda: self._read(own=any(question.own for question in reading))) if reading else None
        not_checked = _failed(self._check) if any(question.checks for question in asked) else None
        for question in asked:
            if not question.future.set_running_or_notify_cancel():
                continue
            try:
                if (error := not_read if question.reads else not_checked if question.checks else None) is not None:
                    raise error
                question.future.set_result(question.answer())
            except OSError as failed:
                question.future.set_exception(failure(self._reader.store, failed))
            except Exception as failed:  # the thread lives on; whoever asked is told
                question.future.set_exception(failed)

    def _read(self, *, own: bool) -> None:
        """Judge every other epoch, then read what is new in the journals, unless nothing can be."""
        others = set(epochs(self._reader.store)) - self._own - self._settled
        judged = {epoch: self._observer.judge(epoch) for epoch in others}
        self._alive = {epoch: judgement for epoch, judgement in judged.items() if not judgement.dead}
        reached("judge")
        if own or judged:
            self._indexed(lambda updater: updater.update(skip=set() if own else self._own))
            self._settled |= {epoch for epoch, judgement in judged.items() if judgement.gone}

    def _sight(self, key: str, own: bool) -> Sight:
        sight = self._seen(key)
        gaps: list[str] = []
        while sight.story.gaps and sight.story.gaps != gaps:
            # Perhaps a record was read, and what it goes on from was written after its own journal had been looked at.
            gaps = sight.story.gaps
            self._settled.clear()
            self._read(own=own)
            sight = self._seen(key)
        return sight

    def _seen(self, key: str) -> Sight:
        parts, damage = ({}, []) if self._updater is None else self._indexed(lambda _: self._parts(key))
        lineage = lineage_of(key, parts)
        return Sight(lineage, lineage.story(), self._alive, damage)

    def _parts(self, key: str) -> tuple[dict[Any, Any], list[Damage]]:
        """Return what the index says of a trajectory, all of it: another process may have begun to build it again."""
        assert self._updater is not None
        while True:
            parts, damage = self._updater.parts(key), self._updater.all_damage()
            if self._catalogue.made() == self._updater.made:
                return parts, damage
            self._updater.update()

    def _indexed(self, ask: Callable[[Updater], T]) -> T:
        """Return what the index says. One that cannot be used is only a cache: another is built in memory."""
        while True:
            try:
                if self._updater is None:
                    self._use(self._open_index())
                assert self._updater is not None
                return ask(self._updater)
            except sqlite3.DatabaseError as error:
                if self._updater is None or self._catalogue.path == IN_MEMORY:
                    raise
                logger.warning("%s cannot be used, the journal is read instead: %s", self._catalogue.path, error)
                self._catalogue.close()
                self._use(Catalogue(IN_MEMORY, self._reader.run))
                self._updater.update()

    def _use(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._updater = Updater(catalogue, self._reader)

    def rely_on(self, entries: Iterable[Any]) -> None:
        """Make what was read survive power loss, before anything is built on it. On the world's thread."""
        needed: dict[tuple[int, int], int] = {}
        for entry in entries:
            epoch, segment, offset, size = entry.place.place
            needed[epoch, segment] = max(needed.get((epoch, segment), 0), offset + size)
        missing = {id for id, end in needed.items() if self._synced.get(id, 0) < end}
        sizes = {epoch: self._reader.store.list(fmt.epoch_folder(epoch)) for epoch, _ in missing}
        rely_on(self._reader.store, missing)
        for epoch, segment in missing:
            self._synced[epoch, segment] = sizes[epoch].get(f"{segment:08d}.jsonl", 0)

    # ---- ownership ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """See what newer epochs have added. DamagedError: a take may be among what cannot be read."""
        self._newer.poll(self._own, self._held)
        if self._newer.damage:  # it may have been a passing failure: look at all of it again
            self._newer = _Newer(self._reader, min(self._own))
            self._newer.poll(self._own, self._held)
        if self._newer.damage:
            raise DamagedError(
                f"whether another process has taken over cannot be seen: {self._newer.damage[0]} "
                "(`rolltape verify` lists all damage)"
            )

    def _standing(self, held: Held) -> Standing:
        if self._held.get(held.key) is not held:
            return "stop"
        newer = {id: begun for id, begun in held.newer.items() if id > held.id}
        if any(newer.values()) or any(self._observer.judge(epoch).dead for epoch, _ in newer):
            return "stop"
        return "wait" if newer else "go"

    def _watch(self) -> None:
        """Tell whoever was superseded."""
        if not self._held:
            return
        try:
            self._newer.poll(self._own, self._held)
        except Exception as error:  # the thread lives on; whoever acts looks again, and is told then
            logger.warning("newer processes cannot be seen for now: %s", error)
        for held in list(self._held.values()):
            if held.on_lost is not None and any(begun and id > held.id for id, begun in list(held.newer.items())):
                held.on_lost()
                held.on_lost = None


def _failed(work: Callable[[], None]) -> Exception | None:
    try:
        work()
    except Exception as error:  # the thread lives on; whoever asked is told
        return error
    return None


_TAKING = tuple(b'{"type":"%s"' % kind for kind in (b"take", b"attempt", b"withdrawn"))


class _Newer:
    """Follows the takes and attempts of the epochs above ours."""

    def __init__(self, reader: Reader, after: int) -> None:
        self.damage: list[Damage] = []
        self._follower = Follower(reader, self.damage.append, after=after)

    def poll(self, own: set[int], held: dict[str, Held]) -> None:
        """Tell the trajectories in `held` what is new of them. What was before they were held, they have read."""
        for line in self._follower.poll(skip=own):
            if not line.raw.startswith(_TAKING):
                continue
            envelope = line.envelope()
            if (mine := held.get(envelope.key)) is None:
                continue
            id = (envelope.epoch, envelope.attempt)
            if envelope.type == "attempt":
                mine.newer[id] = True
            elif envelope.type == "take":
                mine.newer.setdefault(id, False)
            elif not mine.newer.get(id):
                mine.newer.pop(id, None)
