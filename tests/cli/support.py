"""Running `rolltape` here, in a child, or in a child on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

from rolltape.cli import main

HANG_S = 120.0
"""Whatever takes longer hangs. Nothing is timed by it."""

COMMAND = [sys.executable, "-m", "rolltape"]

COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""What our own styles look like."""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def rolltape(*argv: str | Path) -> Ran:
    """Run the command in this process, with its output going to files that are no terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in argv])
        except SystemExit as exit:
            code = exit.code
    assert isinstance(code, int)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Ran(code, *texts)


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    return {**kept, "TERM": "xterm-256color", "TZ": "UTC", **changes}


def hear_control_c() -> None:
    """In a child: what starts the tests in the background may have told all of them to ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _take_terminal() -> None:
    """Let Ctrl-C on the child's terminal reach the child."""
    hear_control_c()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A child on a terminal of its own, so many columns wide."""

    def __init__(self, *argv: str | Path, columns: int = 80, **env: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.child = subprocess.Popen(
            [*COMMAND, *map(str, argv)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**env),
            start_new_session=True, preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def read(self, until: str | None = None) -> str:
        """Read to the end, or until something was seen, and return all that was seen so far."""
        limit = time.monotonic() + HANG_S
        while until is None or until not in self.seen:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([self._ours], [], [], left)[0]:
                self.child.kill()
                raise AssertionError(f"it hangs: {self.seen}")
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:  # EIO: nobody has it open any more
                break
            self.seen += data.decode().replace("\r\n", "\n")
        return self.seen

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def end(self) -> int:
        self.read()
        os.close(self._ours)
        return self.child.wait(HANG_S)


def on_terminal(*argv: str | Path, columns: int = 80, **env: str) -> Ran:
    """Run the command on a terminal; what it says on stderr stands among the rest, as one sees it."""
    terminal = Terminal(*argv, columns=columns, **env)
    code = terminal.end()
    return Ran(code, terminal.seen, "")
