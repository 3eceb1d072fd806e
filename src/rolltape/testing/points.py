"""Stop, kill or pause a process at the points of the fencing protocol.

    from rolltape.testing import points  # in the child, worker.py

    points.from_environment()

    with Child(["worker.py", "runs/x"], env={points.ENVIRONMENT: "outcome=stop"}) as child:  # in the test
        child.wait_for(lambda line: line == "reached outcome q#0", timeout_s=10)
        child.wait_until_stopped(timeout_s=10)
        ...
        child.cont()

The points are `rolltape.trajectory.points.POINTS`. Nothing is looked at before a program asks for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from signal import SIGKILL, SIGSTOP

from rolltape.trajectory import points
from rolltape.trajectory.points import POINTS

ENVIRONMENT = "ROLLTAPE_POINTS"
"""What to do and when, separated by spaces: `outcome=stop`, `take:2=kill` (the second time), `read=pause:0.5`."""

Action = Callable[[], None]


def kill() -> None:
    os.kill(os.getpid(), SIGKILL)


def stop() -> None:
    """SIGSTOP: nothing of the process runs until somebody sends SIGCONT."""
    os.kill(os.getpid(), SIGSTOP)


def pause(seconds: float) -> Action:
    """The thread that came to the point sleeps: the event loop, or at `judge` and `read` the one that reads."""
    return lambda: time.sleep(seconds)


def at(point: str, action: Action, *, time_number: int = 1, key: str | None = None) -> None:
    """Do `action` when `point` is reached for the n-th time, of `key` if one is given.

    `reached POINT KEY` is printed before.
    """
    if point not in POINTS:
        raise ValueError(f"no point is {point!r}: use one of {', '.join(POINTS)}")
    before, left = points.on_point, time_number

    def on_point(reached: str, of: str) -> None:
        nonlocal left
        if reached == point and key in (None, of):
            left -= 1
            if left == 0:
                os.write(1, f"reached {point} {of}\n".encode())
                action()
        if before is not None:
            before(reached, of)

    points.on_point = on_point


def from_environment() -> None:
    """Arm what the environment asks for."""
    for word in os.environ.get(ENVIRONMENT, "").split():
        when, _, what = word.partition("=")
        point, _, number = when.partition(":")
        name, _, seconds = what.partition(":")
        actions = {"kill": kill, "stop": stop, "pause": pause(float(seconds or 0))}
        if name not in actions:
            raise ValueError(f"{ENVIRONMENT}: {word!r} says none of {', '.join(actions)}")
        at(point, actions[name], time_number=int(number or 1))


def clear() -> None:
    """Let every point pass from now on."""
    points.on_point = None
