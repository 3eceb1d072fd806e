"""Where a call stands in a rollout: the path of its task, and its place there.

Each asyncio task that is created inside a trajectory gets a scope of its own below its creator's, by the name of its
coroutine function and its number among its namesakes. So what a call is does not depend on what runs or ends first
(`docs/design/replay.md`).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, Token
from types import FrameType
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

    def child(self, name: str, *, only: bool = False) -> Scope:
        """Return the scope of the next task, or branch, of this name. `only`: UsageError if there was one."""
        name = _escaped(name)
        number = self._children.get(name, 0)
        if only and number:
            raise UsageError(f"several tasks or threads have a branch({name!r}) here: give each its own name")
        self._children[name] = number + 1
        path = f"{name}.{number}"
        return Scope(f"{self.path}/{path}" if self.path else path)


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F") if "/" in name or "%" in name else name


class Here:
    """What a task knows of where it stands."""

    __slots__ = ("_owner", "blocking", "in_step", "scope", "trajectory")

    def __init__(
        self, trajectory: Trajectory, scope: Scope, *, in_step: bool = False, blocking: BlockingTrajectory | None = None
    ) -> None:
        self.trajectory = trajectory
        self.scope = scope
        self.in_step = in_step
        """Inside a step's body: nothing is recorded."""
        self.blocking = blocking
        """In a thread without an event loop."""
        self._owner: int | None = None

    def own(self) -> Scope:
        """Return the scope, for the first task, or thread, that asks. UsageError: another one did.

        Which of two would be first is not the same every time, and each would get what the other was given.
        """
        asks = _who_asks()
        if self._owner is None:
            self._owner = asks
        elif self._owner != asks:
            where = f"in {self.scope.path}" if self.scope.path else "where the trajectory was opened"
            raise UsageError(
                f"two tasks or threads make calls of {self.trajectory.key} at one place, {where}: which of them is "
                "first would decide what each gets after a crash. Give this one a place: `with traj.branch(name):`"
            )
        return self.scope

    def branch(self, name: str) -> Scope:
        """Return the scope of a branch. Whoever comes from elsewhere has no place among its namesakes."""
        at_home = self._owner == _who_asks() or (self._owner is None and here.get() is self)
        return self.scope.child(name, only=not at_home)


def _who_asks() -> int:
    try:
        return id(asyncio.current_task())
    except RuntimeError:
        return threading.get_ident()


here: ContextVar[Here | None] = ContextVar("rolltape", default=None)


def leave(token: Token[Here | None]) -> None:
    """Undo `here.set`. Where a generator is closed by another task than the one that ran it, nothing was set."""
    with suppress(ValueError):
        here.reset(token)


# ---- tasks -----------------------------------------------------------------------------------------------------------

_Factory = Callable[..., Any]


class TaskFactory:
    """Gives each task of a trajectory its scope, and leaves making it to the factory that was there before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.before: _Factory | None = loop.get_task_factory()
        self.users = 0
        """How many trajectories run in the loop. With none it only hands on: somebody may have chained to it."""

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
        at = here.get()
        if at is None or at.in_step or not self.users:
            return self._make(loop, coroutine, options)
        scope = at.scope if _is_helper_of_wait_for() else at.scope.child(_name_of(coroutine))
        child = Here(at.trajectory, scope)
        if (context := options.get("context")) is not None:
            # A copy: two tasks may be given one context, and stand at two places.
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


def _name_of(coroutine: Any) -> str:
    name: str = getattr(coroutine, "__qualname__", None) or type(coroutine).__qualname__
    return name.replace("<locals>.", "")


_factories: dict[asyncio.AbstractEventLoop, TaskFactory] = {}
"""The task factory of each loop in which a trajectory runs."""


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Give tasks of `loop` their scopes, until `uninstall` was called as often."""
    if (factory := _factories.get(loop)) is None:
        factory = _factories[loop] = TaskFactory(loop)
        loop.set_task_factory(cast(Any, factory))
    factory.users += 1


def uninstall(loop: asyncio.AbstractEventLoop) -> None:
    """Put back the factory that was there, unless somebody has chained to ours meanwhile."""
    factory = _factories[loop]
    factory.users -= 1
    if not factory.users:
        del _factories[loop]
        if cast(Any, loop.get_task_factory()) is factory:
            loop.set_task_factory(factory.before)


_WAIT_FOR = asyncio.wait_for.__code__
_FRAMES = 12
"""How many frames lie between `wait_for` and the task factory at most, with those of other factories."""


def _is_helper_of_wait_for() -> bool:
    """Say whether this is a task that `wait_for` makes for itself: it stands where its caller does.

    On Python 3.11 it makes one for whatever has a timeout; since then only where none is left. Otherwise it awaits what
    it is given in its own frame.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code is _WAIT_FOR:
            timeout_s = frame.f_locals["timeout"]
            return timeout_s is not None and (sys.version_info < (3, 12) or timeout_s <= 0)
        frame = frame.f_back
    return False
