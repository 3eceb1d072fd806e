"""The bytes of a line, and the files of every version of the format, which stay readable for ever.

`tests/golden/v1` is a whole run with every record type of version 1, and `expected.json` beside it what it says.
`tests/golden/make_v1.py` made both, once. They are never changed; a new version gets files of its own.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape import records
from rolltape.errors import FormatError
from rolltape.journal import Damage, Reader, story_of, verify
from rolltape.journal import format as fmt
from rolltape.journal.epochs import read_claim, read_run
from rolltape.journal.verify import values_of
from rolltape.store import LocalStore
from rolltape.values import Recall, decode

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = sorted(path for path in GOLDEN.glob("v*") if path.is_dir())

BODIES = st.builds(
    lambda name, value: fmt.encode_record(
        records.Note(epoch=1, name=name, value=msgspec.Raw(msgspec.json.encode(value)), unix_s=0.0)
    ),
    st.text(max_size=40),
    st.none() | st.text() | st.lists(st.integers(-(2**63), 2**63 - 1)),
)
PACKS = st.lists(
    st.tuples(st.text("0123456789abcdef", min_size=32, max_size=32), st.integers(0, 2**40), st.integers(0, 2**30)),
    max_size=3,
)
OFFSETS = st.integers(0, 2**40)
IDENTITIES = st.builds(
    fmt.segment_identity, st.text("0123456789abcdef", min_size=32, max_size=32), st.integers(1, 99), st.integers(1, 99)
)


# ---- a line ----------------------------------------------------------------------------------------------------------


def test_a_line_is_these_very_bytes():
    """One line by hand, as docs/format.md has it, so that no change to the code can move writer and reader together."""
    seed = fmt.file_seed(fmt.segment_identity("c0ffee00c0ffee00c0ffee00c0ffee00", 7, 3))
    line = fmt.close_line(b'{"type":"heartbeat","unix_s":1.5', seed, 81920, 4096)
    assert line == b'{"type":"heartbeat","unix_s":1.5,"dur":4096,"crc":"%08x"}\n' % crc32(
        b'c0ffee00c0ffee00c0ffee00c0ffee00/7/3@81920:{"type":"heartbeat","unix_s":1.5,"dur":4096'
    )
    assert line.endswith(b',"crc":"6b1d0c2c"}\n')


@given(body=BODIES, identity=IDENTITIES, offset=OFFSETS, dur=OFFSETS, pack=PACKS)
@settings(deadline=None)
def test_a_closed_line_is_json_and_says_what_was_put_into_it(body, identity, offset, dur, pack):
    """Any JSON reader can read a line; the fields that the journal adds come last, and the record is untouched."""
    line = fmt.close_line(body, fmt.file_seed(identity), offset, dur, pack)
    assert fmt.is_sound(line, fmt.file_seed(identity), offset)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    found = json.loads(line)
    crc, found_dur, found_pack = found.pop("crc"), found.pop("dur"), found.pop("pack", [])
    assert found == json.loads(body + b"}")
    assert crc == f"{crc32(f'{identity}@{offset}:'.encode() + line[: -fmt.CRC_BYTES]):08x}"
    assert found_dur == dur == fmt.dur_of(line)
    assert [tuple(entry) for entry in found_pack] == pack == msgspec.json.decode(line, type=fmt.Trailer).pack
    assert values_of(line) == [digest for digest, _, _ in pack]


@given(body=BODIES, identity=IDENTITIES, offset=OFFSETS, pack=PACKS, xor=st.integers(1, 255), data=st.data())
@settings(deadline=None, max_examples=300)
def test_a_line_with_one_byte_changed_is_not_sound(body, identity, offset, pack, xor, data):
    """Any byte: of the record, of `dur`, of the checksum, of the newline."""
    seed = fmt.file_seed(identity)
    line = bytearray(fmt.close_line(body, seed, offset, offset, pack))
    line[data.draw(st.integers(0, len(line) - 1))] ^= xor
    assert not fmt.is_sound(bytes(line), seed, offset)


@given(body=BODIES, identity=IDENTITIES, offset=OFFSETS, elsewhere=OFFSETS)
@settings(deadline=None)
def test_a_line_that_was_moved_is_not_sound(body, identity, offset, elsewhere):
    """The checksum covers the line's own place, so that a stale or a swapped block cannot pass."""
    seed = fmt.file_seed(identity)
    line = fmt.close_line(body, seed, offset, 0)
    assert fmt.is_sound(line, seed, elsewhere) == (elsewhere == offset)


@given(body=BODIES, identity=IDENTITIES, other=IDENTITIES, offset=OFFSETS)
@settings(deadline=None)
def test_a_line_of_another_file_is_not_sound(body, identity, other, offset):
    """Nor one of another run, epoch or segment."""
    line = fmt.close_line(body, fmt.file_seed(identity), offset, 0)
    assert fmt.is_sound(line, fmt.file_seed(other), offset) == (other == identity)


