"""The command `rolltape`: looking at runs from a shell."""

from __future__ import annotations

from typing import NoReturn


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command with `argv`, else with the process's own arguments, and exit.

    0: fine. 1: damage was met. 2: wrong usage, no run, or one that cannot be read. 130: Ctrl-C. 141: closed pipe.
    """
    from rolltape.cli.app import run

    raise SystemExit(run(argv))
