"""A trajectory for code without an event loop: the same, with the user's functions in the thread that calls.

The trajectory itself lives on the run's own loop, in a thread of its own. A function that is called as a step runs
where `call` was called, so that what is bound to a thread (sync Playwright, SQLite connections) works. Nothing can stop
such a function before it returns: a step's `timeout_s` is looked at when it does, and a next try begins after that.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar, cast, overload

from rolltape.errors import JournalClosed, UsageError
from rolltape.trajectory.outcome import Outcome
from rolltape.trajectory.scope import Here, here, leave
from rolltape.trajectory.step import AnyStep, Ended, Moved, step_of
from rolltape.trajectory.trajectory import Trajectory

P = ParamSpec("P")
R = TypeVar("R")


class LoopThread:
    """An event loop in a thread of its own, started when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, coroutine: Coroutine[Any, Any, R]) -> Future[Ended[R]]:
        """Run `coroutine` there. JournalClosed: the thread has ended, or is another process's."""
        try:
            loop = self._running()
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(_ended(coroutine), loop)

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run `coroutine` there, and return its result here."""
        return value_of(self.start(coroutine))

    def close(self) -> None:
        """Cancel what runs there, and end the thread."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None and os.getpid() == self._pid:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        if os.getpid() != self._pid:
            raise JournalClosed("the run belongs to the process that this one was forked from: open it again here")
        if threading.current_thread() is self._thread:
            raise UsageError("this code runs on the trajectory's own event loop, which would wait for itself")
        with self._lock:
            if self._closed:
                raise JournalClosed("the run is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=[self._loop], name="rolltape-loop", daemon=True)
                self._thread.start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop):  # it cancels what is left, and closes the loop
        loop.run_forever()


async def _ended(coroutine: Coroutine[Any, Any, R]) -> Ended[R]:
    try:
        return Ended(await coroutine)
    except Exception as error:
        return Ended(None, error)


def value_of(future: Future[Ended[R]]) -> R:
    """Wait for what `LoopThread.start` began. Whatever interrupts the wait cancels it."""
    try:
        ended = future.result()
    except CancelledError:
        raise JournalClosed("the run was closed before this call had ended") from None
    finally:
        future.cancel()
    return ended.value()


class BlockingTrajectory:
    """What `with run.trajectory(…) as traj` gives. Every method is the trajectory's own, without `await`.

    Other threads than the one that opened it make their calls inside `with traj.branch(name)`, each with its own name.
    """

    def __init__(self, trajectory: Trajectory, thread: LoopThread) -> None:
        self._trajectory = trajectory
        self._thread = thread
        self._branching = threading.Lock()
        self.key = trajectory.key
        self.task, self.visit, self.sample = trajectory.task, trajectory.visit, trajectory.sample
        self.attempt = trajectory.attempt
        trajectory.home.blocking = self

    def __repr__(self) -> str:
        return f"<BlockingTrajectory {self.key}, attempt {self.attempt}>"

    @property
    def outcome(self) -> Outcome | None:
        return self._trajectory.outcome

    @overload
    def call(self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` as a step, in this thread: recorded before this returns, never called again once it is."""
        step = step_of(function)
        at = here.get()
        if at is not None and at.in_step:
            inside = step.function(*args, **kwargs)
            return self._thread.run(inside) if step.is_async else inside
        place = self._place()
        if step.is_async:
            return self._thread.run(self._awaited(place, step, args, kwargs))
        inbox: SimpleQueue[_Handed | None] = SimpleQueue()

        async def hand_over(*args: Any, **kwargs: Any) -> Any:
            handed = _Handed(args, kwargs)
            inbox.put(handed)
            value = await handed.returned()
            return await value if isinstance(value, Awaitable) else value

        functools.update_wrapper(hand_over, step.function, updated=())  # so that its parameters can be seen
        called = self._thread.start(self._awaited(place, Moved(step, hand_over), args, kwargs))
        called.add_done_callback(lambda _: inbox.put(None))
        try:
            while (handed := inbox.get()) is not None:
                handed.run(step.function, Here(self._trajectory, place.scope, in_step=True))
        except BaseException:
            called.cancel()
            raise
        return value_of(called)

    async def _awaited(self, place: Here, step: AnyStep, args: Any, kwargs: Any) -> Any:
        here.set(place)
        return await self._trajectory.call(cast(Any, step), *args, **kwargs)

    def _place(self) -> Here:
        """Return where this thread stands, for a task that makes one call for it."""
        return Here(self._trajectory, self._trajectory.place().own())

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

    @contextmanager
    def branch(self, name: str) -> Iterator[None]:
        branch = self._trajectory.branch(name)
        with self._branching:
            branch.__enter__()
        try:
            yield
        finally:
            branch.__exit__(None, None, None)

    def _on_loop(self, function: Callable[[], R]) -> R:
        place = self._place()

        async def call() -> R:
            here.set(place)
            return function()

        return self._thread.run(call())


class _Left(BaseException):
    """The function was left by KeyboardInterrupt or the like: nothing is recorded, as if the process had died."""


class _Handed:
    """One call on its way to the thread that wants it."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Ended[Any]] = self._loop.create_future()
        self._begun = threading.Lock()
        """Taken by whoever is first: the thread that runs it, or what cancels it before."""

    async def returned(self) -> Any:
        """Return what the function does, or raise it. Cancelled, it still waits until a function that runs is done."""
        try:
            await asyncio.shield(self._future)
        except asyncio.CancelledError:
            if self._begun.acquire(blocking=False):
                raise
            await asyncio.wait([self._future])
            if not isinstance(self._future.result().error, _Left):
                raise
        return self._future.result().value()

    def run(self, function: Callable[..., Any], at: Here) -> None:
        """Run it in this thread, unless it was cancelled."""
        if not self._begun.acquire(blocking=False):
            return
        ended: Ended[Any] = Ended(None, _Left())
        token = here.set(at)
        try:
            ended = Ended(function(*self.args, **self.kwargs))
        except Exception as error:
            ended = Ended(None, error)
        finally:
            leave(token)
            self._loop.call_soon_threadsafe(self._future.set_result, ended)