@given(body=BODIES, identity=IDENTITIES, offset=OFFSETS, data=st.data())
@settings(deadline=None)
def test_a_line_that_was_cut_or_lengthened_is_not_sound(body, identity, offset, data):
    """At every byte, and with anything behind it."""
    seed = fmt.file_seed(identity)
    line = fmt.close_line(body, seed, offset, 0)
    for end in range(len(line)):
        assert not fmt.is_sound(line[:end], seed, offset)
    assert not fmt.is_sound(line + data.draw(st.binary(min_size=1, max_size=40)), seed, offset)


@given(junk=st.binary(max_size=200), offset=OFFSETS)
@settings(deadline=None)
def test_what_was_never_a_line_is_not_sound(junk, offset):
    """Zeros, an empty line, anything at all: an answer, not an exception."""
    assert not fmt.is_sound(junk, fmt.file_seed("x"), offset)
    assert not fmt.is_sound(bytes(len(junk)), fmt.file_seed("x"), offset)


def test_a_value_that_looks_like_the_end_of_a_line_does_not_deceive():
    """A user's value may hold `dur`, `crc` and `pack` as a line has them; only the line's own end is read."""
    value = {"a": '"}\n', "pack": [["00", 0, 1]], "dur": 99999, "crc": "00000000"}
    note = records.Note(epoch=1, name='","dur":77777', value=msgspec.Raw(msgspec.json.encode(value)), unix_s=0.0)
    seed = fmt.file_seed("x")
    for pack in ([], [("11" * 16, 2, 3)]):
        line = fmt.close_line(fmt.encode_record(note), seed, 500, 400, pack)
        assert fmt.dur_of(line) == 400
        assert values_of(line) == [digest for digest, _, _ in pack]
        assert fmt.is_sound(line, seed, 500)


# ---- names -----------------------------------------------------------------------------------------------------------


@given(number=st.integers(1, 99_999_999))
@settings(deadline=None)
def test_a_number_comes_back_from_its_name(number):
    """And so names sort as their numbers do."""
    assert fmt.number_of(fmt.claim_name(number).removeprefix("claims/"), ".json") == number
    assert fmt.number_of(fmt.epoch_folder(number).removeprefix("journal/")) == number
    assert fmt.number_of(fmt.segment_name(1, number).removeprefix("journal/00000001/"), ".jsonl") == number


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".jsonl",
        "1.jsonl",
        "0000001.jsonl",
        "000000001.jsonl",
        "00000001",
        "00000001.jsonl~",
        "00000001.pack",
        "00000001.jsonl.zst",
        "00000001.JSONL",
        " 0000001.jsonl",
        "+0000001.jsonl",
        "-0000001.jsonl",
        "0000_001.jsonl",
        "0000000a.jsonl",
        "٠٠٠٠٠٠٠١.jsonl",
        "0000000².jsonl",
        ".tmp-00000001.jsonl",
        "00000001.jsonl.jsonl",
    ],
)
def test_the_name_of_somebody_elses_file_is_no_number(name):
    """What an editor, a copy or a crash left in the directory is left alone."""
    assert fmt.number_of(name, ".jsonl") is None


# ---- golden files ----------------------------------------------------------------------------------------------------


def expected_of(version: Path) -> dict[str, Any]:
    return json.loads((version / "expected.json").read_bytes())


def fields_of(record: records.Record) -> dict[str, Any]:
    """Every field, those at their default too, as JSON has it: a default that changes changes what old files say."""
    found = {name: _plain(value) for name, value in msgspec.structs.asdict(record).items()}
    return {"type": type(record).__struct_config__.tag, **found}


def _plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value) or b"null")  # a value that was left out is an empty text


KINDS: dict[str, type[records.Record]] = {str(kind.__struct_config__.tag): kind for kind in records.ALL}


