"""Whatever a command is pointed at, it says in a line what is wrong, with the exit code that fits, and never fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rolltape.cli.text import is_plain
from rolltape.journal import open_writer
from rolltape.store import LocalStore
from tests.cli.sample import HOSTILE
from tests.cli.support import COLORS, COMMAND, HANG_S, Ran, environment, rolltape

RIGHTS = "-dac_override,-dac_read_search"
AS_OTHERS = ["setpriv", f"--bounding-set={RIGHTS}", f"--inh-caps={RIGHTS}"] if os.geteuid() == 0 else []
"""What makes root read files as their owner may, and no more."""

COMMANDS = {
    "ls": ["ls"],
    "ls --json": ["ls", "--json"],
    "show": ["show", "kyoto#0"],
    "show --json": ["show", "kyoto#0", "--json"],
    "tail": ["tail"],
    "tail --json": ["tail", "--json"],
    "cat": ["cat"],
    "cat KEY": ["cat", "kyoto#0"],
    "stats": ["stats", "--steps"],
    "stats --json": ["stats", "--json"],
    "verify": ["verify"],
    "verify --json": ["verify", "--json"],
    "index": ["index"],
    "index --rebuild": ["index", "--rebuild"],
    "compress": ["compress"],
}


@pytest.fixture(params=COMMANDS.values(), ids=COMMANDS.keys())
def run_command(request: pytest.FixtureRequest) -> Callable[[Path], Ran]:
    name, *others = request.param

    def run(path: Path) -> Ran:
        return rolltape(name, path, *others)

    run.name, run.words = name, (name, *others)  # type: ignore[attr-defined]
    return run


def first_segment(run: Path) -> Path:
    return run / "journal/00000001/00000001.jsonl"


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def is_one_line(err: str) -> bool:
    return err.startswith("rolltape: ") and err.count("\n") == 1 and err.endswith("\n")


def test_a_sound_run_is_fine(sample, run_command):
    ran = run_command(sample)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out


def test_what_a_crash_tore_off_is_no_damage(sample, run_command):
    with first_segment(sample).open("ab") as segment:
        segment.write(b'{"type":"done","key":"left#0","epo')
    ran = run_command(sample)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("indexed", [False, True], ids=["not indexed", "indexed before"])
def test_damage_is_told_and_the_rest_is_read(sample, run_command, indexed):
    """Once indexed, only who reads the damaged line can know: `verify` always does."""
    if indexed:
        rolltape("index", sample)
    data = first_segment(sample).read_bytes()
    flip(first_segment(sample), data.index(b'"search","kind"'))
    ran = run_command(sample)
    knows = not indexed or run_command.name in ("verify", "show", "cat") or "--rebuild" in run_command.words
    assert ran.code == (1 if knows and run_command.name != "compress" else 0)
    assert ran.out
    if ran.code and run_command.name != "verify":
        assert "damaged" in ran.err or "left out" in ran.err


def test_verify_lists_each_damage_with_its_place_and_meaning(sample):
    data = first_segment(sample).read_bytes()
    at = data.index(b'"search","kind"')
    flip(first_segment(sample), at)
    flip(sample / "journal/00000001/00000001.pack", 200)
    flip(sample / "claims/00000002.json", 30)
    ran = rolltape("verify", sample, "--json")
    *damages, summary = map(json.loads, ran.out.splitlines())
    assert (ran.code, summary["sound"], summary["damages"]) == (1, False, len(damages))
    found = {damage["file"]: damage for damage in damages}
    line = found["journal/00000001/00000001.jsonl"]
    assert line["start"] <= at < line["end"]
    assert found["journal"]["reason"] == "kyoto#0: record 2 is missing in attempt 1 of epoch 1"
    assert f"{HOSTILE} (record 2)" in found["journal/00000001/00000001.pack"]["means"]
    assert "who wrote this epoch" in found["claims/00000002.json"]["means"]
    text = rolltape("verify", sample)
    assert text.code == 1
    assert f"bytes {line['start']:,} to {line['end']:,}" in text.out
    assert text.out.splitlines()[-1].startswith("damaged in 4 places: 2 files, ")


def test_verify_says_what_it_has_checked(sample):
    summary = json.loads(rolltape("verify", sample, "--json").out)
    lines = sum(len(f.read_bytes().splitlines()) for f in sample.glob("journal/*/*.jsonl"))
    size = sum(f.stat().st_size for f in sample.glob("journal/*/*.jsonl"))
    assert summary == {
        "sound": True, "damages": 0, "trajectories": 8, "files": 2, "lines": lines, "bytes": size + 50_000, "values": 1,
    }  # fmt: skip


@pytest.mark.parametrize("make", ["missing", "empty", "foreign", "a file", "a directory full of runs"])
def test_what_is_no_run_is_said_in_a_line(tmp_path, sample, run_command, make):
    path = tmp_path / "path"
    if make == "a file":
        path.write_text("{}")
    elif make != "missing":
        path.mkdir()
    if make == "foreign":
        (path / "data.jsonl").write_text('{"a": 1}\n')
        (path / "journal").write_text("dear journal")
    if make == "a directory full of runs":
        path = tmp_path
    ran = run_command(path)
    assert (ran.code, ran.out) == (2, "")
    assert is_one_line(ran.err)
    assert "no run here" in ran.err or "journal" in ran.err
    assert (str(sample) in ran.err) == (make == "a directory full of runs")


@pytest.mark.parametrize("sound", [True, False])
def test_a_newer_version_is_refused(tmp_path, run_command, sound):
    path = tmp_path / "newer"
    path.mkdir()
    (path / "run.json").write_text('{"type":"run","format":99,"hash":"new"}\n' if sound else '{"format":99}')
    ran = run_command(path)
    assert (ran.code, ran.out) == (2, "")
    assert is_one_line(ran.err)
    assert "format 99" in ran.err and "install a newer" in ran.err


def test_a_run_that_cannot_be_read_is_said_in_a_line(tmp_path, run_command):
    """A link that leads to itself can be read by nobody, not even by root."""
    path = tmp_path / "loop"
    path.symlink_to(path)
    ran = run_command(path)
    assert (ran.code, ran.out) == (2, "")
    assert is_one_line(ran.err)
    assert "Too many levels of symbolic links" in ran.err


def test_a_file_that_cannot_be_read_is_damage_and_the_rest_is_read(sample, run_command):
    second = sample / "journal/00000002/00000001.jsonl"
    second.unlink()
    second.symlink_to(second)
    ran = run_command(sample)
    if run_command.name == "compress":
        assert ran.code in (0, 2) and (ran.code == 0 or is_one_line(ran.err))
        return
    assert ran.code == 1
    assert "Too many levels of symbolic links" in ran.out + ran.err


def test_a_run_file_that_is_damaged_is_told_and_the_rest_is_read(sample, run_command):
    flip(sample / "run.json", 20)
    ran = run_command(sample)
    assert ran.code == (1 if run_command.name != "compress" else ran.code)
    if run_command.name != "compress":
        assert "run.json is not as it was written" in ran.out + ran.err
        assert ran.out


def test_a_run_in_which_nothing_happened_is_fine(tmp_path, run_command):
    open_writer(LocalStore(tmp_path / "run")).close()
    ran = run_command(tmp_path / "run")
    if run_command.name in ("show",) or "no trajectory" in ran.err:
        assert ran.code == 2 and is_one_line(ran.err)
    else:
        assert ran.code == 0


@pytest.mark.parametrize("content", [b"", b"garbage " * 1000])
def test_an_index_that_is_none_is_made_again(sample, run_command, content):
    (sample / "index.sqlite").write_bytes(content)
    ran = run_command(sample)
    assert (ran.code, ran.err) == (0, "")


def test_a_name_that_is_nasty_is_shown_escaped(sample, tmp_path, run_command):
    nasty = tmp_path / "na\x1b[31m\u202e\nsty"
    shutil.copytree(sample, nasty)
    flip(nasty / "run.json", 20)
    for ran in (run_command(nasty), run_command(tmp_path / "no\x1b[2J\nrun")):
        assert all(is_plain(c) for c in (ran.out + ran.err).replace("\n", ""))
        assert "sty" not in {line[:3] for line in (ran.out + ran.err).splitlines()}


@pytest.mark.parametrize("color", ["always", "never"])
def test_nothing_of_what_was_recorded_reaches_the_terminal_raw(sample, run_command, color):
    """Our own colours aside, there is no control, no format character and nothing unseen in any output."""
    keyed = [HOSTILE if word == "kyoto#0" else word for word in run_command.words]
    ran = rolltape(keyed[0], sample, *keyed[1:], "--color", color)
    assert ran.code == 0
    shown = COLORS.sub("", ran.out + ran.err) if color == "always" else ran.out + ran.err
    assert [c for c in shown if c != "\n" and not is_plain(c)] == []
    assert "\x1b[31mred" not in ran.out
    if "--json" in keyed or keyed[0] == "cat":
        assert "\x1b" not in ran.out
        for line in ran.out.splitlines():
            json.loads(line)


@pytest.mark.parametrize("argv", [[], ["bogus"], ["ls"], ["ls", ".", "--bogus"], ["ls", ".", "-n", "x"], ["show", "."]])
def test_wrong_usage_is_a_line(argv):
    ran = rolltape(*argv)
    assert ran.code == 2
    assert is_one_line(ran.err) or (argv == [] and "Usage" in ran.err + ran.out)


@pytest.mark.parametrize("option", ["--sort=bogus", "--status=bogus"])
def test_a_wrong_name_names_the_right_ones(sample, option):
    ran = rolltape("ls", sample, option)
    assert ran.code == 2
    assert is_one_line(ran.err)
    assert "use one of" in ran.err


def test_a_run_without_permission_is_said_in_a_line(sample, run_command):
    """In a child, which as root gives up the right to read everything."""
    (sample / "run.json").chmod(0)
    name, *others = run_command.words
    ran = subprocess.run(
        [*AS_OTHERS, *COMMAND, name, sample, *others], capture_output=True, text=True, timeout=HANG_S, env=environment()
    )
    assert ran.returncode == 2
    assert is_one_line(ran.stderr)
    assert "Permission denied" in ran.stderr
