"""What was passed and what came back, for people: chat messages as a conversation, anything else as short as it can be.

Nobody's format is required. What looks like a message of OpenAI's or Anthropic's (a `role` with `content` or tool
calls) is shown as one; binary data and images are shown by their sizes. Every line that comes from here is safe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from rolltape.cli import text

LINES_MAX = 8
"""Of one text, where not everything is asked for."""

CHARACTERS_MAX = 1200

VALUE_CHARACTERS_MAX = 60
"""Of one string inside a value, where not everything is asked for."""

_data_url = re.compile(r"data:([\w.+/-]{0,60});base64,", re.ASCII)


class Said(NamedTuple):
    """A part of a conversation, or one value."""

    who: str
    """A role, `tool call`, or "" for what is no message."""
    body: str
    """Any text; not safe yet."""


# ---- values ----------------------------------------------------------------------------------------------------------


def brief(value: Any, characters_max: int | None = VALUE_CHARACTERS_MAX) -> str:
    """Return a value in one line as near to JSON as it can be, long strings cut, binary data as its size."""
    return text.safe(_brief(value, characters_max))


def _brief(value: Any, most: int | None) -> str:
    match value:
        case str():
            return _quoted(value, most)
        case bytes() | bytearray() | memoryview():
            return f"<bytes, {text.size(len(value))}>"
        case dict():
            return "{" + ", ".join(f"{_key(k, most)}: {_brief(v, most)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(_brief(item, most) for item in value) + "]"
        case tuple():
            return "(" + ", ".join(_brief(item, most) for item in value) + ("," if len(value) == 1 else "") + ")"
        case set() | frozenset():
            return "{" + ", ".join(sorted(_brief(item, most) for item in value)) + "}" if value else "set()"
        case None | bool():
            return json.dumps(value)
        case int() | float():
            return repr(value)
    return f"<{type(value).__name__}>"


def _key(key: Any, most: int | None) -> str:
    return _quoted(key, most) if isinstance(key, str) else _brief(key, most)


def _quoted(value: str, most: int | None) -> str:
    if (data := _data(value)) is not None:
        return data
    if most is not None and len(value) > most:
        return json.dumps(value[:most], ensure_ascii=False)[:-1] + f'…" ({text.size(_bytes(value))})'
    return json.dumps(value, ensure_ascii=False)


def _data(value: str) -> str | None:
    """Return what stands for a `data:` URL."""
    match = _data_url.match(value)
    return None if match is None else f"<{match[1] or 'data'}, {text.size((len(value) - match.end()) * 3 // 4)}>"


def _bytes(value: str) -> int:
    return len(value.encode(errors="surrogatepass"))


def arguments(call: Any, without: tuple[str, ...] = ()) -> str:
    """Return a call's arguments as they would be written: `"ls", depth=2`."""
    args, kwargs = _args(call)
    parts = [_brief(arg, VALUE_CHARACTERS_MAX) for arg in args if not _is_conversation(arg)]
    for name, value in kwargs.items():
        if name not in without and not _is_conversation(value):
            shown = f"[{text.plural(len(value), 'tool')}]" if name == "tools" and isinstance(value, list) else None
            parts.append(f"{name}={shown or _brief(value, VALUE_CHARACTERS_MAX)}")
    return text.safe(", ".join(parts))


def _args(call: Any) -> tuple[list[Any], dict[str, Any]]:
    if not isinstance(call, dict):
        return ([] if call is None else [call]), {}
    args, kwargs = call.get("args") or [], call.get("kwargs") or {}
    return list(args) if isinstance(args, list | tuple) else [args], kwargs if isinstance(kwargs, dict) else {}


# ---- messages --------------------------------------------------------------------------------------------------------


def conversation(call: Any) -> list[Any]:
    """Return the messages that were passed: the first argument that is a list of them; [] if there is none."""
    args, kwargs = _args(call)
    found: list[Any] = next((value for value in (*args, *kwargs.values()) if _is_conversation(value)), [])
    system = kwargs.get("system")
    return [{"role": "system", "content": system}, *found] if found and system else found


def replies(result: Any) -> list[Any]:
    """Return the messages in what a model returned; [] if it looks like no model's answer."""
    if _is_message(result):
        return [result]
    if _is_conversation(result):
        return list(result)
    if isinstance(result, dict):
        choices = result.get("choices")
        if isinstance(choices, list):
            found = [c.get("message") for c in choices if isinstance(c, dict)]
            return [message for message in found if _is_message(message)]
        if isinstance(result.get("output"), list):
            return [item for item in result["output"] if _is_message(item)]
    return []


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("role"), str):
        return bool({"content", "tool_calls", "function_call", "refusal"} & value.keys())
    return value.get("type") in ("function_call", "function_call_output")


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_message, value))


