"""`make demo`: a writer killed with `kill -9` in mid-write, then everything that it acknowledged read back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time

from rolltape.testing.kill import run_until

TRAJECTORIES, STEPS, PAYLOAD_BYTES, STEP_DELAY_MS = 64, 40, 2048, 50
KILLS_AT = (0.3, 0.75)
"""At which share of all steps the writer is killed."""

_BARS = " ▁▂▃▄▅▆▇█"


def demo() -> int:
    """Write, kill, read, go on, kill, read, go on, read. Exit 1 if anything acknowledged is missing or came twice."""
    folder = tempfile.mkdtemp(prefix="rolltape-demo-")
    total = TRAJECTORIES * STEPS
    print(f"\n{_bold('A journal that never loses what it acknowledged')}")
    print(f"{TRAJECTORIES} trajectories of {STEPS} steps, {PAYLOAD_BYTES:,} bytes each, written by another process.")
    print("One column is one trajectory: the fuller, the more of its steps are acknowledged. Watch it die.\n")
    acknowledged: dict[tuple[int, int], str] = {}
    again = 0
    try:
        for at in (*KILLS_AT, None):
            before = set(acknowledged)
            tried = _write(folder, acknowledged, None if at is None else int(at * total))
            again += len(tried & before)
            if not _read_back(folder, acknowledged, in_flight=len(tried - set(acknowledged))):
                print(_red("  This should not happen. The run is kept in " + folder))
                return 1
        size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)
        print(
            f"{_bold(f'{total:,} of {total:,} steps')}, through {len(KILLS_AT)} kills. Acknowledged steps lost: 0. ",
            end="",
        )
        print(f"Acknowledged steps written again: {again}.")
        print(f"{size / 1e6:.1f} MB of JSON lines; each with a checksum over its place and its content.\n")
        shutil.rmtree(folder)
        return 0 if again == 0 else 1
    except KeyboardInterrupt:
        return 130


def _write(folder: str, acknowledged: dict[tuple[int, int], str], kill_at: int | None) -> set[tuple[int, int]]:
    """Run the writer, killed once `kill_at` steps are acknowledged. Returns the steps that it began."""
    argv = ["-m", "rolltape.testing", "torture-write", "--dir", folder, "--seed", "7"]
    argv += ["--trajectories", str(TRAJECTORIES), "--steps", str(STEPS)]
    argv += ["--payload-bytes", str(PAYLOAD_BYTES), "--step-delay-ms", str(STEP_DELAY_MS)]
    tried: set[tuple[int, int]] = set()
    drawn_at = 0.0

    def take_in(line: str) -> None:
        word, trajectory, step, digest = line.split()
        if word == "TRY":
            tried.add((int(trajectory), int(step)))
        else:
            acknowledged[int(trajectory), int(step)] = digest

    def enough(line: str) -> bool:
        """Say when to kill: in the middle of a step."""
        nonlocal drawn_at
        take_in(line)
        if sys.stdout.isatty() and time.monotonic() > drawn_at + 0.03:
            drawn_at = time.monotonic()
            _draw(acknowledged, "writing", end="\r")
        return kill_at is not None and len(acknowledged) >= kill_at and line.startswith("TRY")

    ended = run_until(argv, kill_when=enough, timeout_s=120)
    for line in ended.lines:
        take_in(line)  # those too that it printed before it noticed that it was dead
    if not ended.killed and ended.returncode != 0:
        raise SystemExit(f"the writer failed by itself, with {ended.returncode}: is there room in {folder}?")
    _draw(acknowledged, "done" if kill_at is None else _red("kill -9"), end="\n")
    return tried


def _read_back(folder: str, acknowledged: dict[tuple[int, int], str], in_flight: int) -> bool:
    """Read the run in yet another process, and compare it with what was acknowledged."""
    began = time.perf_counter()
    argv = [sys.executable, "-m", "rolltape.testing", "torture-read", "--dir", folder]
    result = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    took_s = time.perf_counter() - began
    have: dict[tuple[int, int], str] = {}
    corrupt = 0
    for line in result.stdout.splitlines():
        word, *rest = line.split()
        if word == "HAVE":
            have[int(rest[0]), int(rest[1])] = rest[2]
        else:
            corrupt += 1
    lost = [place for place, digest in acknowledged.items() if have.get(place) != digest]
    print(
        f"  read back in {took_s:.2f} s: {len(acknowledged):,} acknowledged, {len(acknowledged) - len(lost):,} there",
        end="",
    )
    more = len(set(have) - set(acknowledged))
    print(
        f"; of {in_flight} in flight {more} had reached the disk; damage: {corrupt}\n"
        if in_flight
        else f"; damage: {corrupt}\n"
    )
    acknowledged.update(have)
    return not lost and not corrupt and result.returncode == 0


def _draw(acknowledged: dict[tuple[int, int], str], what: str, end: str) -> None:
    done = [0] * TRAJECTORIES
    for trajectory, _ in acknowledged:
        done[trajectory] += 1
    bars = "".join(_BARS[(count * (len(_BARS) - 1) + STEPS - 1) // STEPS] for count in done)
    print(f"  {bars}  {what}\033[K" if sys.stdout.isatty() else f"  {bars}  {what}", end=end, flush=True)


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def _red(text: str) -> str:
    return f"\033[1;31m{text}\033[0m" if sys.stdout.isatty() else text
