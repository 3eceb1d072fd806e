"""The work of `steps.py` and `replay.py` done by DBOS and LangGraph, in the environment that `scripts/rivals` makes.

    engines.py ENGINE TASK FOLDER TRAJECTORIES STEPS [SECONDS]

ENGINE  dbos (on SQLite, as it comes), dbos-wal (the same file in WAL mode), langgraph (functional API, its SQLite
        saver, durability="sync")
TASK    steps   so many trajectories at once, each of so many steps of SECONDS, whose results are 2 KB; what came
                before the first step (launching, starting the workflows) is not measured, nor what comes after the
                last one, but with LangGraph, whose steps are on disk only when the whole is
        kill    the same, and kill -9 in the last step
        resume  the same after `kill`: how long from its beginning, imports aside, to the step that was killed, and how
                many steps were made by then

Prints {"steps", "wall_s", "processor_s"}.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
import time
import warnings
from pathlib import Path
from random import Random
from typing import Any

ENGINE, TASK, FOLDER = sys.argv[1:4]
TRAJECTORIES, STEPS = map(int, sys.argv[4:6])
SECONDS = float(sys.argv[6]) if len(sys.argv) > 6 else 0.0
RESULT = Random(1).randbytes(1024).hex()


class Watch:
    """Holds the rollouts until all have begun, and measures from then until all have made their steps."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.gate = asyncio.Event()
        self.over = asyncio.Event()
        self.start = time.perf_counter(), time.process_time()
        self.figures: dict[str, float] = {}

    async def begin(self) -> None:
        self.begun += 1
        if self.begun == TRAJECTORIES and TASK != "resume":
            self.start = time.perf_counter(), time.process_time()
        if self.begun == TRAJECTORIES:
            self.gate.set()
        await self.gate.wait()

    async def end(self) -> None:
        """Measure, and let all end, once all are here."""
        self.ended += 1
        if self.ended == TRAJECTORIES:
            self.measure()
            self.over.set()
        await self.over.wait()

    def measure(self) -> None:
        wall, processor = time.perf_counter() - self.start[0], time.process_time() - self.start[1]
        self.figures = {"steps": TRAJECTORIES * STEPS, "wall_s": wall, "processor_s": processor}


async def work(number: int) -> dict[str, Any]:
    """What a step does."""
    global made
    made += 1
    if number == STEPS - 1:
        if TASK == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        last_step.set()
    if SECONDS:
        await asyncio.sleep(SECONDS)
    return {"value": RESULT, "number": number}


made = 0
last_step = asyncio.Event()


async def with_dbos(watch: Watch, wal: bool) -> None:
    from dbos import DBOS, SetWorkflowID

    path = Path(FOLDER) / "dbos.sqlite"
    if wal:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
    DBOS(
        config={
            "name": "rival",
            "system_database_url": f"sqlite:///{path}",
            "log_level": "ERROR",
            "application_version": "1",
            "enable_otlp": False,
        }
    )
    step = DBOS.step()(work)

    @DBOS.workflow()
    async def rollout(trajectory: int) -> None:
        await watch.begin()
        for number in range(STEPS):
            await step(number)
        await watch.end()

    DBOS.launch()
    if TASK == "resume":
        await last_step.wait()
        say(watch)
    handles = []
    for trajectory in range(TRAJECTORIES):
        with SetWorkflowID(f"t{trajectory}"):
            handles.append(await DBOS.start_workflow_async(rollout, trajectory))
    for handle in handles:
        await handle.get_result()
    say(watch)


async def with_langgraph(watch: Watch) -> None:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.func import entrypoint, task

    step = task(work)
    async with AsyncSqliteSaver.from_conn_string(str(Path(FOLDER) / "langgraph.sqlite")) as saver:

        @entrypoint(checkpointer=saver)
        async def rollout(trajectory: int) -> None:
            await watch.begin()
            for number in range(STEPS):
                await step(number)
            await watch.end()

        def run(trajectory: int) -> Any:
            config = {"configurable": {"thread_id": f"t{trajectory}"}}
            return rollout.ainvoke(None if TASK == "resume" else trajectory, config, durability="sync")

        runs = asyncio.gather(*map(run, range(TRAJECTORIES)))
        if TASK == "resume":
            await last_step.wait()
        else:
            await runs
            watch.measure()
        say(watch)


def say(watch: Watch) -> None:
    """Print the figures, and leave at once, whatever threads and transactions the engine still has."""
    resumed = {"steps": made, "wall_s": time.perf_counter() - watch.start[0], "processor_s": 0.0}
    print(json.dumps(watch.figures or resumed), flush=True)
    os._exit(0)


async def main() -> None:
    warnings.simplefilter("ignore")
    import dbos  # noqa: F401
    import langgraph.func  # noqa: F401

    watch = Watch()
    await (with_langgraph(watch) if ENGINE == "langgraph" else with_dbos(watch, ENGINE == "dbos-wal"))


if __name__ == "__main__":
    asyncio.run(main())
