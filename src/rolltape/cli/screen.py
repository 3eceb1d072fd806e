"""Where output goes: how wide it is, whether colours belong there, and what is said beside it on stderr."""

from __future__ import annotations

import os
import shutil
import sys
import time

from rolltape.cli import text

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}

_STATUSES = {
    "completed": ("✓", "+", "green"),
    "failed": ("✗", "x", "red"),
    "aborted": ("!", "!", "yellow"),
    "cancelled": ("⊘", "/", "dim"),
    "parked": ("?", "?", "magenta"),
    "running": ("▸", ">", "cyan"),
    "interrupted": ("↯", "~", "yellow"),
    "unresolved": ("…", ".", "yellow"),
    "done": ("✓", "+", "green"),
}
"""For each status of a trajectory or a step: its sign, the sign where there is ASCII only, and its colour."""

STATUS_CELLS = 2 + len("interrupted")


class Screen:
    """Standard output, and standard error beside it."""

    def __init__(self, color: str = "auto") -> None:
        self.terminal = sys.stdout.isatty()
        """Somebody looks at it right now."""
        self.color = color == "always" or (color == "auto" and self.terminal and _wants_color())
        self.width = _width(self.terminal)
        """Columns; None where lines may be as long as they like."""
        self.now = time.time()
        self.unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
        self._tells = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._told_s = 0.0
        self._told = False

    # ---- what was asked for ------------------------------------------------------------------------------------------

    def line(self, line: str = "") -> None:
        """Write one line, whose recorded parts are safe."""
        sys.stdout.write(f"{line}\n")

    def flush(self) -> None:
        """Let it be seen now."""
        sys.stdout.flush()

    def style(self, words: str, *names: str) -> str:
        """Return `words` in these styles, where colours belong."""
        if not self.color or not words or not names:
            return words
        return f"\x1b[{';'.join(str(_CODES[name]) for name in names)}m{words}\x1b[0m"

    def dim(self, words: str) -> str:
        return self.style(words, "dim")

    def bold(self, words: str) -> str:
        return self.style(words, "bold")

    def sign(self, status: str) -> str:
        """Return the sign of a status, in its colour."""
        sign, ascii_sign, color = _STATUSES[status]
        return self.style(sign if self.unicode else ascii_sign, color)

    def status(self, status: str, width: int = 0) -> str:
        """Return sign and word of a status, in its colour, so wide."""
        sign, ascii_sign, color = _STATUSES[status]
        words = f"{sign if self.unicode else ascii_sign} {status}"
        return self.style(words, color) + " " * max(0, width - len(words))

    # ---- beside it ---------------------------------------------------------------------------------------------------

    def note(self, words: str) -> None:
        """Say something in one line on stderr."""
        self.untell()
        sys.stdout.flush()
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()

    def tell(self, words: str) -> None:
        """Show how far something is, on stderr if it is a terminal, several times a second at most."""
        if self._tells and time.monotonic() - self._told_s > 0.1:
            columns = shutil.get_terminal_size((80, 24)).columns
            sys.stderr.write(f"\r\x1b[K{text.cut(words, columns - 1)}")
            sys.stderr.flush()
            self._told_s, self._told = time.monotonic(), True

    def untell(self) -> None:
        """Take back what `tell` has shown."""
        if self._told:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._told = False


def _wants_color() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def _width(terminal: bool) -> int | None:
    stated = os.environ.get("COLUMNS", "")
    if terminal or (stated.isascii() and stated.isdigit() and int(stated) > 0):
        return max(40, shutil.get_terminal_size((80, 24)).columns)
    return None
