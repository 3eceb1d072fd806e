"""The commands by name, each imported when it is called, and the one place where errors become lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

import click

from rolltape import __version__
from rolltape.cli.text import safe
from rolltape.errors import DamagedError, RolltapeError

FINE, DAMAGED, WRONG, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
"""Exit codes. The last two are what a shell makes of SIGINT and SIGPIPE."""

_COMMANDS = ("ls", "show", "tail", "cat", "stats", "verify", "index", "compress")

F = TypeVar("F", bound=Callable[..., int])


class _Commands(click.Group):
    """A group whose commands lie in modules of their names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command = import_module(f"rolltape.cli.{name}").command
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="rolltape %(version)s")
def app() -> None:
    """Look at runs: what happened, what it cost, whether it is all there.

    RUN is a run's directory. Nothing here changes what was recorded, and everything may be used while the run is being
    written. Exit codes: 0 fine, 1 damage was met, 2 wrong usage or not a run.
    """


def on_a_run(function: F) -> F:
    """Give a command the arguments that all of them have."""
    for decorate in (
        click.option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            help="Colours: on a terminal (auto; not with NO_COLOR), always or never.",
        ),
        click.option("--json", "as_json", is_flag=True, help="JSON, one object a line, and nothing else."),
        click.argument("run"),
    ):
        function = decorate(function)
    return function


def run(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code. Whatever goes wrong is one line on stderr."""
    _never_fail_on_characters()
    try:
        code = _checked(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at its end, which must find it in order.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code


def _checked(argv: list[str] | None) -> int:
    try:
        # Not `app.main`: it makes 1 of a closed pipe, which here means damage.
        with app.make_context("rolltape", list(sys.argv[1:] if argv is None else argv)) as context:
            code = app.invoke(context)
        return code if isinstance(code, int) else FINE
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return WRONG
    except click.UsageError as error:
        more = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        _say(f"{error.format_message()}{more}")
        return WRONG
    except click.ClickException as error:
        _say(error.format_message())
        return WRONG
    except KeyboardInterrupt:
        sys.stderr.write("\n" if sys.stderr.isatty() else "")
        return INTERRUPTED
    except DamagedError as error:
        _say(str(error))
        return DAMAGED
    except RolltapeError as error:
        _say(str(error))
        return WRONG
    except BrokenPipeError:
        raise
    except OSError as error:
        _say(f"{error.filename or 'the output'}: {error.strerror or error}")
        return WRONG


def _say(message: str) -> None:
    sys.stderr.write(f"rolltape: {safe(' '.join(message.splitlines()))}\n")


def _never_fail_on_characters() -> None:
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
