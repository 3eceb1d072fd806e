"""Every record that a run's files can hold. Nothing else is ever written.

One record is one line of JSON. Each top-level field has one JSON type, whatever the record; what a user's value may
be lies one level deeper (`call`, `result`, `state`, …). The journal adds `pack`, `dur` and `crc` to the end of each
line (`journal/format.py`). Fields at their default are left out. A reader skips record types and fields that it does
not know.

A record of a trajectory carries its `key` and where it stands in the order of things: `epoch` (which opening of the
run wrote it), `attempt` (which try at the trajectory) and `seq` (0 for the attempt's own record, then without gaps).
A take is no part of an attempt and has no `seq`. Wall time (`unix_s`) is a label, never an order.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec
from msgspec import Raw

FORMAT = 1
"""The major version. A reader refuses a higher one."""

FORMAT_MINOR = 0
"""Rises when record types or fields are added, which older readers skip."""

Point = tuple[int, int, int]
"""(epoch, attempt, seq): the place of one record in a trajectory's story."""

NOTHING = Raw()
"""The value of a field that was left out. (msgspec cannot decode `Raw | None`.)"""

OutcomeStatus = Literal["completed", "failed", "aborted", "cancelled"]
Cause = Literal["policy", "task", "infrastructure", "unknown"]
Delivery = Literal["not_sent", "possibly_delivered", "delivered"]


