"""What the tests of the crash disk share: files on it, and what a crash may leave of them."""

from __future__ import annotations

import os

from rolltape.testing.disk import CrashDisk

NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class Boom(BaseException):
    """What a test raises to stop a process in the middle."""


def created(disk: CrashDisk, path: str, data: bytes = b"") -> int:
    fd = disk.open(path, NEW, 0o600)
    if data:
        assert disk.write(fd, data) == len(data)
    return fd


def sync(disk: CrashDisk, path: str) -> None:
    fd = disk.open(path, os.O_RDONLY)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)


def with_file(data: bytes = b"", path: str = "/f") -> tuple[CrashDisk, int]:
    """A disk with one durable file, open for appending."""
    disk = CrashDisk()
    disk.write_file(path, data)
    return disk, disk.open(path, os.O_WRONLY | os.O_APPEND)


def trees(disk: CrashDisk, limit: int | None = None, seed: int = 0) -> list[dict[str, bytes]]:
    return [state.tree() for state in disk.crash_states(limit, seed)]
