"""`rolltape tail` and `cat`: records as they come, for people and for jq."""

from __future__ import annotations

import json

import pytest

from rolltape.cli.text import cells
from rolltape.trajectory.live import OF_FILES
from tests.cli.sample import ASKED, FOUND, REPLY
from tests.cli.support import rolltape


def test_the_end_of_a_run_is_a_line_a_record(sample):
    out = rolltape("tail", sample, "-n", "100").out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "14:13:21 kyoto#0 try 1 ✓ 1 search 31ms" in lines
    assert "14:13:28 chess#0 try 1 ✗ 1 parse 2ms failed: ValueError: no move in 'I give up'" in lines
    assert "14:13:28 chess#0 try 1 ✗ failed (policy): ValueError: no move in 'I give up'" in lines
    assert "14:13:30 mail@1#2 try 1 0 send_mail begins" in lines
    assert "14:14:00 mail@1#2 try 1 ? parked: it may have happened: send_mail" in lines
    assert "14:13:40 flaky#0 try 1 0 fetch again in 2.0s: ConnectionError: connection refused" in lines
    assert "14:15:00 shop#0 try 2 goes on from attempt 1 of epoch 1, after its record 4" in lines
    assert len(lines) == len(rolltape("cat", sample).out.splitlines())


@pytest.mark.parametrize("number", [0, 1, 7])
def test_so_many_as_are_asked_for(sample, number):
    assert len(rolltape("tail", sample, "-n", str(number)).out.splitlines()) == number
    assert len(rolltape("tail", sample, "-n", str(number), "--json").out.splitlines()) == number


def test_a_narrow_terminal_cuts_lines(sample, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(cells, rolltape("tail", sample, "-n", "100").out.splitlines())) <= 60


def test_cat_gives_what_was_passed_and_not_what_it_is_stored_as(sample):
    """The second call's messages lie in the journal as references to the first's."""
    found = [json.loads(line) for line in rolltape("cat", sample, "kyoto#0").out.splitlines()]
    assert [record["type"] for record in found] == ["attempt", *["done"] * 4, "outcome", "accepted"]
    told = {"role": "tool", "tool_call_id": "c1", "content": FOUND}
    assert found[3]["call"]["kwargs"]["messages"] == [*ASKED, REPLY, told]
    assert "$ref" not in str(found) and "$list" not in str(found)


def test_cat_of_a_run_has_every_record_in_the_order_of_each_epoch(sample):
    found = [json.loads(line) for line in rolltape("cat", sample).out.splitlines()]
    assert [record["epoch"] for record in found] == sorted(record["epoch"] for record in found)
    assert {record["type"] for record in found} & OF_FILES == set()
    written = [
        json.loads(line) for file in sorted(sample.glob("journal/*/*.jsonl")) for line in file.read_bytes().splitlines()
    ]
    expected = [(r["key"], r.get("seq")) for r in written if r["type"] not in OF_FILES]
    assert [(record["key"], record.get("seq")) for record in found] == expected


def test_cat_leaves_out_what_is_stale_unless_asked(sample):
    found = [json.loads(line) for line in rolltape("cat", sample, "slow#0").out.splitlines()]
    assert "too late" not in str(found)
    found = [json.loads(line) for line in rolltape("cat", sample, "slow#0", "--stale").out.splitlines()]
    assert [record["result"] for record in found if record.get("stale")] == [{"value": "too late"}]
