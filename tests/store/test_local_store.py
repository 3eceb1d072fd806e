"""The local store: what is there when its calls return, after a crash at any moment, and when they fail."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk

ROOT = "/scratch/runs/one"
"""Three levels, none of which is there at first."""
NAME = "journal/00000001/00000001.jsonl"
DATA = b'{"type":"segment"}\n'


def stored(disk: CrashDisk) -> LocalStore:
    return LocalStore(ROOT, fs=disk)


def temporaries(disk: CrashDisk) -> list[str]:
    return [path for path in disk.tree() if path.removeprefix(f"{ROOT}/{NAME.rpartition('/')[0]}/").startswith(".tmp-")]


# ---- put_new ---------------------------------------------------------------------------------------------------------


def test_what_was_put_survives_a_power_cut_with_every_directory_on_the_way() -> None:
    """Content and name are on disk when `put_new` returns."""
    disk = CrashDisk()
    stored(disk).put_new(NAME, DATA)
    for state in disk.crash_states():
        assert state.tree()[f"{ROOT}/{NAME}"] == DATA


def test_others_see_the_whole_file_or_none_whenever_they_look_and_whatever_crashes() -> None:
    """At each operation of `put_new`: with the page cache, and after a power cut."""
    disk, looks = CrashDisk(), []

    def look(op: str, path: str) -> None:
        for now in (disk.process(), *disk.crash_states(50)):
            names = stored(now).list(NAME.rpartition("/")[0])
            looks.append(names)
            assert names in ({}, {NAME.rpartition("/")[2]: len(DATA)})
            if names:
                assert stored(now).read(NAME, 0, 999) == DATA

    disk.on_operation = look
    stored(disk).put_new(NAME, DATA)
    assert {} in looks and {"00000001.jsonl": len(DATA)} in looks


def test_a_file_is_put_once() -> None:
    """The second one gets FileExistsError and changes nothing: here, in another process, after a power cut."""
    disk = CrashDisk()
    store = stored(disk)
    store.put_new(NAME, DATA)
    for again, where in ((store, disk), (stored(process := disk.process()), process)):
        with pytest.raises(FileExistsError):
            again.put_new(NAME, b"something else")
        assert where.tree() == {f"{ROOT}/{NAME}": DATA}
    for state in disk.crash_states():
        with pytest.raises(FileExistsError):
            stored(state).put_new(NAME, b"something else")
        assert state.tree()[f"{ROOT}/{NAME}"] == DATA


def test_of_many_who_put_a_file_at_once_one_wins(tmp_path: Path) -> None:
    """On a real file system, with threads that start together."""
    for turn in range(20):
        won, start = [], threading.Barrier(8)

        def put(me: int, turn: int = turn, won: list[int] = won, start: threading.Barrier = start) -> None:
            store = LocalStore(tmp_path / "run")
            start.wait()
            try:
                store.put_new(f"claims/{turn:08d}.json", b"%d" % me)
            except FileExistsError:
                return
            finally:
                store.close()
            won.append(me)

        threads = [threading.Thread(target=put, args=(me,)) for me in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert (tmp_path / f"run/claims/{turn:08d}.json").read_bytes() == b"%d" % won[0]
    assert not [path for path in tmp_path.rglob(".tmp-*")]


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("op", ["create", "write", "fsync", "link", "unlink", "open", "mkdir", "stat", "close"])
def test_a_put_that_fails_leaves_the_whole_file_or_none_and_can_be_tried_again(op: str, there: bool) -> None:
    """Each operation of it fails once, in a new directory and in one that is there."""
    begin = CrashDisk()
    if there:
        stored(begin).put_new("journal/00000001/00000009.jsonl", b"earlier\n")
    nth, fired = 0, True
    while fired:
        nth += 1
        disk = begin.snapshot()
        fault = disk.fail(op, nth, errno.EIO)
        store = stored(disk)
        try:
            store.put_new(NAME, DATA)
        except OSError as error:
            assert error.errno == errno.EIO
        assert disk.tree().get(f"{ROOT}/{NAME}", DATA) == DATA
        assert len(temporaries(disk)) <= (op == "unlink")
        disk.heal()
        for again in (store, stored(disk.process())):
            try:
                again.put_new(NAME, DATA)
            except FileExistsError:
                assert disk.tree()[f"{ROOT}/{NAME}"] == DATA
        assert {name: size for name, size in store.list("journal/00000001").items() if name != "00000009.jsonl"} == {
            "00000001.jsonl": len(DATA)
        }
        fired = bool(fault.fired)


@pytest.mark.parametrize("error", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EACCES])
def test_the_errors_of_the_system_come_through_as_they_are(error: int) -> None:
    """With number and path, so that whoever asked can say what to do."""
    disk = CrashDisk()
    disk.fail("create", error=error)
    with pytest.raises(OSError) as put:
        stored(disk).put_new(NAME, DATA)
    assert put.value.errno == error and put.value.filename.startswith(ROOT)
    stored(disk).put_new(NAME, DATA)
    disk.fail("pread", error=error)
    with pytest.raises(OSError) as read:
        stored(disk).read(NAME, 0, 10)
    assert read.value.errno == error
    disk.fail("listdir", error=error)
    with pytest.raises(OSError) as listed:
        stored(disk).list("journal")
    assert listed.value.errno == error


def test_a_full_disk_leaves_no_half_file() -> None:
    """Whatever number of bytes fits."""
    for capacity in range(len(DATA)):
        disk = CrashDisk(capacity=capacity)
        with pytest.raises(OSError) as error:
            stored(disk).put_new(NAME, DATA)
        assert error.value.errno == errno.ENOSPC
        assert disk.tree() == {}


def test_a_link_whose_first_answer_was_lost_counts_as_made() -> None:
    """NFS: the server made the name, the client asked again and was told that it is there. It is ours."""
    disk = CrashDisk()

    def link_before(op: str, path: str) -> None:
        if op == "link":
            (temporary,) = temporaries(disk)
            disk.process().link(temporary, path)

    disk.on_operation = link_before
    stored(disk).put_new(NAME, DATA)
    assert disk.tree() == {f"{ROOT}/{NAME}": DATA}


def test_no_existing_file_is_ever_opened_for_writing() -> None:
    """Whoever writes to a file has created it (invariant 1 of the journal)."""
    flags: list[int] = []

    class Watched(CrashDisk):
        def open(self, path: str, how: int, mode: int = 0o777) -> int:
            flags.append(how)
            return super().open(path, how, mode)

    store = stored(Watched())
    store.put_new(NAME, DATA)
    store.append(NAME, DATA)
    store.sync(NAME)
    store.release(NAME)
    store.sync(NAME)
    store.read(NAME, 0, 10)
    writing = [how for how in flags if how & os.O_ACCMODE != os.O_RDONLY]
    assert writing and all(how & os.O_EXCL and how & os.O_CREAT and how & os.O_APPEND for how in writing)
    assert all(how & os.O_CLOEXEC for how in flags)


# ---- append and sync -------------------------------------------------------------------------------------------------


def test_what_was_appended_survives_the_process_and_what_was_synced_the_power() -> None:
    """And nothing more: without a sync, a power cut may take it."""
    disk = CrashDisk()
    store = stored(disk)
    store.put_new(NAME, DATA)
    store.append(NAME, b"one\n")
    assert stored(disk.snapshot().kill()).read(NAME, 0, 999) == DATA + b"one\n"
    after = {stored(state).read(NAME, 0, 999) for state in disk.crash_states()}
    assert {DATA, DATA + b"one\n", DATA + b"o"} <= after
    store.sync(NAME)
    for state in disk.crash_states():
        assert stored(state).read(NAME, 0, 999) == DATA + b"one\n"


def test_a_sync_of_what_another_process_wrote_covers_its_bytes_and_every_name_on_the_way() -> None:
    """The other one was killed before it synced any of its directories, its file or what it wrote."""
    disk = CrashDisk()
    disk.write_file("/scratch/runs/notes.txt", b"somebody else's")
    for folder in (ROOT, f"{ROOT}/journal", f"{ROOT}/journal/00000001"):
        disk.mkdir(folder)
    disk.write(disk.open(f"{ROOT}/{NAME}", os.O_WRONLY | os.O_CREAT | os.O_EXCL), DATA)
    survivor = disk.kill()
    sync_folder(survivor, "/scratch/runs")  # whoever opens the run makes sure of the directories above it
    assert any(f"{ROOT}/{NAME}" not in state.tree() for state in survivor.crash_states(20))
    stored(survivor).sync(NAME)
    for state in survivor.crash_states():
        assert state.tree()[f"{ROOT}/{NAME}"] == DATA


def sync_folder(disk: CrashDisk, folder: str) -> None:
    fd = disk.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    disk.fsync(fd)
    disk.close(fd)


def test_directories_that_a_dead_process_made_are_made_sure_of_by_who_puts_a_file_in_them() -> None:
    """Killed at any operation, it may have left any of them without its name on disk."""
    first, killed = CrashDisk(), []
    first.on_operation = lambda op, path: killed.append(first.snapshot())
    stored(first).put_new(NAME, DATA)
    for moment in killed:
        disk = moment.kill()
        stored(disk).put_new("claims/00000002.json", b"{}\n")
        for state in disk.crash_states(30):
            assert state.tree()[f"{ROOT}/claims/00000002.json"] == b"{}\n"


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP, errno.EACCES])
@pytest.mark.parametrize("op", ["open", "fsync"])
def test_directories_above_the_run_that_cannot_be_synced_are_left_alone(op: str, error: int) -> None:
    """An automounter's directory refuses every sync, somebody else's may not even be opened. Neither is ours."""
    disk = CrashDisk()
    disk.write_file("/scratch/runs/notes.txt", b"somebody else's")

    def refuse(done: str, path: str) -> None:
        if done == op and path in ("/", "/scratch"):
            raise OSError(error, os.strerror(error), path)

    disk.on_operation = refuse
    stored(disk).put_new(NAME, DATA)
    for state in disk.crash_states():
        assert state.tree()[f"{ROOT}/{NAME}"] == DATA


def test_a_write_that_the_system_cuts_short_is_finished() -> None:
    """Each byte once, in order; and a system that writes nothing at all is an error, not an endless loop."""

    class Slow(CrashDisk):
        most = 3

        def write(self, fd: int, data: bytes | memoryview, /) -> int:
            return super().write(fd, memoryview(data)[: self.most])

    disk = Slow()
    store = stored(disk)
    store.put_new(NAME, DATA)
    store.append(NAME, b"one and two\n")
    assert disk.tree()[f"{ROOT}/{NAME}"] == DATA + b"one and two\n"
    disk.most = 0
    with pytest.raises(OSError, match="write returned 0"):
        store.append(NAME, b"three\n")


@pytest.mark.parametrize("op", ["write", "fdatasync"])
def test_an_append_or_a_sync_that_fails_says_so(op: str) -> None:
    """As the system said it."""
    disk = CrashDisk()
    store = stored(disk)
    store.put_new(NAME, DATA)
    disk.fail(op, error=errno.ENOSPC)
    with pytest.raises(OSError) as error:
        store.append(NAME, b"one\n")
        store.sync(NAME)
    assert error.value.errno == errno.ENOSPC


def test_a_sync_of_what_another_process_wrote_fails_if_any_part_of_it_does() -> None:
    """The file, its directory, and each directory up to the run's."""
    begin = CrashDisk()
    stored(begin).put_new(NAME, DATA)
    syncs = len(NAME.split("/")) + 1
    for op in ("open", "fsync"):
        for nth in range(1, syncs + 1):
            disk = begin.process()
            disk.fail(op, nth, errno.EIO)
            with pytest.raises(OSError, match="Input/output error"):
                stored(disk).sync(NAME)


