"""A kill or a power cut at every operation, and every disk that it could leave.

At each operation of a short run a copy of the disk is kept, with what had been acknowledged by then. Then each disk
that could come up after a crash at that moment has to have it all, in order, with nothing called damage, and the next
process has to be able to continue from it (`docs/design/journal.md`).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from rolltape import records
from rolltape.errors import NotARunError, RolltapeError
from rolltape.journal import AttemptLog, Damage, Reader, Writer, WriterConfig, open_writer, rely_on, survey, verify
from rolltape.journal import format as fmt
from rolltape.records import Point
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk
from tests.journal.runs import Found, close, read, step

ROOT = "/scratch/run"
KEYS = ("a#0", "b#0")

CHANGES = {"create", "write", "fsync", "fdatasync", "mkdir", "link", "unlink"}
"""A crash before any other operation leaves what a crash before the next of these leaves."""

ACKED = dict[tuple[str, Point], Any]
"""The steps that were acknowledged, by key and place, and what they returned."""


def config(durability: Any, **limits: Any) -> WriterConfig:
    """Nothing happens by the clock."""
    return WriterConfig(durability=durability, lease_s=3600, background_sync_s=3600, **limits)


class Moment(NamedTuple):
    """The disk at one moment, and what was promised by then."""

    name: str
    disk: CrashDisk
    acked: ACKED
    begun: frozenset[tuple[str, int, int]]
    """Acknowledged attempt records: key, epoch, attempt."""
    epoch: int
    """The last epoch that somebody was given."""


class Run:
    """A process on a disk, which keeps what it was promised and, while `watch` is set, each moment of it."""

    def __init__(self, disk: CrashDisk, durability: str, **limits: Any) -> None:
        self.disk = disk
        self.config = config(durability, **limits)
        self.moments: list[Moment] = []
        self.acked: ACKED = {}
        self.begun: set[tuple[str, int, int]] = set()
        self.epoch = 0
        self.writer: Writer
        disk.on_operation = self._look

    def _look(self, op: str, path: str) -> None:
        if op in CHANGES:
            self.remember(f"before {op} of {path}")

    def remember(self, name: str) -> None:
        self.moments.append(Moment(name, self.disk.snapshot(), dict(self.acked), frozenset(self.begun), self.epoch))

    def open(self) -> None:
        self.writer = open_writer(LocalStore(ROOT, fs=self.disk), self.config)
        self.epoch = self.writer.epoch

    async def begin(self, key: str, attempt: int, continues: Point | None) -> AttemptLog:
        log = AttemptLog(self.writer, key, attempt)
        await log.take()
        await log.begin(continues)
        self.begun.add((key, self.epoch, attempt))
        return log

    async def step(self, log: AttemptLog, value: str | bytes) -> None:
        point = (self.epoch, log.attempt, log.next_seq)
        await step(log, str(log.next_seq), value)
        self.acked[log.key, point] = value

    def close(self) -> None:
        close(self.writer)
        self.disk.on_operation = None
        self.remember("at the end")


async def short_run(run: Run) -> None:
    """Two attempts side by side, a value in a pack, a segment that is full, and a close."""
    run.open()
    a = await run.begin("a#0", 1, None)
    b = await run.begin("b#0", 1, None)
    await asyncio.gather(run.step(a, "a1"), run.step(b, "b1"))
    await run.step(a, b"a2, packed")
    await asyncio.gather(run.step(b, "b2"), run.step(a, "a3"))
    await run.step(b, b"b3, packed")
    run.close()


async def take_over(run: Run, relying: Callable[..., None] = rely_on) -> None:
    """Continue whatever is on the disk, as a new process does, and bring one trajectory to its end."""
    run.open()
    store = LocalStore(ROOT, fs=run.disk)
    damage: list[Damage] = []
    stories = {key: lineage.story() for key, lineage in survey(Reader(store), damage.append).items()}
    assert damage == []
    relying(store, {(entry.place.epoch, entry.place.segment) for story in stories.values() for entry in story.entries})
    for key in KEYS:
        story = stories.get(key)
        newest = story.newest if story is not None and story.newest is not None else (0, 0)
        log = await run.begin(key, newest[1] + 1, story.last if story is not None else None)
        await run.step(log, f"{key} goes on")
        if key == "a#0":
            await log.append(records.Outcome, status="completed", reward=1.0, unix_s=0.0)
            await log.append(records.Accepted, unix_s=0.0)
    run.close()


def new_disk() -> CrashDisk:
    """A disk with somebody else's files, and no run."""
    disk = CrashDisk()
    disk.write_file("/scratch/notes.txt", b"not ours")
    return disk


