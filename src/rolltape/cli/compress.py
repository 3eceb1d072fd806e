"""`rolltape compress`: sealed segments as zstd, while the run lives or after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rolltape.cli import text
from rolltape.cli.app import FINE, on_a_run
from rolltape.cli.opening import opened
from rolltape.cli.screen import Screen

if TYPE_CHECKING:
    from rolltape.journal import CompressReport


@click.command("compress")
@on_a_run
@click.option("--level", type=int, help="1 (fast) to 19 (small).")
def command(run: str, as_json: bool, color: str, level: int | None) -> int:
    """Compress the finished segments of RUN. It reads the same before, during and after.

    May be interrupted and run again at any time, also while the run is being written.
    """
    from rolltape.journal.compress import LEVEL, compress
    from rolltape.store import LocalStore

    screen = Screen("never" if as_json else color)
    with opened(run):  # it says what is wrong with the run as a whole
        pass

    def told(name: str, done: int, of: int) -> None:
        screen.tell(f"compressing: {text.size(done)} of {text.size(of)}, {name}")

    report = compress(LocalStore(run), level=LEVEL if level is None else level, on_progress=told)
    screen.untell()
    if as_json:
        screen.line(text.to_json({name: getattr(report, name) for name in report.__struct_fields__}))
    else:
        for line in _lines(screen, report):
            screen.line(line)
    return FINE


def _lines(screen: Screen, report: CompressReport) -> Iterator[str]:
    if report.compressed:
        before, after = text.size(report.bytes_before), text.size(report.bytes_after)
        ratio = report.bytes_before / max(report.bytes_after, 1)
        yield f"{text.plural(len(report.compressed), 'segment')} compressed: {before} to {after} ({ratio:.1f} times)"
    else:
        yield "nothing to compress"
    for why, count in Counter(why for _, why in report.skipped).items():
        for line in text.wrap(f"{text.plural(count, 'segment')} left alone: {text.safe(why)}", screen.width):
            yield screen.dim(line)
