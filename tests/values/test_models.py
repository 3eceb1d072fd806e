"""Pydantic models come back as they were, those of OpenAI's and Anthropic's clients among them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Generic, Literal, TypeVar

import pytest

from rolltape.errors import EncodeError, FormatError
from rolltape.values import REDACTED, Foreign, Memory, decode, encode, learn
from tests.values.support import Tape, there_and_back

pydantic = pytest.importorskip("pydantic", reason="the frameworks' environment has it")

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of what validation would refuse

T = TypeVar("T")
K = __name__
CALLED: list[Any] = []


class Text(pydantic.BaseModel):
    type: Literal["text"] = "text"
    text: str


class Use(pydantic.BaseModel):
    type: Literal["use"] = "use"
    input: dict[str, Any] = pydantic.Field(default={})


class Reply(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", populate_by_name=True)
    ident: int = pydantic.Field(alias="id")
    blocks: list[Text | Use] = pydantic.Field(default=[], discriminator=None)
    api_key: str | None = None
    _seen: list[Any] = pydantic.PrivateAttr(default_factory=list)

    @pydantic.field_validator("ident")
    @classmethod
    def note(cls, value: int) -> int:
        CALLED.append(value)
        return value

    def model_post_init(self, context: Any) -> None:
        CALLED.append(self)


class Frozen(pydantic.BaseModel, frozen=True):
    x: int


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Box(pydantic.BaseModel, Generic[T]):
    item: T


def same(one: Any, other: Any) -> bool:
    return (
        type(one) is type(other)
        and one == other
        and one.__dict__ == other.__dict__
        and one.model_fields_set == other.model_fields_set
        and one.model_extra == other.model_extra
        and getattr(one, "__pydantic_private__", None) == getattr(other, "__pydantic_private__", None)
        and one.model_dump(exclude_unset=True) == other.model_dump(exclude_unset=True)
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Text(text="a"), f'{{"$model":"{K}:Text","unset":["type"],"fields":{{"type":"text","text":"a"}}}}'),
        (Frozen(x=1), f'{{"$model":"{K}:Frozen","fields":{{"x":1}}}}'),
        (Numbers([1]), f'{{"$model":"{K}:Numbers","fields":{{"root":[1]}}}}'),
        (Box[int](item=1), f'{{"$model":"{K}:Box","of":["builtins:int"],"fields":{{"item":1}}}}'),
        (
            Box[dict[str, Frozen | None]](item={}),
            f'{{"$model":"{K}:Box","of":[["builtins:dict","builtins:str",["|","{K}:Frozen","None"]]],'
            '"fields":{"item":{}}}',
        ),
        (
            Reply(id=1, **{"$more": 2}),
            f'{{"$model":"{K}:Reply","unset":["blocks","api_key"],"set":["$more"],'
            '"fields":{"ident":1,"blocks":[],"api_key":null},"extra":{"$dict":{"$more":2}},"private":{"_seen":[]}}',
        ),
        (
            Reply.model_construct(),
            f'{{"$model":"{K}:Reply","missing":["ident"],"unset":["blocks","api_key"],'
            '"fields":{"blocks":[],"api_key":null},"extra":{},"private":{"_seen":[]}}',
        ),
    ],
)
def test_these_tags_are_the_file_format(value: Any, text: str) -> None:
    """What is written today is read for ever, so these texts never change."""
    assert encode(value).json.decode() == text
    assert same(decode(text.encode()), value)


def test_a_model_is_made_without_its_init_and_its_validators() -> None:
    value = Reply(id=1, blocks=[Text(text="x"), Use(input={"$a": (1,)})], vendor=[b"1"])
    value._seen.append(Frozen(x=2))
    value.ident = "not even a number"  # type: ignore[assignment]
    text = encode(value).json
    CALLED.clear()
    again = decode(text)
    assert same(again, value) and not CALLED and again._seen == [Frozen(x=2)] and again.vendor == [b"1"]
    with pytest.raises(pydantic.ValidationError):
        there_and_back(Frozen(x=1)).x = 2
    assert hash(there_and_back(Frozen(x=1))) == hash(Frozen(x=1))
    for box in (
        Box[int](item=1),
        Box[list[Frozen]](item=[Frozen(x=1)]),
        Box[Box[str]](item=Box[str](item="")),
        Box(item=2),
    ):
        assert same(there_and_back(box), box)


def test_secrets_in_models_are_hidden() -> None:
    value = Reply(id=1, api_key="c4n4ry", password="c4n4ry")
    value._seen.append({"authorization": "c4n4ry"})
    assert b"c4n4ry" not in encode([value], memory=Memory()).json
    assert decode(encode(value).json).api_key == REDACTED


def test_a_model_whose_fields_have_changed_is_an_error_or_a_stand_in() -> None:
    text = f'{{"$model":"{K}:Text","fields":{{"text":"a","title":"b"}}}}'.encode()
    with pytest.raises(FormatError, match=r"of its fields type came, title went\. Go back to the version"):
        decode(text)
    assert decode(text, foreign=True) == Foreign("$model", f"{K}:Text", {"fields": {"text": "a", "title": "b"}})


def test_local_models_and_type_arguments_without_a_name() -> None:
    class Local(pydantic.BaseModel):
        x: int

    class Holder(pydantic.BaseModel):
        items: list[Local]

    value = Holder(items=[Local(x=1)])
    with pytest.raises(EncodeError, match=r"Holder cannot be recorded.*returns="):
        encode(value)
    assert same(decode(encode(value, returns=Holder).json, returns=Holder), value)
    boxed = Box[Local](item=Local(x=1))
    with pytest.raises(EncodeError, match=r"cannot be recorded.*returns="):
        encode(boxed)
    assert same(decode(encode(boxed, returns=Box[Local]).json, returns=Box[Local]), boxed)


def test_a_history_of_models_costs_what_it_adds() -> None:
    """Mixed with dicts, as they are put back into the list that they were asked with; and learned."""
    tape, again = Tape(), Memory()
    history: list[Any] = [{"role": "system", "content": "s" * 2000}]
    recall = tape.recall()
    for turn in range(20):
        history += [{"role": "user", "content": f"{turn} " * 300}, Text(text=f"{turn}! " * 300)]
        record = tape.record({"messages": history})
        read = tape.read(turn, recall)
        assert read == {"messages": history} and encode(read).json == encode({"messages": history}).json
        assert learn(again, (1, 1, turn), [("/result", read, record.json)])
    assert tape.bytes() < 20 * 2600
    read["messages"][2].text = "changed"
    assert tape.read(19, recall) == {"messages": history}


def test_validation_errors_come_back() -> None:
    """A reply that is not what was asked for is how most steps fail."""

    class Strict(pydantic.BaseModel):
        a: int

        @pydantic.field_validator("a")
        @classmethod
        def check(cls, value: int) -> int:
            if value == 2:
                raise pydantic.PydanticCustomError("odd", "{n} is odd", {"n": value})
            raise ValueError("never right")

    if not hasattr(pydantic, "PydanticCustomError"):
        from pydantic_core import PydanticCustomError

        pydantic.PydanticCustomError = PydanticCustomError
    for text in ('{"a":1}', '{"a":2}', '{"a":"x"}', "{}", "{"):
        with pytest.raises(pydantic.ValidationError) as caught:
            Strict.model_validate_json(text)
        again = there_and_back(caught.value)
        assert type(again) is pydantic.ValidationError and again.title == "Strict"
        for one, other in zip(again.errors(include_url=False), caught.value.errors(include_url=False), strict=True):
            assert {**one, "ctx": repr(one.get("ctx"))} == {**other, "ctx": repr(other.get("ctx"))}
        assert encode(again).json == encode(caught.value).json
    with pytest.raises(pydantic.ValidationError) as caught:
        Frozen(x=object())
    assert type(there_and_back(caught.value).errors()[0]["input"]) is Foreign


# ---- the clients' own ------------------------------------------------------------------------------------------------

COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": {
                "content": [{"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}],
                "refusal": None,
            },
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "reasoning_content": "thinking",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 1},
    },
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.0,
    "model": "m",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "so"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc"},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}],
        },
        {"type": "something_new", "payload": {"x": [1]}},
    ],
    "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "content": [
        {"type": "thinking", "thinking": "so", "signature": "s"},
        {"type": "text", "text": "hi", "citations": None},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1, {"b": 2}]}},
        {"type": "something_new", "payload": 1},
    ],
    "usage": {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 0, "new_count": 3},
}


def answer(client: str, body: dict[str, Any], status: int = 200) -> Any:
    """What a real client makes of an answer of the server, which stands here in the place of the network."""
    module = pytest.importorskip(client, reason="the frameworks' environment has it")
    try:
        import httpx2 as httpx
    except ImportError:
        import httpx
    headers = {"x-request-id": "req_1", "request-id": "req_1"}
    transport = httpx.MockTransport(lambda request: httpx.Response(status, json=body, headers=headers))
    kind = module.OpenAI if client == "openai" else module.Anthropic
    with kind(api_key="k", http_client=httpx.Client(transport=transport), max_retries=0) as made:
        if body is COMPLETION or (status != 200 and client == "openai"):
            return made.chat.completions.create(model="m", messages=[])
        if body is RESPONSE:
            return made.responses.create(model="m", input="x")
        return made.messages.create(model="m", max_tokens=1, messages=[])


def inside(value: Any) -> list[Any]:
    """Every model in a model."""
    if isinstance(value, pydantic.BaseModel):
        held = [*vars(value).values(), *(value.model_extra or {}).values()]
        return [value, *(part for item in held for part in inside(item))]
    if isinstance(value, list | dict):
        return [part for item in (value.values() if isinstance(value, dict) else value) for part in inside(item)]
    return []


@pytest.mark.parametrize(("client", "body"), [("openai", COMPLETION), ("openai", RESPONSE), ("anthropic", MESSAGE)])
def test_an_answer_comes_back_as_the_client_gave_it(client: str, body: dict[str, Any]) -> None:
    """With its tool calls and blocks, fields that the client did not know, and the request's id."""
    reply = answer(client, body)
    again = there_and_back(reply)
    assert len(inside(reply)) > 4
    for one, other in zip(inside(again), inside(reply), strict=True):
        assert same(one, other)
    assert again._request_id == reply._request_id == "req_1"
    assert again.to_json() == reply.to_json() and again.model_dump() == reply.model_dump()
    assert repr(again) == repr(reply)
    assert encode(again).json == encode(reply).json


