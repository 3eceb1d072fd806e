"""The run's identity and its epochs.

When `create_run` or `claim_epoch` returns, the name is taken for ever, also after power loss. An epoch's number is
above every number ever seen in `claims/` and in `journal/`: a power cut may lose one of the two entries, never both
(the claim is on disk before the first segment is created).
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from rolltape import records
from rolltape.errors import DamagedError, FormatError, JournalFailed, LimitError, NotARunError, UsageError
from rolltape.journal import format as fmt
from rolltape.journal.compressed import SegmentFiles
from rolltape.journal.failures import failure

if TYPE_CHECKING:
    from rolltape.store import Store


def create_run(store: Store, config: Any = None) -> records.RunCreated:
    """Create `run.json`, or return what the one who was first wrote there."""
    try:
        return read_run(store)
    except NotARunError:
        pass
    run = records.RunCreated(
        format=records.FORMAT,
        minor=records.FORMAT_MINOR,
        run=secrets.token_hex(16),
        unix_s=time.time(),
        config=records.NOTHING if config is None else msgspec.Raw(msgspec.json.encode(config)),
    )
    try:
        store.put_new(fmt.RUN_FILE, fmt.close_line(fmt.encode_record(run), fmt.file_seed(fmt.RUN_FILE), 0, 0))
    except FileExistsError:
        return read_run(store)
    store.release(fmt.RUN_FILE)
    return run


def read_run(store: Store) -> records.RunCreated:
    """Read `run.json`. NotARunError: there is none. FormatError: a newer format. DamagedError: it is not as written."""
    data = _read_run_file(store)
    if not data and _has_journal(store) and not (data := _read_run_file(store)):
        # Read again, since it is created before everything else: it may have come between the two looks.
        raise DamagedError(f"{fmt.RUN_FILE} is missing or empty, and a journal is there: {store}")
    if not data:
        raise NotARunError(f"no run here: {store} (there is no {fmt.RUN_FILE}; check the path)")
    sound = fmt.is_sound(data, fmt.file_seed(fmt.RUN_FILE), 0)
    check_format(data, sound, fmt.RUN_FILE)
    if not sound:
        raise DamagedError(f"{fmt.RUN_FILE} is not as it was written: {store}")
    return msgspec.json.decode(data, type=records.RunCreated)


def _read_run_file(store: Store) -> bytes:
    try:
        return _read_line(store, fmt.RUN_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except IsADirectoryError as error:
        raise DamagedError(f"{fmt.RUN_FILE} is a directory: {store}") from error
    except OSError as error:
        raise failure(store, error) from error


def _read_line(store: Store, name: str) -> bytes:
    """Read a file that is one line."""
    data = b""
    while len(part := store.read(name, len(data), len(data) + (1 << 16))) == 1 << 16 and len(data) < fmt.LINE_BYTES_MAX:
        data += part
    return data + part


def _has_journal(store: Store) -> bool:
    try:
        return bool(epochs(store))
    except JournalFailed:
        return False


def find_run(store: Store, on_damage: Callable[[str], None]) -> str:
    """Return the run's identity even where `run.json` is damaged: every segment's header has it, under its checksum."""
    try:
        return read_run(store).run
    except DamagedError as error:
        on_damage(str(error))
        files = SegmentFiles.over(store)
        for epoch in epochs(store):
            with suppress(OSError):  # one that can't be read says nothing; if none says it, the first error stands
                for name in sorted(files.list(fmt.epoch_folder(epoch))):
                    number = fmt.number_of(name, ".jsonl")
                    if number is not None and (run := _run_of(files, epoch, number)):
                        return run
        raise


def _run_of(store: Store, epoch: int, segment: int) -> str | None:
    try:
        data = store.read(fmt.segment_name(epoch, segment), 0, 1 << 16)
    except IsADirectoryError:
        return None
    line = data[: data.find(b"\n") + 1]
    try:
        run = msgspec.json.decode(line, type=records.Segment).run
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return run if fmt.is_sound(line, fmt.file_seed(fmt.segment_identity(run, epoch, segment)), 0) else None


def check_format(data: bytes, sound: bool, name: str) -> None:
    """Refuse what a newer major version wrote, before anything else about it is judged.

    `data` is `run.json` or a segment's first line. If it ends as ours do and isn't sound, its format may be what is
    wrong about it.
    """
    if fmt.has_form(data) and not sound:
        return
    try:
        version = msgspec.json.decode(data, type=_Version)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # not readable at all: the checksum has the word
    if version.format > records.FORMAT:
        raise FormatError(
            f"{name} has format {version.format}, and this Rolltape reads up to {records.FORMAT}: install a newer one"
        )


class _Version(msgspec.Struct):
    format: int = 0


def epochs(store: Store, *, above: int = 0) -> list[int]:
    """Return every epoch over `above` that has a journal or a claim, ascending."""
    try:
        claimed = [fmt.number_of(name, ".json") for name in store.list(fmt.CLAIMS)]
        written = [fmt.number_of(name) for name in store.list(fmt.JOURNAL)]
    except OSError as error:
        raise failure(store, error) from error
    return sorted({number for number in (*claimed, *written) if number is not None and number > above})


def claim_epoch(store: Store, run: str, *, durability: str, lease_s: float) -> records.Claim:
    """Take the next epoch for this process. Refuses a store that lets two processes have the same one."""
    while True:
        number = max(epochs(store), default=0) + 1
        if number > fmt.NUMBER_MAX:
            raise LimitError(f"epoch {fmt.NUMBER_MAX} is taken, and it is the last one: begin a new run")
        claim = _claim(number, run, durability, lease_s)
        line = fmt.close_line(fmt.encode_record(claim), fmt.file_seed(_claim_identity(run, number)), 0, 0)
        try:
            store.put_new(fmt.claim_name(number), line)
        except FileExistsError:
            continue
        store.release(fmt.claim_name(number))
        _probe(store, fmt.claim_name(number), line)
        return claim


def _probe(store: Store, name: str, line: bytes) -> None:
    try:
        store.put_new(name, line)
    except FileExistsError:
        return
    raise UsageError(
        f"this store lets a file be created twice, so two processes could take one epoch: {store}. "
        "Use a local disk, or a shared file system with working hard links"
    )


def read_claim(store: Store, run: str, epoch: int) -> records.Claim | None:
    """Return who claimed `epoch`; None if nobody can be named. DamagedError: the claim is not as it was written."""
    try:
        data = _read_line(store, fmt.claim_name(epoch))
    except FileNotFoundError:
        return None
    if not fmt.is_sound(data, fmt.file_seed(_claim_identity(run, epoch)), 0):
        raise DamagedError(f"{fmt.claim_name(epoch)} is not as it was written")
    return msgspec.json.decode(data, type=records.Claim)


def _claim_identity(run: str, epoch: int) -> str:
    return f"{run}/claims/{epoch}"


# ---- this process ----------------------------------------------------------------------------------------------------


def _claim(epoch: int, run: str, durability: str, lease_s: float) -> records.Claim:
    return records.Claim(
        epoch=epoch,
        run=run,
        host=socket.gethostname(),
        boot=boot_id(),
        pid_namespace=pid_namespace(),
        pid=os.getpid(),
        started=process_start(os.getpid()) or 0,
        durability=durability,
        lease_s=lease_s,
        unix_s=time.time(),
    )


def boot_id() -> str:
    """Return the kernel's boot id, "" where there is none to read."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def pid_namespace() -> int:
    """Return the number of this process's pid namespace, 0 where there is none to read."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def process_start(pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot. None: it runs no more, or can't be seen."""
    state = _stat(pid)
    return None if state is None or state[0] in (b"Z", b"X") else int(state[19])


def _stat(pid: int) -> list[bytes] | None:
    """Return what the kernel says of a process, from its state on; None where there is nothing to read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _is_free(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # somebody has it; where /proc hides other users' processes, this is the only sign of it
    return False


def same_machine(claim: records.Claim) -> bool:
    """Say whether the claim's process would be seen from here: same host, boot and pid namespace."""
    if not claim.boot or claim.boot != boot_id():
        return False
    return claim.host == socket.gethostname() and claim.pid_namespace == pid_namespace()


def provably_gone(claim: records.Claim) -> bool:
    """Say whether the claim's process certainly runs no more: same host, boot and pid namespace, and it is not there.

    False says nothing: it may live, or it may have died where this process can't see it.
    """
    if not same_machine(claim):
        return False
    if _stat(claim.pid) is None:
        return _is_free(claim.pid)
    return process_start(claim.pid) != claim.started
