"""One run has one identity, one epoch has one process, and no number is ever used twice."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from rolltape import records
from rolltape.errors import DamagedError, NotARunError, RolltapeError, UsageError
from rolltape.journal import WriterConfig, open_writer
from rolltape.journal import format as fmt
from rolltape.journal.epochs import (
    boot_id,
    claim_epoch,
    create_run,
    epochs,
    pid_namespace,
    process_start,
    provably_gone,
    read_claim,
    read_run,
)
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk

HANG_S = 60.0
"""Whatever takes longer hangs. Nothing is timed by it."""


def claim(store: LocalStore) -> int:
    return claim_epoch(store, create_run(store).run, durability="disk", lease_s=30.0).epoch


def on_disk(disk: CrashDisk) -> LocalStore:
    return LocalStore("/run", fs=disk)


def just_before(disk: CrashDisk, op: str, ending: str, act: Callable[[], None]) -> None:
    """Call `act` once, right before `disk` does `op` on a path with this ending."""

    def watch(name: str, path: str) -> None:
        if name == op and path.endswith(ending):
            disk.on_operation = None
            act()

    disk.on_operation = watch


# ---- the run ---------------------------------------------------------------------------------------------------------


def test_the_second_starter_of_a_run_takes_the_identity_that_it_finds():
    """Whoever is first decides, with its configuration; nothing is ever changed."""
    disk = CrashDisk()
    first = create_run(on_disk(disk), {"samples": 8})
    second = create_run(on_disk(disk), {"samples": 9})
    assert second.run == first.run
    assert bytes(second.config) == bytes(first.config) == b'{"samples":8}'
    assert len(first.run) == 32 and set(first.run) <= set("0123456789abcdef")


def test_of_two_that_create_a_run_at_once_the_loser_takes_the_winners():
    """The loser looked, found nothing, and had its own all but linked."""
    disk = CrashDisk()
    won: list[records.RunCreated] = []
    just_before(disk, "link", "run.json", lambda: won.append(create_run(on_disk(disk.process()), {"winner": True})))
    lost = create_run(on_disk(disk), {"winner": False})
    assert lost.run == won[0].run
    assert bytes(lost.config) == b'{"winner":true}'
    assert read_run(on_disk(disk)).run == won[0].run


def test_a_run_that_was_created_survives_a_power_cut():
    """With every directory on the way to it."""
    disk = CrashDisk()
    run = create_run(on_disk(disk)).run
    assert read_run(on_disk(disk.power_cut())).run == run


def test_a_directory_without_a_run_is_no_run():
    """And reading makes nothing there."""
    disk = CrashDisk()
    with pytest.raises(NotARunError, match=r"no run here: /run"):
        read_run(on_disk(disk))
    assert disk.tree() == {} and disk.listdir("/") == []


def test_two_runs_have_two_identities():
    """So that a segment copied from one into the other is found out."""
    assert create_run(on_disk(CrashDisk())).run != create_run(on_disk(CrashDisk())).run


# ---- claims ----------------------------------------------------------------------------------------------------------


def test_epochs_are_numbered_from_one():
    """One for each opening."""
    disk = CrashDisk()
    assert [claim(on_disk(disk.process())) for _ in range(3)] == [1, 2, 3]
    assert epochs(on_disk(disk)) == [1, 2, 3]
    assert epochs(on_disk(disk), above=2) == [3]


def test_a_claim_names_its_process():
    """So that another on the same machine can see at once that it is gone."""
    disk = CrashDisk()
    run = create_run(on_disk(disk)).run
    made = claim_epoch(on_disk(disk), run, durability="os", lease_s=7.5)
    found = read_claim(on_disk(disk), run, 1)
    assert found is not None and msgspec.structs.asdict(found) == msgspec.structs.asdict(made)
    assert (found.pid, found.started) == (os.getpid(), process_start(os.getpid()))
    assert (found.boot, found.pid_namespace) == (boot_id(), pid_namespace())
    assert (found.run, found.durability, found.lease_s) == (run, "os", 7.5)
    assert read_claim(on_disk(disk), run, 2) is None


def test_a_number_is_not_used_again_when_the_claim_is_gone():
    """A power cut may keep `journal/` and lose `claims/`: numbers are above both."""
    disk = CrashDisk()
    for _ in range(2):
        open_writer(on_disk(disk)).close()
    on_disk(disk).delete(fmt.claim_name(2))
    assert claim(on_disk(disk)) == 3
    disk.mkdir("/run/journal/00000009")
    assert claim(on_disk(disk)) == 10


def test_a_number_is_not_used_again_when_the_journal_is_gone():
    """The other way round: claimed, and nothing written yet."""
    disk = CrashDisk()
    claim(on_disk(disk))
    assert disk.tree().keys() == {"/run/run.json", "/run/claims/00000001.json"}
    disk.fail("link", nth=10, error=TimeoutError("it tries for ever"))
    assert claim(on_disk(disk)) == 2


def test_an_epoch_that_wrote_survives_a_power_cut_and_so_does_its_number():
    """The claim is on disk before anything is written under it."""
    disk = CrashDisk()
    writer = open_writer(on_disk(disk))
    after = disk.power_cut()
    writer.close()
    assert epochs(on_disk(after)) == [1]
    assert read_claim(on_disk(after), read_run(on_disk(after)).run, 1) is not None
    assert claim(on_disk(after)) == 2


def test_somebody_elses_files_are_no_epochs():
    """Backups, leftovers of a crash, what an editor made."""
    disk = CrashDisk()
    store = on_disk(disk)
    assert claim(store) == 1
    for name in ("claims/.tmp-0123", "claims/00000007.json~", "claims/7.json", "claims/note.txt", "journal/old/x"):
        disk.write_file(f"/run/{name}", b"x")
    assert epochs(store) == [1]
    assert claim(store) == 2


def test_of_two_that_claim_at_once_one_takes_the_next_number():
    """The loser had the same number all but linked, twice."""
    disk = CrashDisk()
    create_run(on_disk(disk))
    won: list[int] = []

    def again() -> None:
        won.append(claim(on_disk(disk.process())))
        if len(won) < 2:
            just_before(disk, "link", ".json", again)

    just_before(disk, "link", ".json", again)
    assert claim(on_disk(disk)) == 3
    assert won == [1, 2]


CLAIMER = """
import sys
sys.path[:0] = {path!r}
from rolltape.journal.epochs import claim_epoch, create_run
from rolltape.store import LocalStore
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    store = LocalStore(sys.argv[1])
    run = create_run(store)
    print(run.run, claim_epoch(store, run.run, durability="disk", lease_s=30.0).epoch)
