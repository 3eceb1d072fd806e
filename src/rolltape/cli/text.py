"""Recorded text made safe to show, and columns, times and sizes made readable.

Whatever was recorded is somebody else's text. `safe` is what stands between it and the terminal: nothing that moves
the cursor, changes colours, turns the direction of writing or cannot be seen passes it unescaped.
"""

from __future__ import annotations

import json
import re
import time
import unicodedata
from typing import Any

_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""What Unicode calls a letter or a mark, and nobody sees."""


def is_plain(character: str) -> bool:
    """Say whether a character shows itself and does nothing else."""
    if unicodedata.category(character) == "Zs":
        return True
    return character.isprintable() and not _UNSEEN.match(character)


class _Escapes(dict[int, int | str]):
    """What `str.translate` puts in place of each character."""

    def __init__(self, kept: str = "") -> None:
        self._kept = kept

    def __missing__(self, code: int) -> int | str:
        character = chr(code)
        shown = code if is_plain(character) or character in self._kept else self.escape(code)
        self[code] = shown
        return shown

    def escape(self, code: int) -> str:
        short = {0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
        if code in short:
            return short[code]
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class _JsonEscapes(_Escapes):
    def escape(self, code: int) -> str:
        units = chr(code).encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


_one_line = _Escapes()
_many_lines = _Escapes("\n")
_in_json = _JsonEscapes()


def safe(text: str) -> str:
    """Return `text` in one line that a terminal may see: controls, bidi overrides and what is unseen are escaped."""
    return text if text.isascii() and text.isprintable() else text.translate(_one_line)


def safe_lines(text: str) -> list[str]:
    """Return the lines of `text`, each safe. Tabs become spaces, carriage returns before a newline go."""
    text = text.replace("\r\n", "\n").expandtabs(4)
    return text.translate(_many_lines).split("\n")


_escaped = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})|\\([nrt])")


def unescaped(shown: str) -> str:
    """Return what `safe` was given, from what it returned."""
    short = {"n": "\n", "r": "\r", "t": "\t"}
    return _escaped.sub(lambda m: short.get(m[4]) or chr(min(int(m[1] or m[2] or m[3], 16), 0x10FFFF)), shown)


def to_json(value: Any) -> str:
    """Return `value` as JSON in one line, in which what a terminal would obey stands escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() and text.isprintable() else text.translate(_in_json)


# ---- columns ---------------------------------------------------------------------------------------------------------


def cells(text: str) -> int:
    """Return how many columns `text` takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, with an ellipsis where something is left off."""
    if cells(text) <= width:
        return text
    return "…" if width <= 1 else f"{text[: _fitting(text, width - 1)]}…"


def _fitting(text: str, width: int) -> int:
    """Return how many characters of `text` fit into `width` columns."""
    if text.isascii():
        return width
    from rich.cells import get_character_cell_size

    taken = 0
    for number, character in enumerate(text):
        taken += get_character_cell_size(character)
        if taken > width:
            return number
    return len(text)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return `text` in exactly `width` columns, cut if need be; `right` aligns it to the right."""
    text = cut(text, width)
    space = " " * (width - cells(text))
    return space + text if right else text + space


_pieces = re.compile(r"\s*\S+|\s+")


def wrap(line: str, width: int | None) -> list[str]:
    """Break one line at spaces so that no part is wider than `width`; None: leave it."""
    if width is None or cells(line) <= width:
        return [line]
    margin = line[: len(line) - len(line.lstrip(" "))][: max(0, width // 2)]
    lines, current = list[str](), ""
    for piece in _pieces.findall(line):
        if current.strip() and cells(current) + cells(piece) > width:
            lines.append(current)
            current, piece = "", margin + piece.lstrip(" ")
        current += piece
        while cells(current) > width:
            fitting = max(1, _fitting(current, width))
            lines.append(current[:fitting])
            current = current[fitting:]
    return [*lines, current] if current.strip() else lines


# ---- numbers ---------------------------------------------------------------------------------------------------------


def number(value: int) -> str:
    """Return `value` with its thousands apart."""
    return f"{value:,}"


def plural(value: int, word: str) -> str:
    """Return `3 steps`, `1 step`."""
    if value == 1:
        return f"1 {word}"
    return f"{number(value)} {word[:-1]}ies" if word.endswith("y") else f"{number(value)} {word}s"


def size(value: float) -> str:
    """Return a number of bytes as `812 B`, `1.4 kB`, `23 MB`."""
    if value < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    return f"{value:.3g} PB"


def duration(value: float | None) -> str:
    """Return seconds as `0.4ms`, `820ms`, `1.2s`, `12s`, `1m02s`, `2h05m`, `3d04h`; `-` if there are none."""
    if value is None or value != value:
        return "-"
    if value < 0:
        return f"-{duration(-value)}"
    if value < 0.00095:
        return f"{value * 1000:.1f}ms" if value else "0s"
    if value < 0.9995:
        return f"{value * 1000:.0f}ms"
    if value < 9.95:
        return f"{value:.1f}s"
    if value < 59.5:
        return f"{value:.0f}s"
    for limit, high, low in ((3599.5, 60, 1), (86370, 3600, 60)):
        if value < limit:
            units = round(value / low)
            return f"{units * low // high}{'m' if high == 60 else 'h'}{units % 60:02d}{'s' if low == 1 else 'm'}"
    hours = round(value / 3600) if value < 1e12 else 0
    return f"{hours // 24}d{hours % 24:02d}h" if hours else f"{value:.3g}s"


def ago(value: float | None, now: float) -> str:
    """Return how long before `now` a time was: `3m ago`."""
    if value is None:
        return "-"
    passed = now - value
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if abs(passed) >= unit_s:
            text = f"{number(int(abs(passed) // unit_s))}{unit}"
            return f"{text} ago" if passed > 0 else f"in {text}"
    return "now"


def local(value: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time as the clock on the wall shows it; `-` for none, `?` for one that no clock shows."""
    if value is None:
        return "-"
    try:
        return time.strftime(form, time.localtime(value))
    except (OverflowError, ValueError, OSError):
        return "?"


def reward(value: float | None) -> str:
    """Return a reward in few digits; `-` if there is none, which is not 0."""
    return "-" if value is None else f"{value:.4g}"
