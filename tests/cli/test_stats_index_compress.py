"""`rolltape stats`, `index` and `compress`: a run in numbers, and what may be done to its files."""

from __future__ import annotations

import json

import pytest

from rolltape.cli.stats import NAMES_MAX
from tests.cli.support import rolltape


def test_stats_sum_a_run_up(sample):
    found = json.loads(rolltape("stats", sample, "--json").out)
    assert found["statuses"] == {"completed": 4, "failed": 1, "aborted": 1, "parked": 1, "interrupted": 1}
    assert (found["trajectories"], found["attempts"], found["steps"], found["rewards"]) == (8, 11, 17, 4)
    assert found["reward_mean"] == pytest.approx((1 + 0.25 + 0 + 1) / 4)
    assert found["wall_s"] == pytest.approx(112)
    assert [(process["epoch"], process["alive"]) for process in found["processes"]] == [(1, False), (2, False)]
    assert found["disk"]["journal"] == sum(f.stat().st_size for f in sample.glob("journal/*/*.jsonl"))
    assert found["disk"]["packs"] == (sample / "journal/00000001/00000001.pack").stat().st_size
    assert found["disk"]["index"] > 0


def test_stats_are_readable(sample):
    out = rolltape("stats", sample).out
    assert "✓ completed               4         7          12      0.5625" in out
    assert "first to last record  1m52s  (2026-09-21 14:13:20 to 2026-09-21 14:15:12)" in out
    assert "gone" in out


def test_steps_are_summed_up_by_kind_and_name(sample):
    rows = {row["name"]: row for row in json.loads(rolltape("stats", sample, "--steps", "--json").out)["by_step"]}
    assert rows["think"] == {
        "kind": "tool", "name": "think", "count": 5, "failed": 0, "total_s": 65.0, "p50_s": 1.0, "p95_s": 60.0,
        "max_s": 60.0,
    }  # fmt: skip
    assert (rows["parse"]["failed"], rows["search"]["count"]) == (1, 1)
    assert len(rows) < NAMES_MAX
    lines = [" ".join(line.split()) for line in rolltape("stats", sample, "--steps").out.splitlines()]
    assert "tool think 5 0 1m05s 1.0s 1m00s 1m00s" in lines


def test_the_index_says_where_it_is_and_is_built_again_when_asked(sample):
    ran = rolltape("index", sample)
    assert (ran.code, ran.out.startswith(f"{sample}/index.sqlite: 8 trajectories, ")) == (0, True)
    before = rolltape("ls", sample).out
    assert json.loads(rolltape("index", sample, "--rebuild", "--json").out)["trajectories"] == 8
    assert rolltape("ls", sample).out == before


def test_a_compressed_run_reads_the_same(sample):
    commands = [["ls", "--json"], ["cat"], ["show", "shop#0"], ["tail", "-n", "50"], ["verify", "--json"]]
    before = [rolltape(name, sample, *others) for name, *others in commands]
    ran = rolltape("compress", sample)
    assert ran.code == 0
    assert ran.out.startswith("1 segment compressed: 1.7 kB to ")
    assert "1 segment left alone: it has no seal" in ran.out
    assert [file.suffix for file in sample.glob("journal/00000002/*")] == [".zst"]
    assert [rolltape(name, sample, *others) for name, *others in commands] == before
    assert rolltape("compress", sample).out.startswith("nothing to compress")
    assert json.loads(rolltape("compress", sample, "--json").out)["compressed"] == []


def test_a_wrong_level_names_the_right_ones(sample):
    ran = rolltape("compress", sample, "--level", "99")
    assert (ran.code, ran.err) == (2, "rolltape: level is 99: use 1 (fast) to 19 (small)\n")
