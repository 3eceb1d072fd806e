"""`rolltape ls`: the trajectories of a run, a page of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rolltape.cli import text
from rolltape.cli.app import DAMAGED, FINE, on_a_run
from rolltape.cli.opening import catch_up, opened, readable, warn, warn_partial
from rolltape.cli.screen import STATUS_CELLS, Screen

if TYPE_CHECKING:
    from rolltape.trajectory.read import RecordedRun
    from rolltape.trajectory.recorded import RecordedTrajectory

PAGE = 50

BUDGET_S = 0.4
"""How long somebody at a terminal waits for a large run's first page."""

BESIDE_CELLS = 110
"""On a screen so wide errors stand in their rows, else under them."""

KEY_CELLS, ERROR_CELLS = 20, 40
"""What a key and an error have at least beside one another."""

_STATUS_HELP = (
    "Only these: completed, failed, aborted, cancelled, parked, running, interrupted, unresolved. "
    "Several: -s failed,aborted."
)
_SORT_HELP = (
    "By started, ended, key, task, status, reward, attempts, steps, duration or bytes; a minus turns it: -reward."
)


class _Filter(NamedTuple):
    status: tuple[str, ...] | None
    task: str | None
    text: str | None


@click.command("ls")
@on_a_run
@click.option("--status", "-s", multiple=True, metavar="STATUS", help=_STATUS_HELP)
@click.option("--task", metavar="TASK", help="Only the samples of one task.")
@click.option("--grep", "-g", metavar="TEXT", help="Only those with TEXT in the key or in the error.")
@click.option("--sort", metavar="COLUMN", default="-started", show_default=True, help=_SORT_HELP)
@click.option(
    "--limit", "-n", metavar="N", type=click.IntRange(0), help=f"How many (default: {PAGE}; all with --json)."
)
@click.option("--offset", metavar="N", type=click.IntRange(0), default=0, help="How many to skip.")
@click.option("--all", "-a", "everything", is_flag=True, help="The same as no limit.")
@click.option("--wait", "-w", is_flag=True, help="Read all of a large run's journal first.")
@click.option(
    "--times",
    type=click.Choice(["relative", "local"]),
    help="How to show when each started (default: relative on a terminal).",
)
def command(
    run: str,
    as_json: bool,
    color: str,
    status: tuple[str, ...],
    task: str | None,
    grep: str | None,
    sort: str,
    limit: int | None,
    offset: int,
    everything: bool,
    wait: bool,
    times: str | None,
) -> int:
    """List the trajectories of RUN, newest first."""
    screen = Screen("never" if as_json else color)
    statuses = tuple(name for given in status for name in given.split(",")) or None
    chosen = _Filter(statuses, None if task is None else readable(task), None if grep is None else readable(grep))
    number = None if everything else limit if limit is not None else None if as_json else PAGE
    with opened(run) as opened_run:
        catch_up(opened_run, screen, None if wait or as_json or not screen.terminal else BUDGET_S)
        page = opened_run.trajectories(**chosen._asdict(), sort=sort, limit=number, offset=offset)
        if as_json:
            for trajectory in page:
                screen.line(text.to_json(trajectory.row()))
        else:
            rows = list(page)
            for line in _table(screen, rows, times or ("relative" if screen.terminal else "local")):
                screen.line(line)
            _footer(screen, opened_run, chosen, len(rows), offset)
        warn_partial(opened_run, screen)
        return DAMAGED if warn(opened_run, screen) else FINE


# ---- the table -------------------------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    key: int
    tries: int
    steps: int
    reward: int
    started: int
    took: int
    error: int | None
    """How wide the error may be beside the row; None: it stands under it."""


def _table(screen: Screen, rows: list[RecordedTrajectory], times: str) -> Iterator[str]:
    if not rows:
        return
    started = [text.ago(r.started, screen.now) if times == "relative" else text.local(r.started) for r in rows]
    layout = _layout(screen, rows, started)
    yield screen.bold(_heads(layout).rstrip())
    for trajectory, when in zip(rows, started, strict=True):
        yield from _row(screen, layout, trajectory, when)


def _layout(screen: Screen, rows: list[RecordedTrajectory], started: list[str]) -> _Layout:
    widest = max(text.cells(text.safe(row.key)) for row in rows)
    numbers = (
        _widest("TRIES", (str(row.n_attempts) for row in rows)),
        _widest("STEPS", (text.number(row.n_steps) for row in rows)),
        _widest("REWARD", (text.reward(row.reward) for row in rows)),
        _widest("STARTED", started),
        _widest("TOOK", (text.duration(row.duration_s) for row in rows)),
    )
    if screen.width is None:
        return _Layout(max(3, widest), *numbers, 1 << 30)
    room = screen.width - STATUS_CELLS - sum(numbers) - 2 * (len(numbers) + 1)
    errors = max((text.cells(_error(row)) for row in rows), default=0)
    if screen.width >= BESIDE_CELLS and errors:
        key = max(KEY_CELLS, min(widest, room - 2 - min(errors, ERROR_CELLS)))
        return _Layout(key, *numbers, room - 2 - key)
    return _Layout(max(3, min(widest, room)), *numbers, None)


