"""Made `tests/golden/v1`, once: a run that holds every record type of format version 1, and what it says.

    PYTHONPATH=src python tests/golden/make_v1.py tests/golden/v1

Identities and times are fixed, so that it makes the same bytes wherever it runs. It refuses to touch files that are
there: what lies under `v1` is what version 1 wrote, and no later code may write it again.
"""

from __future__ import annotations

import json
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from rolltape import records as r
from rolltape.journal import format as fmt
from rolltape.values import Memory, encode

RUN = "0123456789abcdef0123456789abcdef"
NOW = 1795000000.25

REPLY = {"role": "assistant", "content": "The answer is two. " * 20}
VALUES = [
    {"plain": [None, True, -1, 2**70, 1.5, "Zürich \U0001f600"], "deep": {"a": {"b": [[]]}}},
    [float("inf"), float("-inf"), float("nan"), -0.0, 1e300, 5e-324],
    {"bytes": b"\x00\xff", "long": bytes(range(256)) * 129, "empty": b""},
    {"surrogate": "\ud800", "$map": "a key that looks like a tag", 'quoted" \\ \n\u2028': "\x7f\x00"},
    dict([(1, "a"), ((2, 3), "b"), (None, "c"), (b"k", "d"), (1.5, "e"), (True, "f")]),
    (1, (), [(2,)], {3}, frozenset({b"4"})),
    REPLY,
    [{"role": "user", "content": "1 + 1 = ?"}, REPLY],
    [{"role": "user", "content": "1 + 1 = ?"}, REPLY, {"role": "user", "content": "Sure?"}],
]


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value, ensure_ascii=False).encode())


class Segment:
    """One segment under construction, with its pack."""

    def __init__(self, root: Path, epoch: int, number: int, previous: list[tuple[int, int, int]]) -> None:
        self.root, self.epoch, self.number = root, epoch, number
        self.identity = fmt.segment_identity(RUN, epoch, number)
        self.data = self.pack = b""
        self.count = self.proven = 0
        self.lines: list[dict[str, Any]] = []
        self.add(r.Segment(format=1, minor=0, run=RUN, epoch=epoch, segment=number, previous=previous, unix_s=NOW))
        self.count = 0

    def add(self, record: r.Record, *values: bytes) -> None:
        self.add_body(fmt.encode_record(record), _fields(record), *values)

    def add_body(self, body: bytes, says: dict[str, Any], *values: bytes) -> None:
        entries = [self._pack(value) for value in values]
        at = len(self.data)
        line = fmt.close_line(body, fmt.file_seed(self.identity), at, self.proven, entries)
        if says.get("type") not in KINDS:
            says = json.loads(line)
        self.lines.append({"at": [self.epoch, self.number, at], "record": says})
        if values:
            self.lines[-1]["values"] = {entry[0]: value.hex() for entry, value in zip(entries, values, strict=True)}
        self.data += line
        self.count += 1

    def sync(self) -> None:
        self.proven = len(self.data)

    def seal(self) -> None:
        self.sync()
        self.add(r.Seal(records=self.count, pack_bytes=len(self.pack), unix_s=NOW))
        self.sync()

    def write(self, torn: bytes = b"") -> None:
        _write(self.root / fmt.segment_name(self.epoch, self.number), self.data + torn)
        if self.pack:
            _write(self.root / fmt.pack_name(self.epoch, self.number), self.pack)

    def _pack(self, value: bytes) -> fmt.PackEntry:
        if not self.pack:
            header = r.Pack(format=1, run=RUN, epoch=self.epoch, segment=self.number)
            identity = fmt.pack_name(self.epoch, self.number)
            self.pack = fmt.close_line(fmt.encode_record(header), fmt.file_seed(identity), 0, 0)
        entry = (blake2b(value, digest_size=16).hexdigest(), len(self.pack), len(value))
        self.pack += value
        return entry


