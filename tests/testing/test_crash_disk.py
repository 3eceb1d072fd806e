"""After a crash, a CrashDisk is exactly what its docstring allows: small cases, each with its exact set of states."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator

import pytest

from rolltape.testing.disk import CrashDisk
from tests.testing.disks import Boom, created, sync, trees, with_file


def contents(disk: CrashDisk, path: str = "/f") -> set[bytes]:
    """What may be in the file. Each state must come once."""
    found = [tree[path] for tree in trees(disk)]
    assert len(found) == len(set(found))
    return set(found)


def names(disk: CrashDisk, folder: str = "/") -> list[tuple[str, ...]]:
    """The sets of names that may be in a directory, sorted."""
    return sorted(tuple(sorted(state.listdir(folder))) for state in disk.crash_states())


@contextlib.contextmanager
def fails(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:
        yield
    assert caught.value.errno == number


# What a power cut may leave of a write.


def test_an_unsynced_append_of_two_bytes_leaves_one_of_six_contents() -> None:
    disk, fd = with_file()
    disk.write(fd, b"ab")
    assert contents(disk) == {b"", b"ab", b"a", b"\0\0", b"a\0", b"\0b"}


def test_an_unsynced_append_leaves_the_synced_bytes_before_it_alone() -> None:
    disk, fd = with_file(b"old")
    disk.write(fd, b"x")
    assert contents(disk) == {b"old", b"oldx", b"old\0"}


@pytest.mark.parametrize("sync_name", ["fsync", "fdatasync"])
def test_a_synced_write_survives_whole(sync_name: str) -> None:
    disk, fd = with_file()
    disk.write(fd, b"ab")
    getattr(disk, sync_name)(fd)
    assert trees(disk) == [{"/f": b"ab"}]


def test_a_sync_through_any_descriptor_of_the_file_counts() -> None:
    disk, fd = with_file()
    disk.write(fd, b"ab")
    sync(disk, "/f")
    assert trees(disk) == [{"/f": b"ab"}]


def test_a_later_write_may_survive_without_an_earlier_one() -> None:
    disk, fd = with_file()
    disk.write(fd, b"a")
    disk.write(fd, b"b")
    assert contents(disk) == {b"", b"a", b"\0", b"ab", b"\0b", b"a\0", b"\0\0"}


def test_an_overwrite_leaves_old_bytes_or_new_ones_and_never_zeros() -> None:
    disk = CrashDisk()
    disk.write_file("/f", b"old")
    fd = disk.open("/f", os.O_WRONLY)
    disk.write(fd, b"NE")
    assert contents(disk) == {b"old", b"Nld", b"oEd", b"NEd"}


def test_a_long_write_tears_at_bytes_lines_and_sectors() -> None:
    disk, fd = with_file(b"#" * 500)
    disk.write(fd, b"first line\n" + b"second line\n")
    beginnings = {len(content) - 500 for content in contents(disk) if b"\0" not in content}
    assert beginnings == {0, 1, 11, 12, 22, 23}
    zeros = b"\0" * 11
    assert b"#" * 500 + zeros + b"second line\n" in contents(disk)
    assert b"#" * 500 + b"first line\n" + zeros + b"\0" in contents(disk)


def test_writes_to_two_files_survive_each_for_itself() -> None:
    disk, f = with_file()
    disk.write_file("/g", b"")
    g = disk.open("/g", os.O_WRONLY)
    disk.write(f, b"1")
    disk.write(g, b"2")
    some = (b"", b"1", b"\0")
    other = (b"", b"2", b"\0")
    assert {(tree["/f"], tree["/g"]) for tree in trees(disk)} == set(itertools.product(some, other))


# What a power cut may leave of names.


def test_a_synced_file_without_its_directory_synced_may_be_lost_whole() -> None:
    disk = CrashDisk()
    fd = created(disk, "/f", b"ab")
    disk.fsync(fd)
    assert trees(disk) == [{}, {"/f": b"ab"}]


def test_a_synced_name_whose_file_was_not_synced_may_be_empty() -> None:
    disk = CrashDisk()
    created(disk, "/f", b"a")
    sync(disk, "/")
    assert contents(disk) == {b"", b"a", b"\0"}


def test_unsynced_names_survive_in_every_combination() -> None:
    disk = CrashDisk()
    for name in "abc":
        created(disk, f"/{name}")
    everything = sorted(subset for count in range(4) for subset in itertools.combinations("abc", count))
    assert names(disk) == everything


def test_below_a_directory_whose_own_name_was_not_synced_all_is_lost() -> None:
    disk = CrashDisk()
    disk.mkdir("/d")
    disk.mkdir("/d/e")
    fd = created(disk, "/d/e/f", b"ab")
    disk.fsync(fd)
    sync(disk, "/d/e")
    sync(disk, "/d")
    assert trees(disk) == [{}, {"/d/e/f": b"ab"}]
    assert names(disk) == [(), ("d",)]
    sync(disk, "/")
    assert trees(disk) == [{"/d/e/f": b"ab"}]


def test_a_directory_in_between_may_be_the_one_that_is_lost() -> None:
    disk = CrashDisk()
    disk.mkdir("/d")
    disk.mkdir("/d/e")
    created(disk, "/d/e/f")
    sync(disk, "/")
    sync(disk, "/d/e")
    states = list(disk.crash_states())
    assert [state.tree() for state in states] == [{}, {"/d/e/f": b""}]
    assert [state.listdir("/d") for state in states] == [[], ["e"]]


def test_an_unsynced_unlink_may_bring_the_file_back_with_its_content() -> None:
    disk, fd = with_file(b"old")
    disk.write(fd, b"x")
    disk.unlink("/f")
    assert sorted(map(str, trees(disk))) == sorted(map(str, [{}, {"/f": b"old"}, {"/f": b"oldx"}, {"/f": b"old\0"}]))
    sync(disk, "/")
    assert trees(disk) == [{}]


def test_a_file_made_and_removed_again_may_be_there_after_the_cut() -> None:
    disk = CrashDisk()
    created(disk, "/f")
    disk.unlink("/f")
    assert names(disk) == [(), ("f",)]


def test_a_name_given_to_another_file_is_the_old_one_the_new_one_or_none() -> None:
    disk = CrashDisk()
    disk.write_file("/f", b"old")
    disk.unlink("/f")
    disk.fsync(created(disk, "/f", b"new"))
    assert sorted(map(str, trees(disk))) == sorted(map(str, [{"/f": b"old"}, {}, {"/f": b"new"}]))


def test_put_new_by_link_may_leave_either_name_both_or_none() -> None:
    disk = CrashDisk()
    disk.fsync(created(disk, "/tmp", b"x"))
    disk.link("/tmp", "/name")
    disk.unlink("/tmp")
    assert names(disk) == [(), ("name",), ("name", "tmp"), ("tmp",)]
    both = next(state for state in disk.crash_states() if len(state.tree()) == 2)
    assert both.stat("/tmp").st_ino == both.stat("/name").st_ino
    assert both.stat("/tmp").st_nlink == 2
    sync(disk, "/")
    assert trees(disk) == [{"/name": b"x"}]


def test_two_names_of_one_file_always_have_one_content() -> None:
    disk, fd = with_file()
    disk.link("/f", "/g")
    sync(disk, "/")
    disk.write(fd, b"a")
    assert {(tree["/f"], tree["/g"]) for tree in trees(disk)} == {(b"", b""), (b"a", b"a"), (b"\0", b"\0")}


def test_names_in_two_directories_survive_each_for_itself() -> None:
    disk = CrashDisk()
    disk.write_file("/d/old", b"")
    disk.write_file("/e/old", b"")
    created(disk, "/d/new")
    created(disk, "/e/new")
    found = {tuple(sorted(tree)) for tree in trees(disk)}
    old = {"/d/old", "/e/old"}
    assert found == {tuple(sorted(old | new)) for new in ({"/d/new"}, {"/e/new"}, {"/d/new", "/e/new"}, set[str]())}


def test_another_file_and_another_name_of_the_same_file_are_two_states() -> None:
    disk, _ = with_file()
    created(disk, "/g")
    disk.unlink("/g")
    disk.link("/f", "/g")
    linked = [state.stat("/f").st_nlink for state in disk.crash_states() if "/g" in state.tree()]
    assert sorted(linked) == [1, 2]


def test_states_that_no_process_can_tell_apart_come_once() -> None:
    disk = CrashDisk()
    created(disk, "/f")
    disk.unlink("/f")
    created(disk, "/f")
    assert names(disk) == [(), ("f",)]


# After a failed sync.


@pytest.mark.parametrize("sync_name", ["fsync", "fdatasync"])
def test_after_a_failed_sync_a_later_one_does_not_make_the_writes_durable(sync_name: str) -> None:
    disk, fd = with_file(b"old")
    disk.write(fd, b"x")
    disk.fail(sync_name)
    with fails(errno.EIO):
        getattr(disk, sync_name)(fd)
    assert disk.tree() == {"/f": b"oldx"}  # still read back
    disk.fsync(fd)
    assert contents(disk) == {b"old", b"oldx", b"old\0"}


def test_what_was_written_after_a_failed_sync_can_be_synced_around_the_doubt() -> None:
    disk, fd = with_file()
    disk.write(fd, b"a")
    disk.fail("fsync")
    with fails(errno.EIO):
        disk.fsync(fd)
    disk.write(fd, b"b")
    disk.fsync(fd)
    assert contents(disk) == {b"\0b", b"ab"}
    disk.write(fd, b"c")
    assert contents(disk) == {head + tail for head in (b"\0b", b"ab") for tail in (b"", b"c", b"\0")}


def test_after_a_failed_sync_of_a_directory_its_names_stay_in_doubt() -> None:
    disk = CrashDisk()
    created(disk, "/a")
    disk.fail("fsync", path="/")
    with fails(errno.EIO):
        sync(disk, "/")
    created(disk, "/b")
    sync(disk, "/")
    assert names(disk) == [("a", "b"), ("b",)]
    disk.unlink("/a")
    sync(disk, "/")
    assert names(disk) == [("b",)]


def test_the_doubt_survives_the_process_and_the_snapshot() -> None:
    disk, fd = with_file()
    disk.write(fd, b"a")
    disk.fail("fsync")
    with fails(errno.EIO):
        disk.fsync(fd)
    copy = disk.snapshot()
    for later in (copy, disk.kill()):
        sync(later, "/f")
        assert contents(later) == {b"", b"a", b"\0"}


# More states than the limit.


def busy() -> CrashDisk:
    disk = CrashDisk()
    for name in "abcd":
        created(disk, f"/{name}", b"12")
    return disk


def test_without_a_limit_every_state_comes_once() -> None:
    found = [tuple(sorted(tree.items())) for tree in trees(busy())]
    assert len(found) == len(set(found)) == 7**4  # each name absent, or with one of six contents


def test_a_limit_that_is_large_enough_gives_every_state() -> None:
    assert sorted(map(str, trees(busy(), limit=7**4))) == sorted(map(str, trees(busy())))
    assert len(trees(busy(), limit=7**4 + 1)) == 7**4


def test_a_sample_has_the_extremes_and_only_legal_states_and_is_the_seeds_own() -> None:
    legal = {str(tree) for tree in trees(busy())}
    sample = trees(busy(), limit=100, seed=1)
    assert sample[:2] == [{}, busy().tree()]
    assert len({str(tree) for tree in sample} & legal) == len(sample) == 100
    assert sample == trees(busy(), limit=100, seed=1)
    assert sample != trees(busy(), limit=100, seed=2)
    assert trees(busy(), limit=1) == sample[:2]  # never without the extremes


def test_a_file_with_very_many_possible_contents_is_sampled_too() -> None:
    disk, fd = with_file()
    for _ in range(40):
        disk.write(fd, b"some line\n")
    sample = trees(disk, limit=50)
    assert len(sample) == len({tree["/f"] for tree in sample}) == 50


def test_the_states_are_those_of_the_moment_of_the_call() -> None:
    disk, fd = with_file()
    states = disk.crash_states()
    disk.write(fd, b"ab")
    assert [state.tree() for state in states] == [{"/f": b""}]


# Processes and cuts.


def test_kill_keeps_what_was_written_and_takes_the_descriptors() -> None:
    disk = CrashDisk()
    fd = created(disk, "/f", b"ab")
    after = disk.kill()
    assert after.tree() == {"/f": b"ab"}
    with fails(errno.EBADF):
        after.write(fd, b"more")
    assert len(trees(after)) == 7  # nothing became durable by it


def test_a_killed_process_can_change_nothing_more() -> None:
    disk = CrashDisk()
    fd = created(disk, "/f")
    after = disk.kill()
    disk.close(fd)
    with fails(errno.EIO):
        disk.write(fd, b"late")
    with fails(errno.EIO):
        disk.mkdir("/late")
    assert after.tree() == {"/f": b""}
    assert after.operations == 0


def test_a_killed_process_may_be_given_what_its_operations_raise() -> None:
    disk = CrashDisk()
    disk.kill(error=Boom("dead"))
    with pytest.raises(Boom):
        disk.listdir("/")


def test_a_power_cut_ends_every_process_and_keeps_what_is_asked_for() -> None:
    for kept, expected in (("nothing", {}), ("everything", {"/f": b"ab"})):
        disk = CrashDisk()
        other = disk.process()
        created(disk, "/f", b"ab")
        after = disk.power_cut(kept)  # type: ignore[arg-type]
        assert after.tree() == expected
        for dead in (disk, other):
            with fails(errno.EIO):
                dead.listdir("/")


def test_some_of_it_survives_a_power_cut_as_the_seed_says() -> None:
    legal = trees(busy())
    cuts = [busy().power_cut("some", seed=seed).tree() for seed in range(20)]
    assert all(cut in legal for cut in cuts)
    assert cuts == [busy().power_cut("some", seed=seed).tree() for seed in range(20)]
    assert len({str(cut) for cut in cuts}) > 5


def test_another_process_sees_each_change_and_outlives_a_kill() -> None:
    disk = CrashDisk()
    other = disk.process()
    fd = created(other, "/f", b"ab")
    assert disk.tree() == {"/f": b"ab"}
    disk.kill()
    other.write(fd, b"c")
    assert other.tree() == {"/f": b"abc"}


def test_a_snapshot_is_independent_and_has_the_open_descriptors() -> None:
    disk = CrashDisk()
    fd = created(disk, "/f", b"ab")
    copy = disk.snapshot()
    copy.write(fd, b"c")
    copy.mkdir("/d")
    disk.write(fd, b"z")
    assert (copy.tree(), disk.tree()) == ({"/f": b"abc"}, {"/f": b"abz"})
    assert disk.listdir("/") == ["f"]
