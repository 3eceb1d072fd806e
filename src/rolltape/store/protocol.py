"""The six operations of a store, and the system calls that the local one makes.

Names are relative, with forward slashes: `journal/00000007/00000001.jsonl`. Errors are `OSError`, as the operating
system gave them: `FileExistsError`, `FileNotFoundError`, `ENOSPC`, `EIO`. Internal until a second store exists.
"""

from __future__ import annotations

import os
from typing import Protocol


class Store(Protocol):
    """Six dumb operations. A name is created once, grows by its creator's appends, and is never changed otherwise."""

    def put_new(self, name: str, data: bytes) -> None:
        """Create `name` with exactly `data`, or raise FileExistsError and change nothing.

        Others see the whole content or no file. When it returns, content and name survive power loss.
        """

    def append(self, name: str, data: bytes) -> None:
        """Add `data` to a file that this store object created. Survives the process; not power loss until `sync`."""

    def sync(self, name: str) -> None:
        """Make `name` survive power loss as it is now: its bytes, and each directory entry on the way to it."""

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end); fewer where the file is shorter."""

    def list(self, folder: str) -> dict[str, int]:
        """Return the files and folders directly in `folder`, with sizes (folders: -1). No such folder: empty."""

    def delete(self, name: str) -> None:
        """Remove `name`, durably."""

    def release(self, name: str) -> None:
        """Give up what is held open for appending to `name`. Nothing is written or synced."""

    def close(self) -> None:
        """Release everything."""


class FileSystem(Protocol):
    """The system calls of `LocalStore`, as the `os` module spells them. `rolltape.testing` has one that crashes."""

    def open(self, path: str, flags: int, mode: int = 0o777) -> int: ...
    def close(self, fd: int, /) -> None: ...
    def write(self, fd: int, data: bytes | memoryview, /) -> int: ...
    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...
    def fsync(self, fd: int) -> None: ...
    def fdatasync(self, fd: int) -> None: ...
    def chmod(self, path: str, mode: int) -> None: ...
    def mkdir(self, path: str, mode: int = 0o777) -> None: ...
    def link(self, src: str, dst: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def listdir(self, path: str) -> list[str]: ...
    def stat(self, path: str) -> os.stat_result: ...