def make(root: Path) -> dict[str, Any]:
    """Write the run under `root` and return what it says."""
    created = r.RunCreated(
        format=1, minor=0, run=RUN, unix_s=NOW, config=raw({"samples": 2, "store": "runs/gsm8k", "name": "Zürich"})
    )
    _write(root / fmt.RUN_FILE, _alone(created, fmt.RUN_FILE))
    claims = [_claim(epoch) for epoch in (1, 2)]
    for claim in claims:
        _write(root / fmt.claim_name(claim.epoch), _alone(claim, f"{RUN}/claims/{claim.epoch}"))
    first = _first_segment(root)
    second = _second_segment(root, first)
    third = _other_epoch(root)
    lines = [*first.lines, *second.lines, *third.lines]
    others = ["run", "claim", "pack"]
    return {
        "types": sorted({*others, *(line["record"]["type"] for line in lines)}),
        "run": _fields(created),
        "claims": [_fields(claim) for claim in claims],
        "lines": lines,
        "stories": {
            "q1#0": {
                "counts": [*([1, 1, seq] for seq in range(16) if seq != 13), *([2, 2, seq] for seq in range(3))],
                "stale": [[1, 1, 13], [1, 1, 16], [1, 1, 17]],
                "accepted": False,
            },
            "q1@3#1": {"counts": [[1, 1, seq] for seq in range(5)], "stale": [], "accepted": True},
            "defaults#0": {"counts": [[2, 1, seq] for seq in range(12)], "stale": [], "accepted": False},
            "other#0": {"counts": [], "stale": [], "accepted": False},
            "values#0": {"counts": [[1, 1, seq] for seq in range(len(VALUES) + 1)], "stale": [], "accepted": False},
        },
        "values": [repr(value) for value in VALUES],
    }


def _first_segment(root: Path) -> Segment:
    """What belongs to the run, and one trajectory with every kind of step, each field of it set."""
    s = Segment(root, 1, 1, [])
    s.sync()
    s.add(r.PolicyVersion(epoch=1, lineage="main", version=7, unix_s=NOW))
    s.add(
        r.Note(epoch=1, name="accepted_change", value=raw({"field": "temperature", "from": 1, "to": 0.7}), unix_s=NOW)
    )
    s.add(r.Take(key="q1#0", epoch=1, attempt=1, unix_s=NOW))
    s.sync()
    id = {"key": "q1#0", "epoch": 1, "attempt": 1}
    s.add(
        r.Attempt(
            **id, seq=0, continues=None, task="q1", visit=0, sample=0, inputs=raw({"question": "1 + 1 = ?"}),
            fork_of=None, unix_s=NOW,
        )
    )  # fmt: skip
    s.sync()
    s.add(r.Begun(**id, seq=1, path="0", name="sample", unix_s=NOW))
    weights, image = bytes(range(256)) * 2, b"\x89PNG\r\n\x1a\n" + bytes(100)
    s.add(
        r.Done(
            **id, seq=2, path="0", name="sample", kind="model", fingerprint="5f" * 16,
            call=raw({"args": ["1 + 1 = ?"], "kwargs": {"temperature": 0.7}}),
            result=raw({"value": {"text": "2 \U0001f600 ü", "logprobs": {"$": "bytes"}, "image": {"$": "bytes"}}}),
            changed=raw({"messages": [1, 2]}), resource="env", backend="vllm", policy=("main", 7),
            usage=raw({"input_tokens": 7, "output_tokens": 1}), unix_s=NOW, took_s=0.125,
        ),
        weights, image,
    )  # fmt: skip
    s.add(r.Retry(**id, seq=3, path="1", name="grade", tries=1, wait_s=0.5, error=raw({"message": "429"}), unix_s=NOW))
    s.add(
        r.Failed(
            **id, seq=4, path="1", name="grade", kind="grader", fingerprint="6f" * 16, call=raw({"args": [2]}),
            error=raw({"type": "builtins.ValueError", "message": "no", "args": ["no"]}), cause="task",
            delivery="delivered", unix_s=NOW, took_s=0.25,
        )
    )  # fmt: skip
    s.add(
        r.Cancelled(
            **id, seq=5, path="2", name="click", kind="env", fingerprint="7f" * 16, call=raw({"args": []}),
            delivery="not_sent", unix_s=NOW, took_s=1.5,
        )
    )  # fmt: skip
    s.add(
        r.Intent(
            **id, seq=6, path="3", name="send_mail", fingerprint="8f" * 16, call=raw({"kwargs": {"to": "a@b"}}),
            idempotency_key="q1#0/3", unix_s=NOW,
        )
    )  # fmt: skip
    s.sync()
    s.add(r.Done(**id, seq=7, path="3", name="send_mail", fingerprint="8f" * 16, result=raw({"value": None})), weights)
    s.add(r.Chosen(**id, seq=8, path="4", name="first", order=["b", "a"]))
    s.add(r.Kept(**id, seq=9, path="5", name="now", kind="time", value=raw({"value": NOW}), unix_s=NOW))
    s.add(r.ResourceOpening(**id, seq=10, path="6", name="env", recovery="reattach", id="sb-1", unix_s=NOW))
    s.sync()
    s.add(
        r.ResourceOpened(
            **id,
            seq=11,
            path="6",
            name="env",
            recovery="reattach",
            id="sb-1",
            handle=raw({"url": "http://x"}),
            unix_s=NOW,
        )
    )
    s.add(r.ResourceReleased(**id, seq=12, path="6", name="env", id="sb-1", reason="closed", unix_s=NOW))
    s.add(
        r.Commit(
            **id, seq=13, path="7", name="commit", state=raw({"value": {"turn": 3}}), resources=raw({"env": "sb-1"}),
            ordinals=raw({"": 8}), unix_s=NOW,
        )
    )  # fmt: skip
    s.add(
        r.Resampled(
            **id, seq=14, path="0", name="sample", reason="truncate", back_to=(1, 1, 12), kept=[(1, 1, 12)], unix_s=NOW
        )
    )  # fmt: skip
    s.add(r.Kept(**id, seq=15, path="8", name="note", kind="text", value=raw({"value": 'line\u2028 "quoted" \\ \n'})))
    s.seal()
    s.write()
    return s