"""


def test_processes_that_claim_at_once_never_get_the_same_number(tmp_path):
    """Real ones, on a real file system, which also create the run at once."""
    code = CLAIMER.format(path=[part for part in sys.path if part])
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with_pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **with_pipes) for _ in range(4)]
    try:
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        said = [line.split() for child in children for line in child.communicate(timeout=HANG_S)[0].splitlines()]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert len({run for run, _ in said}) == 1
    assert sorted(int(epoch) for _, epoch in said) == list(range(1, 81))
    assert all(path.suffix == ".json" for path in (tmp_path / "run" / "claims").iterdir())


class Overwriting(CrashDisk):
    """A file system as some FUSE mounts are: a link over an existing name succeeds, and replaces what is there."""

    def link(self, src: str, dst: str) -> None:
        with suppress(FileNotFoundError):
            self.unlink(dst)
        super().link(src, dst)


def test_a_store_that_lets_a_file_be_created_twice_is_refused():
    """Two processes could have one epoch there. Nothing is written to the journal."""
    disk = Overwriting()
    with pytest.raises(UsageError, match=r"created twice.*Use a local disk"):
        open_writer(on_disk(disk))
    assert not any(path.startswith("/run/journal") for path in disk.tree())


def test_a_claim_that_cannot_be_written_is_an_error_and_no_epoch():
    """Not a number that only this process believes in."""
    disk = CrashDisk()
    create_run(on_disk(disk))
    disk.fail("link", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        claim(on_disk(disk))
    assert epochs(on_disk(disk)) == []


def test_a_claim_of_another_epoch_or_run_is_not_believed():
    """A claim copied under another number names the wrong process."""
    disk = CrashDisk()
    run = create_run(on_disk(disk)).run
    claim(on_disk(disk))
    disk.write_file("/run/claims/00000002.json", disk.tree()["/run/claims/00000001.json"])
    with pytest.raises(DamagedError, match=r"claims/00000002\.json"):
        read_claim(on_disk(disk), run, 2)
    with pytest.raises(DamagedError, match=r"claims/00000001\.json"):
        read_claim(on_disk(disk), "00" * 16, 1)


def test_numbers_end_with_a_clear_error():
    """Names have eight digits: a file that somebody put there with the last number must not hang whoever opens."""
    disk = CrashDisk()
    create_run(on_disk(disk))
    disk.write_file("/run/claims/99999999.json", b"x")
    disk.write_file("/run/claims/100000000.json", b"x")
    disk.fail("link", nth=10, error=TimeoutError("it tries for ever"))
    with pytest.raises(RolltapeError, match="99999999"):
        claim(on_disk(disk))


# ---- alive or gone ---------------------------------------------------------------------------------------------------


def claim_of(pid: int, **changed: object) -> records.Claim:
    """A claim as the process `pid` would have made it, here and now."""
    made = {
        "epoch": 1,
        "run": "00" * 16,
        "host": os.uname().nodename,
        "boot": boot_id(),
        "pid_namespace": pid_namespace(),
        "pid": pid,
        "started": process_start(pid) or 0,
        "durability": "disk",
        "lease_s": 30.0,
        "unix_s": 0.0,
    }
    return records.Claim(**{**made, **changed})


def test_a_process_that_runs_is_not_gone():
    """Neither this one nor another, nor one that is stopped."""
    assert not provably_gone(claim_of(os.getpid()))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            assert not provably_gone(claim_of(child.pid))
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
            assert not provably_gone(claim_of(child.pid))
        finally:
            child.kill()


def test_a_process_that_was_killed_is_gone_also_before_its_parent_has_collected_it():
    """A zombie writes no more. Restarting on the same machine does not wait for anybody's `wait`."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    claimed = claim_of(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(child.pid) is None
    assert provably_gone(claimed)
    child.communicate()
    assert provably_gone(claimed)


