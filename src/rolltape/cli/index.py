"""`rolltape index`: where a run's index lies and what it covers, and building it again."""

from __future__ import annotations

import os
import time

import click

from rolltape.cli import text
from rolltape.cli.app import DAMAGED, FINE, on_a_run
from rolltape.cli.opening import SLICE_S, catch_up, opened, warn
from rolltape.cli.screen import Screen


@click.command("index")
@on_a_run
@click.option("--rebuild", is_flag=True, help="Empty it first, and read all of the journal again.")
def command(run: str, as_json: bool, color: str, rebuild: bool) -> int:
    """Bring the index of RUN up to date, and say where it is.

    Every command does so by itself. The index is derived from the journal; it may be deleted at any time.
    """
    screen = Screen("never" if as_json else color)
    began = time.monotonic()
    with opened(run) as opened_run:
        if rebuild:
            opened_run.rebuild_index(budget_s=SLICE_S)
        catch_up(opened_run, screen)
        path, trajectories = opened_run.index_path, len(opened_run)
        size = os.path.getsize(path) if os.path.exists(path) else 0
        if as_json:
            found = {"path": path, "bytes": size, "trajectories": trajectories, "journal": opened_run.journal_bytes}
            screen.line(text.to_json(found))
        else:
            took = text.duration(time.monotonic() - began)
            of = f"{text.plural(trajectories, 'trajectory')}, {text.size(opened_run.journal_bytes)} of journal"
            screen.line(f"{text.safe(path)}: {of}, {'built' if rebuild else 'up to date'} in {took}")
        return DAMAGED if warn(opened_run, screen) else FINE