class Record(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """The base of every record: `type` is the tag."""

    durable: ClassVar[bool] = False
    """Synced before it is acknowledged at every durability, `os` too: the fencing protocol rests on it."""


# ---- the run and its files -------------------------------------------------------------------------------------------


class RunCreated(Record, kw_only=True, tag="run"):
    """`run.json`: created once, never changed."""

    format: int
    minor: int = 0
    run: str
    """The run's identity: 32 hexadecimal digits, in every segment's header and, unseen, in every checksum."""
    unix_s: float
    config: Raw = NOTHING
    """The first configuration and the fingerprint of the tasks, as the caller gave them."""


class Claim(Record, kw_only=True, tag="claim"):
    """`claims/<epoch>.json`: which process opened the run for writing."""

    epoch: int
    run: str
    host: str
    boot: str
    """The kernel's boot id, so that a pid is never taken for one of an earlier boot."""
    pid_namespace: int
    pid: int
    started: int
    """The process's start time in clock ticks since boot, so that a pid used again is not taken for it."""
    durability: str
    lease_s: float
    unix_s: float


class Segment(Record, kw_only=True, tag="segment"):
    """The first line of every segment."""

    format: int
    minor: int = 0
    run: str
    epoch: int
    segment: int
    previous: list[tuple[int, int, int]] = []
    """(segment, good length, proven length) of those before it that no later header has stated yet."""
    unix_s: float


class Pack(Record, kw_only=True, tag="pack"):
    """The first line of every pack. What follows is values, end to end, found through the lines that name them."""

    format: int
    run: str
    epoch: int
    segment: int


class Seal(Record, kw_only=True, tag="seal"):
    """The last line of a finished segment: nothing comes after it."""

    records: int
    pack_bytes: int = 0
    closed: bool = False
    """The epoch is closed too: its writer has ended, so nobody has to wait for its lease."""
    unix_s: float


class Heartbeat(Record, kw_only=True, tag="heartbeat"):
    """An idle writer lives. Its `dur` proves all that went before."""

    unix_s: float


class PolicyVersion(Record, kw_only=True, tag="policy_version"):
    """The trainer's weights from here on: (lineage, number)."""

    epoch: int
    lineage: str
    version: int
    unix_s: float


class Delivered(Record, kw_only=True, tag="delivered"):
    """A group was handed to the caller, as this number of the run's order."""

    epoch: int
    number: int
    keys: list[str]
    lineage: str = ""
    unix_s: float


class Consumed(Record, kw_only=True, tag="consumed"):
    """The caller said that everything delivered up to `number` is in its own durable state."""

    epoch: int
    number: int
    lineage: str = ""
    unix_s: float


class Rewound(Record, kw_only=True, tag="rewound"):
    """The caller went back: what was delivered after `number` is delivered again, under a new lineage."""

    epoch: int
    number: int
    lineage: str
    unix_s: float


class Batch(Record, kw_only=True, tag="batch"):
    """One shard of a training step's batch is complete on disk."""

    epoch: int
    step: int
    rank: int = 0
    world_size: int = 1
    file: str
    file_bytes: int
    digest: str
    unix_s: float


class Note(Record, kw_only=True, tag="note"):
    """Something about the run that is worth keeping and that no rule reads (accepted changes, an outage, a limit)."""

    epoch: int
    name: str
    value: Raw = NOTHING
    unix_s: float


# ---- one trajectory: who may work on it ------------------------------------------------------------------------------


class OfTrajectory(Record, kw_only=True):
    """What belongs to one attempt at one trajectory."""

    key: str
    epoch: int
    attempt: int


class Take(OfTrajectory, kw_only=True, tag="take"):
    """Somebody is about to start or continue this trajectory. Changes no reading by itself."""

    durable: ClassVar[bool] = True
    unix_s: float


class Withdrawn(OfTrajectory, kw_only=True, tag="withdrawn"):
    """The take of the same epoch and attempt will not be followed by an attempt."""

    durable: ClassVar[bool] = True


class InOrder(OfTrajectory, kw_only=True):
    """What has a place in the attempt's order."""

    seq: int


class Attempt(InOrder, kw_only=True, tag="attempt"):
    """`seq` 0 of every attempt: what it continues. Whatever the older attempt adds after that point is stale."""

    durable: ClassVar[bool] = True
    continues: Point | None = None
    task: str = ""
    visit: int = 0
    sample: int = 0
    inputs: Raw = NOTHING
    """The task's own content, at the first attempt."""
    fork_of: str | None = None
    """The key of the trajectory whose recorded past this one shares up to `continues`."""
    unix_s: float


# ---- one trajectory: its steps ---------------------------------------------------------------------------------------


class StepRecord(InOrder, kw_only=True):
    """One call: `path` says where it stands (scope and ordinal), `name` and `fingerprint` what was asked."""

    path: str
    name: str = ""
    cancelling: bool = False
    """Recorded by code that was cleaning up after a cancellation. Only what follows unmarked shows that it went on."""


class Begun(StepRecord, kw_only=True, tag="begun"):
    """A long step has started. Only tells readers what is going on; resume does not need it."""

    unix_s: float


class Intent(StepRecord, kw_only=True, tag="intent"):
    """A mutation is about to be made. From here to its end it may have happened."""

    durable: ClassVar[bool] = True
    fingerprint: str
    call: Raw = NOTHING
    idempotency_key: str = ""
    unix_s: float


class Done(StepRecord, kw_only=True, tag="done"):
    """The step returned."""

    kind: str = ""
    fingerprint: str = ""
    call: Raw = NOTHING
    """{"args": […], "kwargs": {…}}"""
    result: Raw = NOTHING
    """{"value": …} and, where JSON does not tell it, {"type": …}"""
    changed: Raw = NOTHING
    """Arguments that the function is declared to change, as it left them."""
    resource: str = ""
    backend: str = ""
    policy: tuple[str, int] | None = None
    usage: Raw = NOTHING
    unix_s: float = 0.0
    took_s: float = 0.0


class Failed(StepRecord, kw_only=True, tag="failed"):
    """The step raised."""

    kind: str = ""
    fingerprint: str = ""
    call: Raw = NOTHING
    error: Raw
    """{"type", "message", "args", "traceback", …}"""
    cause: Cause = "unknown"
    delivery: Delivery = "possibly_delivered"
    unix_s: float = 0.0
    took_s: float = 0.0


class Cancelled(StepRecord, kw_only=True, tag="cancelled"):
    """The step was cancelled before its result reached the rollout."""

    kind: str = ""
    fingerprint: str = ""
    call: Raw = NOTHING
    delivery: Delivery = "possibly_delivered"
    unix_s: float = 0.0
    took_s: float = 0.0


class Retry(StepRecord, kw_only=True, tag="retry"):
    """A failed call, or a failed attempt (`path` empty), is tried again."""

    tries: int
    wait_s: float
    error: Raw = NOTHING
    unix_s: float


class Chosen(StepRecord, kw_only=True, tag="chosen"):
    """What completion order decided: which branches, first to last."""

    order: list[str]


class Kept(StepRecord, kw_only=True, tag="kept"):
    """A value that the rollout asked to be kept: `traj.record`, the time, a random seed."""

    kind: str
    value: Raw
    unix_s: float = 0.0


class Resampled(StepRecord, kw_only=True, tag="resampled"):
    """The step at `path` and what followed it do not count: it is called again (rewind, truncate)."""

    reason: str
    back_to: Point
    """The first record of the story that does not count any more. Nor does what follows it, up to this one."""
    kept: list[Point] = []
    """Those among them that count all the same: other branches' steps, which were replayed before this."""
    unix_s: float


# ---- one trajectory: its state and the world -------------------------------------------------------------------------


class ResourceOpening(StepRecord, kw_only=True, tag="resource_opening"):
    """A resource with an outside life is about to be opened under `id`: a crash from here on may leave an orphan."""

    durable: ClassVar[bool] = True
    recovery: str
    id: str = ""
    unix_s: float


class ResourceOpened(StepRecord, kw_only=True, tag="resource_opened"):
    """The resource is open."""

    recovery: str
    id: str = ""
    handle: Raw = NOTHING
    unix_s: float


class ResourceReleased(StepRecord, kw_only=True, tag="resource_released"):
    """The resource is closed, or was found gone."""

    id: str = ""
    reason: str = ""
    unix_s: float


class Commit(StepRecord, kw_only=True, tag="commit"):
    """The rollout can go on from here without replaying what came before."""

    state: Raw
    """{"value": …}"""
    resources: Raw = NOTHING
    ordinals: Raw = NOTHING
    unix_s: float


class Parked(InOrder, kw_only=True, tag="parked"):
    """The trajectory waits for somebody's decision."""

    reason: str
    path: str = ""
    detail: Raw = NOTHING
    unix_s: float


class Resolved(InOrder, kw_only=True, tag="resolved"):
    """Somebody decided about a parked trajectory."""

    decision: str
    value: Raw = NOTHING
    unix_s: float


class Outcome(InOrder, kw_only=True, tag="outcome"):
    """The trajectory ended. It counts once it is accepted, or taken over by whoever continues."""

    durable: ClassVar[bool] = True
    status: OutcomeStatus
    cause: Cause | None = None
    reward: float | None = None
    result: Raw = NOTHING
    """{"value": …}"""
    error: Raw = NOTHING
    unix_s: float


class Accepted(InOrder, kw_only=True, tag="accepted"):
    """The outcome before it stands, whatever comes later."""

    durable: ClassVar[bool] = True
    unix_s: float


ALL: tuple[type[Record], ...] = (
    RunCreated, Claim, Segment, Pack, Seal, Heartbeat, PolicyVersion, Delivered, Consumed, Rewound, Batch, Note,
    Take, Withdrawn, Attempt, Begun, Intent, Done, Failed, Cancelled, Retry, Chosen, Kept, Resampled,
    ResourceOpening, ResourceOpened, ResourceReleased, Commit, Parked, Resolved, Outcome, Accepted,
)  # fmt: skip
"""Every record type, in the order of this page."""


class Envelope(msgspec.Struct):
    """What the reading rule needs of any line; the rest is skipped without being decoded."""

    type: str
    key: str = ""
    epoch: int = 0
    attempt: int = 0
    seq: int = -1
    continues: Point | None = None
    fork_of: str | None = None
    status: str = ""
    reason: str = ""
    back_to: Point | None = None
    kept: list[Point] = []