@pytest.mark.parametrize(("client", "body"), [("openai", COMPLETION), ("anthropic", MESSAGE)])
def test_messages_of_clients_in_a_history_are_references(client: str, body: dict[str, Any]) -> None:
    reply = answer(client, body)
    message = reply.choices[0].message if client == "openai" else reply
    tape = Tape()
    history: list[Any] = [{"role": "user", "content": "x" * 500}]
    for turn in range(8):
        history += [message.model_copy(deep=True), {"role": "tool", "content": f"{turn}" * 500}]
        tape.record({"messages": history})
        assert tape.read(turn) == {"messages": history}
    assert b'"$list"' in tape.written[7].json and len(tape.written[7].json) < 2500


@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_an_error_of_a_client_can_be_caught_as_live(client: str) -> None:
    """Its response is not recorded, and says so; what people look at is."""
    module = pytest.importorskip(client, reason="the frameworks' environment has it")
    with pytest.raises(module.RateLimitError) as caught:
        answer(client, {"error": {"message": "slow down", "code": "slow", "type": "rate"}}, status=429)
    again = there_and_back(caught.value)
    assert isinstance(again, module.APIStatusError) and type(again) is type(caught.value)
    assert str(again) == str(caught.value) and again.status_code == 429 and again.body == caught.value.body
    assert again.request_id == "req_1" and type(again.response) is Foreign
    with pytest.raises(module.RateLimitError):
        raise again
    assert encode(again).json == encode(caught.value).json


