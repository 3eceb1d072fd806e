"""The medium and the page cache under `CrashDisk`: which changes are durable, and what a power cut may leave.

A file has its base, the bytes on disk for certain, and the writes since then, in order; a directory the same with
names. A sync makes them the base. A failed one strands them: from then on they may be on disk or not, for ever. A
state after a power cut is one choice for each change that is not durable, made from the root down, so that only what is
still reached is chosen for. Internal: `rolltape.testing.disk` states the promises.
"""

from __future__ import annotations

import enum
import errno
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

ROOT = 1
_SECTOR_BYTES = 512
_PATH_BYTES_MAX = 4095
_NAME_BYTES_MAX = 255
# Candidates can be alike only where two files have equal contents, so twice as many as states, and a few, are enough.
_CANDIDATES_PER_STATE = 2
_CANDIDATES_MIN = 64
_TRIES_PER_STATE = 8

Pick = Callable[[int], int]
"""Which of n outcomes, ordered from lost to whole, is taken."""


class Fate(enum.Enum):
    """What the syncs so far did for a change."""

    WAITING = 1
    STRANDED = 2
    """A sync of it failed."""
    DURABLE = 3
    """Synced, but kept apart from the base, because something stranded came before it."""


class Landed(NamedTuple):
    """What of a write is on disk: its bytes [start, stop), and whether the file has its whole size."""

    start: int
    stop: int
    grown: bool