def recorded(durability: str, disk: CrashDisk | None = None) -> Run:
    """The short run, and each moment of it. Segments are so small that each holds about two groups."""
    run = Run(disk or new_disk(), durability, segment_bytes_max=600)
    asyncio.run(short_run(run))
    return run


# ---- what every disk must hold ---------------------------------------------------------------------------------------


def found_on(disk: CrashDisk) -> Found:
    """What a reader finds. No run is nothing found, and never damage."""
    try:
        found = read(LocalStore(ROOT, fs=disk))
    except NotARunError:
        return Found({}, {}, [])
    assert found.damage == []
    return found


def check_promises(moment: Moment, found: Found) -> None:
    """Everything acknowledged is there."""
    assert moment.acked.items() <= found.values.items(), moment.name
    for key, epoch, attempt in moment.begun:
        assert (epoch, attempt, 0) in {entry.point for entry in found.stories[key].entries}, moment.name


def lines_of(disk: CrashDisk) -> list[bytes]:
    def no_damage(damage: Damage) -> None:
        raise AssertionError(damage)

    try:
        return [line.raw for line in Reader(LocalStore(ROOT, fs=disk)).scan(no_damage)]
    except NotARunError:
        return []


def check_prefix(moment: Moment, state: CrashDisk) -> None:
    """Of what was written, a beginning is left, and no later line without the earlier ones."""
    written, left = lines_of(moment.disk), lines_of(state)
    assert left == written[: len(left)], moment.name


def check_next_process(moment: Moment, state: CrashDisk, before: Found) -> None:
    """A new process gets an epoch that nobody had, and everything found is still there when it is done."""
    names = state.tree()
    run = Run(state, "disk")
    asyncio.run(take_over(run))
    assert run.epoch > moment.epoch, moment.name
    mine = (f"{ROOT}/{fmt.claim_name(run.epoch)}", f"{ROOT}/{fmt.epoch_folder(run.epoch)}/")
    assert not any(name.startswith(mine) for name in names), moment.name
    damage: list[Damage] = []
    verify(LocalStore(ROOT, fs=state), damage.append)
    assert damage == [], moment.name
    after = found_on(state)
    assert {**before.values, **run.acked} == after.values, moment.name
    assert after.stories["a#0"].accepted and not after.stories["b#0"].accepted
    for key, story in before.stories.items():
        assert [e.point for e in after.stories[key].entries][: len(story.entries)] == [e.point for e in story.entries]


def states(moment: Moment, limit: int | None) -> Iterator[CrashDisk]:
    return moment.disk.crash_states(limit)


class Seen:
    """Disks with the same files need to be continued from only once."""

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()

    def is_new(self, disk: CrashDisk) -> bool:
        files = disk.tree()
        what = (*sorted(files.items()),) if any(name.endswith(".jsonl") for name in files) else (object(),)
        known = len(self._seen)
        self._seen.add(what)
        return len(self._seen) > known


def check_every_moment(
    run: Run, limit: int | None, *, cut: bool, promised: Callable[[Moment, Found], None] = check_promises
) -> int:
    """Crash at each moment, look at each disk that this could leave, and continue from it. Returns how many."""
    seen, looked = Seen(), 0
    for moment in run.moments:
        for state in states(moment, limit) if cut else [moment.disk.snapshot().kill()]:
            looked += 1
            found = found_on(state)
            promised(moment, found)
            check_prefix(moment, state)
            if seen.is_new(state):
                check_next_process(moment, state, found)
    return looked


# ---- one crash -------------------------------------------------------------------------------------------------------


def test_the_short_run_rolls_segments_and_packs_values() -> None:
    """The tests below mean something: they see each kind of file being made."""
    run = recorded("disk")
    names = {name.removeprefix(f"{ROOT}/journal/00000001/") for name in run.disk.tree()}
    assert {"00000001.jsonl", "00000002.jsonl", "00000003.jsonl", "00000002.pack", "00000003.pack"} <= names
    assert len(run.moments) > 80 and len(run.acked) == 6 and run.moments[-1].acked == run.acked
    assert found_on(run.disk).values == run.acked


