"""Recorded text is somebody else's: nothing of it that a terminal obeys, or nobody sees, is shown as it is."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from rolltape.cli import text


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("plain text", "plain text"),
        ("京都市 é ✓ 🎉", "京都市 é ✓ 🎉"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("nul\0 bell\x07 del\x7f", "nul\\x00 bell\\x07 del\\x7f"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("fill\u3164er a\ufe0f", "fill\\u3164er a\\ufe0f"),
        ("half\ud800", "half\\ud800"),
    ],
)
def test_what_a_terminal_obeys_is_escaped_and_the_rest_is_left(recorded, shown):
    assert text.safe(recorded) == shown
    assert text.unescaped(shown) == recorded


def test_no_control_and_no_format_character_at_all_passes():
    """All planes that have characters, in one line, in lines, and as JSON."""
    everything = "".join(map(chr, (*range(0x20000), *range(0xE0000, 0xE0200), sys.maxunicode)))
    lines = text.safe_lines(everything)
    for shown in (text.safe(everything), "".join(lines), text.to_json(everything)):
        seen = {unicodedata.category(character) for character in set(shown)}
        assert seen.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"})


def test_json_stays_json():
    """What is escaped for the terminal is read back as it was."""
    value = {"\x7f\u202e": ["\x9b", "\U000e0041", "京都", "\ud800", 10**30, 1e22]}
    assert json.loads(text.to_json(value)) == value


def test_lines_stay_lines_and_tabs_become_spaces():
    assert text.safe_lines("a\tb\r\n\x1bc\n") == ["a   b", "\\x1bc", ""]


@pytest.mark.parametrize("words", ["plain words", "京都市京都市京都市", "mixed 京都 and é́", "x" * 40])
@pytest.mark.parametrize("width", [1, 2, 5, 8, 13])
def test_a_column_is_as_wide_as_it_was_to_be(words, width):
    assert text.cells(text.pad(words, width)) == width
    assert text.cells(text.cut(words, width)) <= width


@pytest.mark.parametrize("width", [4, 10, 30])
def test_wrapped_text_keeps_every_word_and_fits(width):
    line = "    a long line 京都市京都市 with aVeryLongWordThatFitsNowhereAtAll in it"
    wrapped = text.wrap(line, width)
    assert max(map(text.cells, wrapped)) <= width
    assert "".join("".join(wrapped).split()) == "".join(line.split())
    assert text.wrap(line, None) == [line]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0, "0s"), (0.0004, "0.4ms"), (0.82, "820ms"), (0.9999, "1.0s"), (9.96, "10s"), (59.7, "1m00s"),
     (62, "1m02s"), (3599.9, "1h00m"), (7500, "2h05m"), (273600, "3d04h"), (-2, "-2.0s"), (float("nan"), "-"),
     (float("inf"), "infs"), (1e300, "1e+300s")],
)  # fmt: skip
def test_times_are_short_and_never_fail(seconds, shown):
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_960, "10 kB"),
        (999_600, "1.0 MB"),
        (23e9, "23 GB"),
        (1e30, "1e+15 PB"),
    ],
)
def test_sizes_are_short(value, shown):
    assert text.size(value) == shown


def test_a_time_that_no_clock_shows_is_a_question_mark():
    assert text.local(1e300) == "?"
    assert text.local(float("nan")) == "?"
    assert text.local(None) == "-"
    assert text.ago(100.0, 100.2) == "now"
    assert text.ago(100.0, 290.0) == "3m ago"
    assert text.ago(290.0, 100.0) == "in 3m"
