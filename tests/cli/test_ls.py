"""`rolltape ls`: one row a trajectory, whatever the width; which page it is; nothing that is not asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rolltape.cli.text import cells
from rolltape.index import SORTS
from rolltape.trajectory.read import STATUSES
from tests.cli.sample import HOSTILE
from tests.cli.support import COLORS, on_terminal, rolltape

GOLDEN = Path(__file__).with_name("golden")


def keys(out: str) -> list[str]:
    return [json.loads(line)["key"] for line in out.splitlines()]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_looks_as_it_did(sample, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = rolltape("ls", sample)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (GOLDEN / f"ls-{columns}.txt").read_text()


def test_in_a_pipe_nothing_is_cut_and_a_row_is_a_line(sample):
    ran = rolltape("ls", sample)
    assert len(ran.out.splitlines()) == 1 + 8
    assert "…" not in ran.out
    assert "\\x1b[31mred\\x9b\\u202e\\u200b\\x7f#0" in ran.out


@pytest.mark.parametrize("columns", [40, 60, 80, 109, 110, 120, 200])
def test_no_line_is_wider_than_the_terminal(sample, columns):
    ran = on_terminal("ls", sample, columns=columns)
    assert ran.code == 0
    lines = COLORS.sub("", ran.out).splitlines()
    # A status, a key and five numbers do not fit into less.
    assert max(map(cells, lines)) <= max(columns, 72)


def test_json_has_every_trajectory_in_plain_json(sample):
    ran = rolltape("ls", sample, "--json")
    assert (ran.code, ran.err) == (0, "")
    rows = {row["key"]: row for row in map(json.loads, ran.out.splitlines())}
    assert len(rows) == 8
    assert rows["mail@1#2"] | {"bytes": 0} == {
        "key": "mail@1#2", "task": "mail", "visit": 1, "sample": 2, "status": "parked", "cause": None, "reward": None,
        "attempts": 1, "steps": 0, "started": 1790000010.0, "ended": 1790000040.1, "duration_s": pytest.approx(30.1),
        "bytes": 0, "policies": [], "error": "it may have happened: send_mail", "damage": "",
    }  # fmt: skip
    assert rows[HOSTILE]["task"] == "\x1b]0;owned\x07"


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--status", "failed"], ["chess#0"]),
        (["-s", "failed,parked"], ["mail@1#2", "chess#0"]),
        (["-s", "failed", "-s", "parked"], ["mail@1#2", "chess#0"]),
        (["-s", "interrupted"], ["left#0"]),
        (["--task", "mail"], ["mail@1#2"]),
        (["--grep", "no move"], ["chess#0"]),
        (["--grep", "yo"], ["kyoto#0"]),
        (["--grep", "nothing like it"], []),
        (["--sort", "-steps", "-n", "1"], ["kyoto#0"]),
        (["--sort", "key", "--limit", "2", "--offset", "2"], ["flaky#0", "kyoto#0"]),
        (["--sort", "-reward", "-n", "2"], ["slow#0", "kyoto#0"]),
    ],
)
def test_filters_sorts_and_pages(sample, options, found):
    ran = rolltape("ls", sample, "--json", *options)
    assert ran.code == 0
    assert keys(ran.out) == found


def test_a_page_says_which_it_is(sample):
    page = on_terminal("ls", sample, "-n", "3", "--offset", "2")
    assert "3-5 of 8; --offset 5 for more" in page.out
    assert "4 completed" in page.out and "1 interrupted" in page.out
    assert "1-1 of 1 that match, 8 in all" in on_terminal("ls", sample, "-s", "failed").out
    assert "none of 0 that match, 8 in all" in on_terminal("ls", sample, "-g", "nothing like it").out


def test_in_a_pipe_a_page_is_told_beside_the_rows(sample):
    ran = rolltape("ls", sample, "-n", "3")
    assert len(ran.out.splitlines()) == 1 + 3
    assert ran.err == "1-3 of 8; --offset 3 for more\n"
    assert rolltape("ls", sample, "--all").err == ""


def test_when_it_started_is_told_as_one_likes(sample):
    assert "d ago" in on_terminal("ls", sample).out
    assert "2026-09-21 14:13:20" in on_terminal("ls", sample, "--times", "local").out
    assert "2026-09-21 14:13:20" in rolltape("ls", sample).out


def test_the_help_names_every_status_and_every_sort():
    words = set(re.findall(r"\w+", rolltape("ls", "--help").out))
    assert words >= {*STATUSES, *SORTS}