class Write(NamedTuple):
    fate: Fate
    offset: int
    data: bytes

    def outcomes(self) -> list[Landed]:
        """What a power cut may make of it, from lost to whole."""
        size = len(self.data)
        whole = Landed(0, size, True)
        if self.fate is Fate.DURABLE:
            return [whole]
        torn = [
            landed
            for cut in self._cuts()
            for landed in (Landed(0, cut, False), Landed(0, cut, True), Landed(cut, size, True))
        ]
        return [Landed(0, 0, False), Landed(0, 0, True), *torn, whole]

    def _cuts(self) -> list[int]:
        """Where it tears: one byte from either end, in the middle, before the last line, between two sectors."""
        size = len(self.data)
        last_line = self.data.rfind(b"\n", 0, max(0, size - 1)) + 1
        sector = -self.offset % _SECTOR_BYTES or _SECTOR_BYTES
        return sorted({cut for cut in (1, size // 2, size - 1, last_line, sector) if 0 < cut < size})

    def onto(self, content: bytes, landed: Landed) -> bytes:
        start, stop, grown = landed
        if start < stop:
            # One copy of an appended file, not three: slices and ljust that change nothing make none.
            head = content[: self.offset + start].ljust(self.offset + start, b"\0")
            content = b"".join((head, self.data[start:stop], content[self.offset + stop :]))
        return content.ljust(self.offset + len(self.data), b"\0") if grown else content


class Entry(NamedTuple):
    fate: Fate
    name: str
    ino: int | None
    """None: the name was removed."""

    def outcomes(self) -> list[bool]:
        """What a power cut may make of it: not done, done."""
        return [True] if self.fate is Fate.DURABLE else [False, True]

    def onto(self, names: dict[str, int]) -> None:
        if self.ino is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.ino


_Change = TypeVar("_Change", Write, Entry)


def _judged(changes: list[_Change], verdict: Fate) -> list[_Change]:
    """The changes after a sync: those that waited for it get its verdict."""
    return [change._replace(fate=verdict) if change.fate is Fate.WAITING else change for change in changes]


@dataclass(slots=True)
class Node:
    ino: int
    mode: int
    mtime_ns: int
    links: int = 0
    opened: int = 0


@dataclass(slots=True)
class File(Node):
    data: bytes = b""
    """What processes see: the base and every pending write, whole."""
    base: bytes = b""
    """What is on disk for certain."""
    pending: list[Write] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        write = Write(Fate.WAITING, offset, data)
        self.pending.append(write)
        self.data = write.onto(self.data, Landed(0, len(data), True))

    def sync(self, verdict: Fate) -> None:
        self.pending = _judged(self.pending, verdict)
        if all(write.fate is Fate.DURABLE for write in self.pending):
            self.base = self.data
            self.pending = []

    def put(self, data: bytes) -> None:
        """Make exactly this its content, durably."""
        self.data = self.base = data
        self.pending.clear()

    def draw(self, pick: Pick) -> bytes:
        content = self.base
        for write in self.pending:
            outcomes = write.outcomes()
            content = write.onto(content, outcomes[pick(len(outcomes))])
        return content

    def possible(self, most: int | None) -> list[bytes] | None:
        """Each content that a power cut may leave, once; None where they are more than `most`."""
        found = {self.base: None}
        for write in self.pending:
            outcomes = write.outcomes()
            found = dict.fromkeys(write.onto(content, landed) for content in found for landed in outcomes)
            if most is not None and len(found) > most:
                return None
        return list(found)


@dataclass(slots=True)
class Folder(Node):
    names: dict[str, int] = field(default_factory=dict)
    """What processes see: the base and every pending entry, done."""
    base: dict[str, int] = field(default_factory=dict)
    """The names on disk for certain."""
    pending: list[Entry] = field(default_factory=list)

    def enter(self, name: str, ino: int | None) -> None:
        entry = Entry(Fate.WAITING, name, ino)
        self.pending.append(entry)
        entry.onto(self.names)

    def sync(self, verdict: Fate) -> None:
        self.pending = _judged(self.pending, verdict)
        if all(entry.fate is Fate.DURABLE for entry in self.pending):
            self.base = dict(self.names)
            self.pending = []

    def put(self, name: str, ino: int) -> None:
        """Make this name durable."""
        self.names[name] = self.base[name] = ino
        self.pending = [entry for entry in self.pending if entry.name != name]

    def draw(self, pick: Pick) -> dict[str, int]:
        names = dict(self.base)
        for entry in self.pending:
            outcomes = entry.outcomes()
            if outcomes[pick(len(outcomes))]:
                entry.onto(names)
        return names

    def possible(self) -> Iterator[dict[str, int]]:
        """Each set of names that a power cut may leave, once. One name's fate says nothing about another's."""
        choices: dict[str, dict[int | None, None]] = {name: {ino: None} for name, ino in self.base.items()}
        for entry in self.pending:
            kept = {} if entry.fate is Fate.DURABLE else choices.get(entry.name, {None: None})
            choices[entry.name] = {**kept, entry.ino: None}
        for chosen in itertools.product(*choices.values()):
            yield {name: ino for name, ino in zip(choices, chosen, strict=True) if ino is not None}


class State(NamedTuple):
    """One outcome of a power cut: the names in each directory still reached, the content of each file still reached."""

    folders: dict[int, dict[str, int]]
    files: dict[int, bytes]


class Spot(NamedTuple):
    """Where a path leads: its last directory, its name there ("" for the root, "." and ".."), and what is there."""

    folder: Folder
    name: str
    node: File | Folder | None
    slash: bool


def os_error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


@dataclass(slots=True)
class Volume:
    """What processes share."""

    capacity: int | None
    inodes: int | None
    umask: int
    clock: Callable[[], int]
    nodes: dict[int, File | Folder] = field(default_factory=dict)
    last_ino: int = 0
    death: int | BaseException | None = None
    """What every operation raises once the power was cut."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def file(self, ino: int) -> File:
        node = self.nodes[ino]
        assert isinstance(node, File)
        return node

    def folder(self, ino: int) -> Folder:
        node = self.nodes[ino]
        assert isinstance(node, Folder)
        return node

    def folders_in(self, names: dict[str, int]) -> list[int]:
        return [ino for ino in names.values() if isinstance(self.nodes[ino], Folder)]

    def _held(self) -> list[File | Folder]:
        """What takes room on the disk: all that has a name or is open, but the root."""
        return [node for node in self.nodes.values() if (node.links or node.opened) and node.ino != ROOT]

    def room_bytes(self) -> int | None:
        if self.capacity is None:
            return None
        return max(0, self.capacity - sum(len(node.data) for node in self._held() if isinstance(node, File)))

    def make(self, kind: type[File] | type[Folder], mode: int, path: str) -> File | Folder:
        """A new file or directory, which has no name yet."""
        if self.inodes is not None and len(self._held()) >= self.inodes:
            raise os_error(errno.ENOSPC, path)
        self.last_ino += 1
        node = self.nodes[self.last_ino] = kind(self.last_ino, mode, self.clock())
        return node

    def enter(self, folder: Folder, name: str, node: Node) -> None:
        folder.enter(name, node.ino)
        folder.mtime_ns = self.clock()
        node.links += 1

    def remove(self, folder: Folder, name: str, node: Node) -> None:
        folder.enter(name, None)
        folder.mtime_ns = self.clock()
        node.links -= 1

    def look(self, path: str) -> Spot:
        """Follow a path; what it ends in need not exist."""
        if "\0" in path:
            raise ValueError("embedded null byte")
        if not path:
            raise os_error(errno.ENOENT, path)
        parts = [part for part in path.split("/") if part]
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            raise os_error(errno.ENAMETOOLONG, path)
        above: list[Folder] = []
        here: File | Folder = self.nodes[ROOT]
        for depth, part in enumerate(parts, start=1):
            if not isinstance(here, Folder):
                raise os_error(errno.ENOTDIR, path)
            if len(os.fsencode(part)) > _NAME_BYTES_MAX:
                raise os_error(errno.ENAMETOOLONG, path)
            if part == "..":
                here = above.pop() if above else here
            elif part != ".":
                if part not in here.names:
                    if depth < len(parts):
                        raise os_error(errno.ENOENT, path)
                    return Spot(here, part, None, path.endswith("/"))
                above.append(here)
                here = self.nodes[here.names[part]]
        if parts and parts[-1] not in (".", ".."):
            return Spot(above[-1], parts[-1], here, path.endswith("/"))
        assert isinstance(here, Folder)
        return Spot(here, "", here, path.endswith("/"))

    def find(self, path: str) -> File | Folder:
        spot = self.look(path)
        if spot.node is None:
            raise os_error(errno.ENOENT, path)
        if spot.slash and isinstance(spot.node, File):
            raise os_error(errno.ENOTDIR, path)
        return spot.node

    def find_file(self, path: str) -> File:
        node = self.find(path)
        if isinstance(node, Folder):
            raise os_error(errno.EISDIR, path)
        return node

    def walk(self) -> Iterator[tuple[str, File | Folder]]:
        """What processes see, with its path, a directory before what is in it."""
        todo = [("", self.folder(ROOT))]
        while todo:
            above, folder = todo.pop()
            for name, ino in sorted(folder.names.items()):
                path, node = f"{above}/{name}", self.nodes[ino]
                yield path, node
                if isinstance(node, Folder):
                    todo.append((path, node))

    def twin(self) -> Volume:
        """A copy of what is open or can still be reached, now or after a crash."""
        twin = replace(self, nodes={}, lock=threading.RLock())
        todo = [ROOT, *(ino for ino, node in self.nodes.items() if node.opened)]
        while todo:
            node = self.nodes[todo.pop()]
            if node.ino in twin.nodes:
                continue
            if isinstance(node, File):
                twin.nodes[node.ino] = replace(node, pending=list(node.pending))
            else:
                names, base = dict(node.names), dict(node.base)
                twin.nodes[node.ino] = replace(node, names=names, base=base, pending=list(node.pending))
                todo += [*names.values(), *base.values(), *(e.ino for e in node.pending if e.ino is not None)]
        return twin

    def draw(self, pick: Pick) -> State:
        """One outcome of a power cut, each choice in it made by `pick`."""
        state, todo = State({}, {}), [ROOT]
        while todo:
            node = self.nodes[todo.pop()]
            if isinstance(node, Folder):
                state.folders[node.ino] = node.draw(pick)
                todo += state.folders[node.ino].values()
            elif node.ino not in state.files:
                state.files[node.ino] = node.draw(pick)
        return state

    def outcomes(self, most: int | None) -> Iterator[State | None]:
        """Every outcome of a power cut. None, and the end: one file alone has more than `most`."""
        contents = {ino: node.possible(most) for ino, node in self.nodes.items() if isinstance(node, File)}
        for folders in self._namespaces({}, [ROOT]):
            files = sorted({ino for names in folders.values() for ino in names.values() if ino in contents})
            choices = [choice for ino in files if (choice := contents[ino]) is not None]
            if len(choices) < len(files):
                yield None
                return
            for chosen in itertools.product(*choices):
                yield State(folders, dict(zip(files, chosen, strict=True)))

    def _namespaces(self, done: dict[int, dict[str, int]], todo: list[int]) -> Iterator[dict[int, dict[str, int]]]:
        done, todo = dict(done), list(todo)
        while todo:
            folder = self.folder(todo.pop())
            if folder.pending:
                for names in folder.possible():
                    yield from self._namespaces({**done, folder.ino: names}, todo + self.folders_in(names))
                return
            done[folder.ino] = folder.base
            todo += self.folders_in(folder.base)
        yield done

    def identity(self, state: State) -> tuple[object, ...]:
        """Equal for states that no process could tell apart: names, modes, contents, which names are one file."""
        found: list[object] = []
        ranks: dict[int, int] = {}
        todo = [("", ROOT)]
        while todo:
            above, folder = todo.pop()
            for name, ino in sorted(state.folders[folder].items()):
                path, rank = f"{above}/{name}", ranks.setdefault(ino, len(ranks))
                found.append((path, rank, self.nodes[ino].mode, state.files.get(ino)))
                if ino in state.folders:
                    todo.append((path, ino))
        return tuple(found)

    def after(self, state: State) -> Volume:
        """The volume as it comes up after that power cut: nothing pending, nothing open."""
        volume = replace(self, nodes={}, death=None, lock=threading.RLock())
        for ino, names in state.folders.items():
            node = self.nodes[ino]
            volume.nodes[ino] = Folder(ino, node.mode, node.mtime_ns, names=dict(names), base=dict(names))
        for ino, data in state.files.items():
            node = self.nodes[ino]
            volume.nodes[ino] = File(ino, node.mode, node.mtime_ns, data=data, base=data)
        for ino in (ino for names in state.folders.values() for ino in names.values()):
            volume.nodes[ino].links += 1
        return volume


def lost(_outcomes: int) -> int:
    return 0


def whole(outcomes: int) -> int:
    return outcomes - 1


def drawer(rng: random.Random) -> Pick:
    """Picks for one power cut. Half of them are lost or whole: evenly drawn, nearly every write would be torn."""
    kept = rng.random()

    def pick(outcomes: int) -> int:
        if rng.random() < 0.5:
            return outcomes - 1 if rng.random() < kept else 0
        return rng.randrange(outcomes)

    return pick


def crash_states(volume: Volume, limit: int | None, seed: int) -> Iterator[State]:
    """The two extremes, then every other state, or as many as make `limit`, drawn by the seed. Each once."""
    extremes = [volume.draw(lost), volume.draw(whole)]
    seen: set[tuple[object, ...]] = set()

    def new(state: State) -> bool:
        known = len(seen)
        seen.add(volume.identity(state))
        return len(seen) > known

    yield from filter(new, extremes)
    if limit is None:
        yield from filter(new, (state for state in volume.outcomes(None) if state is not None))
        return
    every = _every(volume, limit)
    if every is not None:
        yield from filter(new, every)
        return
    rng = random.Random(seed)
    for _ in range(_TRIES_PER_STATE * limit):
        if len(seen) >= limit:
            return
        state = volume.draw(drawer(rng))
        if new(state):
            yield state


def _every(volume: Volume, limit: int) -> list[State] | None:
    """All states, or None if they are more than `limit`."""
    found: dict[tuple[object, ...], State] = {}
    for tried, state in enumerate(volume.outcomes(limit)):
        if state is None or tried > _CANDIDATES_PER_STATE * limit + _CANDIDATES_MIN:
            return None
        found.setdefault(volume.identity(state), state)
        if len(found) > limit:
            return None
    return list(found.values())
