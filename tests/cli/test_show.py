"""`rolltape show`: the story of one trajectory, with each crash and each resume in its place."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rolltape.cli.text import cells
from tests.cli.sample import FOUND, HOSTILE, TRACEBACK
from tests.cli.support import on_terminal, rolltape

GOLDEN = Path(__file__).with_name("golden")


def told(out: str) -> str:
    """Leave out who wrote it, which is another process each time."""
    out = re.sub(r"pid \d+ on \S+", "pid PID on HOST", out)
    return re.sub(r" ─+( [^─\n]*)?$", " ──", out, flags=re.MULTILINE)


@pytest.mark.parametrize("key", ["kyoto#0", "chess#0", "mail@1#2", "flaky#0", "shop#0", "slow#0", "left#0", HOSTILE])
def test_the_story_looks_as_it_did(sample, monkeypatch, key):
    """A chat; a failure; one parked; retries; a crash in a mutation; a stale attempt; one left alone; a nasty one."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = rolltape("show", sample, key)
    assert (ran.code, ran.err) == (0, "")
    name = "hostile" if key == HOSTILE else key.partition("#")[0].partition("@")[0]
    assert told(ran.out) == (GOLDEN / f"show-{name}.txt").read_text()
    assert max(map(cells, ran.out.splitlines())) <= 80


def test_a_crash_and_who_went_on_are_named(sample):
    out = rolltape("show", sample, "shop#0").out
    first, second = re.findall(r"epoch (\d), pid (\d+) on", out)
    assert (first[0], second[0]) == ("1", "2")
    assert f"broke off here: pid {first[1]} on" in out


def test_what_is_stale_says_so_with_and_without_colours(sample):
    plain = rolltape("show", sample, "slow#0").out
    assert "stale from here: attempt 2 went on after step 1" in plain
    assert re.search(r"stale ✓ 2  think", plain)
    assert "\x1b[2m    → too late\x1b[0m" in rolltape("show", sample, "slow#0", "--color", "always").out


def test_long_texts_are_cut_and_shown_whole_when_asked(sample):
    short = rolltape("show", sample, "kyoto#0").out
    assert "Ward 11" not in short
    assert "… 6 more lines (--full, or --step PATH)" in short
    assert "Ward 11: 135795" in rolltape("show", sample, "kyoto#0", "--full").out


def test_a_long_conversation_shows_what_is_new_in_it(sample):
    short = rolltape("show", sample, "kyoto#0").out
    assert short.count("You are a careful assistant.") == 1
    assert "… 3 messages as before" in short
    assert "(what step 1 returned)" in short
    assert rolltape("show", sample, "kyoto#0", "--full").out.count("You are a careful assistant.") == 2


def test_one_step_is_shown_whole(sample):
    out = rolltape("show", sample, "kyoto#0", "--step", "1").out
    assert [line.strip() for line in out.splitlines()[3:]] == FOUND.splitlines()[1:]
    assert "chat.completions" not in out
    ran = rolltape("show", sample, "kyoto#0", "--step", "9")
    assert ran == (2, "", "rolltape: no step '9' in kyoto#0; `rolltape show` without --step shows them all\n")


def test_a_traceback_is_whole(sample):
    out = rolltape("show", sample, "chess#0").out
    assert [line.strip() for line in TRACEBACK.splitlines()] == [
        line.strip() for line in out.splitlines() if line.startswith("    ")
    ][3:9]
    assert "ValueError: no move in 'I give up' (as above)" in out


def test_brief_is_a_line_a_record(sample):
    out = rolltape("show", sample, "kyoto#0", "--brief").out
    assert [line.split()[1] for line in out.splitlines()[5:]] == ["✓"] * 5


def test_json_has_the_row_and_every_record(sample):
    ran = rolltape("show", sample, "slow#0", "--json")
    found = json.loads(ran.out)
    assert (found["key"], found["status"], len(ran.out.splitlines())) == ("slow#0", "completed", 1)
    assert [(r["type"], r["stale"]) for r in found["records"]] == [
        ("attempt", False), ("done", False), ("done", False), ("done", True),
        ("attempt", False), ("done", False), ("outcome", False), ("accepted", False),
    ]  # fmt: skip
    step = json.loads(rolltape("show", sample, "kyoto#0", "--step", "2", "--json").out)
    assert [message["role"] for message in step["call"]["kwargs"]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]


def test_a_key_may_be_given_as_it_is_shown(sample):
    shown = "\\x1b[31mred\\x9b\\u202e\\u200b\\x7f#0"
    assert shown in rolltape("ls", sample).out
    assert rolltape("show", sample, shown).out == rolltape("show", sample, HOSTILE).out


def test_a_wrong_key_names_those_that_are_near(sample):
    assert rolltape("show", sample, "kyoto") == (
        2, "", f"rolltape: no trajectory 'kyoto' in {sample}: did you mean kyoto#0?\n",
    )  # fmt: skip
    assert rolltape("show", sample, "half\ud800").err == "rolltape: 'half\\ud800' is not UTF-8\n"


def test_on_a_terminal_the_time_that_passed_is_told_too(sample):
    assert re.search(r"started 2026-09-21 14:13:20 \(\d+d ago\)", on_terminal("show", sample, "kyoto#0").out)