def test_a_process_with_the_same_pid_that_started_at_another_time_is_another_one():
    """Pids are used again, sooner in a container."""
    mine = claim_of(os.getpid())
    assert provably_gone(claim_of(os.getpid(), started=mine.started - 1))
    assert provably_gone(claim_of(os.getpid(), started=mine.started + 1))


@pytest.mark.parametrize(
    "elsewhere",
    [{"host": "another-node"}, {"boot": "another-boot"}, {"boot": ""}, {"pid_namespace": 1}],
    ids=lambda changed: "-".join(changed) + ("-unknown" if changed.get("boot") == "" else ""),
)
def test_nothing_is_proven_about_a_process_elsewhere(elsewhere):
    """Its pid says nothing here: another host, an earlier boot, another container, or nobody knows."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert provably_gone(claim_of(child.pid))
    assert not provably_gone(claim_of(child.pid, **elsewhere))


def test_a_process_whose_name_has_brackets_and_blanks_is_found():
    """/proc/<pid>/stat holds the name as it is."""
    name = "a ) Z 1 (b"
    code = f"import sys\nopen('/proc/self/comm', 'w').write({name!r})\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            started = process_start(child.pid)
            child.stdout.readline()
            assert Path(f"/proc/{child.pid}/comm").read_text() == f"{name}\n"
            assert process_start(child.pid) == started is not None
        finally:
            child.kill()


HIDDEN = """
import os, sys
sys.path[:0] = {path!r}
from rolltape.journal.epochs import claim_epoch, process_start, provably_gone
from rolltape.store import LocalStore
from rolltape.testing.disk import CrashDisk
claim = claim_epoch(LocalStore("/run", fs=CrashDisk()), "00" * 16, durability="disk", lease_s=30.0)
if os.fork() == 0:
    os.setgid(65534)
    os.setuid(65534)
    print("seen" if process_start(claim.pid) is not None else provably_gone(claim), flush=True)
    os._exit(0)
os.wait()
"""


def test_a_process_that_cannot_be_seen_is_not_proven_to_be_gone():
    """Clusters mount /proc with `hidepid`: other users' processes have no entry there, and live all the same."""
    code = HIDDEN.format(path=[part for part in sys.path if part])
    hide = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", hide, "sh", sys.executable, "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    except FileNotFoundError:
        pytest.skip("needs unshare")
    if done.returncode or done.stdout == "seen\n":
        pytest.skip(f"needs the right to mount /proc with hidepid, as root has: {done.stdout} {done.stderr[-300:]}")
    assert done.stdout == "False\n"


def test_the_lease_and_durability_of_a_writer_stand_in_its_claim():
    """What a successor judges it by."""
    disk = CrashDisk()
    writer = open_writer(on_disk(disk), WriterConfig(durability="os", lease_s=12.0))
    writer.close()
    found = read_claim(on_disk(disk), writer.run, writer.epoch)
    assert found is not None and (found.durability, found.lease_s) == ("os", 12.0)