def test_there_are_golden_files_of_every_version_up_to_this_one():
    """A new major version brings its own, and leaves the older ones where they are."""
    assert [path.name for path in VERSIONS] == [f"v{number}" for number in range(1, records.FORMAT + 1)]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_golden_files_hold_every_record_type_of_their_version(version):
    """So that none can be changed without being noticed here."""
    run = version / "run"
    lines = [line for path in run.rglob("*.json*") for line in path.read_bytes().splitlines()]
    lines += [path.read_bytes().partition(b"\n")[0] for path in run.rglob("*.pack")]
    found = {json.loads(line)["type"] for line in lines if line.endswith(b"}")}
    if version == VERSIONS[-1]:
        assert set(KINDS) <= found
    assert set(expected_of(version)["types"]) == found


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_golden_files_read_today_as_they_did_when_they_were_written(version):
    """Every line with its place, every field with its value, every binary value, every trajectory's story."""
    expected = expected_of(version)
    store = LocalStore(version / "run")
    damages: list[Damage] = []
    reader = Reader(store)

    assert fields_of(read_run(store)) == expected["run"]
    claims = [read_claim(store, reader.run, epoch) for epoch in range(1, len(expected["claims"]) + 1)]
    assert [None if claim is None else fields_of(claim) for claim in claims] == expected["claims"]

    lines = list(reader.scan(damages.append))
    assert [[line.epoch, line.segment, line.offset] for line in lines] == [entry["at"] for entry in expected["lines"]]
    for line, entry in zip(lines, expected["lines"], strict=True):
        kind = KINDS.get(line.envelope().type)
        assert entry["record"] == (json.loads(line.raw) if kind is None else fields_of(line.decode(kind)))
        values = {digest: reader.value(line, digest).hex() for digest in values_of(line.raw)}
        assert values == entry.get("values", {})

    stories = {key: lineage.story() for key, lineage in verify(store, damages.append).items()}
    assert {key: _story(story) for key, story in stories.items()} == expected["stories"]
    assert damages == []


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_golden_values_come_back_equal_and_of_the_same_types(version):
    """Every tag, and references to earlier records of the trajectory."""
    reader = Reader(LocalStore(version / "run"))
    recall, found = Recall(), []
    for entry in story_of(reader, "values#0", lambda damage: pytest.fail(str(damage))).entries:
        recall.learn(entry.point, entry.place.raw)
        if entry.envelope.type == "done":
            result = entry.place.decode(records.Done).result
            blob = functools.partial(reader.value, entry.place)
            found.append(repr(decode(result, blob=blob, recall=recall)["value"]))
    assert found == expected_of(version)["values"]


def _story(story: Any) -> dict[str, Any]:
    return {
        "counts": [list(entry.point) for entry in story.entries],
        "stale": [list(entry.point) for entry in story.stale],
        "accepted": story.accepted,
    }


def test_this_version_still_writes_what_its_golden_files_hold():
    """Reading a line and writing it again gives the same bytes: no field was renamed, reordered or given a default."""
    run = GOLDEN / f"v{records.FORMAT}" / "run"
    store = LocalStore(run)
    checked = set()
    for line in Reader(store).scan(lambda damage: pytest.fail(str(damage))):
        kind = KINDS.get(line.envelope().type)
        if kind is not None and kind is not records.Segment:
            body = fmt.encode_record(line.decode(kind))
            assert line.raw.startswith(body + b","), kind
            checked.add(kind)
    assert checked == set(records.ALL) - {records.RunCreated, records.Claim, records.Pack, records.Segment}
    assert (run / "run.json").read_bytes().startswith(fmt.encode_record(read_run(store)) + b",")


def test_golden_files_are_read_only_by_whoever_knows_their_version(tmp_path):
    """A newer major version is refused by name, wherever it is met first, and an unknown minor one is not."""
    newer = records.RunCreated(format=records.FORMAT + 1, run="00" * 16, unix_s=0.0)
    _write(tmp_path / "newer" / "run.json", fmt.RUN_FILE, newer)
    with pytest.raises(FormatError, match=rf"run\.json has format {records.FORMAT + 1}.*install a newer one"):
        read_run(LocalStore(tmp_path / "newer"))

    minor = records.RunCreated(format=records.FORMAT, minor=records.FORMAT_MINOR + 1, run="00" * 16, unix_s=0.0)
    _write(tmp_path / "minor" / "run.json", fmt.RUN_FILE, minor)
    assert read_run(LocalStore(tmp_path / "minor")).minor == records.FORMAT_MINOR + 1

    segment = records.Segment(format=records.FORMAT + 1, run="00" * 16, epoch=1, segment=1, unix_s=0.0)
    path = tmp_path / "minor" / "journal" / "00000001" / "00000001.jsonl"
    _write(path, fmt.segment_identity("00" * 16, 1, 1), segment)
    with pytest.raises(FormatError, match=r"00000001\.jsonl has format"):
        list(Reader(LocalStore(tmp_path / "minor")).scan(lambda damage: None))


def test_a_newer_version_is_refused_before_its_checksum_is_judged(tmp_path):
    """A version to come may check its lines in another way; it must not be called damaged by one that can't tell."""
    (tmp_path / "run.json").write_bytes(b'{"type":"run","format":2,"run":"00","blake3":"0011"}\n')
    with pytest.raises(FormatError):
        read_run(LocalStore(tmp_path))


def _write(path: Path, identity: str, record: records.Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(fmt.close_line(fmt.encode_record(record), fmt.file_seed(identity), 0, 0))
