"""Opening a run for a command: bringing its index up to date, and saying what a reader of the output has to know."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

import rolltape
from rolltape.cli import text
from rolltape.cli.screen import Screen
from rolltape.errors import NotARunError

if TYPE_CHECKING:
    from rolltape.trajectory.read import RecordedRun
    from rolltape.trajectory.recorded import RecordedTrajectory

SLICE_S = 0.3
"""How long to index before showing how far it is."""

RUNS_NAMED_MAX = 3


@contextmanager
def opened(path: str) -> Iterator[RecordedRun]:
    """Open the run in `path`. What SQLite refuses becomes a line that says what to do."""
    try:
        run = rolltape.read(path)
    except NotARunError as error:
        raise NotARunError(f"{error}{_runs_within(path)}") from error
    with run:
        try:
            yield run
        except sqlite3.Error as error:
            raise click.ClickException(
                f"the index {run.index_path} cannot be used: {error} (it may be deleted; nothing is lost with it)"
            ) from error


def _runs_within(path: str) -> str:
    try:
        within = sorted(e.path for e in os.scandir(path) if os.path.exists(os.path.join(e.path, "run.json")))
    except OSError:
        return ""
    if not within:
        return ""
    more = ", …" if len(within) > RUNS_NAMED_MAX else ""
    return f"; there are runs in it: {', '.join(within[:RUNS_NAMED_MAX])}{more}"


def catch_up(run: RecordedRun, screen: Screen, budget_s: float | None = None) -> None:
    """Bring the index up to date, showing how far it is; with `budget_s` stop after about so long."""
    if budget_s is not None:
        run.refresh(budget_s=budget_s)
        return
    while not run.refresh(budget_s=SLICE_S):
        screen.tell(f"reading the journal: {run.indexed:.0%} of {text.size(run.journal_bytes)}")
    screen.untell()


def find(run: RecordedRun, key: str) -> RecordedTrajectory:
    """Return one trajectory, by its key or by its key as it is shown. One line that names near keys: there is none."""
    try:
        return run[readable(key)]
    except KeyError as error:
        shown = text.unescaped(key)
        if shown != key and shown in run:
            return run[shown]
        raise click.ClickException(str(error.args[0])) from error


def readable(argument: str) -> str:
    """Return an argument that is text. One line: its bytes are not UTF-8, so that nothing recorded can be like it."""
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        raise click.ClickException(f"{argument!r} is not UTF-8") from error
    return argument


def warn(run: RecordedRun, screen: Screen) -> bool:
    """Say on stderr what is damaged, as far as is known. Returns whether something is."""
    damage = run.damage
    if damage:
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        screen.note(f"rolltape: damaged: {text.safe(str(damage[0]))}{more} (see `rolltape verify`)")
    return bool(damage)


def warn_partial(run: RecordedRun, screen: Screen) -> None:
    """Say on stderr how much of the journal is not looked at yet."""
    if run.indexed < 1:
        percent = f"{run.indexed:.0%}" if run.indexed >= 0.01 else "under 1%"
        covered = f"{percent} of the journal's {text.size(run.journal_bytes)}"
        screen.note(f"rolltape: so far this covers {covered}: run it again, or with --wait, for all of it")
