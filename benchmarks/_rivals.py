"""Rivals that run in an environment of their own (`scripts/rivals`), as child processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from _bare import Count
from _bench import SCRATCH, Bench

PYTHON = SCRATCH / "rivals" / "bin" / "python"
ENGINES = Path(__file__).parent / "rivals" / "engines.py"

DBOS, DBOS_WAL, LANGGRAPH = "dbos", "dbos-wal", "langgraph"


def installed(bench: Bench) -> bool:
    """Say whether the rivals can be run here, and if not, print why."""
    if (SCRATCH / "rivals" / "rolltape-rivals").exists():
        return True
    bench.note("without DBOS and LangGraph: scripts/rivals installs them, and has not")
    return False


def run(engine: str, task: str, folder: Path, trajectories: int, steps: int, seconds: float = 0.0) -> Count:
    """Let an engine do a task, as `rivals/engines.py` describes it."""
    words = [engine, task, str(folder), str(trajectories), str(steps), str(seconds)]
    done = subprocess.run([PYTHON, ENGINES, *words], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}:\n{done.stderr[-2000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    return Count(figures["steps"], figures["wall_s"], figures["processor_s"])


def killed(engine: str, folder: Path, steps: int) -> None:
    """Let an engine make a trajectory that is killed in its last step."""
    words = [engine, "kill", str(folder), "1", str(steps)]
    done = subprocess.run([PYTHON, ENGINES, *words], capture_output=True, text=True, timeout=600)
    if done.returncode != -9:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
