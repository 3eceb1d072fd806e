"""What looks like a chat is told as one, whatever library it is from; what is binary is told by its size."""

from __future__ import annotations

import pytest

from rolltape.cli.messages import arguments, brief, conversation, lines_of, pretty, replies, said


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "user", "content": "hi"}, [("user", "hi")]),
        ({"role": "user", "name": "bob", "content": "hi"}, [("user bob", "hi")]),
        ({"role": "assistant", "content": None}, []),
        ({"role": "assistant", "content": None, "refusal": "no"}, [("refusal", "no")]),
        ({"role": "assistant", "content": "", "reasoning_content": "hm"}, [("thinking", "hm")]),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "ls", "arguments": '{"a": 1}'}}]},
            [("tool call", "ls(a=1)")],
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "ls", "arguments": '{"a": '}}]},
            [("tool call", 'ls({"a": )')],
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "name": "ls", "input": {"a b": 1}}]},
            [("tool call", 'ls({"a b": 1})')],
        ),
        ({"role": "user", "content": [{"type": "tool_result", "content": "out"}]}, [("tool", "out")]),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}, [("thinking", "hm")]),
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}, "b"]}, [("user", "a"), ("user", "b")]),
        (
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAAAAAA"}}],
            },
            [("user", "<image/png, 6 B>")],
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}]},
            [("user", "<image_url: https://x.org/a.png>")],
        ),
        (
            {"role": "user", "content": [{"type": "image", "source": {"media_type": "image/jpeg", "data": "A" * 400}}]},
            [("user", "<image/jpeg, 300 B>")],
        ),
        ({"role": "user", "content": [{"type": "file", "data": b"12345"}]}, [("user", "<file, 5 B>")]),
        ({"type": "function_call", "name": "ls", "arguments": "{}"}, [("tool call", "ls()")]),
        ({"type": "function_call_output", "output": "out"}, [("tool call", "out")]),
        ({"role": "user", "content": 7}, [("user", "7")]),
        ({"role": "user", "content": [None, {"odd": 1}]}, [("user", "None"), ("user", '{"odd": 1}')]),
        ({"role": "assistant", "content": "", "tool_calls": ["odd"]}, [("tool call", '"odd"')]),
    ],
)
def test_messages_of_each_kind_are_told(message, told):
    assert [tuple(part) for part in said(message)] == told


def test_the_conversation_is_found_among_the_arguments():
    messages = [{"role": "user", "content": "hi"}]
    assert conversation({"args": [], "kwargs": {"messages": messages}}) == messages
    assert conversation({"args": ["model", messages], "kwargs": {}}) == messages
    anthropic = conversation({"args": [], "kwargs": {"system": "be kind", "messages": messages}})
    assert anthropic == [{"role": "system", "content": "be kind"}, *messages]
    assert conversation({"args": [[]], "kwargs": {"a": [1]}}) == conversation(None) == conversation("odd") == []


def test_the_reply_is_found_in_what_the_model_returned():
    reply = {"role": "assistant", "content": "hello"}
    assert replies({"choices": [{"message": reply}, "odd"]}) == [reply]
    assert replies(reply) == replies([reply]) == replies({"output": [reply, {"type": "reasoning"}]}) == [reply]
    assert replies("text") == replies({"choices": None}) == replies([]) == []


def test_arguments_are_told_as_they_would_be_written():
    messages = [{"role": "user", "content": "hi"}]
    call = {"args": ["a", 1, messages], "kwargs": {"tools": [{}, {}], "deep": {"k": (1,)}, "raw": b"123"}}
    assert arguments(call) == '"a", 1, tools=[2 tools], deep={"k": (1,)}, raw=<bytes, 3 B>'
    assert arguments(None) == ""


def test_long_strings_are_cut_in_values_and_never_when_all_is_asked_for():
    assert brief("x" * 100) == '"' + "x" * 60 + '…" (100 B)'
    assert brief("x" * 100, None) == '"' + "x" * 100 + '"'
    assert brief({"\x1b": {1, 2}, "n": None}) == '{"\\u001b": {1, 2}, "n": null}'


def test_long_texts_say_how_much_is_left_off():
    body = "\n".join(map(str, range(30)))
    lines, left = lines_of(body, 80, full=False)
    assert (lines[0], len(lines), left) == ("0", 8, "22 more lines")
    lines, left = lines_of(body, 80, full=False, last=True)
    assert (lines[-1], len(lines)) == ("29", 8)
    assert lines_of(body, 80, full=True) == ([str(n) for n in range(30)], "")
    assert lines_of("x" * 5000, None, full=False)[1] == "3.8 kB more"


def test_large_values_are_laid_out_when_all_is_asked_for():
    value = {"a": ["x" * 60, "y" * 60], "b": {}}
    assert pretty(value, full=True).split("\n") == [
        "{",
        '  "a": [',
        f'    "{"x" * 60}"',
        f'    "{"y" * 60}"',
        "  ]",
        '  "b": {}',
        "}",
    ]
    assert "\n" not in pretty(value, full=False)
