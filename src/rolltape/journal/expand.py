"""The values of one trajectory, with everything that they refer to put back in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rolltape.errors import DamagedError
from rolltape.journal.lineage import Story
from rolltape.journal.reader import Line, Reader
from rolltape.journal.survey import Place
from rolltape.records import Point
from rolltape.values import Recall, decode


class StoryValues:
    """Decodes the values of a story's records. Memory grows with what they refer to, and is bounded."""

    def __init__(self, reader: Reader, fetch: Callable[[Point], Line | None]) -> None:
        self._reader = reader
        self._fetch = fetch
        self._recall = Recall(missing=self._raw, blob=self._blob)

    @classmethod
    def of(cls, reader: Reader, story: Story[Place]) -> StoryValues:
        """Read lines only when something refers to them."""
        places = {entry.point: entry.place for entry in story.entries}
        return cls(reader, lambda point: reader.line_at(*places[point]) if point in places else None)

    def decode(self, line: Line, raw: bytes | msgspec.Raw, *, returns: Any = None, foreign: bool = False) -> Any:
        """Return the value whose text `raw` stands in `line`. DamagedError: it, or what it refers to, is not whole.

        `returns` and `foreign` are what `rolltape.values.decode` takes.
        """

        def blob(digest: str, size: int) -> bytes:
            return self._reader.value(line, digest, size)

        return decode(raw, blob=blob, recall=self._recall, returns=returns, foreign=foreign)

    def _raw(self, point: Point) -> bytes | None:
        line = self._fetch(point)
        return None if line is None else line.raw

    def _blob(self, point: Point, digest: str, size: int) -> bytes:
        line = self._fetch(point)
        if line is None:
            raise DamagedError(f"record {point} is missing, and a value refers to it")
        return self._reader.value(line, digest, size)
