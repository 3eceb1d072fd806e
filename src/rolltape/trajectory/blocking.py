"""A trajectory for code without an event loop: the same, with the user's functions in the thread that calls.

The trajectory itself lives on the run's own loop, in a thread of its own. A function that is called as a step runs
where `call` was called, so that what is bound to a thread (sync Playwright, SQLite connections) works. Nothing can stop
such a function before it returns: a step's `timeout_s` is looked at when it does.
"""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from rolltape.trajectory.scope import Here, here
from rolltape.trajectory.step import Moved, step_of
from rolltape.trajectory.trajectory import Outcome, Trajectory

P = ParamSpec("P")
R = TypeVar("R")


class LoopThread:
    """An event loop in a thread of its own, started when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="rolltape-loop", daemon=True)
                self._thread.start()
            return self._loop

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run `coroutine` there, and return its result here."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class BlockingTrajectory:
    """What `with run.trajectory(…) as traj` gives. Every method is the trajectory's own, without `await`."""

    def __init__(self, trajectory: Trajectory, thread: LoopThread) -> None:
        self._trajectory = trajectory
        self._thread = thread
        self.key = trajectory.key
        self.task, self.visit, self.sample = trajectory.task, trajectory.visit, trajectory.sample
        self.attempt = trajectory.attempt

    def __repr__(self) -> str:
        return f"<BlockingTrajectory {self.key}, attempt {self.attempt}>"

    @property
    def outcome(self) -> Outcome | None:
        return self._trajectory.outcome

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` as a step, in this thread: recorded before this returns, never called again once it is."""
        step = step_of(function)
        at = here.get()
        if at is not None and at.in_step:
            value: R = step.function(*args, **kwargs)
            return value
        if step.is_async:
            result: R = self._thread.run(self._awaited(at, step, args, kwargs))
            return result
        inbox: SimpleQueue[_Handed | None] = SimpleQueue()

        async def hand_over(*args: Any, **kwargs: Any) -> Any:
            handed = _Handed(args, kwargs, asyncio.get_running_loop())
            inbox.put(handed)
            return await handed.future

        moved = Moved(step, hand_over)
        called: Future[R] = asyncio.run_coroutine_threadsafe(self._awaited(at, moved, args, kwargs), self._thread.loop)
        called.add_done_callback(lambda _: inbox.put(None))
        while (handed := inbox.get()) is not None:
            handed.run(step.function, Here(self._trajectory, self._trajectory.root, in_step=True))
        return called.result()

    async def _awaited(self, at: Here | None, step: Any, args: Any, kwargs: Any) -> Any:
        token = here.set(None if at is None else Here(self._trajectory, at.scope))
        try:
            return await self._trajectory.call(step, *args, **kwargs)
        finally:
            here.reset(token)

    def finish(self, result: Any) -> None:
        self._trajectory.finish(result)

    def record(self, kind: str, value: R) -> R:
        return self._on_loop(lambda: self._trajectory.record(kind, value))

    def now(self) -> float:
        return self._on_loop(self._trajectory.now)

    def uuid(self) -> uuid.UUID:
        return self._trajectory.uuid()

    @property
    def rng(self) -> random.Random:
        return self._trajectory.rng

    def branch(self, name: str) -> Any:
        return self._trajectory.branch(name)

    def _on_loop(self, function: Callable[[], R]) -> R:
        at = here.get()

        async def call() -> R:
            token = here.set(at)
            try:
                return function()
            finally:
                here.reset(token)

        return self._thread.run(call())


class _Handed:
    """One call on its way to the thread that wants it."""

    def __init__(self, args: Any, kwargs: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.args, self.kwargs = args, kwargs
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()

    def run(self, function: Callable[..., Any], at: Here) -> None:
        token = here.set(at)
        try:
            value = function(*self.args, **self.kwargs)
        except Exception as error:
            self.loop.call_soon_threadsafe(self._settle, None, error)
        except BaseException as error:
            self.loop.call_soon_threadsafe(self.future.cancel)
            raise error
        else:
            self.loop.call_soon_threadsafe(self._settle, value, None)
        finally:
            here.reset(token)

    def _settle(self, value: Any, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)
