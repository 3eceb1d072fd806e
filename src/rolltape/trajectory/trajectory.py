"""A trajectory that is being run: each call is on disk before the next one starts, and a finished one never runs again.

When `await traj.call(…)` returns, its record survives `kill -9`, and power loss at durability `disk`. Called again
after a crash, in the same place with the same arguments, it returns what was recorded (`docs/design/replay.md`).
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar, overload

import msgspec

from rolltape import records
from rolltape.errors import DivergenceError, EncodeError, RolltapeError, UsageError
from rolltape.journal import AttemptLog
from rolltape.trajectory import mutated
from rolltape.trajectory.outcome import Outcome, described, reward_of
from rolltape.trajectory.replay import WHAT_TO_DO, Past, Recorded, in_its_names
from rolltape.trajectory.retry import cause_of, delivery_of
from rolltape.trajectory.scope import Here, Scope, here, leave
from rolltape.trajectory.step import AnyStep, ended, step_of
from rolltape.values import Encoded, decode, encode, learn
from rolltape.values.fingerprint import difference, fingerprint, of_arguments

P = ParamSpec("P")
R = TypeVar("R")

REPLAY_SLICE = 256
"""So many replayed calls run on before other tasks get a turn."""

_UUIDS = uuid.UUID("6f1c0f0e-52a5-4c0e-9d0b-5f3a5d0c7e11")


OnDivergence = Literal["park", "truncate"]
"""What to do where the rollout calls something else than was recorded: park it, or drop the rest and go on live."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call on its way into the journal."""

    path: str
    step: AnyStep
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    told: dict[str, Any]
    """The arguments as they are recorded."""
    encoded: Encoded
    fingerprint: str
    stopping: bool
    """It was made while the rollout was cleaning up."""

    def mutated(self) -> dict[str, Any]:
        """Return the arguments that the step is declared to change."""
        names = self.step.policy.mutates
        names = (names,) if isinstance(names, str) else names
        return mutated.named(self.step.function, names, self.args, self.kwargs)

    def fields(self) -> dict[str, Any]:
        """Return what every record of its end says."""
        return {
            "path": self.path,
            "name": self.step.name,
            "kind": self.step.policy.kind,
            "fingerprint": self.fingerprint,
            "cancelling": self.stopping,
        }


