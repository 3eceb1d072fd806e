"""What every benchmark shares: its arguments, a scratch directory, rounds, and tables.

A benchmark is a script. It says what is compared, and this measures the contenders in turn and shows the figures:

    with Bench(__doc__) as bench:
        rounds = bench.rounds({"rolltape": ours, "rival": theirs})
        bench.table("appends", "records/s", [rounds.row("rolltape", {"rival": "rival"}), rounds.row("rival")])
        bench.goal("of the rival", rounds.ratio("rolltape", "rival"), at_least=0.8)

A contender is a function that does one round and returns its figure. Each is warmed up, then the rounds are
interleaved, forwards and backwards in turn, so that whatever else the machine does meets all alike. A figure is the
median of its rounds; a ratio is the median of the ratios within each round.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import NamedTuple, ParamSpec, Self, TypeVar

SCRATCH = Path(__file__).resolve().parent.parent / ".work"

P = ParamSpec("P")
T = TypeVar("T")


class Row(NamedTuple):
    """One line of a table: a figure, and its ratio to the figure of each rival."""

    name: str
    value: float
    ratios: Mapping[str, float]


class Rounds:
    """What each contender reached in each round."""

    def __init__(self, figures: Mapping[str, Sequence[float]]) -> None:
        self.figures = figures

    def median(self, name: str) -> float:
        return statistics.median(self.figures[name])

    def ratio(self, name: str, rival: str) -> float:
        pairs = zip(self.figures[name], self.figures[rival], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def row(self, name: str, rivals: Mapping[str, str] | None = None) -> Row:
        """The contender's line. `{"bare": "bare, 16 writers"}`: in the column `bare`, its ratio to that contender."""
        ratios = {column: self.ratio(name, rival) for column, rival in (rivals or {}).items()}
        return Row(name, self.median(name), ratios)


class Bench:
    """One benchmark's run: `with Bench(__doc__) as bench`. The scratch directory is deleted at the end."""

    def __init__(self, about: str | None, *, full: str = "") -> None:
        """`full` says what an option `--full` does, where there is one."""
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument(
            "--quick", action="store_true", help="fewer and shorter rounds: a smoke test, no measurement"
        )
        parser.add_argument("--json", action="store_true", help="one object a line: name, value, unit, rival, ratio")
        if full:
            parser.add_argument("--full", action="store_true", help=full)
        arguments = parser.parse_args()
        self.full: bool = bool(full) and arguments.full
        self.quick: bool = arguments.quick
        self._json: bool = arguments.json

    def __enter__(self) -> Self:
        SCRATCH.mkdir(exist_ok=True)
        self.scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=SCRATCH))
        self.note(machine(self.scratch))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self.scratch)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A fresh directory, deleted afterwards."""
        path = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def rounds(self, contenders: Mapping[str, Callable[[], float]], *, count: int = 9) -> Rounds:
        """Measure the contenders in turn, `count` times each (3 when quick)."""
        count = 3 if self.quick else count
        figures: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(count + 1):
            backwards = number % 2 == 1
            for name in reversed(list(contenders)) if backwards else contenders:
                _progress(f"round {number} of {count}: {name}" if number else f"warming up: {name}")
                gc.collect()
                figure = contenders[name]()
                if number:
                    figures[name].append(figure)
        _progress("")
        return Rounds(figures)

    def in_child(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of the benchmark's module in a fresh process."""
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(function, *args, **kwargs).result()

    # ---- showing -----------------------------------------------------------------------------------------------------

    def table(self, title: str, unit: str, rows: Sequence[Row]) -> None:
        """Show figures of one unit, each with its ratios."""
        if self._json:
            for row in rows:
                for rival, ratio in row.ratios.items() or [("", None)]:
                    _object(f"{title}: {row.name}", row.value, unit, rival, ratio)
            return
        columns = list(dict.fromkeys(rival for row in rows for rival in row.ratios))
        lines = [[title, unit, *(f"/ {column}" for column in columns)]]
        for row in rows:
            ratios = (number(row.ratios[column]) if column in row.ratios else "" for column in columns)
            lines.append([row.name, number(row.value), *ratios])
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        lines.insert(1, ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])])
        print()
        for first, *others in lines:
            cells = [
                first.ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)),
            ]
            print(f"| {' | '.join(cells)} |")

    def goal(self, what: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
        """Say whether a goal of the design is reached. Nothing fails: a figure depends on the machine."""
        if at_least is not None:
            self._verdict(what, value, f"at least {number(at_least)}", (at_least - value) / at_least)
        if at_most is not None:
            self._verdict(what, value, f"at most {number(at_most)}", (value - at_most) / at_most)

    def _verdict(self, what: str, value: float, goal: str, short: float) -> None:
        verdict = f"MISSED by {short:.0%}" if short > 0 else "reached"
        self.note(f"  {verdict}: {number(value)} {what} (goal: {goal})")

    def note(self, text: str) -> None:
        """Print a line for people; beside JSON it goes to stderr."""
        print(text, file=sys.stderr if self._json else sys.stdout, flush=True)


def number(value: float) -> str:
    """Three digits or more, as people write them."""
    return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def text(length: int, seed: int) -> str:
    """Text as models write it: words, lines, a quotation mark now and then."""
    random = Random(seed)
    found = ""
    while len(found) < length:
        found += "".join(random.choices("etaoinshrdlu", k=random.randint(2, 9))) + random.choices(' \n"', (40, 3, 1))[0]
    return found[:length]


def peak_rss_bytes() -> int:
    """The most memory that this process has had.

    From /proc where there is one: the figure of `getrusage` begins with what the parent had when it started us.
    """
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10


# ---- the machine -----------------------------------------------------------------------------------------------------


def machine(folder: Path) -> str:
    """What the figures depend on, in a line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cores} cores ({_processor()}), {platform.system()}, {platform.python_implementation()} "
        f"{platform.python_version()}, {_file_system(folder)}, "
        f"fdatasync of 2 KB: {_fdatasync_s(folder) * 1e3:.2f} ms"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the file system, from the mount whose path is the longest that `folder` lies under."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return "unknown file system"
    found = (Path("/"), "unknown file system")
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        point = Path(before.split()[4].replace("\\040", " "))
        if folder.is_relative_to(point) and len(point.parts) >= len(found[0].parts):
            found = (point, after.split()[0])
    return found[1]


def _fdatasync_s(folder: Path) -> float:
    took: list[float] = []
    fd = os.open(folder / "fdatasync", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(200):
            os.write(fd, b"\n" * 2048)
            start = time.perf_counter()
            os.fdatasync(fd)
            took.append(time.perf_counter() - start)
    finally:
        os.close(fd)
        os.unlink(folder / "fdatasync")
    return statistics.median(took)


def _object(name: str, value: float, unit: str, rival: str, ratio: float | None) -> None:
    print(json.dumps({"name": name, "value": value, "unit": unit, "rival": rival, "ratio": ratio}), flush=True)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
