"""A run that anything may happen to, beside a plain model of what it then says.

Processes open a run, append to several attempts at once, continue one another's (who may live on and write late), roll
segments, close, are killed or lose power at any operation. After each step the run is read, whole, by trajectory and by
a follower, and compared with lists.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rolltape import records
from rolltape.errors import JournalError
from rolltape.journal import AttemptLog, Damage, Follower, Reader, Writer, WriterConfig, open_writer, rely_on, survey
from rolltape.journal.verify import values_of
from rolltape.records import Point
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk

HANG_S = 30.0
KEYS = ["q0#0", "q1#0", "q1@2#1"]
SIZES = [0, 200, 40_000]

living = precondition(lambda machine: machine.processes)
working = precondition(lambda machine: machine.logs)


class Wrote(NamedTuple):
    """One record, as the model knows it."""

    type: str
    key: str
    epoch: int
    attempt: int
    seq: int
    says: str = ""
    """A step's path and values, an attempt's `continues`."""


class Epoch:
    """What one process wrote, in the order of its files."""

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self.certain: list[Wrote] = []
        """Acknowledged, and so there while the power is on."""
        self.synced = 0
        """How many of them at least survive a power cut."""
        self.perhaps: list[Wrote] = []
        """Put and not acknowledged when it died: a beginning of them may be there, behind the others."""

    def acknowledged(self, wrote: Wrote) -> None:
        self.certain.append(wrote)
        if self.durability == "disk" or wrote.type in ("take", "attempt", "outcome", "accepted"):
            self.synced = len(self.certain)

    def settle(self, there: list[Wrote], cut: bool) -> None:
        """After a crash: what is certain is there, then a beginning of what was in doubt, and that is the truth."""
        surely = self.certain[: self.synced] if cut else self.certain
        assert there[: len(surely)] == surely
        assert there == [*self.certain, *self.perhaps][: len(there)]
        self.certain, self.perhaps = there, []
        if cut:
            self.synced = len(there)


class Process(NamedTuple):
    """A living writer, and its own view of the disk."""

    writer: Writer
    disk: CrashDisk


class JournalMachine(RuleBasedStateMachine):
    """One run on one disk, and whoever writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.disk = CrashDisk()
        self.processes: dict[int, Process] = {}
        self.logs: dict[tuple[str, int, int], AttemptLog] = {}
        self.epochs: dict[int, Epoch] = {}
        self.continues: dict[tuple[str, int, int], Point | None] = {}
        self.seen: dict[tuple[int, int, int], bytes] = {}
        self.cursor: dict[int, tuple[int, int]] = {}
        self.paths = map(str, itertools.count())

    def teardown(self) -> None:
        for epoch in list(self.processes):
            self.forget(epoch)
        self.loop.close()

    # ---- what may happen ---------------------------------------------------------------------------------------------

    @initialize(durability=st.sampled_from(["os", "disk"]))
    def begin_a_run(self, durability: Any) -> None:
        self.open(durability, 1 << 20)

    @precondition(lambda machine: len(machine.processes) < 3)
    @rule(durability=st.sampled_from(["disk", "os"]), segment_bytes_max=st.sampled_from([300, 3000, 60_000]))
    def open(self, durability: Any, segment_bytes_max: int) -> None:
        """Another process opens the run."""
        disk = self.disk.process()
        config = WriterConfig(durability=durability, segment_bytes_max=segment_bytes_max, background_sync_s=HANG_S)
        writer = open_writer(LocalStore("/run", fs=disk), config)
        assert writer.epoch > max(self.epochs, default=0)
        self.epochs[writer.epoch] = Epoch(durability)
        self.processes[writer.epoch] = Process(writer, disk)

    @living
    @rule(key=st.sampled_from(KEYS), back=st.integers(0, 3), fresh=st.sampled_from([False, False, False, True]))
    def begin(self, key: str, back: int, fresh: bool) -> None:
        """The newest process continues the newest attempt, at its end or a little before it, or starts again."""
        epoch = max(self.processes)
        if epoch < max((e for k, e, _ in self.continues if k == key), default=0):
            return  # who continues a higher epoch has to take a new one first
        points, _ = self.story(key)
        point = None if fresh or not points else points[max(0, len(points) - 1 - back)]
        if point is not None:
            reader = self.reader()
            entries = survey(reader, self.damaged)[key].story().entries
            rely_on(reader.store, {(entry.place.epoch, entry.place.segment) for entry in entries})
        attempt = max((a for k, e, a in self.continues if (k, e) == (key, epoch)), default=0) + 1
        log = AttemptLog(self.processes[epoch].writer, key, attempt)
        self.run(log.take())
        self.epochs[epoch].acknowledged(Wrote("take", key, epoch, attempt, -1))
        self.run(log.begin(point))
        self.epochs[epoch].acknowledged(Wrote("attempt", key, epoch, attempt, 0, repr(point)))
        self.continues[key, epoch, attempt] = point
        self.logs[key, epoch, attempt] = log

    @precondition(lambda machine: machine.logs and len(machine.processes) < 3)
    @rule(data=st.data(), durability=st.sampled_from(["disk", "os"]), back=st.integers(0, 1))
    def take_over(self, data: st.DataObject, durability: Any, back: int) -> None:
        """Another process opens the run and continues what a living one still works on."""
        ((key, _, _),) = self.drawn(data, 1)
        self.open(durability, 1 << 20)
        self.begin(key, back, fresh=False)

    @working
    @rule(data=st.data(), size=st.sampled_from(SIZES), count=st.integers(1, 6))
    def append(self, data: st.DataObject, size: int, count: int) -> None:
        """Steps of any attempts at once, also of those that have been continued; values in line or in the pack."""
        for wrote, error in self.append_at_once(self.drawn(data, count), size):
            assert error is None
            self.epochs[wrote.epoch].acknowledged(wrote)

    @working
    @rule(data=st.data(), size=st.sampled_from(SIZES))
    def append_one(self, data: st.DataObject, size: int) -> None:
        self.append(data, size, 1)

    @working
    @rule(data=st.data(), accept=st.booleans())
    def finish(self, data: st.DataObject, accept: bool) -> None:
        """An outcome, which may be accepted."""
        (id,) = self.drawn(data, 1)
        log = self.logs.pop(id)
        kinds: list[tuple[Any, dict[str, str]]] = [(records.Outcome, {"status": "completed"}), (records.Accepted, {})]
        for kind, fields in kinds[: 1 + accept]:
            seq = log.next_seq
            self.run(log.append(kind, unix_s=0.0, **fields))
            self.epochs[id[1]].acknowledged(Wrote(kind.__struct_config__.tag, *id, seq))

    @working
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """A process ends in good order: all it wrote is sealed and synced."""
        epoch = data.draw(st.sampled_from(sorted(self.processes)))
        self.forget(epoch)
        self.epochs[epoch].synced = len(self.epochs[epoch].certain)

    @working
    @rule(
        data=st.data(),
        count=st.integers(0, 5),
        size=st.sampled_from(SIZES),
        operation=st.sampled_from([2, 3, 1, 4, 5, 6]),
        power=st.sampled_from(["stays on", "nothing", "some", "everything"]),
        seed=st.integers(0, 99),
    )
    def die(self, data: st.DataObject, count: int, size: int, operation: int, power: Any, seed: int) -> None:
        """A process dies at its nth operation from now, while its records are on their way; or all, with the power."""
        (drawn,) = self.drawn(data, 1)
        epoch = drawn[1]
        mine = [id for id in self.logs if id[1] == epoch][:count]
        left = operation

        def count_down(op: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.crash(epoch, power, seed)

        self.processes[epoch].disk.on_operation = count_down
        for wrote, error in self.append_at_once([mine[n % len(mine)] for n in range(count) if mine], size):
            assert error is None or isinstance(error, JournalError), error
            if error is None:
                self.epochs[epoch].acknowledged(wrote)
            else:
                self.epochs[epoch].perhaps.append(wrote)
        self.processes[epoch].disk.on_operation = None
        if left > 0:
            self.crash(epoch, power, seed)
        self.bury(epoch, power)

    # ---- how it happens ----------------------------------------------------------------------------------------------

    def run(self, awaitable: Any) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(awaitable, HANG_S)

        return self.loop.run_until_complete(bounded())

    def drawn(self, data: st.DataObject, count: int) -> list[tuple[str, int, int]]:
        return data.draw(st.lists(st.sampled_from(sorted(self.logs)), min_size=count, max_size=count))

    def append_at_once(self, ids: list[tuple[str, int, int]], size: int) -> list[tuple[Wrote, BaseException | None]]:
        """Put a step of each attempt, all in one tick; return what was put and what became of it."""
        before: Counter[tuple[str, int, int]] = Counter()
        puts: list[Callable[[], Any]] = []
        wrote: list[Wrote] = []
        for id in ids:
            log, path = self.logs[id], next(self.paths)
            value = (path.encode() + b".") * (size // (len(path) + 1) + 1)
            blobs = {blake2b(value, digest_size=16).hexdigest(): value} if size > 32 * 1024 else {}
            fields = {"path": path, "name": "" if blobs else "x" * size, "blobs": blobs}
            puts.append(lambda log=log, fields=fields: log.append(records.Done, **fields))
            wrote.append(Wrote("done", *id, log.next_seq + before[id], f"{path} {list(blobs)}"))
            before[id] += 1

        async def all_of_them() -> list[BaseException | None]:
            return await asyncio.gather(*(put() for put in puts), return_exceptions=True)

        return list(zip(wrote, self.run(all_of_them()), strict=True))

    def crash(self, epoch: int, power: Any, seed: int) -> None:
        if power == "stays on":
            self.processes[epoch].disk.kill()
        else:
            self.disk = self.disk.power_cut(power, seed=seed)

    def bury(self, epoch: int, power: Any) -> None:
        """Stop the threads of the dead, and let the model know what is there."""
        cut = power != "stays on"
        for dead in list(self.processes) if cut else [epoch]:
            self.forget(dead)
        found = self.read()
        for number in self.epochs if cut else [epoch]:
            self.epochs[number].settle(found.get(number, []), cut)
        if cut:
            self.seen.clear()
            self.cursor.clear()

    def forget(self, epoch: int) -> None:
        self.processes.pop(epoch).writer.close()
        for id in [id for id in self.logs if id[1] == epoch]:
            del self.logs[id]

    # ---- what is there -----------------------------------------------------------------------------------------------

    def damaged(self, damage: Damage) -> None:
        pytest.fail(f"reported as damage: {damage}")

    def reader(self) -> Reader:
        return Reader(LocalStore("/run", fs=self.disk.process()))

    def read(self, *, newest_first: bool = False) -> dict[int, list[Wrote]]:
        """What each epoch wrote, with every value read and checked."""
        reader = self.reader()
        found: dict[int, list[Wrote]] = {}
        for line in reader.scan(self.damaged, newest_first=newest_first):
            e, says = line.envelope(), ""
            if e.type == "done":
                digests = values_of(line.raw)
                assert all(reader.value(line, digest) for digest in digests)
                says = f"{line.decode(records.Done).path} {digests}"
            elif e.type == "attempt":
                says = repr(e.continues)
            if e.key:
                found.setdefault(line.epoch, []).append(Wrote(e.type, e.key, e.epoch, e.attempt, e.seq, says))
        return found

    def story(self, key: str) -> tuple[list[Point], bool]:
        """The points that count, by recursion over lists; and whether an outcome was accepted."""
        attempts: dict[tuple[int, int], list[Wrote]] = {}
        for epoch in self.epochs.values():
            for wrote in epoch.certain:
                if wrote.key == key and wrote.seq >= 0:
                    attempts.setdefault((wrote.epoch, wrote.attempt), []).append(wrote)
        accepted = [id for id, wrote in attempts.items() if wrote[-1].type == "accepted"]

        def whole(id: tuple[int, int]) -> list[Point]:
            own = [(*id, wrote.seq) for wrote in attempts[id]]
            point = self.continues[(key, *id)]
            if point is None:
                return own
            before = whole(point[:2])
            return before[: before.index(point) + 1] + own

        counts = min(accepted) if accepted else max(attempts, default=None)
        return (whole(counts) if counts else []), bool(accepted)

    @invariant()
    def a_reader_finds_what_the_model_says(self) -> None:
        wanted = {number: epoch.certain for number, epoch in self.epochs.items() if epoch.certain}
        if self.epochs:
            assert self.read() == wanted
            assert list(self.read(newest_first=True)) == sorted(wanted, reverse=True)

    @invariant()
    def the_reading_rule_gives_the_models_stories(self) -> None:
        found = survey(self.reader(), self.damaged) if self.epochs else {}
        for key in KEYS:
            points, accepted = self.story(key)
            story = found[key].story() if key in found else None
            assert points == ([entry.point for entry in story.entries] if story else [])
            assert story is None or (story.gaps == [] and story.accepted == accepted)

    @invariant()
    def a_follower_has_seen_every_line_once(self) -> None:
        if not self.epochs:
            return
        follower = Follower(self.reader(), self.damaged, self.cursor)
        for line in follower.poll():
            place = (line.epoch, line.segment, line.offset)
            assert place not in self.seen
            self.seen[place] = line.raw
        self.cursor = follower.cursor
        lines = self.reader().scan(self.damaged)
        assert self.seen == {(line.epoch, line.segment, line.offset): line.raw for line in lines}


def run_machine(machine: type[RuleBasedStateMachine], max_examples: int, steps: int) -> None:
    """Run so many examples of so many steps each."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples, stateful_step_count=steps, deadline=None, suppress_health_check=slow
        ),
    )
