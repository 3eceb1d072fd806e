"""Where a call stands in a rollout: the path of its task, and its place there.

Each asyncio task that is created inside a trajectory gets a scope of its own below its creator's, by the name of its
coroutine function and its number among its namesakes. So what a call is does not depend on what runs or ends first
(`docs/design/replay.md`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from rolltape.errors import UsageError

if TYPE_CHECKING:
    from rolltape.trajectory.blocking import BlockingTrajectory
    from rolltape.trajectory.trajectory import Trajectory


class Scope:
    """One task's place, or one that the rollout named."""

    __slots__ = ("_calls", "_children", "_keys", "path")

    def __init__(self, path: str = "") -> None:
        self.path = path
        """"" for the rollout's own task, else its parent's path, "/", its name, "." and a number."""
        self._calls = 0
        self._children: dict[str, int] = {}
        self._keys: set[str] = set()

    def next_call(self, key: str | None = None) -> str:
        """Return the path of the call that is made now."""
        if key is None:
            place = str(self._calls)
            self._calls += 1
        else:
            place = f"={_escaped(key)}"
            if place in self._keys:
                raise UsageError(f"two steps of one scope have key={key!r}: give each its own")
            self._keys.add(place)
        return f"{self.path}/{place}" if self.path else place

    def child(self, name: str) -> Scope:
        """Return the scope of the next task, or branch, of this name."""
        name = _escaped(name)
        number = self._children.get(name, 0)
        self._children[name] = number + 1
        path = f"{name}.{number}"
        return Scope(f"{self.path}/{path}" if self.path else path)


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F") if "/" in name or "%" in name else name


class Here:
    """What a task knows of where it stands."""

    __slots__ = ("blocking", "in_step", "scope", "trajectory")

    def __init__(
        self, trajectory: Trajectory, scope: Scope, *, in_step: bool = False, blocking: BlockingTrajectory | None = None
    ) -> None:
        self.trajectory = trajectory
        self.scope = scope
        self.in_step = in_step
        """Inside a step's body: nothing is recorded."""
        self.blocking = blocking
        """In a thread without an event loop."""


here: ContextVar[Here | None] = ContextVar("rolltape", default=None)


# ---- tasks -----------------------------------------------------------------------------------------------------------

_Factory = Callable[..., Any]


class TaskFactory:
    """Gives each task of a trajectory its scope, and leaves making it to the factory that was there before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.before: _Factory | None = loop.get_task_factory()

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
        at = here.get()
        if at is None or at.in_step or _is_helper_of_wait_for():
            return self._make(loop, coroutine, options)
        name = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
        child = Here(at.trajectory, at.scope.child(name))
        if (context := options.get("context")) is not None:
            options["context"] = context = context.copy()
            context.run(here.set, child)
            return self._make(loop, coroutine, options)
        token = here.set(child)  # a task takes a copy of its creator's context
        try:
            return self._make(loop, coroutine, options)
        finally:
            here.reset(token)

    def _make(self, loop: asyncio.AbstractEventLoop, coroutine: Any, options: dict[str, Any]) -> Any:
        if self.before is not None:
            return self.before(loop, coroutine, **options)
        return asyncio.Task(coroutine, loop=loop, **options)


_factories: dict[asyncio.AbstractEventLoop, tuple[TaskFactory, int]] = {}
"""The task factory of each loop in which a trajectory runs, and how many do."""


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Give tasks of `loop` their scopes, until `uninstall` was called as often."""
    factory, users = _factories.get(loop, (None, 0))
    if factory is None:
        factory = TaskFactory(loop)
        loop.set_task_factory(cast(Any, factory))
    _factories[loop] = (factory, users + 1)


def uninstall(loop: asyncio.AbstractEventLoop) -> None:
    """Put back the factory that was there, unless somebody has chained to ours meanwhile."""
    factory, users = _factories.pop(loop)
    if users > 1:
        _factories[loop] = (factory, users - 1)
    elif cast(Any, loop.get_task_factory()) is factory:
        loop.set_task_factory(factory.before)


_WAIT_FOR = asyncio.wait_for.__code__


def _is_helper_of_wait_for() -> bool:
    """Say whether this task is the one that `wait_for` makes on Python 3.11: it stands where its caller does."""
    if sys.version_info >= (3, 12):
        return False
    frame = sys._getframe(2)
    for _ in range(4):
        if frame.f_code is _WAIT_FOR:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