# ---- reading, listing, deleting --------------------------------------------------------------------------------------


def test_a_read_returns_the_range_and_less_where_the_file_is_shorter(tmp_path: Path) -> None:
    """Also of a file that is being written. A missing one is an error."""
    store = LocalStore(tmp_path)
    store.put_new(NAME, b"0123456789")
    assert store.read(NAME, 0, 10) == b"0123456789"
    assert store.read(NAME, 3, 5) == b"34"
    assert store.read(NAME, 8, 99) == b"89"
    assert store.read(NAME, 10, 99) == store.read(NAME, 50, 99) == store.read(NAME, 4, 4) == b""
    store.append(NAME, b"abc")
    assert LocalStore(tmp_path).read(NAME, 8, 99) == b"89abc"
    with pytest.raises(FileNotFoundError):
        store.read("journal/00000001/00000002.jsonl", 0, 1)
    store.close()


def test_a_read_that_the_system_cuts_short_is_finished() -> None:
    """A range is whole unless the file ends."""

    class Slow(CrashDisk):
        def pread(self, fd: int, length: int, offset: int, /) -> bytes:
            return super().pread(fd, min(length, 3), offset)

    store = stored(Slow())
    store.put_new(NAME, DATA)
    assert store.read(NAME, 1, 15) == DATA[1:15] and store.read(NAME, 0, 999) == DATA


