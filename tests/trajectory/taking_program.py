"""A driver of one run that the tests stop and kill: `taking_program.py RUN LEDGER [options]`.

Each step returns a token that no other call returns, and the result of a trajectory is its tokens. What happens is a
line in the ledger, which only grows: `start KEY STEP TOKEN` when a step is called, `have KEY STEP TOKEN` when the
rollout has its result, `outcome KEY TOKENS` when the trajectory's end was acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import signal
import socket
import sys

import rolltape
from rolltape.errors import InUseError, SupersededError
from rolltape.testing import points

DONE, SUPERSEDED, IN_USE = 0, 3, 75


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Driver:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ledger = os.open(options.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.code = DONE

    def write(self, *words: object) -> None:
        os.write(self.ledger, (" ".join(map(str, words)) + "\n").encode())

    async def step(self, key: str, number: int) -> str:
        token = secrets.token_hex(4)
        self.write("start", key, number, token)
        await asyncio.sleep(self.options.step_ms / 1000)
        return token

    async def rollout(self, traj: rolltape.Trajectory) -> list[str]:
        tokens = []
        for number in range(self.options.steps):
            token = await traj.call(self.step, traj.key, number)
            self.write("have", traj.key, number, token)
            say("have", traj.key, number)
            tokens.append(token)
            if self.options.leave_after == number + 1:
                raise asyncio.CancelledError
            if self.options.kill_after == number + 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return tokens

    async def drive(self, run: rolltape.Run, key: str) -> None:
        try:
            async with run.trajectory(key) as traj:
                if traj.outcome is None:
                    traj.finish(await self.rollout(traj))
            self.write("outcome", key, *traj.outcome.result)
            say("outcome", key, *traj.outcome.result)
        except InUseError as error:
            say("in use", key, error)
            self.code = max(self.code, IN_USE)
        except SupersededError as error:
            say("superseded", key, error)
            self.code = max(self.code, SUPERSEDED)
        except asyncio.CancelledError:
            say("left", key)

    async def main(self) -> None:
        options = self.options
        async with rolltape.open(options.run, lease_s=options.lease_s, take_over=options.take_over) as run:
            await asyncio.gather(*(self.drive(run, key) for key in options.keys.split(",")))
            if options.linger:
                say("lingers")
                await asyncio.sleep(3600)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("ledger")
    parser.add_argument("--keys", default="q#0")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--lease-s", type=float, default=30.0)
    parser.add_argument("--take-over", action="store_true")
    parser.add_argument("--host", default="")
    parser.add_argument("--leave-after", type=int, default=0)
    parser.add_argument("--kill-after", type=int, default=0)
    parser.add_argument("--linger", action="store_true")
    parser.add_argument("--at", default="")
    return parser.parse_args()


if __name__ == "__main__":
    options = parsed()
    logging.basicConfig(stream=sys.stdout, format="log %(message)s")
    if options.host:
        socket.gethostname = lambda: options.host
    os.environ.setdefault(points.ENVIRONMENT, options.at)
    points.from_environment()
    driver = Driver(options)
    asyncio.run(driver.main())
    sys.exit(driver.code)
