"""Writer and reader together against a plain model: anything may happen in any order, and the log stays the truth."""

from __future__ import annotations

import pytest

from tests.journal.machine import JournalMachine, run_machine


def test_the_journal_is_its_model():
    """Some hundred steps."""
    run_machine(JournalMachine, max_examples=40, steps=30)


@pytest.mark.torture
def test_the_journal_is_its_model_for_long():
    """Many thousand."""
    run_machine(JournalMachine, max_examples=1000, steps=60)
