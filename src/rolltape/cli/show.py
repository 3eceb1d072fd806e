"""`rolltape show`: the whole story of one trajectory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from rolltape.cli import text
from rolltape.cli.app import DAMAGED, FINE, on_a_run
from rolltape.cli.opening import catch_up, find, opened, warn
from rolltape.cli.screen import Screen
from rolltape.cli.story import Teller, words_of
from rolltape.errors import DamagedError
from rolltape.records import Point

if TYPE_CHECKING:
    from rolltape.trajectory.read import RecordedProcess, RecordedRun
    from rolltape.trajectory.recorded import RecordedAttempt, RecordedRecord, RecordedStep, RecordedTrajectory


@click.command("show")
@on_a_run
@click.argument("key")
@click.option("--step", metavar="PATH", help="One step only, whole.")
@click.option("--full", is_flag=True, help="Long texts whole, and whole conversations at each step.")
@click.option("--brief", is_flag=True, help="One line a record.")
def command(run: str, key: str, as_json: bool, color: str, step: str | None, full: bool, brief: bool) -> int:
    """Tell the whole story of the trajectory KEY of RUN.

    Its attempts, where they broke and went on, each step with what was asked and answered, and how it ended. Times are
    of the clock on your wall; beside each step stand how long it took and its bytes in the journal.
    """
    screen = Screen("never" if as_json else color)
    with opened(run) as opened_run:
        catch_up(opened_run, screen)
        trajectory = find(opened_run, key)
        showing = _Showing(screen, opened_run, trajectory, Teller(screen, full=full or step is not None, short=brief))
        if as_json:
            screen.line(text.to_json(showing.as_json(step)))
        else:
            for line in showing.whole() if step is None else showing.one(step):
                screen.line(line.rstrip())
        for damage in showing.damage:
            screen.note(f"rolltape: damaged: {text.safe(str(damage))}")
        damaged = warn(opened_run, screen)
    return DAMAGED if damaged or showing.damage or showing.teller.damaged or trajectory.damage else FINE


class _Showing:
    def __init__(self, screen: Screen, run: RecordedRun, trajectory: RecordedTrajectory, teller: Teller) -> None:
        self.damage: list[DamagedError] = []
        self.teller = teller
        self._screen, self._trajectory = screen, trajectory
        self._processes = {process.epoch: process for process in run.processes()}
        self._labels: dict[Point, str] = {}
        """What stands at each place, for attempts that go on from there."""

    def as_json(self, step: str | None) -> dict[str, Any]:
        if step is not None:
            return self._step(step).plain()
        return {**self._trajectory.row(), "records": [self._plain(record) for record in self._records()]}

    def _plain(self, record: RecordedRecord) -> dict[str, Any]:
        try:
            return {"stale": record.stale, **record.plain()}
        except DamagedError as error:
            self.damage.append(error)
            return {"stale": record.stale, "type": record.type, "point": record.point, "damaged": str(error)}

    def one(self, path: str) -> Iterator[str]:
        """Yield the lines of one step."""
        return self.teller.tell(self._step(path))

    def _step(self, path: str) -> RecordedStep:
        try:
            return self._trajectory.step(path)
        except KeyError as error:
            raise click.ClickException(f"{error.args[0]}; `rolltape show` without --step shows them all") from error

    def whole(self) -> Iterator[str]:
        """Yield the lines of everything."""
        yield from self._head()
        attempts = {(a.epoch, a.attempt): a for a in self._trajectory.attempts()}
        before: RecordedAttempt | None = None
        for id, group in groupby(self._records(), lambda record: record.point[:2]):
            yield ""
            yield self._begins(attempts[id], before)
            yield from self._attempt(attempts[id], list(group), list(attempts.values()))
            before = attempts[id]

    def _records(self) -> Iterator[RecordedRecord]:
        return self._trajectory.records(stale=True, on_damage=self.damage.append)

    # ---- the head ----------------------------------------------------------------------------------------------------

    def _head(self) -> Iterator[str]:
        screen, shown = self._screen, self._trajectory
        cause = f" ({shown.cause})" if shown.cause else ""
        reward = f"   reward {text.reward(shown.reward)}" if shown.reward is not None else ""
        yield f"{screen.bold(text.safe(shown.key))}   {screen.status(shown.status)}{cause}{reward}"
        parts = [text.plural(shown.n_attempts, "attempt"), text.plural(shown.n_steps, "step")]
        parts += [text.duration(shown.duration_s)] if shown.duration_s is not None else []
        parts += [text.size(shown.bytes)]
        parts += [f"policy {', '.join(f'{text.safe(n)}@{v}' for n, v in shown.policies)}"] if shown.policies else []
        yield screen.dim(", ".join(parts))
        when = f"started {text.local(shown.started)}"
        if screen.terminal:
            when += f" ({text.ago(shown.started, screen.now)})"
        visit = f", visit {shown.visit}" if shown.visit else ""
        yield screen.dim(f"task {text.safe(shown.task)}{visit}, sample {shown.sample}; {when}")
        if shown.damage:
            yield screen.style(f"damaged, and not to be believed: {text.safe(shown.damage)}", "red")

    # ---- attempts ----------------------------------------------------------------------------------------------------

    def _begins(self, attempt: RecordedAttempt, before: RecordedAttempt | None) -> str:
        words = f"attempt {attempt.attempt}"
        if before is not None and before.ended and attempt.started and attempt.started > before.ended:
            words += f", {text.duration(attempt.started - before.ended)} later,"
        if attempt.continues is not None:
            words += f" goes on after {self._at(attempt.continues)}"
        elif before is not None:
            words += " begins afresh"
        epoch = f"epoch {attempt.epoch}"
        who = f"{epoch}{self._process(attempt.epoch)}"
        when = text.local(attempt.started, "%Y-%m-%d")
        return self.teller.rule(words, (f"{when}, {who}", who, epoch), "bold")

    def _process(self, epoch: int) -> str:
        process: RecordedProcess | None = self._processes.get(epoch)
        return f", pid {process.pid} on {text.safe(process.host)}" if process else ""

    def _at(self, point: Point) -> str:
        return self._labels.get(point, f"record {point[2]} of attempt {point[1]} of epoch {point[0]}")

    def _attempt(
        self, attempt: RecordedAttempt, found: list[RecordedRecord], attempts: list[RecordedAttempt]
    ) -> Iterator[str]:
        was_stale = False
        for record in found:
            self._labels[record.point] = _label(record)
            if record.stale and not was_stale and record.type != "attempt":
                yield from self.teller.unfinished()
                words = text.cut(self._stale_from(attempt, attempts), self.teller.cells - 10)
                yield self._screen.style(f"{'':10}{words}", "yellow")
                was_stale = True
            yield from self.teller.tell(record)
        yield from self._ends(attempt, found[-1])

    def _stale_from(self, attempt: RecordedAttempt, attempts: list[RecordedAttempt]) -> str:
        id = (attempt.epoch, attempt.attempt)
        later = [other for other in attempts if other.continues is not None and other.continues[:2] == id]
        if not later:
            return "stale from here: a newer attempt begins afresh"
        newest, point = later[-1], later[-1].continues
        assert point is not None
        return f"stale from here: attempt {newest.attempt} went on after {self._at(point)}"

    def _ends(self, attempt: RecordedAttempt, last: RecordedRecord) -> Iterator[str]:
        """Yield where an attempt broke off; nothing if it came to an end."""
        lives = attempt.end == "running"
        yield from self.teller.unfinished(lives)
        is_retry = last.type == "retry" and not getattr(last.record, "path", "")
        if last.type in ("accepted", "parked") or is_retry:
            return
        process = self._processes.get(attempt.epoch)
        alive = None if process is None else process.alive
        who = "its process" if process is None else f"pid {process.pid} on {text.safe(process.host)}"
        if last.type == "outcome":
            words = "the outcome was not accepted before it broke off"
        elif lives:
            words = f"running: {who} is at work"
        elif alive:
            words = f"nothing more: {who} lives, and another attempt took over"
        elif alive is None:
            words = f"nothing more so far: whether {who} lives cannot be told from here"
        else:
            words = f"broke off here: {who} is gone"
        yield self.teller.rule(words, (), "cyan" if lives else "yellow")


def _label(record: RecordedRecord) -> str:
    """Return what a later attempt calls the place of this record."""
    known = record.record
    if record.type == "attempt":
        return "the beginning"
    if record.type in ("done", "failed", "cancelled"):
        return f"step {text.safe(getattr(known, 'path', ''))}"
    if record.type == "intent":
        return f"the intent of step {text.safe(getattr(known, 'path', ''))}"
    if record.type == "retry":
        return "the retry"
    return text.safe(words_of(known)) if known is not None else text.safe(record.type)
