"""On a terminal there are colours, unless they do not belong there; in a pipe there are none; a closed one ends all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rolltape import records
from rolltape.cli.text import cells, is_plain
from rolltape.journal import AttemptLog, open_writer
from rolltape.store import LocalStore
from tests.cli.support import COLORS, COMMAND, HANG_S, Terminal, environment, hear_control_c, on_terminal, rolltape

SHOWN = [["ls"], ["show", "kyoto#0"], ["tail"], ["stats", "--steps"], ["verify"], ["index"], ["compress"]]
QUICK = [["ls"], ["show", "kyoto#0"], ["tail"]]


def write(run: Path, *keys: str) -> None:
    async def put() -> None:
        writer = open_writer(LocalStore(run))
        for key in keys:
            await AttemptLog(writer, key, 1).begin(None)
        await writer.aclose()

    asyncio.run(put())


@pytest.mark.parametrize("words", SHOWN, ids=lambda words: words[0])
def test_a_terminal_of_80_columns_is_enough(sample, words):
    ran = on_terminal(words[0], sample, *words[1:])
    lines = COLORS.sub("", ran.out.replace("\r\x1b[K", "\n")).splitlines()
    assert ran.code == 0
    assert [line for line in lines if cells(line) > 80 and str(sample) not in line] == []
    assert [c for line in lines for c in line if not is_plain(c)] == []


@pytest.mark.parametrize("words", QUICK, ids=lambda words: words[0])
def test_colours_are_where_they_belong(sample, words):
    name, *others = words
    assert "\x1b[" in on_terminal(name, sample, *others).out
    assert "\x1b[" in rolltape(name, sample, *others, "--color", "always").out
    assert "\x1b" not in rolltape(name, sample, *others).out
    assert "\x1b" not in on_terminal(name, sample, *others, "--color", "never").out


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_colours_are_left_off_where_somebody_says_so(sample, env):
    assert "\x1b" not in on_terminal("ls", sample, **env).out


@pytest.mark.parametrize("words", QUICK, ids=lambda words: words[0])
def test_json_never_has_colours(sample, words):
    assert "\x1b" not in on_terminal(words[0], sample, *words[1:], "--json", "--color", "always").out


def test_where_there_is_only_ascii_the_signs_are_ascii(sample):
    env = environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    for words in (["ls"], ["show", "kyoto#0"]):
        argv = [*COMMAND, words[0], str(sample), *words[1:]]
        done = subprocess.run(argv, env=env, capture_output=True, timeout=HANG_S)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()
        assert b"+ completed" in done.stdout


def closed_pipe(*argv: str | Path) -> tuple[int, bytes]:
    """Run the command with a stdout that nobody reads, and return its exit code and what it says on stderr."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as out:
        done = subprocess.run(
            [*COMMAND, *map(str, argv)], stdout=out, stderr=subprocess.PIPE, timeout=HANG_S, env=environment()
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [*SHOWN, ["cat"]], ids=lambda words: words[0])
def test_a_closed_pipe_ends_it_without_a_word(sample, words):
    assert closed_pipe(words[0], sample, *words[1:]) == (141, b"")


@pytest.fixture
def following() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the command, and let it not outlive the test."""
    children: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> subprocess.Popen[bytes]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        children.append(subprocess.Popen(argv, **pipes, env=environment(), preexec_fn=hear_control_c))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait(HANG_S)


def test_following_ends_when_nobody_reads_on(sample, following):
    """Although nothing new comes, which would be written into the closed pipe."""
    argv = [*COMMAND, "tail", str(sample), "-f", "-n", "1"]
    child = following(*argv)
    assert child.stdout is not None and child.stderr is not None
    assert b"accepted" in child.stdout.readline()
    child.stdout.close()
    assert (child.wait(HANG_S), child.stderr.read()) == (141, b"")
    child.stderr.close()


def test_following_shows_what_is_added_and_ends_with_control_c(tmp_path, following):
    write(tmp_path / "run", "before#0")
    argv = [*COMMAND, "tail", str(tmp_path / "run"), "-f"]
    child = following(*argv)
    assert child.stdout is not None and child.stderr is not None
    assert b"before#0" in child.stdout.readline()
    write(tmp_path / "run", "after#0")
    assert b"after#0" in child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert (child.wait(HANG_S), child.stderr.read()) == (130, b"")
    child.stdout.close()
    child.stderr.close()


def test_following_on_a_terminal_ends_with_control_c(sample):
    terminal = Terminal("tail", sample, "-f", "-n", "1")
    terminal.read(until="accepted")
    terminal.type(b"\x03")
    assert terminal.end() == 130
    assert "Traceback" not in terminal.seen


def test_on_a_terminal_a_large_run_is_listed_as_far_as_it_is_indexed(tmp_path):
    """And it says so; in a pipe it waits for all of it."""
    run = tmp_path / "run"

    async def put() -> None:
        writer = open_writer(LocalStore(run))
        for number in range(60):
            log = AttemptLog(writer, f"{number}#0", 1)
            await log.begin(None)
            for _ in range(1000):
                await log.room()
                future = log.put(records.Done, path="0")
            await future
        await writer.aclose()

    asyncio.run(put())
    first = on_terminal("ls", run)
    assert first.code == 0
    for _ in range(30):
        if "so far this covers" not in (last := on_terminal("ls", run)).out:
            break
    assert "1-50 of 60" in last.out
    (run / "index.sqlite").unlink()
    assert len(rolltape("ls", run, "--json").out.splitlines()) == 60
    (run / "index.sqlite").unlink()
    assert "1-50 of 60" in on_terminal("ls", run, "--wait").out