def _second_segment(root: Path, before: Segment) -> Segment:
    """The same trajectory goes on, although another epoch has taken it over, and another one is completed."""
    s = Segment(root, 1, 2, [(1, len(before.data), len(before.data))])
    s.sync()
    id = {"key": "q1#0", "epoch": 1, "attempt": 1}
    s.add(r.Parked(**id, seq=16, path="9", reason="in_doubt", detail=raw({"step": "send_mail"}), unix_s=NOW))
    s.add(r.Resolved(**id, seq=17, decision="happened", value=raw({"value": 1}), unix_s=NOW))
    s.sync()
    id = {"key": "q1@3#1", "epoch": 1, "attempt": 1}
    s.add(r.Take(**id, unix_s=NOW))
    s.add(r.Attempt(**id, seq=0, task="q1", visit=3, sample=1, unix_s=NOW))
    s.add(r.Outcome(**id, seq=1, status="aborted", cause="infrastructure", error=raw({"message": "gone"}), unix_s=NOW))
    s.add(r.Resolved(**id, seq=2, decision="again", unix_s=NOW))
    s.add(
        r.Outcome(**id, seq=3, status="completed", cause="policy", reward=-0.5, result=raw({"value": -0.5}), unix_s=NOW)
    )
    s.add(r.Accepted(**id, seq=4, unix_s=NOW))
    s.sync()
    s.add(r.Delivered(epoch=1, number=1, keys=["q1#0", "q1@3#1"], lineage="main", unix_s=NOW))
    s.add(r.Consumed(epoch=1, number=1, lineage="main", unix_s=NOW))
    s.add(r.Rewound(epoch=1, number=0, lineage="main.1", unix_s=NOW))
    s.add(
        r.Batch(
            epoch=1, step=12, rank=1, world_size=2, file="batches/step_000012/rank_00001.safetensors", file_bytes=4096,
            digest="ab" * 8, unix_s=NOW,
        )
    )  # fmt: skip
    s.add(r.Heartbeat(unix_s=NOW))
    _add_values(s)
    s.add_body(b'{"type":"of_a_later_minor_version","epoch":1,"anything":{"at":["all",null]}', {})
    s.seal()
    s.write()
    return s


def _add_values(s: Segment) -> None:
    """A trajectory whose results are `VALUES`, the later ones as references to the earlier ones."""
    id = {"key": "values#0", "epoch": 1, "attempt": 1}
    memory = Memory()
    s.add(r.Attempt(**id, seq=0, task="values", unix_s=NOW))
    for seq, value in enumerate(VALUES, start=1):
        encoded = encode({"value": value}, where="/result", memory=memory)
        result = msgspec.Raw(encoded.json)
        s.add(r.Done(**id, seq=seq, path=str(seq - 1), result=result), *encoded.blobs.values())
        memory.commit((1, 1, seq), encoded.notes)
    s.sync()


