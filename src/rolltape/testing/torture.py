"""Two commands that let anything outside torture a journal and judge it by what it acknowledged.

`torture-write` prints `TRY <trajectory> <step> <sha256>` before a step goes to the journal and `ACK …` with the same
words once it is acknowledged, and only then. `torture-read` prints `HAVE …` for every step that counts, with the hash
computed from the bytes read, and `CORRUPT <file> <offset> <reason>` for each damage. Both write and read as
trajectories do. An acknowledgement is printed only after a look at the disk says that nobody has taken the trajectory
over, so an `ACK` without its `HAVE` is always a loss.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256, shake_128
from typing import NamedTuple

from rolltape import records
from rolltape.errors import DamagedError, NotARunError, RolltapeError, SupersededError
from rolltape.journal import (
    AttemptLog,
    Damage,
    Follower,
    Lineage,
    OnDamage,
    Place,
    Reader,
    Story,
    StoryValues,
    Writer,
    WriterConfig,
    open_reader,
    open_writer,
    rely_on,
    survey,
    verify,
)
from rolltape.store import LocalStore

DONE, DAMAGED, NOT_A_RUN, SUPERSEDED, FAILED = 0, 1, 2, 3, 4
"""Exit codes."""


class Plan(NamedTuple):
    """What `torture-write` is to do."""

    dir: str
    seed: int
    trajectories: int
    steps: int
    config: WriterConfig
    payload_bytes: int = 256
    step_delay_s: float = 0.0
    share: tuple[int, int] = (0, 1)
    """(i, n): this process does every n-th trajectory, beginning with the i-th."""

    def payload(self, trajectory: int, step: int) -> bytes:
        """Bytes that nothing but seed, trajectory and step decide."""
        return shake_128(f"{self.seed}/{trajectory}/{step}".encode()).digest(self.payload_bytes)


def key_of(trajectory: int) -> str:
    return f"torture-{trajectory}#0"


def trajectory_of(key: str) -> int | None:
    name, _, sample = key.partition("#")
    number = name.removeprefix("torture-")
    return int(number) if sample == "0" and number.isascii() and number.isdigit() else None


def say(*words: object) -> None:
    """Print one line at once: what was printed was said, whatever happens next."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


# ---- writing ---------------------------------------------------------------------------------------------------------


