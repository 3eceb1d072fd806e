"""`rolltape stats`: a run in numbers."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rolltape.cli import text
from rolltape.cli.app import DAMAGED, FINE, on_a_run
from rolltape.cli.ls import counts_by_status
from rolltape.cli.opening import catch_up, opened, warn
from rolltape.cli.screen import STATUS_CELLS, Screen

if TYPE_CHECKING:
    from rolltape.trajectory.read import RecordedRun

NAMES_MAX = 1000
"""So many names of steps are counted apart; others together."""

PROCESSES_SHOWN = 10

OTHERS = ("", "(others)")

_FILES = {"journal": (".jsonl",), "compressed": (".zst",), "packs": (".pack",)}


@click.command("stats")
@on_a_run
@click.option("--steps", is_flag=True, help="Also each kind and name of step: how many, how long. Reads all of RUN.")
def command(run: str, as_json: bool, color: str, steps: bool) -> int:
    """Sum RUN up: trajectories by status, attempts, steps, rewards, time, bytes on disk, processes."""
    screen = Screen("never" if as_json else color)
    with opened(run) as opened_run:
        catch_up(opened_run, screen)
        found = _stats(opened_run)
        if steps:
            found["by_step"] = _by_step(opened_run, screen)
        if as_json:
            screen.line(text.to_json(found))
        else:
            for line in _lines(screen, found):
                screen.line(line)
        return DAMAGED if warn(opened_run, screen) else FINE


# ---- counting --------------------------------------------------------------------------------------------------------


def _stats(run: RecordedRun) -> dict[str, Any]:
    totals = run.totals()
    created = run.created
    times = {name: [t[name] for t in totals if t[name] is not None] for name in ("started", "ended")}
    rewards = sum(t["rewards"] for t in totals)
    started, ended = min(times["started"], default=None), max(times["ended"], default=None)
    return {
        "path": run.path,
        "run": run.id,
        "created": None if created is None else created.unix_s,
        "trajectories": sum(t["trajectories"] for t in totals),
        "statuses": counts_by_status(run),
        "attempts": sum(t["attempts"] for t in totals),
        "steps": sum(t["steps"] for t in totals),
        "rewards": rewards,
        "reward_mean": sum(t["reward_sum"] or 0 for t in totals) / rewards if rewards else None,
        "started": started,
        "ended": ended,
        "wall_s": None if started is None or ended is None else ended - started,
        "by_status": totals,
        "disk": {**_on_disk(run), "journal_plain": run.journal_bytes},
        "processes": [
            {"epoch": p.epoch, "host": p.host, "pid": p.pid, "opened": p.started, "durability": p.durability,
             "alive": p.alive}
            for p in run.processes()
        ],
    }  # fmt: skip


def _on_disk(run: RecordedRun) -> dict[str, int]:
    """Return the bytes of the run's files by what they are, the index wherever it lies."""
    sizes = dict.fromkeys([*_FILES, "index", "other"], 0)
    index = os.path.basename(run.index_path)
    for folder, _, names in os.walk(run.path):
        for name in names:
            kind = next((kind for kind, ends in _FILES.items() if name.endswith(ends)), "other")
            kind = "index" if name.startswith("index.sqlite") else kind
            sizes[kind] += _size(os.path.join(folder, name))
    if os.path.dirname(run.index_path) != run.path:
        sizes["index"] += sum(_size(run.index_path + end) for end in ("", "-wal", "-shm")) if index else 0
    return sizes


