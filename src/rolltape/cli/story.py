"""The records of one trajectory, told line by line: what was asked, what came back, where it broke and went on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rolltape import records
from rolltape.cli import messages, text
from rolltape.cli.screen import Screen
from rolltape.errors import RolltapeError

if TYPE_CHECKING:
    from rolltape.trajectory.recorded import RecordedRecord, RecordedStep

MARGIN = 4
"""Columns before what belongs to a step."""

WHO = 11
"""Columns of who says something."""

PIPED_CELLS = 100
"""Where lines may be as long as they like, times and sizes still stand in a column."""

REPEATED_CHARACTERS = 40
"""A text of a message that is longer, and that a step has returned, is not shown twice."""

_COLORS = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow", "tool call": "magenta"}


class Teller:
    """Tells records in their order. It remembers what it has shown of a conversation, and shows what is new."""

    def __init__(self, screen: Screen, *, full: bool = False, short: bool = False) -> None:
        self.screen = screen
        self.full = full
        self.short = short
        self.damaged = False
        """Something could not be told, since what it is made of is not whole."""
        self._is_stale = False
        self._seen: list[Any] = []
        self._returned: dict[str, str] = {}
        """Long texts that steps returned, and which did, so that they are not shown again as messages."""
        self._told: Any = None
        """The error that was told last, whole."""
        self._pending: dict[str, RecordedRecord] = {}

    @property
    def cells(self) -> int:
        return min(self.screen.width or PIPED_CELLS, PIPED_CELLS)

    def rule(self, left: str, rights: tuple[str, ...] = (), *styles: str) -> str:
        """Return a line across the screen with words in it, and at its end the first of `rights` that fits."""
        dash = "─" if self.screen.unicode else "-"
        left = text.cut(left, self.cells - 8)
        room = self.cells - text.cells(left) - 8
        right = next((words for words in rights if text.cells(words) <= room), "")
        fill = dash * max(2, self.cells - text.cells(left) - text.cells(right) - 5 - bool(right))
        return self.screen.style(f"{dash}{dash} {left} {fill}{f' {right}' if right else ''}", *styles)

    def row(self, when: float, sign: str, words: str, right: str = "", color: str = "") -> str:
        """Return a record in one line: when, what, and how long and how large at the right."""
        clock = text.local(when or None, "%H:%M:%S")
        if self._is_stale:
            sign, right = f"stale {sign}", ""
        room = self.cells - 8 - 2 - text.cells(click.unstyle(sign)) - 1 - len(right) - 1
        words = text.pad(words, room) if right else text.cut(words, room)
        line = f"{self.screen.dim(text.pad(clock, 8))}  {sign} {self.screen.style(words, *([color] if color else []))}"
        return f"{line} {self.screen.dim(right)}" if right else line

    # ---- records -----------------------------------------------------------------------------------------------------

    def tell(self, record: RecordedRecord) -> Iterator[str]:
        """Yield the lines of one record."""
        self._is_stale = record.stale
        try:
            for line in self._lines(record):
                yield self.screen.dim(click.unstyle(line)) if record.stale else line
        except RolltapeError as error:
            self.damaged = True
            yield from self._labelled("damaged", str(error), "red", narrow=True)
        self._is_stale = False

    def _lines(self, record: RecordedRecord) -> Iterator[str]:
        known = record.record
        match known:
            case records.Done() | records.Failed() | records.Cancelled():
                self._pending.pop(known.path, None)
                yield from self.step(record)  # type: ignore[arg-type]
            case records.Intent() | records.Begun():
                self._pending[known.path] = record
            case records.Parked():
                yield from self.unfinished()
                yield self.row(
                    known.unix_s, self.screen.sign("parked"), f"parked: {text.safe(known.reason)}", "", "magenta"
                )
                yield from self._detail(record.value("detail"))
            case records.Resolved():
                words = f"somebody decided: {text.safe(known.decision)}"
                yield self.row(known.unix_s, self._dot("→"), words)
                yield from self._detail(record.value("value"))
            case records.Outcome():
                yield from self.unfinished()
                yield from self._outcome(known, record)
            case records.Retry():
                yield from self._retry(known, record)
            case records.Attempt():
                yield from self._inputs(record)
            case records.Accepted():
                pass
            case None:
                words = f"{text.safe(record.type)}: a record that a newer Rolltape knows"
                yield self.row(record.unix_s, self._dot("·"), words, text.size(record.bytes))
            case _:
                yield self.row(record.unix_s, self._dot("·"), text.safe(words_of(known)), text.size(record.bytes))
                if isinstance(known, records.Kept):
                    value = record.value("value")
                    is_wrapped = isinstance(value, dict) and value.keys() == {"value"}
                    yield from self._detail(value["value"] if is_wrapped else value)

    def unfinished(self, lives: bool = False) -> Iterator[str]:
        """Yield what was begun and has no end by now."""
        for path, record in self._pending.items():
            begun = record.record
            words = f"{text.safe(path)}  {text.safe(getattr(begun, 'name', ''))}"
            if lives:
                words += "  in flight"
            elif isinstance(begun, records.Intent):
                words += "  may have happened: no end is recorded"
            else:
                words += "  begun, and no end is recorded"
            yield self.row(record.unix_s, self.screen.style("?", "yellow"), words, "", "yellow")
            if isinstance(begun, records.Intent) and not self.short:
                try:
                    yield from self._given(record.value("call"))
                except RolltapeError as error:
                    yield from self._labelled("damaged", str(error), "red", narrow=True)
                    self.damaged = True
        self._pending = {}

    def _dot(self, sign: str) -> str:
        return self.screen.dim(sign if self.screen.unicode else "-")

    def _retry(self, retry: records.Retry, record: RecordedRecord) -> Iterator[str]:
        what = f"{text.safe(retry.path)}  {text.safe(retry.name)}" if retry.path else "the attempt"
        words = f"{what}: failed ({text.plural(retry.tries, 'try')}), again in {text.duration(retry.wait_s)}"
        yield self.row(retry.unix_s, self.screen.style("↻" if self.screen.unicode else "r", "yellow"), words)
        if not self.short and (error := record.value("error")) is not None:
            yield from self._labelled("", first_line(error), "yellow")

    def _outcome(self, outcome: records.Outcome, record: RecordedRecord) -> Iterator[str]:
        words: list[str] = [outcome.status]
        words += [f"cause: {outcome.cause}"] if outcome.cause else []
        words += [f"reward {text.reward(outcome.reward)}"] if outcome.reward is not None else []
        yield self.row(outcome.unix_s, self.screen.sign(outcome.status), self.screen.bold(", ".join(words)))
        if self.short:
            return
        if (result := record.value("result")) is not None:
            inner = result.get("value") if isinstance(result, dict) else result
            if inner is not None:
                yield from self._labelled("result", messages.pretty(inner, full=self.full))
        if (error := record.value("error")) is not None:
            yield from self.error(error, whole=True)

    def _inputs(self, record: RecordedRecord) -> Iterator[str]:
        if not self.short and (value := record.value("inputs")) is not None:
            lines, left = messages.lines_of(messages.pretty(value, full=self.full), self.screen.width, full=self.full)
            yield from lines
            if left:
                yield self.screen.dim(f"… {left} (--full)")

    def _detail(self, value: Any) -> Iterator[str]:
        if value is not None and not self.short:
            body = first_line(value) if isinstance(value, dict) and "message" in value else None
            yield from self._labelled("", body or messages.pretty(value, full=self.full))

    # ---- steps -------------------------------------------------------------------------------------------------------

    def step(self, step: RecordedStep) -> Iterator[str]:
        """Yield one finished step: its row, what went in that is new, and what came out."""
        words = f"{text.safe(step.path)}  {text.safe(step.name) or '(no name)'}"
        words += f"  {text.safe(step.kind)}" if step.kind else ""
        words += f"  {text.safe(step.policy[0])}@{step.policy[1]}" if step.policy else ""
        words += "  cancelled" if step.status == "cancelled" else ""
        right = f"{text.duration(step.took_s) if step.took_s else '':>7} {text.size(step.bytes):>8}"
        sign = self.screen.sign(step.status)
        yield self.row(step.unix_s, sign, words, right, "red" if step.status == "failed" else "")
        if self.short:
            return
        yield from self._asked(step.call)
        yield from self._answered(step)

    def _given(self, call: Any, without: tuple[str, ...] = ()) -> Iterator[str]:
        if given := messages.arguments(call, without):
            yield from self._labelled("", f"({given})", "dim")

    def _asked(self, call: Any) -> Iterator[str]:
        passed = messages.conversation(call)
        yield from self._given(call, without=("system",) if passed else ())
        known = 0 if self.full else _shared(self._seen, passed)
        if known:
            yield from self._labelled("", f"… {text.plural(known, 'message')} as before", "dim")
        for message in passed[known:]:
            yield from self._message(message)
        self._seen = list(passed) or self._seen

    def _answered(self, step: RecordedStep) -> Iterator[str]:
        if step.error is not None:
            yield from self.error(step.error, whole=False)
            return
        if step.status != "done":
            return
        found = messages.replies(step.result)
        if found and (step.kind == "model" or messages.conversation(step.call)):
            for message in found:
                yield from self._message(message)
            self._seen += found
            return
        body = messages.pretty(step.result, full=self.full)
        yield from self._labelled("→" if self.screen.unicode else "->", body)
        if len(body) > REPEATED_CHARACTERS:
            self._returned[body] = step.path

    def _message(self, message: Any) -> Iterator[str]:
        for part in messages.said(message):
            color = _COLORS.get(part.who, "dim")
            if part.body in self._returned and not self.full:
                path = text.safe(self._returned[part.body])
                words = self.screen.dim(f"(what step {path} returned)")
                yield f"{' ' * MARGIN}{self.screen.style(text.pad(text.safe(part.who), WHO - 1), color)} {words}"
            else:
                yield from self._labelled(part.who, part.body, color, narrow=False)

    def error(self, error: Any, *, whole: bool) -> Iterator[str]:
        """Yield an error with its traceback; the last of its lines, unless the `whole` is wanted."""
        traceback = error.get("traceback") if isinstance(error, dict) else None
        if not isinstance(traceback, str) or not traceback.strip():
            yield from self._labelled("", first_line(error), "red", narrow=True)
            return
        lines = traceback.strip("\n")
        if error == self._told:
            yield from self._labelled("", f"{first_line(error)} (as above)", "red")
            return
        if whole or self.full or lines.count("\n") <= messages.LINES_MAX:
            self._told = error
        if first_line(error).split("\n")[0] not in lines:
            yield from self._labelled("", first_line(error), "red")
        yield from self._labelled("", lines, "red", full=whole or self.full, last=True)

    def _labelled(
        self,
        label: str,
        body: str,
        color: str = "",
        *,
        narrow: bool | None = None,
        full: bool = False,
        last: bool = False,
    ) -> Iterator[str]:
        """Yield a text under its step, beside a label, and how to see what is left off."""
        narrow = len(label) < 3 if narrow is None else narrow
        margin = MARGIN + (len(label) + 1 if label else 0) if narrow else MARGIN + WHO
        width = None if self.screen.width is None else max(20, self.screen.width - margin)
        lines, left = messages.lines_of(body, width, full=full or self.full, last=last)
        more = [self.screen.dim(f"… {left} (--full, or --step PATH)")] if left else []
        shown = [self.screen.style(line, color) if color and (narrow or not label) else line for line in lines]
        head = text.pad(text.safe(label), margin - MARGIN - 1) if margin > MARGIN else ""
        head = self.screen.style(head, color) if color and not narrow else head
        for number, line in enumerate([*more, *shown] if last else [*shown, *more]):
            yield f"{' ' * MARGIN}{head} {line}" if number == 0 and head else f"{' ' * margin}{line}".rstrip()


def first_line(error: Any) -> str:
    """Return an error as `Type: message`."""
    if not isinstance(error, dict):
        return messages.brief(error, None)
    kind, message = error.get("type"), error.get("message")
    return ": ".join(str(part) for part in (kind, message) if part) or messages.brief(error, None)


def words_of(record: records.Record) -> str:
    """Return in a few words what a record says that is neither a step nor an end; not safe yet."""
    match record:
        case records.Kept():
            return f"{record.path}  kept: {record.kind}"
        case records.Commit():
            return f"{record.path}  commit"
        case records.Chosen():
            return f"{record.path}  came first: {', '.join(record.order)}"
        case records.Resampled():
            return (
                f"{record.path}  called again ({record.reason}): what was recorded from here on before does not count"
            )
        case records.ResourceOpening():
            return f"{record.path}  opening {record.name} {record.id} ({record.recovery})"
        case records.ResourceOpened():
            return f"{record.path}  opened {record.name} {record.id} ({record.recovery})"
        case records.ResourceReleased():
            return f"{record.path}  released {record.name} {record.id}{f': {record.reason}' if record.reason else ''}"
        case records.StepRecord():
            return f"{record.path}  {record.name}"
    return str(record.__struct_config__.tag).replace("_", " ")


def _shared(before: list[Any], now: list[Any]) -> int:
    """Return how many messages at the beginning of both are the same."""
    number = 0
    while number < min(len(before), len(now)) and _is_same(before[number], now[number]):
        number += 1
    return number


def _is_same(one: Any, other: Any) -> bool:
    """Compare messages; a field that is None is one that is not there."""
    return all((one.get(field) or None) == (other.get(field) or None) for field in ("role", "content", "tool_calls"))
