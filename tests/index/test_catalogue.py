"""Whose an index file is, what becomes of one that is no index, and where it lies."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import rolltape
from rolltape.index import Catalogue, Query, Updater, place, places
from rolltape.index.catalogue import VERSION
from rolltape.journal import Reader, open_writer
from rolltape.store import LocalStore
from tests.index.compare import check

HANG_S = 60.0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three trajectories, complete."""
    path = tmp_path / "run"
    writer = open_writer(LocalStore(path))
    for key in (b"a#0", b"b#0", b"c#0"):
        body = b'{"type":"attempt","key":"%b","epoch":1,"attempt":1,"seq":0,"unix_s":5.5' % key
        writer.put_from_thread(body).result(HANG_S)
    writer.close()
    return path


def keys(path: Path) -> list[str]:
    with rolltape.read(path) as found:
        return sorted(trajectory.key for trajectory in found)


def index_is_used(path: Path) -> bool:
    """Say whether a reader uses the index beside the run, and finds it sound and complete."""
    with rolltape.read(path) as found:
        where = found.index_path
        assert len(found) == 3
    with sqlite3.connect(path / "index.sqlite") as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = database.execute("SELECT count(*) FROM trajectory").fetchall()
    database.close()
    return where == str(path / "index.sqlite") and rows == [(3,)]


def garbage(index: Path) -> None:
    index.write_bytes(b"no database" * 1000)


def a_text(index: Path) -> None:
    index.write_bytes(b"x")


def empty(index: Path) -> None:
    index.write_bytes(b"")


