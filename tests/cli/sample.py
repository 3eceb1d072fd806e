"""A run with one of everything: `python tests/cli/sample.py DIR 1` dies in the middle of it, `… 2` goes on.

Every record states its own time, so what is shown of it is the same each time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from rolltape import records
from rolltape.journal import AttemptLog, open_writer
from rolltape.records import Point
from rolltape.store import LocalStore
from rolltape.values import Redactor

BEGAN_S = 1_790_000_000.0
"""21 September 2026, 14:13:20 UTC."""

HOSTILE = "\x1b[31mred\x9b\u202e\u200b\x7f#0"
QUESTION = "How many people live in Kyōto (京都市)? Use the tool."
TRACEBACK = """Traceback (most recent call last):
  File "solve.py", line 41, in solve
    move = parse(reply)
  File "solve.py", line 12, in parse
    raise ValueError(f"no move in {reply!r}")
ValueError: no move in 'I give up'
"""

SYSTEM = {"role": "system", "content": "You are a careful assistant."}
ASKED = [SYSTEM, {"role": "user", "content": QUESTION}]
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "京都市 population"}'}}
REPLY = {"role": "assistant", "content": "Let me look that up.", "tool_calls": [CALL]}
FOUND = "Kyōto\n\nPopulation: 1,463,723 (2020)\n" + "\n".join(f"Ward {n}: {n * 12_345}" for n in range(1, 12))
ANSWERED = {"role": "assistant", "content": "1,463,723 people.", "reasoning_content": "The page says so."}


class Tape:
    """One attempt, whose records come a stated time after one another."""

    def __init__(self, writer: Any, key: str, attempt: int, at_s: float) -> None:
        self.log = AttemptLog(writer, key, attempt, redactor=Redactor(names=frozenset()))
        self.now = BEGAN_S + at_s

    async def put(self, record: type[records.InOrder], passed_s: float = 0.0, /, **fields: Any) -> None:
        self.now += passed_s
        values = {
            n: fields.pop(n) for n in list(fields) if n in ("call", "result", "error", "inputs", "state", "value")
        }
        values |= {n: fields.pop(n) for n in list(fields) if n in ("handle", "detail")}
        await self.log.append(record, values=values, unix_s=self.now, **fields)

    async def begin(self, continues: Point | None = None, **fields: Any) -> None:
        await self.put(records.Attempt, continues=continues, **fields)

    async def step(self, path: str, name: str, took_s: float, **fields: Any) -> None:
        await self.put(records.Done, took_s, path=path, name=name, took_s=took_s, **fields)

    async def end(self, status: str, **fields: Any) -> None:
        await self.put(records.Outcome, status=status, **fields)
        await self.put(records.Accepted)


def model(messages: list[Any], reply: Any) -> dict[str, Any]:
    return {
        "kind": "model",
        "call": {"args": [], "kwargs": {"model": "qwen3-8b", "messages": messages, "temperature": 0.7}},
        "result": {"value": {"id": "r1", "choices": [{"index": 0, "message": reply, "finish_reason": "stop"}]}},
        "policy": ("main", 3),
    }


def called(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"args": list(args), "kwargs": kwargs}


async def chat(writer: Any) -> None:
    tape = Tape(writer, "kyoto#0", 1, 0)
    await tape.begin(task="kyoto", inputs={"question": QUESTION})
    await tape.step("0", "chat.completions.create", 1.24, **model(ASKED, REPLY))
    await tape.step("1", "search", 0.031, kind="tool", call=called("京都市 population"), result={"value": FOUND})
    told = [*ASKED, REPLY, {"role": "tool", "tool_call_id": "c1", "content": FOUND}]
    await tape.step("2", "chat.completions.create", 2.5, **model(told, ANSWERED))
    await tape.step("3", "grade", 0.0004, kind="grader", call=called("1,463,723 people."), result={"value": 1.0})
    await tape.end("completed", reward=1.0, result={"value": 1.0})


async def fail(writer: Any) -> None:
    tape = Tape(writer, "chess#0", 1, 5)
    await tape.begin(task="chess")
    await tape.step(
        "0", "chat.completions.create", 3.1, **model(ASKED[:1], {"role": "assistant", "content": "I give up"})
    )
    error = {"type": "ValueError", "message": "no move in 'I give up'", "traceback": TRACEBACK}
    await tape.put(records.Failed, 0.002, path="1", name="parse", kind="tool", error=error, took_s=0.002)
    await tape.end("failed", cause="policy", error=error)


async def park(writer: Any) -> None:
    tape = Tape(writer, "mail@1#2", 1, 10)
    await tape.begin(task="mail", visit=1, sample=2)
    await tape.put(records.Intent, 0.1, path="0", name="send_mail", fingerprint="f0", call=called("bob@example.com"))
    detail = {"type": "TimeoutError", "message": "no answer within 30 s"}
    await tape.put(records.Parked, 30, reason="it may have happened: send_mail", path="0", detail=detail)


async def retry(writer: Any) -> None:
    first = Tape(writer, "flaky#0", 1, 20)
    error = {"type": "ConnectionError", "message": "connection refused", "traceback": "…"}
    await first.begin(task="flaky")
    await first.put(records.Retry, 0.5, path="0", name="fetch", tries=1, wait_s=2.0, error=error)
    await first.step("0", "fetch", 0.2, kind="tool", call=called("https://example.com"), result={"value": None})
    await first.put(records.Retry, 1, path="", tries=1, wait_s=10.0, error=error)
    second = Tape(writer, "flaky#0", 2, 32)
    await second.begin((writer.epoch, 1, 3))
    await second.step(
        "1", "fetch", 0.4, kind="tool", call=called("https://example.com/2"), result={"value": {"ok": True}}
    )
    await second.put(records.Cancelled, 5, path="2", name="wait_for_it", kind="tool", call=called(), took_s=5.0)
    await second.end("completed", reward=0.25)


async def hostile(writer: Any) -> None:
    tape = Tape(writer, HOSTILE, 1, 40)
    await tape.begin(task="\x1b]0;owned\x07", inputs={"\x1b[2J": "\u202eevil\u2066"})
    words = "\x1b[2Jgone \x9b31m bell\x07 del\x7f rlo\u202e zero\u200bwidth bom\ufeff tag\U000e0041 cr\rover"
    message = {"role": "user\x1b[0m", "content": words, "name": "\x1b[1m"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * 3000}}
    seen = {"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]}
    await tape.step("\x1b[0", "na\x1bme\u200f", 0.1, **model([message, seen], {"role": "assistant", "content": words}))
    await tape.step("1", "screenshot", 0.1, kind="env\x1b", call=called(words), result={"value": bytes(50_000)})
    await tape.put(records.Kept, path="2", kind="seed\x1b[5m", value={"value": 7})
    error = {"type": "Bad\x1b[31mError", "message": words, "traceback": f"Traceback:\n  {words}\nBad: {words}"}
    await tape.end("aborted", cause="infrastructure", error=error)


async def torn(writer: Any) -> None:
    """What epoch 2 continues: one that was in the middle of a mutation, and one that goes on although it is stale."""
    first = Tape(writer, "shop#0", 1, 50)
    await first.begin(task="shop")
    await first.put(records.ResourceOpened, 0.5, path="0", name="env", recovery="reattach", id="sandbox-7")
    await first.step("1", "env.look", 1.0, kind="env", call=called(), result={"value": "a shop"})
    await first.put(records.Commit, path="2", name="", state={"value": {"turn": 1}})
    await first.put(records.Intent, 0.5, path="3", name="env.buy", fingerprint="f", call=called("tea", count=2))
    stale = Tape(writer, "slow#0", 1, 60)
    await stale.begin(task="slow")
    await stale.step("0", "think", 1.0, kind="tool", call=called(1), result={"value": "one"})
    await stale.step("1", "think", 1.0, kind="tool", call=called(2), result={"value": "two"})
    await stale.step("2", "think", 60.0, kind="tool", call=called(3), result={"value": "too late"})
    left = Tape(writer, "left#0", 1, 70)
    await left.begin(task="left")
    await left.step("0", "think", 1.0, kind="tool", call=called(1), result={"value": "one"})
    await left.put(records.Begun, 0.1, path="1", name="train")


async def resumed(writer: Any) -> None:
    tape = Tape(writer, "shop#0", 2, 100)
    await tape.begin((1, 1, 4))
    await tape.step("3", "env.buy", 0.7, kind="env", call=called("tea", count=2), result={"value": {"paid": 4.5}})
    await tape.put(records.ResourceReleased, 0.1, path="4", name="env", id="sandbox-7")
    await tape.end("completed", reward=0.0)
    slow = Tape(writer, "slow#0", 2, 110)
    await slow.begin((1, 1, 2))
    await slow.step("2", "think", 2.0, kind="tool", call=called(3), result={"value": "three"})
    await slow.end("completed", reward=1.0)


async def main(directory: str, part: str) -> None:
    writer = open_writer(LocalStore(directory))
    for write in (chat, fail, park, retry, hostile, torn) if part == "1" else (resumed,):
        await write(writer)
    if part == "1":
        os._exit(0)  # as a crash would: nothing is sealed or closed
    await writer.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