def test_a_power_cut_at_any_operation_loses_nothing_that_was_acknowledged() -> None:
    """Durability "disk": all of it is there, in order, unharmed, and the next process continues it."""
    assert check_every_moment(recorded("disk"), 10, cut=True) > 300


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_a_kill_at_any_operation_loses_nothing_that_was_acknowledged(durability: str) -> None:
    """Both durabilities: the page cache outlives the process."""
    check_every_moment(recorded(durability), None, cut=False)


def check_what_fencing_rests_on(moment: Moment, found: Found) -> None:
    """At durability "os" a power cut may take steps, and never an attempt that was acknowledged."""
    check_promises(moment._replace(acked={}), found)


def test_a_power_cut_at_durability_os_leaves_a_beginning_and_no_false_alarm() -> None:
    """What was not synced may be torn, zeroed, reordered: what comes back is what came first, and attempts are kept."""
    looked = check_every_moment(recorded("os"), 10, cut=True, promised=check_what_fencing_rests_on)
    assert looked > 300


@pytest.mark.torture
@pytest.mark.parametrize(("durability", "promised"), [("disk", check_promises), ("os", check_what_fencing_rests_on)])
def test_every_disk_that_a_power_cut_could_leave(durability: str, promised: Callable[[Moment, Found], None]) -> None:
    """The same without sampling, as far as there are not thousands at one moment."""
    check_every_moment(recorded(durability), 1500, cut=True, promised=promised)


# ---- one process after another ---------------------------------------------------------------------------------------


def killed_in_the_page_cache() -> tuple[CrashDisk, Run]:
    """A process at durability "os" is killed when it had acknowledged steps that only the page cache knows."""
    run = Run(new_disk(), "os")

    async def work() -> None:
        run.open()
        a = await run.begin("a#0", 1, None)
        b = await run.begin("b#0", 1, None)
        await run.step(b, "b1")
        await run.step(a, b"a1, packed")
        await run.step(a, "a2")
        await run.step(b, "b2")

    asyncio.run(work())
    survivor = run.disk.kill()
    close(run.writer)
    return survivor, run


def lost_pasts(disk: CrashDisk, dead: Run, relying: Callable[..., None], limit: int) -> int:
    """Let another process continue, cut the power at each moment, and count the disks where only the successor is."""
    next_run = Run(disk, "disk")
    asyncio.run(take_over(next_run, relying))
    lost = 0
    for moment in next_run.moments:
        for state in states(moment, limit):
            found = read(LocalStore(ROOT, fs=state))
            for key in KEYS:
                story = found.stories.get(key)
                past = {place for place in dead.acked if place[0] == key}
                if story is not None and story.newest == (2, 2) and not past <= found.values.keys():
                    lost += 1
            if relying is rely_on:
                assert found.damage == [], moment.name
                check_promises(moment, found)
    return lost


def test_a_successor_is_never_there_without_the_past_that_it_continues() -> None:
    """What it read may have been in the page cache only; `rely_on` syncs it before the attempt record names it."""
    disk, dead = killed_in_the_page_cache()
    assert lost_pasts(disk, dead, rely_on, 16) == 0


def test_without_rely_on_a_power_cut_can_lose_the_past() -> None:
    """The test above means something: these disks do lose what nobody synced."""
    disk, dead = killed_in_the_page_cache()
    assert lost_pasts(disk, dead, lambda store, places: None, 16) > 0


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_a_power_cut_after_a_kill_at_any_operation_loses_nothing_that_was_acknowledged_since(durability: str) -> None:
    """Whatever the dead process left half done in the page cache, its successor makes sure of what it builds on."""
    check_kill_then_cut(recorded(durability), 6)


@pytest.mark.torture
@pytest.mark.parametrize("durability", ["disk", "os"])
def test_a_power_cut_at_any_operation_after_a_kill_at_any_operation(durability: str) -> None:
    """The same for each moment of the successor too: a crash inside recovery."""
    check_kill_then_cut(recorded(durability), 16, every_moment=True)


def test_directories_that_a_dead_process_made_on_the_way_to_the_run_are_made_sure_of() -> None:
    """It made them and died before it synced their names: its successor finds them there, and builds on them."""
    check_kill_then_cut(recorded("disk", CrashDisk()), 6)