def test_what_clients_say_for_not_given() -> None:
    for client in ("openai", "anthropic"):
        module = pytest.importorskip(client, reason="the frameworks' environment has it")
        for name in ("NOT_GIVEN", "omit"):
            if hasattr(module, name):
                assert there_and_back({"tools": getattr(module, name)})["tools"] is getattr(module, name)


def test_a_parsed_completion_comes_back() -> None:
    openai = pytest.importorskip("openai", reason="the frameworks' environment has it")
    from openai.types.chat import ParsedChatCompletion

    body = {
        **COMPLETION,
        "choices": [{**COMPLETION["choices"][0], "message": {"role": "assistant", "content": '{"x":1}'}}],
    }
    for kind in (ParsedChatCompletion[Frozen], ParsedChatCompletion):
        value = openai._models.construct_type(type_=kind, value=body)
        value.choices[0].message.parsed = Frozen(x=1)
        again = there_and_back(value)
        assert type(again) is type(value) and again == value and again.choices[0].message.parsed == Frozen(x=1)
    assert there_and_back({"response_format": Frozen})["response_format"] is Frozen


def test_another_process_reads_an_answer_and_one_without_the_client_sees_it() -> None:
    reply = answer("openai", COMPLETION)
    text = encode({"result": [reply]}).json
    for start in ("import openai.types.chat", ""):
        program = (
            f"{start}\n"
            "import sys\n"
            "from rolltape.values import Foreign, decode, encode\n"
            "text = sys.stdin.buffer.read()\n"
            "value = decode(text, foreign=True)\n"
            "assert encode(value).json == text\n"
            "assert ('pydantic' in sys.modules) == (type(value['result'][0]) is not Foreign)\n"
        )
        subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, input=text, check=True)