def write(plan: Plan) -> int:
    """Append until done or killed. Exit 0 when all is done, another code when the journal failed it."""
    try:
        return asyncio.run(_Writing(plan).run())
    except SupersededError as error:
        print(f"torture-write: {error}", file=sys.stderr)
        return SUPERSEDED
    except (DamagedError, NotARunError) as error:
        print(f"torture-write: {error}", file=sys.stderr)
        return DAMAGED
    except (RolltapeError, OSError) as error:
        print(f"torture-write: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED


def write_in_processes(argv: list[str], processes: int) -> int:
    """Run `argv` in so many processes, each with its share of the trajectories. 0: all of them are done."""
    children = [subprocess.Popen([*argv, "--share", f"{i}/{processes}"]) for i in range(processes)]
    codes = [child.wait() for child in children]
    return next((code if code > 0 else FAILED for code in codes if code != 0), DONE)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` dies, so that a killed run leaves no writer behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class _Writing:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.writer: Writer
        self.store: LocalStore
        self.watch: _Ownership

    async def run(self) -> int:
        """Take every trajectory of the share, then read what it has, and only then begin: so nobody's step is lost."""
        self.writer = open_writer(LocalStore(self.plan.dir), self.plan.config)
        self.store = LocalStore(self.plan.dir)
        self.watch = _Ownership(Reader(self.store), self.writer.epoch)
        try:
            logs = {
                number: AttemptLog(self.writer, key_of(number), (story.newest or (0, 0))[1] + 1)
                for number, story in self.stories().items()
                if not story.accepted
            }
            await asyncio.gather(*(log.take() for log in logs.values()))
            stories = self.stories()
            places = {(entry.place.epoch, entry.place.segment) for n in logs for entry in stories[n].entries}
            await asyncio.to_thread(rely_on, self.store, places)
            await asyncio.gather(*(self.trajectory(number, log, stories[number]) for number, log in logs.items()))
        finally:
            await self.writer.aclose()
        return DONE

    def stories(self) -> dict[int, Story[Place]]:
        """Read what each trajectory of the share has so far."""
        damages: list[Damage] = []
        found = survey(Reader(self.store), damages.append)
        share, shares = self.plan.share
        mine = {n: found.get(key_of(n), Lineage()).story() for n in range(share, self.plan.trajectories, shares)}
        gaps = [gap for story in mine.values() for gap in story.gaps]
        if damages or gaps:
            raise DamagedError(f"{[*damages, *gaps][0]} (torture-read lists all)")
        return mine

    async def trajectory(self, number: int, log: AttemptLog, story: Story[Place]) -> None:
        plan = self.plan
        pace = random.Random(f"{plan.seed}/{number}")
        try:
            self.watch.check(log.key)
        except SupersededError:
            await log.withdraw()
            raise
        await log.begin(story.last)
        for step in range(sum(entry.envelope.type == "done" for entry in story.entries), plan.steps):
            payload = plan.payload(number, step)
            words = (number, step, sha256(payload).hexdigest())
            say("TRY", *words)
            await log.append(records.Done, path=str(step), values={"result": {"value": payload}})
            self.watch.check(log.key)
            say("ACK", *words)
            if plan.step_delay_s:
                await asyncio.sleep(plan.step_delay_s * pace.uniform(0.5, 1.5))
        await log.append(records.Outcome, status="completed", reward=1.0, unix_s=0.0)
        self.watch.check(log.key)
        await log.append(records.Accepted, unix_s=0.0)


class _Ownership:
    """Looks on disk for newer epochs that took over a trajectory of this one."""

    def __init__(self, reader: Reader, epoch: int) -> None:
        self._newer = Follower(reader, _refuse, after=epoch)
        self._lost: dict[str, int] = {}

    def check(self, key: str) -> None:
        """Raise SupersededError if somebody has taken `key` over. What is on disk before this call, they see."""
        for line in self._newer.poll():
            envelope = line.envelope()
            if envelope.type in ("take", "attempt"):
                self._lost.setdefault(envelope.key, envelope.epoch)
        if (epoch := self._lost.get(key)) is not None:
            raise SupersededError(f"{key} was taken over by epoch {epoch}: this process stops")


def _refuse(damage: Damage) -> None:
    """A take may be among what is damaged: whoever can't see it must not believe that there is none."""
    raise DamagedError(str(damage))


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(directory: str) -> int:
    """Print every step that counts and every damage. Exit 0 when sound, 1 when damaged, 2 when there is no run."""
    damages = 0

    def corrupt(damage: Damage) -> None:
        nonlocal damages
        damages += 1
        say("CORRUPT", damage.file, damage.start, damage.reason)

    store = LocalStore(directory)
    try:
        found = verify(store, corrupt)
        reader = open_reader(store, _reported)
    except NotARunError as error:
        print(f"torture-read: {error}", file=sys.stderr)
        return NOT_A_RUN
    except (RolltapeError, OSError) as error:
        corrupt(Damage(directory, 0, 0, str(error)))
        return DAMAGED
    numbers = {t: key for key in found if (t := trajectory_of(key)) is not None}
    for number, key in sorted(numbers.items()):
        story = found[key].story()
        for step, digest in _steps(reader, story, corrupt):
            say("HAVE", number, step, digest)
    return DAMAGED if damages else DONE


def _reported(damage: Damage) -> None:
    """`verify` has reported it."""


def _steps(reader: Reader, story: Story[Place], corrupt: OnDamage) -> Iterator[tuple[int, str]]:
    values = StoryValues.of(reader, story)
    for entry in story.entries:
        if entry.envelope.type != "done":
            continue
        try:
            line = reader.line_at(*entry.place)
            done = line.decode(records.Done)
            value = values.decode(line, done.result)["value"]
        except (RolltapeError, OSError) as error:
            corrupt(Damage(f"journal/{entry.place.epoch:08d}", entry.place.offset, entry.place.offset, str(error)))
            continue
        yield int(done.path), sha256(value).hexdigest()