class Trajectory:
    """One trajectory, for the task that runs it and the tasks that it starts. Made by `Run.trajectory`."""

    def __init__(
        self,
        log: AttemptLog,
        past: Past,
        *,
        task: str,
        visit: int,
        sample: int,
        seed: str,
        threads: Executor,
        checked: set[str],
        on_divergence: OnDivergence,
        outcome: Outcome | None,
    ) -> None:
        self.key = log.key
        self.task, self.visit, self.sample = task, visit, sample
        self.attempt = log.attempt
        """Which try this is."""
        self.outcome = outcome
        """How it ended, if it had ended before it was opened; after its block, how it has ended now."""
        self.live_calls = 0
        """Calls that were really made in this attempt, tries of one call counted once."""
        self.replayed_calls = 0
        """Calls that returned what was recorded."""
        self.root = Scope()
        self.home = Here(self, self.root)
        """Where whoever stands nowhere else in it makes calls: the task that opened it."""
        self._inside = Here(self, self.root, in_step=True)
        self.over: RolltapeError | None = None
        """Set once nothing more may be recorded (its block was left, somebody else has it): the next call raises it."""
        self._log = log
        self._past = past
        self._seed = seed
        self._threads = threads
        self._on_divergence = on_divergence
        self._checked = checked
        """Functions that are known not to change their arguments."""
        self._cancelled: list[Call] = []
        """Cancelled calls, which are recorded once the rollout goes on."""
        self._held: set[str] = set()
        """Where no call is made any more: in those of whom it is recorded that another one was first."""
        self._rngs: dict[str, random.Random] = {}
        self._result: Any = None

    def __repr__(self) -> str:
        return f"<Trajectory {self.key}, attempt {self.attempt}>"

    @property
    def id(self) -> tuple[int, int]:
        """(epoch, attempt)."""
        return (self._log.epoch, self._log.attempt)

    # ---- calls -------------------------------------------------------------------------------------------------------

    @overload
    def call(
        self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call `function` as a step: recorded before this returns, never called again once it is.

        Where it stands is settled here, not when the result is awaited. What it raises is recorded too, and raised.
        EncodeError: an argument or the result cannot be recorded. DivergenceError: another call was recorded here.
        """
        step = step_of(function)
        at = here.get()
        if at is not None and at.in_step:
            return self._bare(step, args, kwargs)
        scope = (self.home if at is None or at.trajectory is not self else at).own()
        return self._call(step, scope.next_call(step.policy.key), _is_stopping(), args, kwargs)

    async def _call(
        self, step: AnyStep, path: str, stopping: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.over is not None:
            raise self.over
        told: dict[str, Any] = {"args": list(args), "kwargs": kwargs} if kwargs else {"args": list(args)}
        memory = self._log.memory
        encoded = encode(told, where="/call", memory=memory)
        identity = of_arguments(told, encoded, memory=memory)
        call = Call(path, step, args, kwargs, told, encoded, identity, stopping)
        if self._past:
            passed: dict[str, Any] = {"fingerprint": call.fingerprint, "told": told, "function": step.function}
            if (recorded := self._recorded(path, step.name, **passed)) is not None:
                return await self._replay(call, recorded)
        return await self._live(call)

    def _recorded(self, path: str, name: str, **call: Any) -> Recorded | None:
        """Return what was recorded there; None if nothing was, or if what was is to be dropped.

        DivergenceError: it was something else. Whatever the rollout makes of that, it goes no further.
        """
        try:
            return self._past.take(path, name, **call)
        except DivergenceError as error:
            if self._on_divergence != "truncate":
                self.over = error
                raise
        back_to, kept = self._past.drop()
        names: dict[str, Any] = {"path": path, "name": name, "reason": "truncate"}
        self._log.put(records.Resampled, **names, back_to=back_to, kept=kept, unix_s=time.time())
        return None

    async def _replay(self, call: Call, recorded: Recorded) -> Any:
        self.replayed_calls += 1
        if self.replayed_calls % REPLAY_SLICE == 0:
            await asyncio.sleep(0)
        head, returns = recorded.head, call.step.policy.returns
        if head.type == "done":
            result = self._past.value(recorded, head.result, returns=returns)
            parts = [("/call", call.told, head.call), ("/result", result, head.result)]
            learn(self._log.memory, head.point, parts, returns=returns)
            if bytes(head.changed):
                mutated.change(call.mutated(), self._past.value(recorded, head.changed, returns=returns))
            return result["value"]
        if head.type == "failed":
            raise self._past.value(recorded, head.error, returns=returns)["exception"]
        await asyncio.get_running_loop().create_future()  # until what cancelled the call then cancels it again

    async def _live(self, call: Call) -> Any:
        if self._held and call.path.startswith(tuple(self._held)):
            await asyncio.get_running_loop().create_future()  # until the one that was first cancels this again
        self.live_calls += 1
        step, policy = call.step, call.step.policy
        before = None if step.name in self._checked or policy.mutates else encode(call.told)
        tries = self._past.tries(call.path)
        try:
            while True:
                started, start = time.time(), time.monotonic()
                try:
                    value = await (
                        self._bare(step, call.args, call.kwargs) if policy.timeout_s is None else self._try(call)
                    )
                    break
                except Exception as error:
                    # The one place where a step's own errors meet ours: they are recorded, and raised to the rollout.
                    tries += 1
                    wait_s = policy.retry.wait_s(tries, error)
                    await self._failed(call, error, tries, wait_s, started, time.monotonic() - start)
                    if wait_s is None:
                        raise
                await asyncio.sleep(wait_s)
            took_s = round(time.monotonic() - start, 6)
            self._check_arguments(call, before)
            told: dict[str, Any] = {"result": {"value": value}}
            if policy.mutates:
                told["changed"] = call.mutated()
            await self._put(
                records.Done,
                values=told,
                returns=policy.returns,
                encoded={"call": call.encoded},
                path=call.path,
                name=step.name,
                kind=policy.kind,
                backend=policy.backend,
                fingerprint=call.fingerprint,
                cancelling=call.stopping,
                unix_s=started,
                took_s=took_s,
            )
            return value
        except asyncio.CancelledError:
            self._cancelled.append(call)
            raise

    async def _failed(
        self, call: Call, error: Exception, tries: int, wait_s: float | None, unix_s: float, took_s: float
    ) -> None:
        told = {"error": described(error, for_replay=wait_s is None)}
        if wait_s is not None:
            names: dict[str, Any] = {"path": call.path, "name": call.step.name, "cancelling": call.stopping}
            return await self._put(records.Retry, values=told, **names, tries=tries, wait_s=wait_s, unix_s=unix_s)
        about: dict[str, Any] = {
            "cause": cause_of(error),
            "delivery": delivery_of(error),
            "unix_s": unix_s,
            "took_s": took_s,
        }
        await self._put(records.Failed, values=told, encoded={"call": call.encoded}, **call.fields(), **about)

    async def _try(self, call: Call) -> Any:
        async with asyncio.timeout(call.step.policy.timeout_s):
            return await self._bare(call.step, call.args, call.kwargs)

    async def _bare(self, step: AnyStep, args: Any, kwargs: Any) -> Any:
        """Call a step's function. Nothing inside it is recorded."""
        token = here.set(self._inside)
        try:
            if step.is_async:
                return await step.function(*args, **kwargs)
            context = copy_context()
            loop = asyncio.get_running_loop()
            call = partial(context.run, ended, step.function, *args, **kwargs)
            value = (await loop.run_in_executor(self._threads, call)).value()
            return await value if isinstance(value, Awaitable) else value
        finally:
            leave(token)

    def _check_arguments(self, call: Call, before: Encoded | None) -> None:
        """Find out, once a function, whether it changes its arguments: its replay would not."""
        if before is None:
            return
        self._checked.add(call.step.name)
        if fingerprint(call.told) != call.fingerprint:
            then = decode(before.json, blob=lambda digest, _: before.blobs[digest], foreign=True)
            how = in_its_names(difference(then, call.told) or "", call.step.function)
            how = how.replace("was recorded", "was passed").replace("is passed now", "is there now")
            raise EncodeError(
                f"{call.step.name} changes its arguments, and its replay would not: {how}. "
                "Let it return what it makes, and leave what it is given as it is; or say mutates= with the name"
            )

    # ---- recording ---------------------------------------------------------------------------------------------------

    def _put(self, kind_: type[records.InOrder], /, **fields: Any) -> Awaitable[None]:
        """Write the next record. Await what is returned: then it is on disk."""
        self._put_cancelled(fields.get("cancelling", False))
        return self._log.append(kind_, **fields)

    def _put_cancelled(self, stopping: bool) -> None:
        """Write which calls were cancelled, before anything that the rollout did because of it."""
        if self.over is not None:
            raise self.over
        while self._cancelled:
            call = self._cancelled.pop(0)
            about = {**call.fields(), "cancelling": stopping}
            self._log.put(records.Cancelled, encoded={"call": call.encoded}, **about, unix_s=time.time())

    def _keep(self, kind: str, make: Callable[[], Any]) -> Any:
        """Return what was recorded here, or make it and record it. The next step's wait includes it."""
        path = self._scope().next_call()
        if (recorded := self._recorded(path, kind)) is not None:
            return self._past.value(recorded, recorded.head.value)["value"]
        stopping = _is_stopping()
        self._put_cancelled(stopping)
        value = make()
        told = {"value": {"value": value}}
        about: dict[str, Any] = {"path": path, "name": kind, "kind": kind, "cancelling": stopping}
        self._log.put(records.Kept, values=told, **about, unix_s=time.time())
        return value

    def _scope(self) -> Scope:
        return self.place().own()

    def place(self) -> Here:
        """Return where this code stands: from outside the trajectory, that is where it was opened."""
        at = here.get()
        if at is not None and at.in_step:
            raise UsageError("nothing is recorded inside a step: pass it what it needs as an argument")
        return self.home if at is None or at.trajectory is not self else at

    def record(self, kind: str, value: R) -> R:
        """Keep `value`, and return it; after a crash, return what was kept here instead."""
        kept: R = self._keep(kind, lambda: value)
        return kept

    def now(self) -> float:
        """Return the time, in seconds since 1970: after a crash the same again."""
        now: float = self._keep("now", time.time)
        return now

    def uuid(self) -> uuid.UUID:
        """Return a new UUID: after a crash the same again. It is derived from where it is asked for."""
        return uuid.uuid5(_UUIDS, f"{self._seed}/{self._scope().next_call()}")

    @property
    def rng(self) -> random.Random:
        """The random numbers of this task, or branch: after a crash the same again."""
        scope = self._scope()
        if (rng := self._rngs.get(scope.path)) is None:
            rng = self._rngs[scope.path] = random.Random(f"{self._seed}/{scope.path}")
        return rng

    # ---- branches ----------------------------------------------------------------------------------------------------

    @contextmanager
    def branch(self, name: str) -> Iterator[None]:
        """Name the scope of what is called within: for work whose order of creation is not always the same."""
        place = self.place()
        token = here.set(Here(self, place.branch(name), blocking=place.blocking))
        try:
            yield
        finally:
            leave(token)

    async def first(self, *awaitables: Coroutine[Any, Any, R]) -> tuple[int, R]:
        """Return (which, result) of the one that is done first, and cancel the others. Which one it was is recorded."""
        choice = self._choose(awaitables, only_first=True)
        try:
            async for which, task in choice:
                return which, task.result()
        finally:
            await choice.aclose()
        raise UsageError("traj.first needs something to wait for")

    async def as_completed(self, *awaitables: Coroutine[Any, Any, R]) -> AsyncIterator[tuple[int, R]]:
        """Yield (which, result) in the order in which they are done, which is recorded."""
        choice = self._choose(awaitables)
        try:
            async for which, task in choice:
                yield which, task.result()
        finally:
            await choice.aclose()

    async def _choose(
        self, awaitables: tuple[Coroutine[Any, Any, R], ...], *, only_first: bool = False
    ) -> AsyncGenerator[tuple[int, asyncio.Task[R]], None]:
        at = self._scope()
        scopes = [at.child("choice") for _ in awaitables]
        left = set(range(len(scopes)))
        path, chosen = self._next_choice(at)
        held = {f"{scopes[n].path}/" for n in left - {chosen}} if only_first and chosen is not None else set()
        self._held |= held
        tasks = [self._start(awaitable, scope) for awaitable, scope in zip(awaitables, scopes, strict=True)]
        try:
            while left:
                which = await self._next_done(path, chosen, tasks, left)
                left.remove(which)
                yield which, tasks[which]
                if left:
                    path, chosen = self._next_choice(at)
        finally:
            for which in left:
                tasks[which].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._held -= held
            for which in left:
                self._past.forget_under(scopes[which].path)

    def _next_choice(self, at: Scope) -> tuple[str, int | None]:
        """Return the path of the next choice, and what was recorded of it."""
        recorded = self._recorded(path := at.next_call(), "choice")
        return path, None if recorded is None else int(recorded.head.order[0])

    def _start(self, awaitable: Coroutine[Any, Any, R], scope: Scope) -> asyncio.Task[R]:
        token = here.set(Here(self, scope))
        try:
            return asyncio.create_task(awaitable)
        finally:
            leave(token)

    async def _next_done(self, path: str, chosen: int | None, tasks: list[asyncio.Task[R]], left: set[int]) -> int:
        if chosen is not None:
            await asyncio.wait([tasks[chosen]])
            return chosen
        await asyncio.wait([tasks[which] for which in left], return_when=asyncio.FIRST_COMPLETED)
        which = min(which for which in left if tasks[which].done())
        await self._put(records.Chosen, path=path, name="choice", order=[str(which)])
        return which

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self, result: Any) -> None:
        """Set the result with which the trajectory completes when its block ends. A number is its reward too."""
        self._result = result

    async def end(self, status: records.OutcomeStatus, error: Exception | None) -> Outcome:
        """Write the outcome. It counts once it is accepted."""
        if error is None:
            self._check_that_all_is_read()
            outcome = Outcome(status, self._result, reward_of(self._result))
            values = {"result": {"value": self._result}}
        else:
            outcome = Outcome(status, cause=cause_of(error), error=described(error))
            values = {"error": outcome.error}
        about: dict[str, Any] = {
            "status": status,
            "cause": outcome.cause,
            "reward": outcome.reward,
            "unix_s": time.time(),
        }
        await self._put(records.Outcome, values=values, **about)
        return outcome

    def _check_that_all_is_read(self) -> None:
        if self._on_divergence == "park" and (unread := list(self._past.unread())):
            first = unread[0]
            raise DivergenceError(
                f"the rollout returned, and {len(unread)} recorded step(s) were not called again, the first of them "
                f"{first.path}, {first.name}. {WHAT_TO_DO}"
            )

    async def accept(self, outcome: Outcome) -> None:
        """Let the outcome stand, whatever comes later."""
        await self._put(records.Accepted, unix_s=time.time())
        self.outcome = outcome

    async def park(self, reason: str, error: Exception) -> None:
        """Say that it waits for somebody's decision, and why."""
        about = f"{reason}: {str(error).partition('. ')[0]}"
        await self._log.append(records.Parked, reason=about, values={"detail": described(error)}, unix_s=time.time())


def _is_stopping() -> bool:
    """Say whether the code that calls is cleaning up: it has been told to stop, and has not shown that it goes on."""
    return isinstance(sys.exc_info()[1], (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit))


def current() -> Trajectory | None:
    """Return the trajectory that this code runs in; None outside of any, and inside a step."""
    at = here.get()
    return None if at is None or at.in_step else at.trajectory
