"""Who else works on this run: reading it before an attempt is made, judging owners, and checking ownership on disk.

Everything here runs on one thread of the process's own, in rounds: whoever asks before a round begins is answered from
what that round read. So a thousand trajectories that start at once cost one look at the directories
(`docs/design/journal.md`, "Taking" and "Acting").
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, TypeVar

from rolltape import records
from rolltape.errors import DamagedError
from rolltape.index import Catalogue, Marked, Updater, lineage_of
from rolltape.journal import Damage, Follower, Lineage, Reader
from rolltape.journal import format as fmt
from rolltape.journal.epochs import epochs, provably_gone, read_claim, same_machine
from rolltape.journal.lineage import AttemptId

T = TypeVar("T")

LEASE_S = 30.0
"""Where a claim can't be read, its writer is given this long to show that it lives."""

MARGIN_S = 2.0
"""What an observer waits beyond the lease: a loaded machine's threads are late."""


class Judgement(NamedTuple):
    """What is known of an epoch's writer."""

    dead: bool
    why: str
    wait_s: float = 0.0
    """How long until it may be called dead if it shows no sign of life; 0: it is known to live, or to be dead."""


class Sight(NamedTuple):
    """One trajectory as a round saw it."""

    lineage: Lineage[Marked]
    alive: dict[int, Judgement]
    """The other processes' epochs that were not judged dead before the reading began."""
    damage: list[Damage]


class Observer:
    """Judges by signs of life: a process that is seen to be gone, or a journal that does not grow for a lease."""

    def __init__(self, reader: Reader, *, take_over: bool = False) -> None:
        self._reader = reader
        self._take_over = take_over
        self._dead: set[int] = set()
        self._claims: dict[int, records.Claim | None] = {}
        self._grown: dict[int, tuple[int, float]] = {}

    def judge(self, epoch: int) -> Judgement:
        """Judge the writer of `epoch` now. Once dead, always dead."""
        if epoch in self._dead:
            return Judgement(True, "")
        judgement = self._judge(epoch)
        if judgement.dead:
            self._dead.add(epoch)
        return judgement

    def _judge(self, epoch: int) -> Judgement:
        claim = self._claim(epoch)
        who = f"epoch {epoch}" if claim is None else f"process {claim.pid} on {claim.host} (epoch {epoch})"
        if self._take_over:
            return Judgement(True, f"{who} is taken over")
        if claim is not None and same_machine(claim):
            return Judgement(True, "") if provably_gone(claim) else Judgement(False, f"{who} lives")
        lease_s = (LEASE_S if claim is None else claim.lease_s) + MARGIN_S
        size = sum(max(0, size) for size in self._reader.store.list(fmt.epoch_folder(epoch)).values())
        now = time.monotonic()
        before, since = self._grown.get(epoch, (-1, now))
        if size != before:
            since = now
        self._grown[epoch] = (size, since)
        wait_s = since + lease_s - now
        return Judgement(wait_s <= 0, f"{who} has shown no sign of life for {now - since:.0f} s", max(0.0, wait_s))

    def _claim(self, epoch: int) -> records.Claim | None:
        if epoch not in self._claims:
            try:
                self._claims[epoch] = read_claim(self._reader.store, self._reader.run, epoch)
            except DamagedError:
                self._claims[epoch] = None
        return self._claims[epoch]


Standing = Literal["go", "wait", "stop"]


class _Question(NamedTuple):
    answer: Callable[[], Any]
    reads: bool
    """It is answered from the journals, read after it was asked."""
    own: bool
    """This process's own journals too."""
    future: Future[Any]


