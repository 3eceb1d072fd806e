"""`rolltape tail`: the end of a run, a line a record, and what is added to it."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rolltape import records
from rolltape.cli import text
from rolltape.cli.app import DAMAGED, FINE, on_a_run
from rolltape.cli.opening import catch_up, opened, warn
from rolltape.cli.screen import Screen
from rolltape.cli.story import first_line, words_of
from rolltape.errors import DamagedError

if TYPE_CHECKING:
    from rolltape.trajectory.recorded import RecordedRecord

KEY_CELLS_MIN, KEY_CELLS_MAX = 8, 24

BUDGET_S = 0.2
"""The index is not needed for an end; this much time finds the damage that is known already."""

_SIGNS = {"done": "completed", "failed": "failed", "cancelled": "cancelled", "parked": "parked"}


@click.command("tail")
@on_a_run
@click.option(
    "--lines", "-n", metavar="N", type=click.IntRange(0), default=10, show_default=True, help="How many records."
)
@click.option("--follow", "-f", is_flag=True, help="Go on with what is added, until Ctrl-C.")
def command(run: str, as_json: bool, color: str, lines: int, follow: bool) -> int:
    """Show the last records of RUN: when, of which trajectory and attempt, what."""
    screen = Screen("never" if as_json else color)
    with opened(run) as opened_run:
        catch_up(opened_run, screen, BUDGET_S)
        telling = _Telling(screen)
        found = opened_run.follow(last=lines, on_wait=lambda: _wait(screen)) if follow else opened_run.last(lines)
        for record in found:
            for line in _json(screen, record) if as_json else telling.lines(record):
                screen.line(line)
        return DAMAGED if warn(opened_run, screen) else FINE


def _wait(screen: Screen) -> None:
    """Show what there is, and stop where nobody reads on: a pipe says so without being written to."""
    screen.flush()
    try:
        out = sys.stdout.fileno()
    except OSError:  # not a file
        return
    poll = select.poll()
    poll.register(out, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError


def _json(screen: Screen, record: RecordedRecord) -> Iterator[str]:
    try:
        yield text.to_json(record.plain())
    except DamagedError as error:
        screen.note(f"rolltape: left out: {text.safe(str(error))}")


class _Telling:
    """Tells records, each in a line. The column of the keys grows with them."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._key_cells = KEY_CELLS_MIN

    def lines(self, record: RecordedRecord) -> Iterator[str]:
        screen = self._screen
        key = text.safe(record.key or "(the run)")
        self._key_cells = max(self._key_cells, min(text.cells(key), KEY_CELLS_MAX))
        key = text.pad(key, self._key_cells) if screen.width else key + " " * (self._key_cells - text.cells(key))
        attempt = f"try {record.point[1]}" if record.point[1] else ""
        head = f"{text.pad(text.local(record.unix_s or None, '%H:%M:%S'), 8)}  {key}  {attempt:5}  "
        words, status = _words(record)
        if screen.width is not None:
            words = text.cut(words, screen.width - text.cells(head) - 2)
        yield f"{screen.dim(head)}{screen.sign(status) if status else ' '} {words}".rstrip()


def _words(record: RecordedRecord) -> tuple[str, str]:
    """Return what a record says in one line, and the status whose sign and colour it has."""
    match known := record.record:
        case records.Done() | records.Cancelled() | records.Failed():
            words = text.safe(f"{known.path}  {known.name}") + (
                f"  {text.duration(known.took_s)}" if known.took_s else ""
            )
            words += "" if record.type == "done" else f"  {record.type}{_after(_error(record))}"
            return words, _SIGNS[record.type]
        case records.Outcome():
            reward = f", reward {text.reward(known.reward)}" if known.reward is not None else ""
            cause = f" ({known.cause})" if known.cause else ""
            return f"{known.status}{cause}{reward}{_after(_error(record))}", known.status
        case records.Parked():
            return f"parked: {text.safe(known.reason)}", "parked"
        case records.Attempt():
            if known.continues is None:
                return "begins", ""
            epoch, attempt, seq = known.continues
            return f"goes on from attempt {attempt} of epoch {epoch}, after its record {seq}", ""
        case records.Take():
            return "is taken", ""
        case records.Intent() | records.Begun():
            return text.safe(f"{known.path}  {known.name}  begins"), ""
        case records.Retry():
            what = text.safe(f"{known.path}  {known.name}" if known.path else "the attempt")
            return f"{what}  again in {text.duration(known.wait_s)}{_after(_error(record))}", ""
        case records.Resolved():
            return f"somebody decided: {text.safe(known.decision)}", ""
        case records.Note():
            return text.safe(f"note: {known.name}"), ""
        case records.PolicyVersion():
            return text.safe(f"policy {known.lineage}@{known.version}"), ""
        case records.Delivered():
            return text.safe(f"group {known.number} delivered: {', '.join(known.keys)}"), ""
        case records.Batch():
            return text.safe(f"batch of step {known.step}: {known.file}, {text.size(known.file_bytes)}"), ""
        case None:
            return text.safe(record.type), ""
        case _:
            return text.safe(words_of(known)), ""


def _after(words: str) -> str:
    return f": {words}" if words else ""


def _error(record: RecordedRecord) -> str:
    try:
        error = record.value("error")
    except DamagedError:
        return "(its error is damaged)"
    return brief_line(first_line(error)) if error is not None else ""


def brief_line(words: str) -> str:
    """Return the first line of any text, safe."""
    return text.safe((words.splitlines() or [""])[0])
