"""A directory on a local disk or a shared POSIX file system.

When `put_new` returns, the file, its content and every directory on the way to it survive power loss. When `append`
returns, the bytes survive the process and nothing more; when `sync` returns, everything written so far survives power
loss. Nothing else is promised: a crash in `put_new` may leave a file named `.tmp-…`, which nobody reads.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from typing import Literal

from rolltape.store.protocol import FileSystem

Mode = Literal["private", "group"]

_MODES: dict[Mode, tuple[int, int]] = {"private": (0o600, 0o700), "group": (0o640, 0o750)}
_TEMPORARY = ".tmp-"

_NOT_OURS = {errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EROFS}
"""Above the run: a directory that can't be opened or synced is none in which we, or one of ours, made anything."""


class LocalStore:
    """The six operations of `Store` under one directory, which `put_new` creates when it must."""

    def __init__(self, root: str | os.PathLike[str], *, mode: Mode = "private", fs: FileSystem = os) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self._file_mode, self._dir_mode = _MODES[mode]
        self._fs = fs
        self._appending: dict[str, int] = {}
        self._settled: set[str] = set()
        """Directories whose own entry is known to be on disk, so that each is synced once."""

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def __str__(self) -> str:
        return self.root

    def path(self, name: str) -> str:
        """Return where `name` lies. Names come from Rolltape's own numbering, never from outside."""
        return os.path.join(self.root, *name.split("/"))

    def put_new(self, name: str, data: bytes) -> None:
        path = self.path(name)
        folder = os.path.dirname(path)
        self._make_folder(folder)
        temporary = os.path.join(folder, f"{_TEMPORARY}{secrets.token_hex(8)}")
        fd = self._fs.open(
            temporary, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._file_mode
        )
        try:
            if self._fs.stat(temporary).st_mode & 0o7777 != self._file_mode:
                self._fs.chmod(temporary, self._file_mode)  # the umask took something of it
            self._write(fd, data)
            self._fs.fsync(fd)
            self._link(temporary, path)
            self._fs.unlink(temporary)
            self._sync_folder(folder)
        except BaseException:
            self._close(fd)
            self._discard(temporary)
            raise
        self._appending[name] = fd

    def append(self, name: str, data: bytes) -> None:
        self._write(self._appending[name], data)

    def sync(self, name: str) -> None:
        if (fd := self._appending.get(name)) is not None:
            self._fs.fdatasync(fd)
            return
        path = self.path(name)
        fd = self._fs.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._fs.fsync(fd)
        finally:
            self._close(fd)
        folder = os.path.dirname(path)
        while len(folder) >= len(self.root):
            self._sync_folder(folder)
            folder = os.path.dirname(folder)

    def read(self, name: str, start: int, end: int) -> bytes:
        fd = self._fs.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts: list[bytes] = []
            while start < end:
                part = self._fs.pread(fd, end - start, start)
                if not part:
                    break
                parts.append(part)
                start += len(part)
            return b"".join(parts)
        finally:
            self._close(fd)

    def list(self, folder: str) -> dict[str, int]:
        path = self.path(folder) if folder else self.root
        try:
            names = self._fs.listdir(path)
        except FileNotFoundError:
            return {}
        found: dict[str, int] = {}
        for name in names:
            if name.startswith(_TEMPORARY):
                continue
            try:
                status = self._fs.stat(os.path.join(path, name))
            except FileNotFoundError:  # deleted since it was listed
                continue
            found[name] = -1 if stat.S_ISDIR(status.st_mode) else status.st_size
        return found

    def release(self, name: str) -> None:
        """Stop appending to `name`: its descriptor is closed, without a sync."""
        if (fd := self._appending.pop(name, None)) is not None:
            self._close(fd)

    def delete(self, name: str) -> None:
        self.release(name)
        path = self.path(name)
        self._fs.unlink(path)
        self._sync_folder(os.path.dirname(path))

    def close(self) -> None:
        for name in list(self._appending):
            self.release(name)

    def _link(self, temporary: str, path: str) -> None:
        try:
            self._fs.link(temporary, path)
        except FileExistsError:
            # NFS: the server's first answer was lost, and the client asked again for what had succeeded.
            if self._fs.stat(temporary).st_nlink != 2:
                raise

    def _write(self, fd: int, data: bytes) -> None:
        written = self._fs.write(fd, data)
        if written == len(data):
            return
        rest = memoryview(data)[written:]
        while rest:
            count = self._fs.write(fd, rest)
            if count == 0:
                raise OSError(errno.EIO, "write returned 0")
            rest = rest[count:]

    def _make_folder(self, folder: str) -> None:
        """Make `folder` and its parents and sync the entry of each, once per store object.

        A folder that is already there may have been made by a process that died before it synced the entry.
        """
        if folder in self._settled:
            return
        parent = os.path.dirname(folder)
        made = True
        try:
            self._fs.mkdir(folder, self._dir_mode)
        except FileExistsError:
            if not stat.S_ISDIR(self._fs.stat(folder).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "a file lies where a directory should be", folder) from None
            made = False
        except FileNotFoundError:
            if parent == folder:
                raise
            self._make_folder(parent)
            return self._make_folder(folder)
        if self._fs.stat(folder).st_mode & 0o7777 != self._dir_mode and made:
            self._fs.chmod(folder, self._dir_mode)  # the umask took something of it
        if len(folder) > len(self.root):
            self._make_folder(parent)
            self._sync_folder(parent)
        else:
            self._sync_above(parent)
        self._settled.add(folder)

    def _sync_above(self, folder: str) -> None:
        """Sync every directory above the run: one that died may have made some of them and synced none."""
        while True:
            try:
                self._sync_folder(folder)
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    raise
                return
            if (parent := os.path.dirname(folder)) == folder:
                return
            folder = parent

    def _sync_folder(self, folder: str) -> None:
        fd = self._fs.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._fs.fsync(fd)
        finally:
            self._close(fd)

    def _close(self, fd: int) -> None:
        with suppress(OSError):  # what counts was said by the sync before it, and the descriptor is gone either way
            self._fs.close(fd)

    def _discard(self, temporary: str) -> None:
        with suppress(OSError):  # a leftover is harmless, and the first error is the one that matters
            self._fs.unlink(temporary)
