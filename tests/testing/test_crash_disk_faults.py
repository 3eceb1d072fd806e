"""Hooks, planned faults, a full disk, damage, and threads on a CrashDisk."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rolltape.testing.disk import CrashDisk
from tests.testing.disks import NEW, Boom, created, sync, trees, with_file


@contextlib.contextmanager
def fails(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:
        yield
    assert caught.value.errno == number


# Hooks.


def test_the_hooks_see_each_operation_before_and_after_it_happened() -> None:
    disk = CrashDisk()
    disk.mkdir("/d")
    before: list[tuple[str, str, int]] = []
    after: list[tuple[str, str, int]] = []
    disk.on_operation = lambda op, path: before.append((op, path, len(disk.tree())))
    disk.on_done = lambda op, path: after.append((op, path, len(disk.tree())))
    fd = created(disk, "/d/f", b"x")
    disk.fsync(fd)
    disk.link("/d/f", "/g")
    with fails(errno.ENOENT):
        disk.unlink("/no")
    disk.close(fd)
    ops = ["create", "write", "fsync", "link", "unlink", "close"]
    seen = ["/d/f", "/d/f", "/d/f", "/g", "/no", "/d/f"]
    assert before == list(zip(ops, seen, [0, 1, 1, 1, 2, 2], strict=True))
    assert after == list(zip(ops, seen, [1, 1, 1, 2, 2, 2], strict=True))
    assert disk.operations == 7


def test_what_the_first_hook_raises_comes_in_the_operations_place() -> None:
    disk = CrashDisk()

    def boom(op: str, path: str) -> None:
        raise Boom

    disk.on_operation = boom
    with pytest.raises(Boom):
        disk.mkdir("/d")
    disk.on_operation, disk.on_done = None, boom
    with pytest.raises(Boom):
        disk.mkdir("/e")
    disk.on_done = None
    assert disk.listdir("/") == ["e"]


def test_a_process_killed_by_its_own_hook_does_not_make_that_operation() -> None:
    disk = CrashDisk()
    other = disk.process()

    def die_at_a_write(op: str, path: str) -> None:
        if op == "write":
            disk.kill(error=Boom())

    done: list[str] = []
    disk.on_operation, disk.on_done = die_at_a_write, lambda op, path: done.append(op)
    with pytest.raises(Boom):
        created(disk, "/f", b"never")
    assert other.tree() == {"/f": b""}
    assert done == ["create"]


def test_a_hook_may_wait_for_another_thread_that_uses_the_disk() -> None:
    disk = CrashDisk()
    reached, released = threading.Event(), threading.Event()

    def pause(op: str, path: str) -> None:
        if path == "/slow":
            reached.set()
            assert released.wait(10)

    disk.on_operation = pause
    thread = threading.Thread(target=disk.mkdir, args=("/slow",))
    thread.start()
    assert reached.wait(10)
    disk.mkdir("/quick")
    assert disk.listdir("/") == ["quick"]
    released.set()
    thread.join(10)
    assert sorted(disk.listdir("/")) == ["quick", "slow"]


def test_a_snapshot_at_each_operation_is_the_disk_as_it_was_then() -> None:
    disk = CrashDisk()
    snapshots: list[CrashDisk] = []
    disk.on_operation = lambda op, path: snapshots.append(disk.snapshot())
    fd = created(disk, "/f", b"a")
    disk.fsync(fd)
    sync(disk, "/")
    disk.on_operation = None
    # create, write, fsync, then open, fsync, close for the directory
    assert [len(trees(snapshot)) for snapshot in snapshots] == [1, 2, 4, 2, 2, 1]


# Faults.


def test_the_nth_call_fails_once_and_changes_nothing() -> None:
    disk = CrashDisk()
    fault = disk.fail("mkdir", 2, errno.EDQUOT)
    disk.mkdir("/a")
    with fails(errno.EDQUOT):
        disk.mkdir("/b")
    disk.mkdir("/c")
    assert sorted(disk.listdir("/")) == ["a", "c"]
    assert (fault.seen, fault.fired) == (3, 1)


def test_from_the_nth_call_on_all_fail_until_the_disk_is_healed() -> None:
    disk, fd = with_file()
    disk.fail("write", 2, forever=True)
    disk.write(fd, b"a")
    for _ in range(3):
        with fails(errno.EIO):
            disk.write(fd, b"b")
    disk.heal()
    disk.write(fd, b"c")
    assert disk.tree() == {"/f": b"ac"}


def test_only_calls_on_a_matching_path_count() -> None:
    disk = CrashDisk()
    disk.mkdir("/d")
    disk.fail("create", path="d/")
    created(disk, "/f")
    with fails(errno.EIO):
        created(disk, "/d/f")


def test_opening_and_creating_fail_apart() -> None:
    disk, _ = with_file()
    disk.fail("create", forever=True)
    disk.open("/f", os.O_RDONLY)
    disk.heal()
    disk.fail("open")
    created(disk, "/g")
    with fails(errno.EIO):
        disk.open("/f", os.O_RDONLY)


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("open", lambda disk, fd: disk.open("/f", os.O_RDONLY)),
        ("create", lambda disk, fd: disk.open("/g", NEW)),
        ("close", lambda disk, fd: disk.close(fd)),
        ("write", lambda disk, fd: disk.write(fd, b"x")),
        ("pread", lambda disk, fd: disk.pread(fd, 1, 0)),
        ("fsync", lambda disk, fd: disk.fsync(fd)),
        ("fdatasync", lambda disk, fd: disk.fdatasync(fd)),
        ("mkdir", lambda disk, fd: disk.mkdir("/d")),
        ("link", lambda disk, fd: disk.link("/f", "/g")),
        ("unlink", lambda disk, fd: disk.unlink("/f")),
        ("listdir", lambda disk, fd: disk.listdir("/")),
        ("stat", lambda disk, fd: disk.stat("/f")),
    ],
)
def test_every_operation_can_fail_and_then_works(op: str, call: Callable[[CrashDisk, int], object]) -> None:
    disk = CrashDisk()
    disk.write_file("/f", b"")
    fd = disk.open("/f", os.O_RDWR)
    disk.fail(op, error=errno.ESTALE)
    with fails(errno.ESTALE):
        call(disk, fd)
    call(disk, fd)


def test_a_short_write_says_so_and_the_error_comes_next() -> None:
    disk, fd = with_file()
    fault = disk.fail("write", 2, errno.ENOSPC, short=True)
    assert disk.write(fd, b"whole") == 5
    assert disk.write(fd, b"abcd") == 2
    with fails(errno.ENOSPC):
        disk.write(fd, b"cd")
    assert disk.write(fd, b"!") == 1
    assert disk.tree() == {"/f": b"wholeab!"}
    assert fault.fired == 2


def test_a_short_write_that_fails_for_ever_does() -> None:
    disk, fd = with_file()
    disk.fail("write", short=True, forever=True)
    assert disk.write(fd, b"a") == 1
    for _ in range(2):
        with fails(errno.EIO):
            disk.write(fd, b"b")


def test_a_fault_may_raise_any_exception() -> None:
    disk, fd = with_file()
    disk.fail("write", error=Boom(), short=True)
    disk.write(fd, b"abcd")
    with pytest.raises(Boom):
        disk.write(fd, b"cd")
    assert disk.kill().tree() == {"/f": b"ab"}


def test_failing_each_call_in_turn_ends_when_there_are_no_more() -> None:
    def workload(disk: CrashDisk) -> None:
        fd = created(disk, "/f", b"x")
        disk.fsync(fd)
        disk.fsync(fd)
        disk.close(fd)

    for nth in itertools.count(1):
        disk = CrashDisk()
        fault = disk.fail("fsync", nth)
        with contextlib.suppress(OSError):
            workload(disk)
        if not fault.fired:
            break
    assert nth == 3


@pytest.mark.parametrize(("op", "nth", "short"), [("rename", 1, False), ("write", 0, False), ("fsync", 1, True)])
def test_a_fault_that_cannot_happen_is_refused(op: str, nth: int, short: bool) -> None:
    with pytest.raises(ValueError, match="no such fault"):
        CrashDisk().fail(op, nth, short=short)


# A full disk.


def test_a_write_over_the_capacity_is_short_and_the_next_has_no_room() -> None:
    disk = CrashDisk(capacity=5)
    fd = created(disk, "/f", b"abc")
    assert disk.write(fd, b"defg") == 2
    with fails(errno.ENOSPC):
        disk.write(fd, b"g")
    assert disk.write(fd, b"") == 0
    assert disk.tree() == {"/f": b"abcde"}


def test_overwriting_needs_no_room() -> None:
    disk = CrashDisk()
    disk.write_file("/f", b"abc")
    disk.capacity = 3
    fd = disk.open("/f", os.O_WRONLY)
    assert disk.write(fd, b"xyzw") == 3
    with fails(errno.ENOSPC):
        disk.write(fd, b"w")


def test_room_comes_back_when_the_last_name_and_the_last_descriptor_are_gone() -> None:
    disk = CrashDisk(capacity=3)
    fd = created(disk, "/f", b"abc")
    disk.link("/f", "/g")
    other = created(disk, "/h")
    for name in ("/f", "/g"):
        disk.unlink(name)
        with fails(errno.ENOSPC):
            disk.write(other, b"x")
    disk.close(fd)
    assert disk.write(other, b"xyz") == 3


def test_a_process_that_dies_gives_back_the_room_of_files_that_only_it_had_open() -> None:
    disk = CrashDisk(capacity=3, inodes=2)
    other = disk.process()
    created(disk, "/f", b"abc")
    disk.unlink("/f")
    fd = created(other, "/g")
    with fails(errno.ENOSPC):
        other.write(fd, b"x")
    assert other.snapshot().write(fd, b"x") == 1  # which has no descriptor of the other process
    disk.kill()
    created(other, "/h", b"xyz")


def test_the_capacity_can_be_raised_and_lowered_at_any_time() -> None:
    disk, fd = with_file(b"abc")
    disk.capacity = 1
    with fails(errno.ENOSPC):
        disk.write(fd, b"x")
    disk.capacity = None
    assert disk.write(fd, b"x") == 1


def test_files_and_directories_that_are_one_too_many_have_no_room() -> None:
    disk = CrashDisk(inodes=2)
    disk.mkdir("/d")
    fd = created(disk, "/d/f", b"content is not counted")
    with fails(errno.ENOSPC):
        created(disk, "/g")
    with fails(errno.ENOSPC):
        disk.mkdir("/e")
    disk.link("/d/f", "/g")
    disk.close(fd)
    disk.unlink("/g")
    disk.unlink("/d/f")
    disk.mkdir("/e")


def test_the_limits_of_the_medium_outlive_process_and_power() -> None:
    disk = CrashDisk(capacity=1, inodes=1)
    for after in (disk.snapshot().power_cut(), next(disk.crash_states()), disk.snapshot(), disk.kill()):
        assert (after.capacity, after.inodes) == (1, 1)
        fd = created(after, "/f", b"x")
        with fails(errno.ENOSPC):
            after.write(fd, b"y")


# Looking and damaging.


def test_a_file_put_there_is_durable_with_its_directories() -> None:
    disk = CrashDisk()
    disk.write_file("/a/b/f", b"one")
    disk.write_file("a/b/f", b"two")
    disk.write_file("/a/g", b"")
    assert trees(disk) == [{"/a/b/f": b"two", "/a/g": b""}]


def test_what_is_put_there_leaves_nothing_of_what_was_in_doubt() -> None:
    disk, _ = with_file(b"abc")
    disk.unlink("/f")
    disk.write_file("/f", b"abc")
    assert trees(disk) == [{"/f": b"abc"}]
    disk.write_file("/g", b"")
    disk.write(disk.open("/g", os.O_WRONLY), b"unsynced")
    disk.corrupt("/g", 0, xor=ord("u") ^ ord("U"))
    assert trees(disk) == [{"/f": b"abc", "/g": b"Unsynced"}]


def test_corrupt_changes_one_byte_for_good() -> None:
    disk = CrashDisk()
    disk.write_file("/f", b"\x00\x01\x02")
    disk.corrupt("/f", 1)
    disk.corrupt("/f", -1, xor=3)
    assert trees(disk) == [{"/f": b"\x00\xfe\x01"}]
    with pytest.raises(IndexError):
        disk.corrupt("/f", 3)


def test_truncate_cuts_or_lengthens_for_good() -> None:
    disk = CrashDisk()
    disk.write_file("/f", b"abc")
    disk.truncate("/f", 1)
    assert trees(disk) == [{"/f": b"a"}]
    disk.truncate("/f", 3)
    assert trees(disk) == [{"/f": b"a\0\0"}]


def test_copy_to_writes_the_same_tree_into_a_real_directory(tmp_path: Path) -> None:
    disk = CrashDisk()
    disk.mkdir("/empty")
    disk.write_file("/d/f", b"content")
    disk.copy_to(tmp_path / "new")
    assert (tmp_path / "new/d/f").read_bytes() == b"content"
    assert (tmp_path / "new/empty").is_dir()
    assert stat.S_IMODE((tmp_path / "new/d/f").stat().st_mode) == 0o600


def test_looking_and_damaging_are_no_operations() -> None:
    disk = CrashDisk()
    disk.fail("create", forever=True)
    disk.on_operation = lambda op, path: pytest.fail(f"{op} {path}")
    disk.write_file("/f", b"abc")
    disk.truncate("/f", 2)
    disk.corrupt("/f", 0)
    assert disk.tree() and disk.operations == 0


# Threads.


def test_threads_lose_no_write_and_no_count() -> None:
    disk = CrashDisk()

    def work(name: str) -> None:
        fd = disk.open("/f", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in range(100):
            disk.write(fd, f"{name}{number}\n".encode())
            disk.fsync(fd)
        disk.close(fd)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = disk.tree()["/f"].decode().split()
    assert sorted(lines) == sorted(f"{name}{number}" for name in "abcd" for number in range(100))
    assert disk.operations == 4 * 202