def test_a_listing_has_sizes_and_folders_and_no_temporary_files(tmp_path: Path) -> None:
    """A folder that is not there is empty; one that is a file is an error."""
    store = LocalStore(tmp_path / "run")
    assert store.list("") == store.list("journal") == {}
    store.put_new(NAME, DATA)
    store.put_new("run.json", b"{}\n")
    (tmp_path / "run/journal/00000001/.tmp-0123").write_bytes(b"half")
    assert store.list("") == {"journal": -1, "run.json": 3}
    assert store.list("journal") == {"00000001": -1}
    assert store.list("journal/00000001") == {"00000001.jsonl": len(DATA)}
    with pytest.raises(NotADirectoryError):
        store.list("run.json")
    store.close()


def test_a_file_that_is_deleted_while_its_folder_is_listed_is_left_out() -> None:
    """Somebody prunes or tidies up at the same time."""
    disk = CrashDisk()
    for number in (1, 2):
        stored(disk).put_new(f"claims/0000000{number}.json", b"{}\n")

    def delete_first(op: str, path: str) -> None:
        if op == "stat" and path.endswith("1.json"):
            disk.on_operation = None
            disk.process().unlink(path)

    disk.on_operation = delete_first
    assert stored(disk).list("claims") == {"00000002.json": 3}


