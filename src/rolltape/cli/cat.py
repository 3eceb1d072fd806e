"""`rolltape cat`: plain records, one JSON object a line, with what they refer to put back in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rolltape.cli import text
from rolltape.cli.app import DAMAGED, FINE, on_a_run
from rolltape.cli.opening import catch_up, find, opened, warn
from rolltape.cli.screen import Screen
from rolltape.errors import RolltapeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rolltape.trajectory.read import RecordedRun
    from rolltape.trajectory.recorded import RecordedRecord


@click.command("cat")
@on_a_run
@click.argument("key", required=False)
@click.option("--stale", is_flag=True, help='With KEY: also what a newer attempt has replaced, marked "stale".')
def command(run: str, key: str | None, as_json: bool, color: str, stale: bool) -> int:
    """Print the records of RUN, or those that count of its trajectory KEY, as JSON, one a line.

    For jq and the like: `rolltape cat RUN | jq 'select(.type == "failed") | .error'`. Values are as they were passed,
    not the references that the journal holds; what JSON cannot say is tagged (docs/design/values.md).
    """
    screen = Screen("never")
    with opened(run) as opened_run:
        catch_up(opened_run, screen)
        damaged = False
        for record in _records(opened_run, screen, key, stale):
            try:
                plain = record.plain()
            except RolltapeError as error:
                damaged = True
                screen.note(f"rolltape: left out: {text.safe(repr(record))}: {text.safe(str(error))}")
                continue
            screen.line(text.to_json({"stale": True, **plain} if record.stale else plain))
        damaged = warn(opened_run, screen) or damaged
    return DAMAGED if damaged else FINE


def _records(run: RecordedRun, screen: Screen, key: str | None, stale: bool) -> Iterator[RecordedRecord]:
    if key is None:
        return run.records()

    def left_out(error: Exception) -> None:
        screen.note(f"rolltape: left out: {text.safe(str(error))}")

    return find(run, key).records(stale=stale, on_damage=left_out)