def _other_epoch(root: Path) -> Segment:
    """What a second process wrote until it was killed: records with their defaults, and a line torn in the middle."""
    s = Segment(root, 2, 1, [])
    s.sync()
    s.add(r.Take(key="q1#0", epoch=2, attempt=2, unix_s=NOW))
    s.add(r.Take(key="other#0", epoch=2, attempt=1, unix_s=NOW))
    s.add(r.Withdrawn(key="other#0", epoch=2, attempt=1))
    s.sync()
    id = {"key": "q1#0", "epoch": 2, "attempt": 2}
    s.add(r.Attempt(**id, seq=0, continues=(1, 1, 15), fork_of=None, unix_s=NOW))
    s.add(r.Done(**id, seq=1, path="9"))
    s.add(r.Outcome(**id, seq=2, status="failed", unix_s=NOW))
    s.sync()
    id = {"key": "defaults#0", "epoch": 2, "attempt": 1}
    s.add(r.Attempt(**id, seq=0, fork_of="q1#0", unix_s=NOW))
    s.add(r.Intent(**id, seq=1, path="0", fingerprint="", unix_s=NOW))
    s.add(r.Failed(**id, seq=2, path="0", error=raw({})))
    s.add(r.Cancelled(**id, seq=3, path="0"))
    s.add(r.Retry(**id, seq=4, path="", tries=2, wait_s=0.0, unix_s=NOW))
    s.add(r.ResourceOpening(**id, seq=5, path="1", recovery="restart", unix_s=NOW))
    s.add(r.ResourceOpened(**id, seq=6, path="1", recovery="restart", unix_s=NOW))
    s.add(r.ResourceReleased(**id, seq=7, path="1", unix_s=NOW))
    s.add(r.Commit(**id, seq=8, path="2", state=raw({"value": None}), unix_s=NOW))
    s.add(r.Parked(**id, seq=9, reason="damaged", unix_s=NOW))
    s.add(r.Resolved(**id, seq=10, decision="discard", unix_s=NOW))
    s.add(r.Kept(**id, seq=11, path="3", kind="", value=raw({"value": 0})))
    s.add(r.Note(epoch=2, name="", unix_s=NOW))
    s.add(r.Delivered(epoch=2, number=2, keys=[], unix_s=NOW))
    s.add(r.Consumed(epoch=2, number=2, unix_s=NOW))
    s.add(
        r.Batch(epoch=2, step=0, file="batches/step_000000/rank_00000.safetensors", file_bytes=0, digest="", unix_s=NOW)
    )
    s.sync()
    s.write(torn=b'{"type":"done","key":"defaults#0","epoch":2,"attempt":1,"seq":12,"pa')
    return s


def _claim(epoch: int) -> r.Claim:
    return r.Claim(
        epoch=epoch, run=RUN, host="node-17", boot="5d5f1c3e-0000-4000-8000-0123456789ab", pid_namespace=4026531836,
        pid=4242 + epoch, started=123456789, durability="disk" if epoch == 1 else "os", lease_s=30.0, unix_s=NOW,
    )  # fmt: skip


KINDS = {str(kind.__struct_config__.tag) for kind in r.ALL}


def _fields(record: r.Record) -> dict[str, Any]:
    found = {
        name: json.loads(msgspec.json.encode(value) or b"null")
        for name, value in msgspec.structs.asdict(record).items()
    }
    return {"type": type(record).__struct_config__.tag, **found}


def _alone(record: r.Record, identity: str) -> bytes:
    return fmt.close_line(fmt.encode_record(record), fmt.file_seed(identity), 0, 0)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if target.exists():
        sys.exit(f"{target} is there already: golden files are never made again")
    says = make(target / "run")
    lines = ",\n  ".join(json.dumps(line, ensure_ascii=False) for line in says.pop("lines"))
    rest = json.dumps(says, ensure_ascii=False, indent=1).removesuffix("\n}")
    _write(target / "expected.json", f'{rest},\n "lines": [\n  {lines}\n ]\n}}\n'.encode())
