"""`rolltape verify`: whether all that was written is there, and what is not."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import click

from rolltape.cli import text
from rolltape.cli.app import DAMAGED, FINE, on_a_run
from rolltape.cli.opening import opened
from rolltape.cli.screen import Screen
from rolltape.errors import DamagedError
from rolltape.journal import Damage, Line, OnDamage, Reader
from rolltape.journal.epochs import find_run
from rolltape.journal.verify import verify_run
from rolltape.store import LocalStore

_MEANINGS = (
    (r"run\.json$", "the run's first configuration is lost; its identity is known from the journal"),
    (r"claims/", "who wrote this epoch, and whether that process lives, cannot be told"),
    (r".*\.pack$", "a large value is lost; the steps that name it cannot be replayed, everything else is read"),
    (r"journal$", "what is recorded of this trajectory is not whole: do not believe it, and it will not be resumed"),
    (r"journal/", "what stood there is lost, everything else is read; whose records are missing is listed"),
)
"""What damage in a file means, by the file's name."""


@click.command("verify")
@on_a_run
def command(run: str, as_json: bool, color: str) -> int:
    """Check everything of RUN: each line, each large value, each claim, each trajectory's order.

    Exit code 0: sound. 1: damaged, and the list says where and what it means. 2: not a run. What a crash tore off the
    end of a segment was never acknowledged, and is no damage. Nothing is changed or repaired.
    """
    screen = Screen("never" if as_json else color)
    began = time.monotonic()
    damage: list[Damage] = []
    store = LocalStore(run)
    with opened(run):  # it says what is wrong with the run as a whole
        pass
    checked = _Checked(store, find_run(store, lambda reason: damage.append(Damage("run.json", 0, 0, reason))), screen)
    trajectories = len(verify_run(checked, damage.append))
    screen.untell()
    damage = sorted(set(damage), key=lambda found: (found.file, found.start))
    summary = {
        "sound": not damage,
        "damages": len(damage),
        "trajectories": trajectories,
        "files": len(checked.files),
        "lines": checked.lines,
        "bytes": checked.bytes,
        "values": checked.values,
    }
    if as_json:
        for found in damage:
            screen.line(text.to_json({**_as_json(found), "means": checked.meaning(found)}))
        screen.line(text.to_json(summary))
    else:
        for found in damage:
            for line in _lines(screen, checked, found):
                screen.line(line)
        screen.line(_summary(screen, summary, time.monotonic() - began))
    return DAMAGED if damage else FINE


class _Checked(Reader):
    """A reader that counts what passes it, and remembers who named a value that is not there."""

    def __init__(self, store: LocalStore, run: str, screen: Screen) -> None:
        super().__init__(store, run=run)
        self.files: set[tuple[int, int]] = set()
        self.lines = self.bytes = self.values = 0
        self._screen = screen
        self._passes = 0
        self._losers: dict[str, set[str]] = {}

    def scan(self, on_damage: OnDamage, *, newest_first: bool = False) -> Iterator[Line]:
        self._passes += 1
        is_first = self._passes == 1  # later passes look at values
        for line in super().scan(on_damage, newest_first=newest_first):
            if is_first:
                self.files.add((line.epoch, line.segment))
                self.lines += 1
                self.bytes += len(line.raw)
            if is_first and self.lines % 1024 == 0:
                self._tell()
            yield line

    def value(self, line: Line, digest: str, size: int | None = None) -> bytes:
        self.values += 1
        self._tell()
        try:
            data = super().value(line, digest, size)
        except DamagedError as error:
            envelope = line.envelope()
            self._losers.setdefault(str(error), set()).add(f"{envelope.key} (record {envelope.seq})")
            raise
        self.bytes += len(data)
        return data

    def _tell(self) -> None:
        words = (
            f"checked {text.plural(self.lines, 'line')}, {text.plural(self.values, 'value')}, {text.size(self.bytes)}"
        )
        self._screen.tell(words)

    def meaning(self, damage: Damage) -> str:
        """Say in words what is lost to whom."""
        means = next((words for name, words in _MEANINGS if re.match(name, damage.file)), "")
        who = sorted(self._losers.get(damage.reason, ()))
        return f"{means}: {', '.join(who)}" if who else means


def _as_json(damage: Damage) -> dict[str, Any]:
    return {"file": damage.file, "start": damage.start, "end": damage.end, "reason": damage.reason}


def _lines(screen: Screen, checked: _Checked, damage: Damage) -> Iterator[str]:
    place = f"  bytes {text.number(damage.start)} to {text.number(damage.end)}" if damage.end else ""
    yield f"{screen.sign('failed')} {screen.bold(text.safe(damage.file))}{place}"
    for words, styles in ((damage.reason, ()), (checked.meaning(damage), ("dim",))):
        for line in text.wrap(text.safe(words), None if screen.width is None else screen.width - 4):
            yield f"    {screen.style(line, *styles)}"


def _summary(screen: Screen, found: dict[str, Any], took_s: float) -> str:
    if found["sound"]:
        words = screen.style("sound", "green", "bold")
    else:
        words = screen.style(f"damaged in {text.plural(found['damages'], 'place')}", "red", "bold")
    counts = [text.plural(found[f"{name}s"], name) for name in ("file", "line", "value")]
    counts[1:1] = [text.size(found["bytes"])]
    return f"{words}: {', '.join(counts)} checked in {text.duration(took_s)}"