def _widest(head: str, cells: Iterator[str] | list[str]) -> int:
    return max(len(head), *map(len, cells))


def _heads(layout: _Layout) -> str:
    heads = [text.pad("STATUS", STATUS_CELLS), text.pad("KEY", layout.key)]
    heads += [text.pad("TRIES", layout.tries, right=True), text.pad("STEPS", layout.steps, right=True)]
    heads += [text.pad("REWARD", layout.reward, right=True), text.pad("STARTED", layout.started)]
    heads += [text.pad("TOOK", layout.took, right=True), "ERROR" if layout.error else ""]
    return "  ".join(heads)


def _row(screen: Screen, layout: _Layout, trajectory: RecordedTrajectory, started: str) -> Iterator[str]:
    parts = [screen.status(trajectory.status, STATUS_CELLS), text.pad(text.safe(trajectory.key), layout.key)]
    tries = text.pad(str(trajectory.n_attempts), layout.tries, right=True)
    parts += [screen.style(tries, "yellow") if trajectory.n_attempts > 1 else tries]
    parts += [text.pad(text.number(trajectory.n_steps), layout.steps, right=True)]
    parts += [text.pad(text.reward(trajectory.reward), layout.reward, right=True)]
    parts += [screen.dim(text.pad(started, layout.started))]
    parts += [text.pad(text.duration(trajectory.duration_s), layout.took, right=True)]
    row, error = "  ".join(parts), _error(trajectory)
    color = "red" if trajectory.damage or trajectory.status == "failed" else "yellow"
    if not error:
        yield row.rstrip()
    elif layout.error is not None:
        yield f"{row}  {screen.style(text.cut(error, layout.error), color)}"
    else:
        yield row.rstrip()
        assert screen.width is not None
        yield f"  {screen.style(text.cut(error, screen.width - 2), color)}"


def _error(trajectory: RecordedTrajectory) -> str:
    error = text.safe(trajectory.error)
    if trajectory.damage:
        error = f"damaged: {text.safe(trajectory.damage)}"
    elif trajectory.cause and error:
        error = f"{trajectory.cause}: {error}"
    return error


# ---- under the table -------------------------------------------------------------------------------------------------


def _footer(screen: Screen, run: RecordedRun, chosen: _Filter, shown: int, offset: int) -> None:
    """Say which page it is and how all of them stand; on stderr where stdout is piped, so that rows stay rows."""
    counts = counts_by_status(run)
    everything = sum(counts.values())
    matching = run.count(**chosen._asdict()) if any(chosen) else everything
    of = f"{text.number(matching)}{f' that match, {text.number(everything)} in all' if any(chosen) else ''}"
    if shown:
        words = f"{text.number(offset + 1)}-{text.number(offset + shown)} of {of}"
    else:
        words = "no trajectories yet" if not everything else f"none of {of}"
    if shown and offset + shown < matching:
        words += f"; --offset {offset + shown} for more"
    states = [f"{screen.sign(name)} {text.number(count)} {name}" for name, count in counts.items()]
    if not screen.terminal:
        if shown < matching:
            screen.note(words)
        return
    for line in ["", *_flowing(states, screen.width), screen.dim(words)]:
        screen.line(line)


def _flowing(parts: list[str], width: int | None) -> list[str]:
    """Put the parts into as few lines as they need, three columns apart."""
    lines, taken = list[str](), 0
    for part in parts:
        cells = len(click.unstyle(part))
        if lines and (width is None or taken + 3 + cells <= width):
            lines[-1] += f"   {part}"
            taken += 3 + cells
        else:
            lines.append(part)
            taken = cells
    return lines


def counts_by_status(run: RecordedRun) -> dict[str, int]:
    """Return how many trajectories have each status that any has; the unresolved ones as far as can be told."""
    from rolltape.trajectory.read import STATUSES

    totals: dict[str, Any] = {total["status"]: total["trajectories"] for total in run.totals()}
    if unresolved := totals.pop("unresolved", 0):
        for name in ("running", "interrupted"):
            totals[name] = run.count(status=name)
        totals["unresolved"] = unresolved - totals["running"] - totals["interrupted"]
    return {name: totals[name] for name in STATUSES if totals.get(name)}
