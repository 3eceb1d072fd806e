"""While nothing crashes, a CrashDisk gives the results, errors and contents that `os` gives."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.store.protocol import FileSystem
from rolltape.testing.disk import CrashDisk
from tests.testing.disks import NEW, created, sync, trees


@contextlib.contextmanager
def fails(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:
        yield
    assert caught.value.errno == number


NOT_OPEN = 999_999
Operation = Callable[[FileSystem, str, list[int]], object]
paths = st.sampled_from(["a", "b", "d", "d/a", "d/e", "d/e/a", "a/x", "no/x", "d/", "a/", "d/.", "d/../b", "new/", "."])
accesses = st.sampled_from([os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
extras = st.sampled_from([0, os.O_CREAT, NEW, os.O_CREAT | os.O_EXCL, os.O_APPEND, os.O_DIRECTORY, os.O_NOFOLLOW])
modes = st.sampled_from([0o600, 0o640, 0o777])
which = st.integers(0, 5)


def describe(result: os.stat_result) -> object:
    if stat.S_ISDIR(result.st_mode):
        return result.st_mode
    return result.st_mode, result.st_size, result.st_nlink, result.st_uid, result.st_gid


def opening(path: str, access: int, extra: int, mode: int) -> Operation:
    # NEW's own access mode would mix with the drawn one into 3, which no kernel defines.
    flags = extra if extra & os.O_ACCMODE else access | extra

    def run(fs: FileSystem, root: str, made: list[int]) -> object:
        made.append(fs.open(root + path, flags, mode))
        return len(made)

    return run


def closing(nth: int) -> Operation:
    def run(fs: FileSystem, root: str, made: list[int]) -> object:
        fd = made[nth % len(made)] if made else NOT_OPEN
        if made:  # a real number, once closed, may soon be another file's
            made[nth % len(made)] = NOT_OPEN
        fs.close(fd)
        return None

    return run


def on_descriptor(nth: int, call: Callable[[FileSystem, int], object]) -> Operation:
    return lambda fs, root, made: call(fs, made[nth % len(made)] if made else NOT_OPEN)


def writing(nth: int, data: bytes) -> Operation:
    return on_descriptor(nth, lambda fs, fd: fs.write(fd, memoryview(data)))


def reading(nth: int, length: int, offset: int) -> Operation:
    return on_descriptor(nth, lambda fs, fd: fs.pread(fd, length, offset))


operations = st.one_of(
    st.builds(opening, paths, accesses, extras, modes),
    st.builds(closing, which),
    st.builds(writing, which, st.binary(max_size=6)),
    st.builds(reading, which, st.integers(-1, 8), st.integers(-1, 8)),
    st.builds(lambda nth: on_descriptor(nth, lambda fs, fd: fs.fsync(fd)), which),
    st.builds(lambda nth: on_descriptor(nth, lambda fs, fd: fs.fdatasync(fd)), which),
    st.builds(lambda path, mode: lambda fs, root, made: fs.mkdir(root + path, mode), paths, modes),
    st.builds(lambda src, dst: lambda fs, root, made: fs.link(root + src, root + dst), paths, paths),
    st.builds(lambda path: lambda fs, root, made: fs.unlink(root + path), paths),
    st.builds(lambda path: lambda fs, root, made: sorted(fs.listdir(root + path)), paths),
    st.builds(lambda path: lambda fs, root, made: describe(fs.stat(root + path)), paths),
)


def attempt(operation: Operation, fs: FileSystem, root: str, made: list[int]) -> tuple[str, object]:
    try:
        return "returned", operation(fs, root, made)
    except OSError as error:
        files = [name and name.removeprefix(root) for name in (error.filename, error.filename2)]
        return "raised", (type(error), error.errno, error.strerror, *files)


@contextlib.contextmanager
def real_root() -> Iterator[str]:
    umask = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory() as root:
            os.chmod(root, 0o755)
            yield root + "/"
    finally:
        os.umask(umask)


def real_tree(root: str) -> dict[str, bytes]:
    return {"/" + str(path.relative_to(root)): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}


def same_files(stat_of: Callable[[str], os.stat_result], found: list[str]) -> set[frozenset[str]]:
    """Which names are one file."""
    by_ino = sorted((stat_of(name).st_ino, name) for name in found)
    return {frozenset(name for _, name in group) for _, group in itertools.groupby(by_ino, lambda pair: pair[0])}


@settings(max_examples=300, deadline=None)
@given(st.lists(operations, min_size=10, max_size=60))
def test_any_sequence_of_operations_gives_what_the_real_one_gives(sequence: list[Operation]) -> None:
    disk = CrashDisk()
    real: list[int] = []
    fake: list[int] = []
    with real_root() as root:
        try:
            for operation in sequence:
                assert attempt(operation, disk, "/", fake) == attempt(operation, os, root, real)
            tree = disk.tree()
            assert tree == real_tree(root)
            assert same_files(disk.stat, list(tree)) == same_files(lambda name: os.stat(root + name), list(tree))
        finally:
            for fd in real:
                if fd != NOT_OPEN:
                    os.close(fd)


@settings(max_examples=150, deadline=None)
@given(st.lists(operations, min_size=5, max_size=15), st.integers(2, 30))
def test_the_two_extremes_come_first_and_no_state_comes_twice(sequence: list[Operation], limit: int) -> None:
    disk = CrashDisk()
    made: list[int] = []
    for operation in sequence:
        attempt(operation, disk, "/", made)
    states = list(disk.crash_states(limit, seed=limit))
    assert 1 <= len(states) <= limit
    assert states[0].tree() == disk.snapshot().power_cut("nothing").tree()
    assert disk.tree() in [state.tree() for state in states[:2]]
    for state in states:
        # What survived is durable: a second cut changes nothing. (This is also how it must be for a real disk.)
        assert [again.tree() for again in state.crash_states()] == [state.tree()]
    assert [state.tree() for state in disk.crash_states(limit, seed=limit)] == [state.tree() for state in states]


@settings(max_examples=150, deadline=None)
@given(st.lists(operations, max_size=25))
def test_when_everything_was_synced_a_power_cut_leaves_one_state(sequence: list[Operation]) -> None:
    disk = CrashDisk()
    made: list[int] = []
    for operation in sequence:
        attempt(operation, disk, "/", made)
    todo = ["/"]
    while todo:
        path = todo.pop()
        sync(disk, path)
        if stat.S_ISDIR(disk.stat(path).st_mode):
            todo += [f"{path.rstrip('/')}/{name}" for name in disk.listdir(path)]
    assert trees(disk) == [disk.tree()]


@pytest.mark.parametrize(
    "path", ["f", "f/", "f/.", "f/..", "f/x", "d", "d/", "d/.", "d/..", "d//x", "new", "new/", "new/.", "no/x", "."]
)
def test_every_operation_takes_an_odd_path_as_os_does(path: str) -> None:
    flags = [access | extra for access in (os.O_RDONLY, os.O_RDWR) for extra in (0, os.O_CREAT, NEW, os.O_DIRECTORY)]
    calls: list[Operation] = [
        lambda fs, root, made: describe(fs.stat(root + path)),
        lambda fs, root, made: sorted(fs.listdir(root + path)),
        lambda fs, root, made: fs.unlink(root + path),
        lambda fs, root, made: fs.mkdir(root + path),
        lambda fs, root, made: fs.link(root + path, root + "linked"),
        lambda fs, root, made: fs.link(root + "f", root + path),
        lambda fs, root, made: fs.link(root + "d", root + path),
        *(opening(path, 0, flag, 0o600) for flag in [*flags, os.O_CREAT | os.O_DIRECTORY]),
    ]
    for call in calls:
        with real_root() as root:
            disk, real = CrashDisk(), list[int]()
            for fs, start in ((disk, "/"), (os, root)):
                fs.mkdir(start + "d")
                fs.close(fs.open(start + "f", NEW))
            try:
                assert attempt(call, disk, "/", []) == attempt(call, os, root, real)
                assert sorted(disk.listdir("/")) == sorted(os.listdir(root))
            finally:
                for fd in real:
                    os.close(fd)


def test_a_path_that_is_too_long_or_empty_or_has_a_null_byte_is_refused_as_by_os() -> None:
    disk = CrashDisk()
    with real_root() as root:
        for fs, start in ((disk, "/"), (os, root)):
            with fails(errno.ENAMETOOLONG):
                fs.stat(start + "x" * 256)
            with fails(errno.ENAMETOOLONG):
                fs.stat(start + "x/" * 2100)
            with fails(errno.ENOENT):
                fs.stat("")
            with pytest.raises(ValueError, match="null"):
                fs.stat(start + "x\0")


def test_a_flag_that_the_disk_does_not_model_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="0o1000"):
        CrashDisk().open("/f", os.O_CREAT | os.O_TRUNC)


def test_stat_gives_times_from_the_clock_and_moves_them_at_each_change() -> None:
    now_ns = itertools.count(5 * 10**9, 10**9)
    disk = CrashDisk(clock=lambda: next(now_ns))
    fd = created(disk, "/f")
    before = disk.stat("/f").st_mtime_ns
    disk.write(fd, b"x")
    after = disk.stat("/f")
    assert after.st_mtime_ns > before
    assert after.st_mtime == after.st_mtime_ns / 1e9


def test_a_descriptor_never_belongs_to_another_file_later() -> None:
    disk = CrashDisk()
    fd = created(disk, "/f")
    disk.close(fd)
    assert created(disk, "/g") != fd
    with fails(errno.EBADF):
        disk.fsync(fd)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