def said(message: Any) -> Iterator[Said]:
    """Yield what a message says, part by part."""
    role = str(message.get("role") or "tool call")
    for key in ("reasoning_content", "reasoning"):
        if isinstance(message.get(key), str) and message[key]:
            yield Said("thinking", message[key])
    if message.get("type") == "function_call":
        yield Said("tool call", _called(message.get("name"), message.get("arguments")))
        return
    body = message.get("content", message.get("output"))
    name = message.get("name")
    yield from _parts(f"{role} {name}" if isinstance(name, str) and name else role, body)
    if message.get("refusal"):
        yield Said("refusal", str(message["refusal"]))
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield Said("tool call", _called(function.get("name"), function.get("arguments")))
        else:
            yield Said("tool call", _brief(call, None))


def _parts(role: str, body: Any) -> Iterator[Said]:
    if isinstance(body, str):
        if body:
            yield Said(role, _data(body) or body)
    elif isinstance(body, list | tuple):
        for part in body:
            yield from _part(role, part)
    elif body is not None:
        yield Said(role, _brief(body, None))


def _part(role: str, part: Any) -> Iterator[Said]:
    if not isinstance(part, dict):
        yield from _parts(role, part if isinstance(part, str) else [str(part)])
        return
    kind = str(part.get("type", ""))
    if isinstance(words := part.get("text"), str):
        yield Said(role, words)
    elif isinstance(words := part.get("thinking", part.get("reasoning")), str):
        yield Said("thinking", words)
    elif kind == "tool_use":
        yield Said("tool call", _called(part.get("name"), part.get("input")))
    elif kind == "tool_result":
        yield from _parts("tool", part.get("content"))
    elif "image" in kind or "audio" in kind or "file" in kind or "document" in kind:
        yield Said(role, _medium(kind, part))
    else:
        yield Said(role, _brief(part, VALUE_CHARACTERS_MAX))


def _medium(kind: str, part: dict[str, Any]) -> str:
    """Say what an image, a sound or a file is and how large, or where it lies."""
    for value in _strings(part):
        if (data := _data(value)) is not None:
            return data
        if value.startswith(("http://", "https://")):
            return f"<{kind}: {value}>"
    largest = max(_strings(part), key=len, default="")
    media = next((v for v in _strings(part) if re.fullmatch(r"(image|audio|application)/[\w.+-]+", v)), kind)
    binary = [value for value in part.values() if isinstance(value, bytes)]
    return f"<{media}, {text.size(len(binary[0]) if binary else len(largest) * 3 // 4)}>"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)


def _called(name: Any, given: Any) -> str:
    """Return a tool call as it would be written, its arguments out of their JSON if they are in it."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return f"{name}({given})"
    if isinstance(given, dict) and all(isinstance(key, str) and key.isidentifier() for key in given):
        return f"{name}({', '.join(f'{key}={_brief(value, None)}' for key, value in given.items())})"
    return f"{name}({_brief(given, None) if given is not None else ''})"


# ---- as lines --------------------------------------------------------------------------------------------------------


def lines_of(body: str, width: int | None, *, full: bool, last: bool = False) -> tuple[list[str], str]:
    """Return a text's safe lines, none wider than `width`, and what to say of those left off ("": none are).

    Where not everything is asked for, the beginning is kept; `last`: the end.
    """
    left = ""
    if not full and len(body) > CHARACTERS_MAX:
        left = f"{text.size(_bytes(body) - CHARACTERS_MAX)} more"
        body = body[-CHARACTERS_MAX:] if last else body[:CHARACTERS_MAX]
    lines = [part for line in text.safe_lines(body.strip("\n")) for part in text.wrap(line.rstrip(" "), width)]
    if not full and len(lines) > LINES_MAX + 1:
        left = left or f"{text.plural(len(lines) - LINES_MAX, 'more line')}"
        lines = lines[-LINES_MAX:] if last else lines[:LINES_MAX]
    return lines, left


def pretty(value: Any, *, full: bool) -> str:
    """Return a value as text over as many lines as it needs: strings as they are, the rest near to JSON."""
    if isinstance(value, str):
        return _data(value) or value
    short = _brief(value, None if full else VALUE_CHARACTERS_MAX)
    if not full or len(short) <= 100 or not isinstance(value, dict | list):
        return short
    return "\n".join(_indented(value, ""))


def _indented(value: Any, margin: str) -> Iterator[str]:
    """Yield the lines of a value, one entry a line where it does not fit into one."""
    short = _brief(value, None)
    if len(short) + len(margin) <= 100 or not isinstance(value, dict | list) or not value:
        yield short
        return
    heads = [f"{_key(key, None)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    yield "{" if isinstance(value, dict) else "["
    for head, inner in zip(heads, value.values() if isinstance(value, dict) else value, strict=True):
        first, *rest = _indented(inner, f"{margin}  ")
        yield f"  {head}{first}"
        yield from (f"  {line}" for line in rest)
    yield "}" if isinstance(value, dict) else "]"