class World:
    """What this process knows of the others."""

    def __init__(self, reader: Reader, open_index: Callable[[], Catalogue], *, take_over: bool = False) -> None:
        self.own: set[int] = set()
        """This process's epochs."""
        self._reader = reader
        self._open_index = open_index
        self._updater: Updater | None = None
        self._observer = Observer(reader, take_over=take_over)
        self._settled: set[int] = set()
        """Dead, and read to the end since: nothing more comes of them."""
        self._judged: dict[int, Judgement] = {}
        self._newer: _Newer | None = None
        self._asked: list[_Question] = []
        self._serving = False
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "rolltape-world")

    def close(self) -> None:
        """Answer what was asked, and stop."""
        self._thread.shutdown()

    # ---- asking: from any event loop ---------------------------------------------------------------------------------

    async def look(self, key: str, *, own: bool) -> Sight:
        """Return what is on disk of a trajectory, read after this call. `own`: this process has worked on it before."""
        sight: Sight = await self._ask(lambda: self._sight(key), reads=True, own=own)
        return sight

    async def standing(self, key: str, id: AttemptId) -> Standing:
        """Say whether attempt `id` of this process may act, as far as other processes' journals say after this call."""
        standing: Standing = await self._ask(lambda: self._standing(key, id))
        return standing

    async def do(self, work: Callable[[], T]) -> T:
        """Call `work` on the world's thread."""
        done: T = await self._ask(work)
        return done

    async def _ask(self, answer: Callable[[], Any], *, reads: bool = False, own: bool = False) -> Any:
        future: Future[Any] = Future()
        with self._lock:
            self._asked.append(_Question(answer, reads, own, future))
            if not self._serving:
                self._serving = True
                self._thread.submit(self._serve)
        return await asyncio.wrap_future(future)

    # ---- answering: on the world's thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._lock:
                asked, self._asked = self._asked, []
                if not asked:
                    self._serving = False
                    return
            self._answer(asked)

    def _answer(self, asked: list[_Question]) -> None:
        """Answer what was asked before now, from one look at the disk."""
        error: BaseException | None = None
        try:
            if any(question.reads for question in asked):
                self._read(own=any(question.own for question in asked))
            self._polled = False
        except Exception as failed:
            error = failed  # the thread lives on; whoever asked is told
        for question in asked:
            if not question.future.set_running_or_notify_cancel():
                continue
            try:
                if error is not None and question.reads:
                    raise error
                question.future.set_result(question.answer())
            except Exception as failed:
                question.future.set_exception(failed)

    def _read(self, *, own: bool) -> None:
        """Judge every other epoch, then read what is new in the journals, unless nothing can be."""
        others = set(epochs(self._reader.store)) - self.own
        self._judged = {epoch: self._observer.judge(epoch) for epoch in others - self._settled}
        if not own and not self._judged:
            return
        if self._updater is None:
            self._updater = Updater(self._open_index(), self._reader)
        self._updater.update(skip=set() if own else self.own)
        self._settled |= {epoch for epoch, judgement in self._judged.items() if judgement.dead}

    def _sight(self, key: str) -> Sight:
        parts = {} if self._updater is None else self._updater.parts(key)
        damage = [] if self._updater is None else self._updater.all_damage()
        alive = {epoch: judgement for epoch, judgement in self._judged.items() if not judgement.dead}
        return Sight(lineage_of(key, parts), alive, damage)

    def _standing(self, key: str, id: AttemptId) -> Standing:
        if self._newer is None:
            self._newer = _Newer(self._reader, min(self.own))
        if not self._polled:
            self._newer.poll()
            self._polled = True
        newer = self._newer.of(key, id)
        if any(begun for _, begun in newer):
            return "stop"
        if any(self._observer.judge(epoch).dead for (epoch, _), _ in newer if epoch not in self.own):
            return "stop"
        return "wait" if newer else "go"


class _Newer:
    """The takes and attempts that epochs above ours have written."""

    def __init__(self, reader: Reader, after: int) -> None:
        self._follower = Follower(reader, _refuse, after=after)
        self._found: dict[str, dict[AttemptId, bool]] = {}

    def poll(self) -> None:
        for line in self._follower.poll():
            envelope = line.envelope()
            id = (envelope.epoch, envelope.attempt)
            if envelope.type == "take":
                self._found.setdefault(envelope.key, {}).setdefault(id, False)
            elif envelope.type == "attempt":
                self._found.setdefault(envelope.key, {})[id] = True
            elif envelope.type == "withdrawn":
                self._found.get(envelope.key, {}).pop(id, None)

    def of(self, key: str, id: AttemptId) -> list[tuple[AttemptId, bool]]:
        """Return the newer takes of `key`, and whether an attempt followed."""
        return [(other, begun) for other, begun in self._found.get(key, {}).items() if other > id]


def _refuse(damage: Damage) -> None:
    """A take may be among what is damaged: whoever can't see it must not believe that there is none."""
    raise DamagedError(str(damage))
