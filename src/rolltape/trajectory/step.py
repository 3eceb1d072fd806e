"""A step is a function with a policy: what it does to the world, how long it may take, whether it is tried again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

import msgspec

from rolltape.errors import UsageError
from rolltape.trajectory.retry import NEVER, Retry
from rolltape.trajectory.scope import here

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

Effect = Literal["repeatable"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is said about a step."""

    effect: Effect = "repeatable"
    kind: str = ""
    name: str = ""
    key: str | None = None
    backend: str = ""
    retry: Retry = NEVER
    timeout_s: float | None = None
    returns: Any = None
    mutates: str | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.effect != "repeatable":
            raise UsageError(f"effect is {self.effect!r}: this version knows 'repeatable' only")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise UsageError(f"timeout_s is {self.timeout_s!r}: use seconds over 0, or None for no limit")


PLAIN = Policy()


class Step(Generic[P, R]):
    """A function and its policy. Called directly it records inside a trajectory, and just runs elsewhere."""

    def __init__(self, function: Callable[P, R], policy: Policy) -> None:
        self.function = function
        self.policy = policy
        self.name = policy.name or name_of(function)
        self.is_async = is_async(function)
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<step {self.name}>"

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Step[P, R]: ...
    @overload
    def __get__(self: Step[Concatenate[Any, Q], R], instance: object, owner: type | None = None) -> Step[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind as a function does, so that methods can be steps."""
        return self if instance is None else Step(functools.partial(self.function, instance), self._named())

    def _named(self) -> Policy:
        return msgspec.structs.replace(self.policy, name=self.name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        at = here.get()
        if at is None or at.in_step:
            return self.function(*args, **kwargs)
        if at.blocking is not None:
            return at.blocking.call(self, *args, **kwargs)
        if not self.is_async:
            raise UsageError(
                f"{self.name} is a synchronous step, and calling it here would hold up the event loop: "
                f"write `await traj.call({self.name}, …)`"
            )
        return at.trajectory.call(self, *args, **kwargs)  # type: ignore[return-value]


def name_of(function: Callable[..., Any]) -> str:
    """Return the name that a function has in the journal: its qualified name, without its module."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name.replace("<locals>.", "")


def is_async(function: Callable[..., Any]) -> bool:
    """Say whether calling `function` gives something to await, as far as that can be seen before calling it."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(function: Callable[P, R], /, **policy: Any) -> Step[P, R]: ...
@overload
def step(**policy: Any) -> Callable[[Callable[P, R]], Step[P, R]]: ...
def step(function: Any = None, /, **policy: Any) -> Any:
    """State a step's policy: as a decorator, `@step(timeout_s=60)`, or inline, `traj.call(step(f, timeout_s=60), …)`.

    effect      "repeatable": may run again if it was in flight (sampling, pure tools)
    timeout_s   a try that takes longer fails with TimeoutError
    retry       a `Retry`: how often a failed call is tried again
    mutates     the names of the arguments that it changes: recorded as it leaves them, and changed again on replay
    returns     the type that it returns, or several: needed for classes that are defined inside a function
    kind        "model", "tool", "env", "grader": what reports group by
    name, key   what it is called in the journal; a place in its scope that does not depend on order
    """
    try:
        stated = Policy(**policy)
    except TypeError as error:
        raise UsageError(f"{error}: a step takes {', '.join(Policy.__struct_fields__)}") from None

    def decorate(function: Any) -> Any:
        if isinstance(function, Step):
            return Step(function.function, _over(function.policy, policy))
        if not callable(function):
            raise UsageError(f"a step is a function, and this is a {type(function).__name__}")
        return Step(function, stated)

    return decorate if function is None else decorate(function)


def _over(policy: Policy, changes: dict[str, Any]) -> Policy:
    return msgspec.structs.replace(policy, **changes)


def step_of(function: Callable[..., Any] | Moved) -> AnyStep:
    """Return `function` as a step."""
    return function if isinstance(function, (Step, Plain, Moved)) else Plain(function)


class Plain:
    """A function that states no policy: what a call of it needs, found quickly."""

    __slots__ = ("function", "is_async", "name")
    policy = PLAIN

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        code = getattr(function, "__code__", None)
        self.name, self.is_async = _facts_of_code(code) if code is not None else (name_of(function), is_async(function))


@functools.lru_cache(maxsize=4096)
def _facts_of_code(code: CodeType) -> tuple[str, bool]:
    return code.co_qualname.replace("<locals>.", ""), bool(code.co_flags & inspect.CO_COROUTINE)


class Ended(Generic[R]):
    """How a function ended in another thread. A future would refuse StopIteration, and replace other exceptions."""

    __slots__ = ("_value", "error")

    def __init__(self, value: Any, error: BaseException | None = None) -> None:
        self._value: R = value
        self.error = error

    def value(self) -> R:
        if self.error is not None:
            raise self.error
        return self._value


def ended(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Ended[R]:
    """Call `function`, and say how it ended."""
    try:
        return Ended(function(*args, **kwargs))
    except Exception as error:
        return Ended(None, error)


class Moved:
    """A step whose function runs elsewhere: what is awaited in its place."""

    __slots__ = ("function", "is_async", "name", "policy")

    def __init__(self, step: AnyStep, function: Callable[..., Any]) -> None:
        self.function = function
        self.is_async = True
        self.name: str = step.name
        self.policy: Policy = step.policy


AnyStep: TypeAlias = Step[..., Any] | Plain | Moved
