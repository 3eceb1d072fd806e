"""Whatever happens to a run, and whenever it was looked at: the index equals one that is built from nothing.

The index outlives every crash here: it is a file on another disk than the run's, which loses power without it.
"""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from rolltape import records
from rolltape.index import Catalogue, Updater, update
from rolltape.journal import Reader, compress
from rolltape.store import LocalStore
from tests.index.compare import check
from tests.journal.machine import JournalMachine, Wrote, run_machine, working

ERROR = {"type": "ValueError", "message": "first\nsecond"}
KINDS: list[tuple[type[records.InOrder], dict[str, Any]]] = [
    (records.Failed, {"values": {"error": ERROR}, "path": "f"}),
    (records.Cancelled, {"path": "c", "unix_s": 7.25}),
    (records.Done, {"path": "d", "policy": ("main", 3), "unix_s": 99.0}),
    (
        records.Done,
        {"path": "d", "policy": ("main", 4), "unix_s": 98.5, "values": {"result": {"value": [1, "x" * 70]}}},
    ),
    (records.Parked, {"reason": "it waits", "unix_s": 12.0}),
    (records.Resolved, {"decision": "go on", "unix_s": 13.0}),
    (records.Outcome, {"status": "failed", "cause": "task", "values": {"error": ERROR}, "unix_s": 14.0}),
    (records.Outcome, {"status": "completed", "reward": 0.5, "unix_s": 15.0}),
]

begun = precondition(lambda machine: machine.epochs)


class ReaderDies(BaseException):
    """A reader is killed here."""


class IndexMachine(JournalMachine):
    """A run with an index that is brought up to date now and then, by two readers in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.catalogues: dict[int, Catalogue] = {}
        self.steps = 0

    def teardown(self) -> None:
        for catalogue in self.catalogues.values():
            catalogue.close()
        self.folder.cleanup()
        super().teardown()

    # ---- what else may happen to a run -------------------------------------------------------------------------------

    @working
    @rule(data=st.data(), kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=6))
    def append_of_other_kinds(self, data: st.DataObject, kinds: list[tuple[type[records.InOrder], Any]]) -> None:
        """Records of one attempt that a row shows something of."""
        (id,) = self.drawn(data, 1)
        log = self.logs[id]
        for kind, fields in kinds:
            says = f"{fields['path']} []" if kind is records.Done else ""
            wrote = Wrote(str(kind.__struct_config__.tag), *id, log.next_seq, says)
            self.run(log.append(kind, **fields))
            self.epochs[id[1]].acknowledged(wrote)

    @working
    @rule(data=st.data(), kind=st.sampled_from(KINDS))
    def append_another_kind(self, data: st.DataObject, kind: tuple[type[records.InOrder], Any]) -> None:
        self.append_of_other_kinds(data, [kind])

    @begun
    @rule()
    def compress(self) -> None:
        """Whatever is sealed is replaced by a compressed copy."""
        compress(LocalStore("/run", fs=self.disk.process()))

    # ---- readers -----------------------------------------------------------------------------------------------------

    @begun
    @rule(
        who=st.integers(0, 1),
        does=st.sampled_from(["look", "look in steps", "look a little", "die", "wait", "rebuild", "leave"]),
        slice_lines=st.sampled_from([1, 3, 16_384]),
        operation=st.integers(1, 40),
    )
    def a_reader(self, who: int, does: str, slice_lines: int, operation: int) -> None:
        """One of two readers of the same index does something."""
        catalogue = self.catalogue(who)
        try:
            update.SLICE_LINES = slice_lines
            if does in ("look", "look in steps"):
                self.look(catalogue, 0.0 if does == "look in steps" else None)
            elif does == "look a little":
                Updater(catalogue, self.reader()).update(budget_s=0)
            elif does == "die":
                self.die_in_an_update(who, operation)
            elif does == "wait":
                grow_old(catalogue)
            elif does == "rebuild":
                catalogue.rebuild()
            else:
                self.leave(who)
        finally:
            update.SLICE_LINES = 16_384

    def catalogue(self, who: int) -> Catalogue:
        """Readers 0 and 1 have one index; reader 2 has its own, and looks after every step."""
        if who not in self.catalogues:
            path = f"{self.folder.name}/{'steady' if who == 2 else 'index'}.sqlite"
            self.catalogues[who] = Catalogue(path, self.reader().run)
        return self.catalogues[who]

    def look(self, catalogue: Catalogue, budget_s: float | None) -> None:
        """Bring the index up to date, in one go or step by step: it equals a new one."""
        reader = self.reader()
        updater = Updater(catalogue, reader)
        while not updater.update(budget_s):
            assert budget_s is not None
        assert updater.done_bytes <= updater.all_bytes
        check(catalogue, updater, reader)

    def die_in_an_update(self, who: int, operation: int) -> None:
        """At one of its reads, which may be in the middle of what others see."""
        disk, left = self.disk.process(), operation

        def count_down(op: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise ReaderDies

        reader = Reader(LocalStore("/run", fs=disk))
        disk.on_operation = count_down
        try:
            Updater(self.catalogue(who), reader).update()
        except ReaderDies:
            self.leave(who)

    def leave(self, who: int) -> None:
        self.catalogues.pop(who).close()

    @invariant()
    def an_index_that_is_looked_at_after_every_step_equals_a_new_one(self) -> None:
        if self.epochs:
            self.look(self.catalogue(2), None)
            self.steps += 1
            if self.steps % 10 == 0:
                grow_old(self.catalogue(2))


def grow_old(catalogue: Catalogue) -> None:
    """Let a while pass: what does not grow is taken for settled then, whether its writer lives or not."""
    with catalogue.writing():
        catalogue._db.execute("UPDATE cursor SET grown_s = grown_s - 1000")


def test_the_index_equals_one_that_is_built_from_nothing():
    """Some hundred steps."""
    run_machine(IndexMachine, max_examples=20, steps=30)


@pytest.mark.torture
def test_the_index_equals_one_that_is_built_from_nothing_for_long():
    """Many thousand."""
    run_machine(IndexMachine, max_examples=600, steps=60)
