"""A disk in memory that keeps across a crash what a real one must keep, and of the rest whatever you choose.

`CrashDisk` has the methods of `rolltape.store.FileSystem`, with the results and the `OSError`s of `os` on Linux. Put it
under a store, run something, and look at every disk that a power cut could leave now:

    for state in disk.crash_states(limit=200):
        check(state)

Every change is visible at once to every process on the disk, and survives `kill()`. A power cut keeps for certain only

- the bytes of a file as they were when `fsync` or `fdatasync` of that file last succeeded, and
- the names in a directory (made by open, mkdir and link, removed by unlink) as they were when `fsync` of that directory
  last succeeded. A name is reached through its parents: below a directory whose own name is lost, all is lost.

Of everything later it may keep any part, in any order. A name: made or not, removed or not, each for itself. A write:
lost; whole; its beginning alone; the file's new size without its bytes (zeros), or with only its beginning or its end;
and a later write without an earlier one. What a failed sync covered stays in that doubt for ever: it is still read
back, and no later sync makes it durable (a kernel drops the dirty mark when a write-back fails).

Not modelled: bytes of deleted files that show up in a new one, damage to what was synced (`corrupt` does that), rename,
symbolic links, permissions (every open is allowed), removing directories, truncating or seeking by system call.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rolltape.testing.volume import ROOT, Fate, File, Folder, Pick, Volume, crash_states, drawer, lost, os_error, whole

__all__ = ["CrashDisk", "Fault"]

_OPERATIONS = frozenset(
    ["open", "create", "close", "write", "pread", "fsync", "fdatasync", "mkdir", "link", "unlink", "listdir", "stat"]
)
_FLAGS = os.O_ACCMODE | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
# Far from real descriptors and never used twice, so that one used on the wrong disk or after close is always EBADF.
_descriptors = itertools.count(1 << 20)


@dataclass
class Fault:
    """A planned failure, made by `CrashDisk.fail`."""

    op: str
    nth: int
    error: int | BaseException
    forever: bool
    path: str | None
    short: bool
    seen: int = 0
    """Calls so far of the kind that it waits for."""
    fired: int = 0
    """How often it raised or cut a write short. 0 after a whole run: there is no nth call to fail."""

    def strikes(self, op: str, path: str) -> Literal["no", "short", "raise"]:
        """What it does to this call."""
        if op != self.op or (self.path is not None and self.path not in path):
            return "no"
        self.seen += 1
        if self.seen < self.nth:
            return "no"
        if self.short and self.seen == self.nth:
            self.fired += 1
            return "short"
        if self.forever or self.seen == self.nth + self.short:
            self.fired += 1
            return "raise"
        return "no"


@dataclass(slots=True)
class _Opened:
    ino: int
    flags: int
    path: str
    position: int = 0

    @property
    def access(self) -> int:
        return self.flags & os.O_ACCMODE


class CrashDisk:
    """An in-memory file system, as one process sees it. It implements `rolltape.store.FileSystem`.

    Paths start at the root, with or without a leading slash; a new disk has its root directory alone. Any thread may
    call any method, and each operation is atomic. A disk that `process`, `kill`, `power_cut` or `crash_states` gives
    has no open descriptors, planned faults or hooks; `capacity` and `inodes` belong to the medium and stay.
    """

    operations: int
    """How many operations this process has begun."""
    on_operation: Callable[[str, str], None] | None
    """Called with an operation's name and path before it happens: take a snapshot, kill this process, or raise whatever
    should happen in its place. Operations are named as the methods are, but an open with O_CREAT is a "create"; the
    path of a link is its new name. It is called outside the lock, so it may also wait."""
    on_done: Callable[[str, str], None] | None
    """Called after the operation happened, or failed by itself."""

    def __init__(
        self,
        *,
        capacity: int | None = None,
        inodes: int | None = None,
        umask: int = 0o022,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`capacity` and `inodes` as below; `clock`: the wall time in ns, for mtime."""
        volume = Volume(capacity, inodes=None, umask=umask, clock=clock)
        volume.make(Folder, stat.S_IFDIR | 0o755, "/").links = 1
        volume.inodes = inodes
        self._start(volume)

    def _start(self, volume: Volume) -> None:
        self._volume = volume
        self._opened: dict[int, _Opened] = {}
        self._death: int | BaseException | None = None
        self._faults: list[Fault] = []
        self.operations = 0
        self.on_operation = self.on_done = None

    @classmethod
    def _on(cls, volume: Volume) -> CrashDisk:
        disk = cls.__new__(cls)
        disk._start(volume)
        return disk

    @property
    def capacity(self) -> int | None:
        """Bytes of content that fit, or None. A write gets what still fits, the next one ENOSPC."""
        return self._volume.capacity

    @capacity.setter
    def capacity(self, limit_bytes: int | None) -> None:
        self._volume.capacity = limit_bytes

    @property
    def inodes(self) -> int | None:
        """Files and directories that fit, or None. Making one more is ENOSPC."""
        return self._volume.inodes

    @inodes.setter
    def inodes(self, limit: int | None) -> None:
        self._volume.inodes = limit

    # The system calls.

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        creating = flags & os.O_CREAT
        if flags & ~_FLAGS:
            raise NotImplementedError(f"CrashDisk.open does not know the flags {flags & ~_FLAGS:#o}")
        with self._operation("create" if creating else "open", path):
            if creating and flags & os.O_DIRECTORY:
                raise os_error(errno.EINVAL, path)
            spot = self._volume.look(path)
            node = spot.node
            if creating and spot.slash and spot.name:
                raise os_error(errno.EISDIR, path)
            if node is None:
                if not creating:
                    raise os_error(errno.ENOENT, path)
                node = self._volume.make(File, stat.S_IFREG | (mode & 0o7777 & ~self._volume.umask), path)
                self._volume.enter(spot.folder, spot.name, node)
            elif creating and flags & os.O_EXCL:
                raise os_error(errno.EEXIST, path)
            elif isinstance(node, Folder) and (creating or flags & os.O_ACCMODE != os.O_RDONLY):
                raise os_error(errno.EISDIR, path)
            elif isinstance(node, File) and (spot.slash or flags & os.O_DIRECTORY):
                raise os_error(errno.ENOTDIR, path)
            node.opened += 1
            fd = next(_descriptors)
            self._opened[fd] = _Opened(node.ino, flags, path)
            return fd

    def close(self, fd: int, /) -> None:
        # A dead process's cleanup must not hide the exception that its death raised: the kernel has closed its files.
        if self._dead() is not None:
            return
        with self._operation("close", self._path(fd)):
            self._volume.nodes[self._descriptor(fd).ino].opened -= 1
            del self._opened[fd]

    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        piece = memoryview(data).tobytes()
        with self._operation("write", self._path(fd)) as short:
            opened = self._descriptor(fd)
            if opened.access == os.O_RDONLY:
                raise os_error(errno.EBADF)
            node = self._volume.file(opened.ino)
            if short:
                piece = piece[: max(1, len(piece) // 2)]
            offset = len(node.data) if opened.flags & os.O_APPEND else opened.position
            piece = self._that_fits(piece, offset + len(piece) - len(node.data))
            if piece:
                node.write(offset, piece)
                node.mtime_ns = self._volume.clock()
                opened.position = offset + len(piece)
            return len(piece)

    def _that_fits(self, piece: bytes, growth: int) -> bytes:
        room = self._volume.room_bytes()
        if room is None or growth <= room or not piece:
            return piece
        fitting = len(piece) - (growth - room)
        if fitting <= 0:
            raise os_error(errno.ENOSPC)
        return piece[:fitting]

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        with self._operation("pread", self._path(fd)):
            if length < 0 or offset < 0:
                raise os_error(errno.EINVAL)
            opened = self._descriptor(fd)
            if opened.access == os.O_WRONLY:
                raise os_error(errno.EBADF)
            node = self._volume.nodes[opened.ino]
            if isinstance(node, Folder):
                raise os_error(errno.EISDIR)
            return node.data[offset : offset + length]

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def _sync(self, op: str, fd: int) -> None:
        def strand() -> None:
            self._volume.nodes[self._descriptor(fd).ino].sync(Fate.STRANDED)

        with self._operation(op, self._path(fd), failing=strand):
            self._volume.nodes[self._descriptor(fd).ino].sync(Fate.DURABLE)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        with self._operation("mkdir", path):
            spot = self._volume.look(path)
            if spot.node is not None:
                raise os_error(errno.EEXIST, path)
            node = self._volume.make(Folder, stat.S_IFDIR | (mode & 0o1777 & ~self._volume.umask), path)
            self._volume.enter(spot.folder, spot.name, node)

    def chmod(self, path: str, mode: int) -> None:
        """Modes are durable at once: no promise rests on when they are."""
        with self._operation("chmod", path):
            node = self._volume.find(path)
            node.mode = stat.S_IFMT(node.mode) | (mode & 0o7777)

    def link(self, src: str, dst: str) -> None:
        with self._operation("link", dst):
            try:
                node, spot = self._volume.find(src), self._volume.look(dst)
                if spot.node is not None:
                    raise os_error(errno.EEXIST)
                if spot.slash:
                    raise os_error(errno.ENOENT)
                if isinstance(node, Folder):
                    raise os_error(errno.EPERM)
            except OSError as error:
                raise OSError(error.errno, error.strerror, src, None, dst) from None
            self._volume.enter(spot.folder, spot.name, node)

    def unlink(self, path: str) -> None:
        with self._operation("unlink", path):
            spot = self._volume.look(path)
            if spot.node is None:
                raise os_error(errno.ENOENT, path)
            if isinstance(spot.node, Folder):
                raise os_error(errno.EISDIR, path)
            if spot.slash:
                raise os_error(errno.ENOTDIR, path)
            self._volume.remove(spot.folder, spot.name, spot.node)

    def listdir(self, path: str) -> list[str]:
        """The names, in an order that means nothing, as a real directory's."""
        with self._operation("listdir", path):
            node = self._volume.find(path)
            if isinstance(node, File):
                raise os_error(errno.ENOTDIR, path)
            return sorted(node.names, key=lambda name: zlib.crc32(os.fsencode(name)))

    def stat(self, path: str) -> os.stat_result:
        with self._operation("stat", path):
            node = self._volume.find(path)
            seconds, links, size = node.mtime_ns // 10**9, node.links, 4096
            if isinstance(node, Folder):
                links = 2 + len(self._volume.folders_in(node.names))
            else:
                size = len(node.data)
            times = {f"st_{kind}time": node.mtime_ns / 1e9 for kind in "amc"}
            times_ns = {f"st_{kind}time_ns": node.mtime_ns for kind in "amc"}
            fields = (node.mode, node.ino, 1, links, os.getuid(), os.getgid(), size, seconds, seconds, seconds)
            return os.stat_result(fields, {**times, **times_ns})

    # What every operation goes through.

    @contextmanager
    def _operation(self, op: str, path: str, failing: Callable[[], None] | None = None) -> Iterator[bool]:
        """Count it, call the hooks, raise the planned fault (after `failing`), hold the lock. Yields: write short."""
        with self._volume.lock:
            self._check_alive(path)
            self.operations += 1
        if self.on_operation is not None:
            self.on_operation(op, path)
        begun = False
        try:
            with self._volume.lock:
                self._check_alive(path)  # the hook may have killed it
                begun = True
                strikes = [(fault.strikes(op, path), fault) for fault in self._faults]
                for strike, fault in strikes:
                    if strike == "raise":
                        if failing is not None:
                            failing()
                        raise _raised(fault.error, path)
                yield any(strike == "short" for strike, _ in strikes)
        finally:
            if begun and self.on_done is not None:
                self.on_done(op, path)

    def _dead(self) -> int | BaseException | None:
        return self._death if self._death is not None else self._volume.death

    def _check_alive(self, path: str) -> None:
        if (death := self._dead()) is not None:
            raise _raised(death, path)

    def _descriptor(self, fd: int) -> _Opened:
        if fd not in self._opened:
            raise os_error(errno.EBADF)
        return self._opened[fd]

    def _path(self, fd: int) -> str:
        opened = self._opened.get(fd)
        return "" if opened is None else opened.path

    # Faults and crashes.

    def fail(
        self,
        op: str,
        nth: int = 1,
        error: int | BaseException = errno.EIO,
        *,
        forever: bool = False,
        path: str | None = None,
        short: bool = False,
    ) -> Fault:
        """Make the nth call of an operation from now on raise, and with `forever` every later one too.

        Only calls whose path contains `path` count. The operation does not happen; of a sync that fails, what it should
        have made durable stays in doubt for ever. With `short` (writes) the nth call writes half of its bytes and says
        so, and the error comes with the next call. `error` is an errno, or any exception to raise as it is. To run a
        test with every fault there is: nth = 1, 2, 3 and so on until `fired` of the returned fault stays 0.
        """
        if op not in _OPERATIONS or nth < 1 or (short and op != "write"):
            raise ValueError(f"no such fault: op={op!r} (one of {', '.join(sorted(_OPERATIONS))}), {nth=}, {short=}")
        fault = Fault(op, nth, error, forever, path, short)
        with self._volume.lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget every planned fault."""
        with self._volume.lock:
            self._faults.clear()

    def process(self) -> CrashDisk:
        """Another process on the same disk: it sees every change at once, and has its own descriptors and faults."""
        return CrashDisk._on(self._volume)

    def kill(self, error: int | BaseException = errno.EIO) -> CrashDisk:
        """This process dies: its descriptors are gone, and what it changed stays. Returns the next process's disk.

        Whatever still runs of the dead process can change nothing: each of its operations raises `error`, only close
        does nothing.
        """
        with self._volume.lock:
            for opened in self._opened.values():
                self._volume.nodes[opened.ino].opened -= 1
            self._opened.clear()
            self._death = error
            return CrashDisk._on(self._volume)

    def power_cut(
        self,
        kept: Literal["nothing", "everything", "some"] = "nothing",
        *,
        seed: int = 0,
        error: int | BaseException = errno.EIO,
    ) -> CrashDisk:
        """Every process on the disk dies. Returns the disk that comes up.

        `kept`: what survives of that which is not durable; "some" is drawn by the seed. `error` is as for `kill`.
        """
        picks: dict[str, Pick] = {"nothing": lost, "everything": whole, "some": drawer(random.Random(seed))}
        with self._volume.lock:
            self._volume.death = error
            return CrashDisk._on(self._volume.after(self._volume.draw(picks[kept])))

    def crash_states(self, limit: int | None = None, seed: int = 0) -> Iterator[CrashDisk]:
        """Each disk that a power cut could leave at this moment, once. Nothing happens to this one.

        First the two extremes, always: nothing that is not durable survives; all of it does. Then all others, or, where
        there are more than `limit`, a sample drawn by the seed that makes at most `limit` in all. Without a limit there
        can be very many: 3 to 18 for a write and two for a name, multiplied. A state is built when the iterator comes
        to it.
        """
        with self._volume.lock:
            volume = self._volume.twin()
        states = crash_states(volume, limit, seed)
        return (CrashDisk._on(volume.after(state)) for state in states)

    def snapshot(self) -> CrashDisk:
        """An independent copy, as this process sees it: same contents, same doubts, same open descriptors.

        It has no planned faults or hooks, and no descriptors of other processes.
        """
        with self._volume.lock:
            self._check_alive("")
            disk = CrashDisk._on(self._volume.twin())
            disk._opened = {fd: replace(opened) for fd, opened in self._opened.items()}
            for node in disk._volume.nodes.values():
                node.opened = 0
            for opened in disk._opened.values():
                disk._volume.nodes[opened.ino].opened += 1
            return disk

    # Looking at it, and damaging it. None of these is an operation: they are not counted, hooked or failed.

    def tree(self) -> dict[str, bytes]:
        """The content of each visible file, by its path from the root. Directories are left out."""
        with self._volume.lock:
            return {path: node.data for path, node in self._volume.walk() if isinstance(node, File)}

    def write_file(self, path: str, data: bytes) -> None:
        """Put a file there, durably: its directories are made, its content replaced."""
        *parents, name = [part for part in path.split("/") if part]
        with self._volume.lock:
            folder = self._volume.folder(ROOT)
            for part in parents:
                above, folder = folder, self._volume.folder(self._planted(folder, part, Folder))
                above.put(part, folder.ino)
            ino = self._planted(folder, name, File)
            self._volume.file(ino).put(data)
            folder.put(name, ino)

    def _planted(self, folder: Folder, name: str, kind: type[File] | type[Folder]) -> int:
        if name not in folder.names:
            mode = stat.S_IFDIR | 0o700 if kind is Folder else stat.S_IFREG | 0o600
            self._volume.enter(folder, name, self._volume.make(kind, mode, name))
        return folder.names[name]

    def corrupt(self, path: str, offset: int, xor: int = 0xFF) -> None:
        """Change one byte of a file; a negative offset counts from its end. Its content is then durable."""
        with self._volume.lock:
            node = self._volume.find_file(path)
            data = bytearray(node.data)
            data[offset] ^= xor
            node.put(bytes(data))

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to `size` bytes, or lengthen it with zeros. Its content is then durable."""
        with self._volume.lock:
            node = self._volume.find_file(path)
            node.put(node.data[:size].ljust(size, b"\0"))

    def copy_to(self, directory: str | os.PathLike[str]) -> None:
        """Write what is visible into a real directory, which is made if need be. Hard links become separate files."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        with self._volume.lock:
            for path, node in self._volume.walk():
                real = Path(directory) / path.lstrip("/")
                if isinstance(node, File):
                    real.write_bytes(node.data)
                else:
                    real.mkdir(exist_ok=True)
                real.chmod(stat.S_IMODE(node.mode))


def _raised(error: int | BaseException, path: str) -> BaseException:
    return os_error(error, path or None) if isinstance(error, int) else error
