"""The bytes of a line: how one is closed with its checksum, and how one is judged.

    {"type":"done", … ,"pack":[["<hash>",<offset>,<bytes>]],"dur":81920,"crc":"9ae0daaf"}\\n
    └────── body ─────┘└─ only with pack values ──────────┘└─ tail ───────────────────┘

The checksum is CRC-32 over the identity of the file, the line's own offset, and the line up to `,"crc"`. So a line
that was moved, swapped with another, left over from another file, or changed in any byte is not sound at its place,
and each line can be judged without any other. It tells accidents, not forgeries.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from rolltape.records import Record

LINE_BYTES_MAX = 64 << 20
"""No line is longer, in any version of the format: a reader needs no more memory than this for one."""

CRC_BYTES = len(b',"crc":"9ae0daaf"}\n')

TAIL_BYTES_MAX = 128
"""What closing a line adds to its body at most, its pack entries aside."""

PACK_ENTRY_BYTES_MAX = 80
"""What each of its pack entries adds at most."""

SEAL = b'{"type":"seal"'
"""How the last line of a finished segment begins."""

_encoder = msgspec.json.Encoder()

PackEntry = tuple[str, int, int]
"""(hash, offset in the pack, length) of one value."""


class Trailer(msgspec.Struct):
    """What the writer added to the end of a line."""

    pack: list[PackEntry] = []
    dur: int = 0


def encode_record(record: Record) -> bytes:
    """Encode `record` as the body of a line: JSON without its closing brace."""
    return _encoder.encode(record)[:-1]


def file_seed(identity: str) -> int:
    """Start the checksum of a file. A segment's identity is `<run>/<epoch>/<segment>`, in decimal without padding."""
    return crc32(identity.encode())


def segment_identity(run: str, epoch: int, segment: int) -> str:
    return f"{run}/{epoch}/{segment}"


def with_pack(body: bytes, pack: list[PackEntry]) -> bytes:
    """Add to a body where its pack values lie."""
    return b'%b,"pack":%b' % (body, _encoder.encode(pack))


def tail(dur: int) -> bytes:
    return b',"dur":%d' % dur


def end_of_line(body: bytes, seed: int, offset: int, tail: bytes) -> bytes:
    """What follows a body that will lie at `offset`: the tail, the checksum, the newline. Always as long."""
    crc = crc32(tail, crc32(body, crc32(b"@%d:" % offset, seed)))
    return b'%b,"crc":"%08x"}\n' % (tail, crc)


def close_line(body: bytes, seed: int, offset: int, dur: int, pack: list[PackEntry] | None = None) -> bytes:
    """Return the whole line of a body that will lie at `offset`."""
    body = with_pack(body, pack) if pack else body
    return body + end_of_line(body, seed, offset, tail(dur))


def has_form(line: bytes) -> bool:
    """Say whether `line` ends as our lines do, whether or not its checksum fits."""
    return line[-CRC_BYTES:-11] == b',"crc":"' and line.endswith(b'"}\n')


def is_sound(line: bytes, seed: int, offset: int) -> bool:
    """Say whether `line`, newline included, is what was written at this place of this file."""
    end = len(line) - CRC_BYTES
    if end <= 0:
        return False
    crc = crc32(memoryview(line)[:end], crc32(b"@%d:" % offset, seed))
    return line[end:] == b',"crc":"%08x"}\n' % crc


def dur_of(line: bytes) -> int:
    """Read `dur` from a sound line without decoding the rest."""
    end = len(line) - CRC_BYTES
    return int(line[line.rindex(b',"dur":', 0, end) + 7 : end])


# ---- names -----------------------------------------------------------------------------------------------------------

RUN_FILE = "run.json"
CLAIMS = "claims"
JOURNAL = "journal"


COPY = ".jsonl.zst"
"""How the name of a compressed segment ends."""

NUMBER_MAX = 99_999_999
"""Names have eight digits."""


def claim_name(epoch: int) -> str:
    return f"{CLAIMS}/{epoch:08d}.json"


def epoch_folder(epoch: int) -> str:
    return f"{JOURNAL}/{epoch:08d}"


def segment_name(epoch: int, segment: int) -> str:
    return f"{JOURNAL}/{epoch:08d}/{segment:08d}.jsonl"


def copy_name(epoch: int, segment: int, number: int) -> str:
    """Name the file of a segment's compressed copy. The first has no number in its name."""
    return f"{JOURNAL}/{epoch:08d}/{segment:08d}{'' if number == 1 else f'.{number}'}{COPY}"


def pack_name(epoch: int, segment: int) -> str:
    return f"{JOURNAL}/{epoch:08d}/{segment:08d}.pack"


def copy_of(file: str) -> tuple[int, int] | None:
    """Read a segment's number and the copy's from the name of a compressed segment's file. None: it is none."""
    stem, dot, copy = file.removesuffix(COPY).partition(".")
    number = number_of(stem)
    if number is None or not file.endswith(COPY) or (dot and (not copy.isascii() or not copy.isdigit())):
        return None
    found = (number, int(copy or 1))
    return found if copy_name(0, *found).endswith(f"/{file}") else None


def number_of(name: str, suffix: str = "") -> int | None:
    """Read the number of a claim, epoch folder or segment. None: somebody else's file, which is left alone."""
    stem = name.removesuffix(suffix)
    if len(stem) == 8 and stem.isascii() and stem.isdigit() and name == stem + suffix:
        return int(stem)
    return None