def check_kill_then_cut(first: Run, limit: int, *, every_moment: bool = False) -> None:
    """Kill the first process at each moment, let a second one continue, cut the power, and let a third one open."""
    for killed in first.moments:
        survivor = killed.disk.snapshot().kill()
        past = found_on(survivor).values
        second = Run(survivor, "disk")
        asyncio.run(take_over(second))
        for moment in second.moments if every_moment else second.moments[-1:]:
            moment = moment._replace(name=f"killed {killed.name}, power cut {moment.name}")
            for state in states(moment, limit):
                found = found_on(state)
                check_promises(moment, found)
                for begun in moment.begun:
                    assert {place for place in past if place[0] == begun[0]} <= found.values.keys(), moment.name
                third = Run(state, "disk")
                third.open()
                close(third.writer)
                assert third.epoch > moment.epoch, moment.name


def test_recovery_gives_the_same_twice_also_when_the_first_one_died() -> None:
    """A process that dies at any operation while it continues changes nothing that the next one finds."""
    first = recorded("disk")
    for killed in first.moments[:: max(1, len(first.moments) // 8)]:
        before = found_on(killed.disk.snapshot().kill())
        second = Run(killed.disk.snapshot().kill(), "disk")
        asyncio.run(take_over(second))
        for moment in second.moments:
            found = found_on(moment.disk.kill())
            assert before.values.items() <= found.values.items()
            assert before.values.keys() | moment.acked.keys() <= found.values.keys()


def test_an_epoch_is_never_given_twice() -> None:
    """A number that a process was given is below all after it, also when it wrote nothing and the power was cut."""
    disk, given = new_disk(), [0]
    for durability in ("disk", "os", "os"):
        opened = Run(disk, durability)
        opened.open()
        assert opened.epoch > given[-1]
        given.append(opened.epoch)
        disk = disk.kill()
        close(opened.writer)
        for state in disk.crash_states(20):
            following = Run(state, "disk")
            following.open()
            close(following.writer)
            assert following.epoch > given[-1]


@pytest.mark.parametrize("lost", ["claims", "journal"])
def test_an_epoch_is_not_given_again_when_one_of_its_two_traces_is_gone(lost: str) -> None:
    """Its number lies in `claims/` and in `journal/`; either is enough."""
    run = recorded("disk")
    files = {name: data for name, data in run.disk.tree().items() if not name.startswith(f"{ROOT}/{lost}/")}
    disk = CrashDisk()
    for name, data in files.items():
        disk.write_file(name, data)
    following = Run(disk, "disk")
    following.open()
    close(following.writer)
    assert following.epoch == 2


def test_processes_that_open_at_the_same_time_get_different_epochs() -> None:
    """Each takes the next number at the very moment when another one has looked and not yet taken it."""
    disk = new_disk()
    given: list[int] = []

    def opened(process: CrashDisk, others: int) -> None:
        def open_another(op: str, path: str) -> None:
            if op == "link" and "/claims/" in path:
                process.on_operation = None
                opened(disk.process(), others - 1)

        process.on_operation = open_another if others else None
        writer = open_writer(LocalStore(ROOT, fs=process), config("disk"))
        given.append(writer.epoch)
        close(writer)

    opened(disk.process(), 3)
    assert sorted(given) == [1, 2, 3, 4]


def test_a_store_that_creates_a_file_twice_is_refused() -> None:
    """Two processes could have one epoch there."""

    class Forgetful(CrashDisk):
        def link(self, src: str, dst: str) -> None:
            if dst in {name for name in self.tree() if "claims" in name}:
                self.unlink(dst)
            super().link(src, dst)

    with pytest.raises(RolltapeError, match="created twice"):
        open_writer(LocalStore(ROOT, fs=Forgetful()), config("disk"))


def test_a_power_cut_while_the_disk_is_full_loses_nothing_that_was_acknowledged() -> None:
    """Of the segment that was given up, only its good length counts, whatever of the rest the disk kept."""
    run = Run(new_disk(), "disk")

    async def work() -> None:
        run.open()
        a, b = await run.begin("a#0", 1, None), await run.begin("b#0", 1, None)
        await asyncio.gather(run.step(a, "a1"), run.step(b, "b1"))
        for op in ("fdatasync", "write"):
            run.disk.fail(op, error=errno.ENOSPC, short=op == "write")
            await asyncio.gather(run.step(a, f"a, {op}"), run.step(b, f"b, {op}"))
        run.close()

    asyncio.run(work())
    assert sum(name.endswith(".jsonl") for name in run.disk.tree()) == 3
    seen = Seen()
    for moment in run.moments:
        for state in states(moment, 8):
            found = found_on(state)
            check_promises(moment, found)
            if seen.is_new(state):
                check_next_process(moment, state, found)
