"""The states after a power cut are those of a model with no cleverness: a log of changes, each of them done or not."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat

from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.testing.disk import CrashDisk

NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class Naive:
    """Replays the log of changes once for every combination of outcomes."""

    def __init__(self, disk: CrashDisk) -> None:
        self.disk = disk
        self.log: list[tuple[int, str | int, object]] = []
        self.settled: dict[int, bool] = {}
        """The changes by place in the log that are durable (True) or stranded (False); the others wait."""

    def ino(self, path: str) -> int:
        return self.disk.stat(path).st_ino

    def do(self, op: str, path: str, other: str) -> None:
        folder, name = path.rsplit("/", 1)
        if op == "create":
            self.disk.close(self.disk.open(path, NEW))
            self.log.append((self.ino(folder + "/"), name, self.ino(path)))
        elif op == "mkdir":
            self.disk.mkdir(path)
            self.log.append((self.ino(folder + "/"), name, self.ino(path)))
        elif op == "link":
            self.disk.link(other, path)
            self.log.append((self.ino(folder + "/"), name, self.ino(path)))
        elif op == "unlink":
            self.disk.unlink(path)
            self.log.append((self.ino(folder + "/"), name, None))
        elif op == "write":
            fd = self.disk.open(path, os.O_WRONLY | os.O_APPEND)
            self.log.append((self.ino(path), self.disk.stat(path).st_size, b"x"))
            self.disk.write(fd, b"x")
        else:
            self.sync(path, op == "sync")

    def sync(self, path: str, succeeds: bool) -> None:
        ino = self.ino(path)
        fd = self.disk.open(path, os.O_RDONLY)
        if not succeeds:
            self.disk.fail("fsync")
        with contextlib.suppress(OSError):
            self.disk.fsync(fd)
        for place, change in enumerate(self.log):
            if change[0] == ino:
                self.settled.setdefault(place, succeeds)

    def states(self) -> set[str]:
        outcomes = [
            ("done",) if self.settled.get(place) else ("lost", "done", *(["zero"] if what == b"x" else []))
            for place, (_, _, what) in enumerate(self.log)
        ]
        return {self.replay(chosen) for chosen in itertools.product(*outcomes)}

    def replay(self, chosen: tuple[str, ...]) -> str:
        names: dict[int, dict[str, int]] = {}
        data: dict[int, bytes] = {}
        for (ino, where, what), outcome in zip(self.log, chosen, strict=True):
            if outcome == "lost":
                continue
            if isinstance(where, int):
                data[ino] = data.get(ino, b"").ljust(where, b"\0") + (b"x" if outcome == "done" else b"\0")
            elif isinstance(what, int):
                names.setdefault(ino, {})[where] = what
            else:
                names.setdefault(ino, {}).pop(where, None)
        found = {}
        for name, ino in names.get(self.ino("/"), {}).items():
            found["/" + name] = data.get(ino, b"")
            found.update({f"/{name}/{below}": data.get(file, b"") for below, file in names.get(ino, {}).items()})
        return str(sorted(found.items()))


def with_folders(disk: CrashDisk) -> str:
    """Every name, a directory as if it were an empty file; as Naive gives it."""
    folders = [name for name in disk.listdir("/") if stat.S_ISDIR(disk.stat(name).st_mode)]
    paths = ["/" + name for name in folders]
    paths += [f"/{name}/{below}" for name in folders for below in disk.listdir(name)]
    return str(sorted({**dict.fromkeys(paths, b""), **disk.tree()}.items()))


steps = st.tuples(
    st.sampled_from(["create", "create", "write", "write", "write", "mkdir", "link", "unlink", "sync", "sync", "fail"]),
    st.sampled_from(["/a", "/b", "/d", "/d/a", "/d/b", "/"]),
    st.sampled_from(["/a", "/d/a"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, min_size=10, max_size=40))
def test_the_states_are_those_of_a_plain_log_of_changes(sequence: list[tuple[str, str, str]]) -> None:
    disk = CrashDisk()
    naive = Naive(disk)
    disk.mkdir("/d")
    naive.log.append((naive.ino("/"), "d", naive.ino("/d")))
    for op, path, other in sequence:
        if path != "/" or op in ("sync", "fail"):
            with contextlib.suppress(OSError):
                naive.do(op, path, other)
        if len(naive.log) - sum(naive.settled.values()) == 7:  # 3 ** 7 replays
            break
    assert {with_folders(state) for state in disk.crash_states()} == naive.states()