def half(index: Path) -> None:
    os.truncate(index, index.stat().st_size // 2)


def a_hundred_bytes(index: Path) -> None:
    os.truncate(index, 100)


def bad_pages(index: Path) -> None:
    size = index.stat().st_size
    with open(index, "r+b") as file:
        file.seek(4096)
        file.write(b"Z" * (size - 4096))


def bad_schema(index: Path) -> None:
    with open(index, "r+b") as file:
        file.seek(100)
        file.write(b"\x77" * 3996)


def another_version(index: Path) -> None:
    sql(index, f"PRAGMA user_version={VERSION + 1}", "DELETE FROM trajectory", "DROP TABLE about")


def an_older_version(index: Path) -> None:
    sql(index, f"PRAGMA user_version={VERSION - 1}", "DELETE FROM trajectory")


def another_run(index: Path) -> None:
    sql(index, "UPDATE about SET run = 'another'", "DELETE FROM trajectory")


def bad_marks(index: Path) -> None:
    sql(index, "UPDATE part SET marks = x'00ff'", "UPDATE cursor SET finished = 0, position = 0")


def sql(index: Path, *statements: str) -> None:
    with sqlite3.connect(index) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


@pytest.mark.parametrize(
    "spoil",
    [garbage, a_text, empty, half, a_hundred_bytes, bad_pages, bad_schema, another_version, an_older_version,
     another_run, bad_marks],
)  # fmt: skip
def test_what_is_no_index_of_this_run_is_built_again(run: Path, spoil: Callable[[Path], None]):
    """In its place, and nobody notices."""
    assert keys(run) == ["a#0", "b#0", "c#0"]
    spoil(run / "index.sqlite")
    assert keys(run) == ["a#0", "b#0", "c#0"]
    assert index_is_used(run)


@pytest.mark.parametrize("spoil", [bad_pages, another_run, an_older_version])
def test_an_index_that_goes_bad_under_a_reader_is_left_or_built_again(run: Path, spoil: Callable[[Path], None]):
    """In the middle of its life, between two questions."""
    with rolltape.read(run) as found:
        assert len(found) == 3
        spoil(run / "index.sqlite")
        found._catalogue._db.execute("PRAGMA shrink_memory")
        for key in ("a#0", "b#0", "c#0"):
            assert found[key].key == key and len(list(found[key].records())) == 1
        assert len(found) == 3
    assert index_is_used(run)


def test_a_directory_in_the_place_of_the_index_is_left_alone(run: Path):
    """The cache is used."""
    (run / "index.sqlite").mkdir()
    assert keys(run) == ["a#0", "b#0", "c#0"]


def test_an_index_may_be_deleted_at_any_time(run: Path):
    """By hand, with or without what SQLite keeps beside it, while it is open too."""
    with rolltape.read(run) as found:
        assert len(found) == 3
        (run / "index.sqlite").unlink()
        assert len(found) == 3
        assert keys(run) == ["a#0", "b#0", "c#0"]
    assert keys(run) == ["a#0", "b#0", "c#0"]


def test_an_index_is_rebuilt_on_request(run: Path):
    """Whatever it says."""
    assert keys(run)
    sql(run / "index.sqlite", "UPDATE trajectory SET status = 'wrong'")
    with rolltape.read(run) as found:
        assert {trajectory.status for trajectory in found} == {"wrong"}
        assert found.rebuild_index()
        assert {trajectory.status for trajectory in found} == {"interrupted"}


def test_an_index_that_another_empties_is_no_empty_run(run: Path):
    """Between two questions of a reader that has looked already."""
    with rolltape.read(run) as found:
        assert len(found) == 3
        other = Catalogue(found.index_path, found.id)
        other.rebuild()
        assert sorted(trajectory.key for trajectory in found) == ["a#0", "b#0", "c#0"]
        other.rebuild()
        assert "b#0" in found
        other.rebuild()
        assert found["c#0"].key == "c#0"
        other.rebuild()
        assert len(list(found.lineage("a#0").attempts)) == 1
        other.close()


def test_two_readers_that_both_find_no_index_do_not_empty_each_others(run: Path):
    """The one who comes second finds the tables that the first made, and what it has put there."""
    reader = Reader(LocalStore(run))
    path = str(run / "index.sqlite")
    first = Catalogue(path, reader.run)
    Updater(first, reader).update()
    before = first.made()
    second = Catalogue.__new__(Catalogue)
    second.path, second._run = path, reader.run
    second._open()
    seen = []
    judge = second._is_ours
    second._is_ours = lambda: seen.append(1) or (len(seen) > 1 and judge())  # type: ignore[method-assign]
    second._prepare()
    assert first.made() == before and second.count(Query()) == 3
    first.close()
    second.close()


# ---- where it lies ---------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_index_lies_beside_its_run_else_in_the_cache_else_in_memory(run: Path, cache: Path):
    """In this order, and two runs never share one."""
    first, second, third = places(str(run), "0" * 32)
    assert first == str(run / "index.sqlite") and third == ":memory:"
    assert Path(second).parent == cache / "rolltape" / "index"
    assert next(iter(places(str(run / "elsewhere"), "0" * 32))) not in (first, second)
    assert not (run / "index.sqlite").exists()


def test_a_run_on_a_network_file_system_has_its_index_in_the_cache(run: Path, monkeypatch: pytest.MonkeyPatch):
    """Where the cache lies on one too, in memory."""
    kind = place.file_system_of(str(run))
    assert kind and not place.is_networked(str(run))
    monkeypatch.setattr(place, "_NETWORK", place._NETWORK | {kind})
    assert place.is_networked(str(run))
    monkeypatch.setenv("XDG_CACHE_HOME", str(run.parent / "cache"))
    assert list(places(str(run), "0" * 32)) == [":memory:"]
    other = Path("/dev/shm")
    if os.access(other, os.W_OK) and not place.is_networked(str(other)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(other / f"rolltape-{os.getpid()}"))
        first, second = places(str(run), "0" * 32)
        assert first.startswith("/dev/shm/") and second == ":memory:"
        subprocess.run(["rm", "-r", str(other / f"rolltape-{os.getpid()}")], check=True)


def test_an_unusable_cache_is_left_for_memory(run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    """A file lies where the cache should be; or a directory lies where the index in it should be."""
    (run / "index.sqlite").mkdir()
    cache.touch()
    with rolltape.read(run) as found:
        assert len(found) == 3 and found.index_path == ":memory:"
    cache.unlink()
    *_, cached, _ = places(str(run), found.id)
    Path(cached).mkdir()
    with rolltape.read(run) as found:
        assert len(found) == 3 and found.index_path == ":memory:"
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    with rolltape.read(run) as found:
        assert len(found) == 3 and found.index_path == ":memory:"


CHILD = """
import os, sys, resource
import rolltape
from rolltape.index import places
from rolltape.trajectory import read
path, how, cache = sys.argv[1:]
os.environ["XDG_CACHE_HOME"] = cache
if how == "somebody else":
    os.chmod(path, 0o555)
    if os.getuid() == 0:
        os.setuid(65534)
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(how), int(how)))
run = rolltape.read(path)
print(len(run), sorted(t.key for t in run), run.index_path)
"""


def test_a_run_that_may_not_be_written_to_is_read_through_the_cache(
    tmp_path_factory: pytest.TempPathFactory, run: Path
):
    """By somebody else, who may only read it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copy = Path(folder) / "run"
        subprocess.run(["cp", "-r", str(run), str(copy)], check=True)
        subprocess.run(["chmod", "-R", "a+rX", str(copy)], check=True)
        (Path(folder) / "cache").mkdir()
        os.chmod(Path(folder) / "cache", 0o777)
        argv = [sys.executable, "-c", CHILD, str(copy), "somebody else", f"{folder}/cache"]
        said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=HANG_S).stdout
        assert said.startswith("3 ['a#0', 'b#0', 'c#0'] ") and f"{folder}/cache/rolltape/index/" in said
        assert not (copy / "index.sqlite").exists()


@pytest.mark.parametrize("bytes_max", [0, 1000, 20_000, 60_000])
def test_where_no_index_can_be_written_it_is_in_memory(run: Path, cache: Path, bytes_max: int):
    """No file may grow beyond so much, as on a full disk; whether that shows at once or in the middle."""
    argv = [sys.executable, "-c", CHILD, str(run), str(bytes_max), str(cache)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=HANG_S).stdout
    assert said.startswith("3 ['a#0', 'b#0', 'c#0'] ")
    assert said.endswith(":memory:\n") or bytes_max > 1000
    assert keys(run) == ["a#0", "b#0", "c#0"]


def test_a_disk_that_fills_up_under_the_index_is_left(run: Path, cache: Path):
    """The run goes on, what was indexed is indexed elsewhere."""
    with rolltape.read(run) as found:
        assert len(found) == 3
        pages = found._catalogue._db.execute("PRAGMA page_count").fetchone()[0]
        found._catalogue._db.execute(f"PRAGMA max_page_count={pages}")
        writer = open_writer(LocalStore(run))
        for n in range(300):
            body = b'{"type":"attempt","key":"d%d#0","epoch":2,"attempt":1,"seq":0,"unix_s":5.5' % n
            last = writer.put_from_thread(body)
        last.result(HANG_S)
        writer.close()
        assert found.refresh()
        assert len(found) == 303
        assert found.index_path.startswith(str(cache))
        check(found._catalogue, found._updater, found._reader)