def test_what_was_deleted_stays_deleted() -> None:
    """Durably. What is not there can't be deleted."""
    disk = CrashDisk()
    store = stored(disk)
    store.put_new(NAME, DATA)
    store.delete(NAME)
    for state in disk.crash_states():
        assert f"{ROOT}/{NAME}" not in state.tree()
    with pytest.raises(FileNotFoundError):
        store.delete(NAME)
    store.put_new(NAME, b"new\n")
    assert store.read(NAME, 0, 99) == b"new\n"


# ---- descriptors, modes, paths ---------------------------------------------------------------------------------------


def descriptors(below: Path) -> list[int]:
    """The open descriptors of this process for files below a directory."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the one that listed them
            continue
        if target.startswith(str(below)):
            found.append(fd)
    return found


def test_only_files_being_appended_to_are_open_and_no_child_inherits_them(tmp_path: Path) -> None:
    """Until they are released."""
    store = LocalStore(tmp_path)
    store.put_new(NAME, DATA)
    store.put_new("run.json", b"{}\n")
    store.read(NAME, 0, 5)
    store.list("journal")
    assert len(descriptors(tmp_path)) == 2
    assert not any(os.get_inheritable(fd) for fd in descriptors(tmp_path))
    store.release(NAME)
    assert len(descriptors(tmp_path)) == 1
    store.release(NAME)
    store.close()
    assert descriptors(tmp_path) == []


def test_calls_that_fail_leave_no_descriptor_open(tmp_path: Path) -> None:
    """None that would add up over a long run."""
    store = LocalStore(tmp_path)
    store.put_new(NAME, DATA)
    store.close()
    for doing in (
        lambda: store.put_new(NAME, DATA),
        lambda: store.put_new(f"{NAME}/below", DATA),
        lambda: store.read("journal", 0, 5),
        lambda: store.read("nothing", 0, 5),
        lambda: store.list(NAME),
        lambda: store.sync("nothing"),
        lambda: store.delete("journal"),
    ):
        with pytest.raises(OSError):
            doing()
    assert descriptors(tmp_path) == []


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(("mode", "file", "folder"), [("private", 0o600, 0o700), ("group", 0o640, 0o750)])
def test_files_and_directories_have_their_modes_whatever_the_umask(
    tmp_path: Path, mask: int, mode: str, file: int, folder: int
) -> None:
    """0600 and 0700, or with `mode="group"` 0640 and 0750. Directories that were there keep theirs."""
    (tmp_path / "there").mkdir(mode=0o755)
    (tmp_path / "there").chmod(0o755)
    with umask(mask):
        store = LocalStore(tmp_path / "there" / "run", mode=mode)  # type: ignore[arg-type]
        store.put_new(NAME, DATA)
        store.close()
    for path in (tmp_path / "there/run").rglob("*"):
        assert path.stat().st_mode & 0o7777 == (folder if path.is_dir() else file), path
    assert (tmp_path / "there/run").stat().st_mode & 0o7777 == folder
    assert (tmp_path / "there").stat().st_mode & 0o7777 == 0o755
    store = LocalStore(tmp_path / "there", mode=mode)  # type: ignore[arg-type]
    store.put_new("run.json", DATA)
    store.close()
    assert (tmp_path / "there").stat().st_mode & 0o7777 == 0o755


def test_a_file_where_a_directory_should_be_is_named(tmp_path: Path) -> None:
    """In the run's directory and above it."""
    (tmp_path / "taken").write_bytes(b"mine")
    with pytest.raises(NotADirectoryError, match="taken"):
        LocalStore(tmp_path / "taken").put_new("run.json", DATA)
    with pytest.raises(NotADirectoryError, match="taken"):
        LocalStore(tmp_path / "taken" / "run").put_new("run.json", DATA)
    with pytest.raises(NotADirectoryError, match="journal"):
        (tmp_path / "run").mkdir()
        (tmp_path / "run/journal").write_bytes(b"mine")
        LocalStore(tmp_path / "run").put_new(NAME, DATA)
    assert (tmp_path / "taken").read_bytes() == (tmp_path / "run/journal").read_bytes() == b"mine"


def test_a_store_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may change its working directory."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = LocalStore("run")
    store.put_new("run.json", DATA)
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.put_new(NAME, DATA)
    store.close()
    assert (tmp_path / "run" / NAME).read_bytes() == store.read("run.json", 0, 99) == DATA
    assert str(tmp_path / "run") in repr(store)
