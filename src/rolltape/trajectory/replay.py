"""What was recorded of a trajectory, and which call it belongs to (`docs/design/replay.md`)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from rolltape.errors import DivergenceError
from rolltape.journal import Line, StoryValues
from rolltape.records import NOTHING, Point
from rolltape.values.fingerprint import difference

_ENDS = ("done", "failed", "cancelled", "kept", "chosen")
"""The records that a call at their path reads."""


class Head(msgspec.Struct):
    """What matching needs of any record of a trajectory."""

    type: str
    epoch: int
    attempt: int
    seq: int = -1
    path: str = ""
    name: str = ""
    fingerprint: str = ""
    tries: int = 0
    cancelling: bool = False
    call: msgspec.Raw = NOTHING
    result: msgspec.Raw = NOTHING
    changed: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING
    value: msgspec.Raw = NOTHING
    order: list[str] = []

    @property
    def point(self) -> Point:
        return (self.epoch, self.attempt, self.seq)


_heads = msgspec.json.Decoder(Head)


class Recorded(NamedTuple):
    """One record that a call reads."""

    line: Line
    head: Head


class Past:
    """The records of a story, by path, until the rollout has read them."""

    def __init__(self, lines: Iterable[Line], values: Callable[[], StoryValues]) -> None:
        self._values = values
        self._ends: dict[str, Recorded] = {}
        self._order: list[Point] = []
        self._tries: dict[str, int] = {}
        last: Recorded | None = None
        cancelling: list[Recorded] = []
        for line in lines:
            recorded = Recorded(line, _heads.decode(line.raw))
            head = recorded.head
            if head.type == "attempt":
                self._forget(cancelling)
            cancelling = [*cancelling, recorded] if head.cancelling else []
            if head.type in _ENDS:
                last = self._ends[head.path] = recorded
                self._order.append(head.point)
                self._tries.pop(head.path, None)
            elif head.type == "retry":
                self._tries[head.path] = head.tries
                if (failed := self._ends.get(head.path)) is not None and failed.head.type == "failed":
                    del self._ends[head.path]  # it was decided to call it again
        self._forget(cancelling)
        if last is not None and last.head.type == "failed" and self._ends.get(last.head.path) is last:
            del self._ends[last.head.path]  # nobody went on from it: it is called again

    def _forget(self, ended: list[Recorded]) -> None:
        """Forget the end of an attempt that was being cancelled, from outside for all one knows: it was in flight."""
        for recorded in ended:
            if self._ends.get(recorded.head.path) is recorded:
                del self._ends[recorded.head.path]

    def drop(self) -> tuple[Point, list[Point]]:
        """Forget what no call has read. Returns the first of it, and what was read of what was recorded after that."""
        unread = {recorded.head.point for recorded in self._ends.values()}
        self._ends.clear()
        first = next(n for n, point in enumerate(self._order) if point in unread)
        return self._order[first], [point for point in self._order[first:] if point not in unread]

    def __bool__(self) -> bool:
        return bool(self._ends)

    def tries(self, path: str) -> int:
        """Return how many tries at this step have failed already."""
        return self._tries.get(path, 0)

    def take(
        self, path: str, name: str, fingerprint: str = "", told: Any = None, function: Callable[..., Any] | None = None
    ) -> Recorded | None:
        """Return what was recorded of this call, once. None: nothing was. DivergenceError: of another call.

        `told` is what the call is recorded as, to show where it differs, by the names that `function` gives it.
        """
        recorded = self._ends.get(path)
        if recorded is None:
            return None
        head = recorded.head
        if head.name != name:
            raise DivergenceError(f"step {path} was {head.name} when it was recorded, and is {name} now. {WHAT_TO_DO}")
        if head.fingerprint != fingerprint:
            where = difference(self.value(recorded, head.call, foreign=True), told)
            raise DivergenceError(
                f"step {path}, {name}, is called with other arguments than it was recorded with. "
                f"{in_its_names(where, function) if where else 'How they differ was not recorded'}. {WHAT_TO_DO}"
            )
        del self._ends[path]
        return recorded

    def forget_under(self, scope: str) -> None:
        """Drop what was recorded in a scope whose task was cancelled: nobody will ask for it."""
        for path in [path for path in self._ends if path.startswith(f"{scope}/")]:
            del self._ends[path]

    def value(self, recorded: Recorded, raw: msgspec.Raw, *, returns: Any = None, foreign: bool = False) -> Any:
        """Decode a value of a record."""
        if not bytes(raw):
            return None
        return self._values().decode(recorded.line, raw, returns=returns, foreign=foreign)

    def unread(self) -> Iterator[Head]:
        """Yield what no call has read."""
        for recorded in self._ends.values():
            yield recorded.head


_argument = re.compile(r"args\[(\d+)\]|kwargs\.(?=\w)")


def in_its_names(where: str, function: Callable[..., Any] | None) -> str:
    """Say where arguments differ by the names of the function's parameters: `messages[3]`, not `args[0][3]`."""

    def name(found: re.Match[str]) -> str:
        if found[1] is None:
            return ""
        return names[int(found[1])] if int(found[1]) < len(names) else found[0]

    try:
        parameters = inspect.signature(function).parameters.values() if function is not None else ()
    except (TypeError, ValueError):  # a builtin that does not say
        parameters = ()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return _argument.sub(name, where, count=1)


WHAT_TO_DO = (
    "The rollout's code or its inputs have changed. Put it back and run again; or open the trajectory with "
    'on_divergence="truncate", which drops what was recorded from here on and goes on live'
)