def _size(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:  # it went away meanwhile
        return 0


def _by_step(run: RecordedRun, screen: Screen) -> list[dict[str, Any]]:
    """Read the whole journal and return each kind and name of step: how many, stale ones included, and how long."""
    from rolltape import records

    ended = (records.Done, records.Failed, records.Cancelled)
    times: dict[tuple[str, str], array[float]] = {}
    failed: dict[tuple[str, str], int] = {}
    for number, record in enumerate(run.records(), 1):
        if number % 1024 == 0:
            screen.tell(f"reading steps: {text.plural(number, 'record')}")
        step = record.record
        if isinstance(step, ended):
            id = (step.kind, step.name)
            id = id if id in times or len(times) < NAMES_MAX else OTHERS
            times.setdefault(id, array("d")).append(step.took_s)
            failed[id] = failed.get(id, 0) + (record.type == "failed")
    screen.untell()
    rows = []
    for id, taken in sorted(times.items(), key=lambda item: -sum(item[1])):
        ordered = sorted(taken)
        rows.append(
            {"kind": id[0], "name": id[1], "count": len(taken), "failed": failed[id], "total_s": sum(taken),
             "p50_s": ordered[len(ordered) // 2], "p95_s": ordered[int(len(ordered) * 0.95)], "max_s": ordered[-1]}
        )  # fmt: skip
    return rows


# ---- as lines --------------------------------------------------------------------------------------------------------


def _lines(screen: Screen, found: dict[str, Any]) -> Iterator[str]:
    yield screen.bold(text.safe(found["path"]))
    yield screen.dim(f"run {found['run']}, created {text.local(found['created'])}")
    yield ""
    yield from _statuses(screen, found)
    if found["wall_s"] is not None:
        yield ""
        span = f"{text.local(found['started'])} to {text.local(found['ended'])}"
        yield f"first to last record  {text.duration(found['wall_s'])}  {screen.dim(f'({span})')}"
    yield ""
    yield from _disk(screen, found["disk"])
    yield ""
    yield from _processes(screen, found["processes"])
    if "by_step" in found:
        yield ""
        yield from _steps(screen, found["by_step"])


def _statuses(screen: Screen, found: dict[str, Any]) -> Iterator[str]:
    heads = ("TRAJECTORIES", "ATTEMPTS", "STEPS", "REWARD", "JOURNAL")
    widths = [12, 8, 10, 10, 8]
    yield screen.bold(_right(text.pad("STATUS", STATUS_CELLS), heads, widths))
    unresolved = {n: c for n, c in found["statuses"].items() if n in ("running", "interrupted", "unresolved")}
    for total in sorted(found["by_status"], key=lambda t: -t["trajectories"]):
        name = total["status"]
        if name == "unresolved" and len(unresolved) == 1:
            (name,) = unresolved
        mean = text.reward(total["reward_sum"] / total["rewards"]) if total["rewards"] else "-"
        yield _right(screen.status(name, STATUS_CELLS), _counts(total, mean), widths)
        if name == "unresolved" and len(unresolved) > 1:
            yield screen.dim(f"    {', '.join(f'{text.number(c)} {n}' for n, c in unresolved.items())}")
    if len(found["by_status"]) != 1:
        everything = {**found, "bytes": sum(total["bytes"] for total in found["by_status"])}
        yield _right(text.pad("all", STATUS_CELLS), _counts(everything, text.reward(found["reward_mean"])), widths)


def _counts(total: dict[str, Any], reward: str) -> tuple[str, ...]:
    counts = (text.number(total[name]) for name in ("trajectories", "attempts", "steps"))
    return (*counts, reward, text.size(total["bytes"]))


def _right(first: str, parts: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join([first, *(text.pad(part, width, right=True) for part, width in zip(parts, widths, strict=True))])


def _disk(screen: Screen, disk: dict[str, int]) -> Iterator[str]:
    everything = sum(size for name, size in disk.items() if name != "journal_plain")
    parts = [f"{name} {text.size(disk[name])}" for name in (*_FILES, "index", "other") if disk[name]]
    yield f"on disk  {text.size(everything)}  {screen.dim(', '.join(parts))}"
    if disk["compressed"]:
        yield screen.dim(f"         the journal's lines are {text.size(disk['journal_plain'])} uncompressed")


def _processes(screen: Screen, processes: list[dict[str, Any]]) -> Iterator[str]:
    states = {True: "alive", False: "gone", None: "elsewhere"}
    for process in processes[-PROCESSES_SHOWN:]:
        state = states[process["alive"]]
        color = "green" if process["alive"] else "dim"
        words = f"pid {process['pid']} on {text.safe(process['host'])}, opened {text.local(process['opened'])}"
        yield f"epoch {process['epoch']:<4} {screen.style(text.pad(state, 9), color)}  {words}"
    if len(processes) > PROCESSES_SHOWN:
        yield screen.dim(f"and {len(processes) - PROCESSES_SHOWN} before them (--json has all)")


def _steps(screen: Screen, rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        yield "no steps"
        return
    heads = ("COUNT", "FAILED", "TOTAL", "P50", "P95", "MAX")
    names = [text.safe(f"{row['kind'] + '  ' if row['kind'] else ''}{row['name'] or '(no name)'}") for row in rows]
    times = ("total_s", "p50_s", "p95_s", "max_s")
    parts = [
        (text.number(row["count"]), text.number(row["failed"]), *(text.duration(row[key]) for key in times))
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *parts, strict=True)]
    room = (screen.width or 160) - sum(widths) - 2 * len(widths)
    width = max(8, min(max(map(text.cells, names)), room))
    yield screen.bold(_right(text.pad("STEP", width), heads, widths))
    for name, part in zip(names, parts, strict=True):
        yield _right(text.pad(name, width), part, widths)
