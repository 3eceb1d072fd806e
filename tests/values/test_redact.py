"""Secrets stay out of the journal, and nothing else is changed."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.values import DEFAULT_NAMES, REDACTED, Memory, Redactor, decode, encode
from tests.values.support import PLAIN, exact, values

CANARY = "c4n4ry-5ecret"
BASIC = base64.b64encode(f"me:{CANARY}".encode()).decode()


def traces(canary: str) -> list[bytes]:
    """The ways in which a canary could stand in a text: as it is, or in base64 at any of its three offsets."""
    found = [canary.encode()]
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + canary.encode())
        found.append(text[4 if shift else 0 : -4])
    return found


def is_clean(value: Any, redact: Redactor | None = None) -> bool:
    """Whether no canary is in what is written, nor in what the memory holds, however often it is recorded."""
    memory = Memory()
    texts = []
    for seq in range(3):
        encoded = encode(value, memory=memory, redact=redact or Redactor())
        memory.commit((1, 1, seq), encoded.notes)
        texts += [encoded.json, *encoded.blobs.values(), encode(value, redact=redact or Redactor()).json]
    held = repr(held_by(memory, set())).encode()
    return not any(trace in text for trace in [*traces(CANARY), *traces(BASIC)] for text in [*texts, held])


def held_by(thing: Any, seen: set[int]) -> Any:
    """Everything reachable from `thing`, as far as it is data."""
    if id(thing) in seen:
        return None
    seen.add(id(thing))
    if isinstance(thing, dict):
        return [held_by(item, seen) for pair in thing.items() for item in pair]
    if isinstance(thing, list | tuple | set | frozenset):
        return [held_by(item, seen) for item in thing]
    names = getattr(type(thing), "__slots__", ()) or getattr(thing, "__dict__", ())
    return [held_by(getattr(thing, name), seen) for name in names] if names else thing


@pytest.mark.parametrize("name", sorted(DEFAULT_NAMES))
@pytest.mark.parametrize("spell", [str, str.upper, str.title, lambda name: name.replace("-", "_")])
def test_the_value_of_a_named_field_is_never_written(name: str, spell: Any) -> None:
    """Whatever it is: a string, bytes, or a structure; at any depth; however the name is spelled."""
    key = spell(name)
    for secret in (CANARY, CANARY * 10, CANARY.encode(), [CANARY], {"a": (CANARY,)}, CANARY + "\ud800"):
        assert is_clean({"headers": {key: secret, "accept": "*/*"}})
        assert is_clean([{"content": "x" * 200}, {"h": {key: secret, 1: 2}}, ({"$": {key: secret}},)])
    assert decode(encode({key: CANARY, "b": 1}).json) == {key: REDACTED, "b": 1}


def test_header_names_may_be_bytes() -> None:
    """As httpx has them; and so may their values be."""
    assert is_clean({b"authorization": CANARY.encode()})
    assert is_clean([(b"authorization", b"Bearer " + CANARY.encode()), (b"x", b"Basic " + BASIC.encode())])


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"Bearer {CANARY}", "Bearer [redacted]"),
        (f"bearer  {CANARY}==", "bearer [redacted]"),
        (f"BEARER {CANARY}", "BEARER [redacted]"),
        (f"Basic {BASIC}", "Basic [redacted]"),
        (f"https://me:{CANARY}@host.example/path?q#f", "https://[redacted]@host.example/path?q#f"),
        (f"https://{CANARY}@host", "https://[redacted]@host"),
        (f"postgresql+psycopg://me:{CANARY}@host:5432/db", "postgresql+psycopg://[redacted]@host:5432/db"),
        (f"bolt://me:{CANARY}@host", "bolt://[redacted]@host"),
        (f"https://me:p@{CANARY}@host", "https://[redacted]@host"),
    ],
)
def test_a_string_that_is_a_credential_is_redacted(text: str, clean: str) -> None:
    """Wherever it stands: in a dict, a list, a tuple, a set, as a key's neighbour, or alone."""
    assert decode(encode(text).json) == clean
    shapes: list[Any] = [text, [text], {"a": text}, (text,), {text}, {1: text}, {"$x": text}, [text] * 30, [0, text]]
    for value in [*shapes, [shapes[:5], {"content": text}], [{"content": "x" * 200}, {"content": text}]]:
        assert is_clean(value)
    assert decode(encode(clean).json) == clean


@pytest.mark.parametrize(
    "text",
    [
        "Basic arithmetic",
        "Basic training is what Bearer tokens lack",
        "Bearer tokens are sent in a header",
        "The Bearer abc",
        "mail me@example.com",
        "https://example.com/@user/post",
        "https://example.com?mail=me@example.com",
        "ssh://git@github.com/rolltape/rolltape",
        "see https://me:secret@host for more",
        "Bob",
        "@",
        pytest.param("http://" + "@" * 500_000 + " ", id="a long one"),
        pytest.param("a" * 500_000 + "@", id="another"),
        pytest.param("Bearer " + "a" * 500_000 + " ", id="a third"),
    ],
)
def test_other_strings_are_left_alone(text: str) -> None:
    """A text may begin with the same word, and a URL may have an @ in its path."""
    assert decode(encode([text, {"k": text, "keys": text}]).json) == [text, {"k": text, "keys": text}]


def test_a_named_field_without_a_value_keeps_it() -> None:
    """That there is no key is no secret, and a client's arguments often say so."""
    assert decode(encode({"api_key": None, 1: {"password": None}}).json) == {"api_key": None, 1: {"password": None}}


def test_names_can_be_added_and_taken_away() -> None:
    assert is_clean({"Session-ID": CANARY}, Redactor(DEFAULT_NAMES | {"session_id"}))
    assert not is_clean({"session_id": CANARY})
    assert not is_clean({"password": CANARY}, Redactor(frozenset({"pin"})))


def test_a_redactor_is_a_value() -> None:
    """It travels to other processes, and it compares by what it hides."""
    redactor = Redactor(frozenset({"pin"}))
    encode({"pin": 1, "other": 2}, redact=redactor)
    again = pickle.loads(pickle.dumps(redactor))
    assert again == redactor != Redactor() and hash(again) == hash(redactor)
    assert encode({"PIN": 1}, redact=again).json == b'{"PIN":"[redacted]"}'
    with pytest.raises(AttributeError):
        redactor.names = frozenset()  # type: ignore[misc]


def test_what_is_known_of_keys_is_bounded() -> None:
    """Also where a rollout makes up a new key at each step, and very long ones."""
    redactor = Redactor()
    for i in range(10_000):
        encode({f"key {i}": 1, "password": i, "x" * 1000 + str(i): 1}, redact=redactor)
    assert len(redactor.keys) <= 4096 and len(redactor.keys.plain) <= 4096 and max(map(len, redactor.keys)) <= 128
    assert encode({"password": 1}, redact=redactor).json == b'{"password":"[redacted]"}'


@given(values, st.sampled_from(["password", "plain"]))
def test_scrubbing_a_value_is_what_recording_it_does(value: Any, key: str) -> None:
    """The memory compares what the encoder hid with what scrubbing gives, so they have to agree."""
    secret = {"a": [value, {key: value}, "Bearer abc", b"Bearer abc", ("https://me:pw@host", {1: {"api-key": 5}})]}
    redactor = Redactor()
    written = encode(secret, redact=redactor)
    assert exact(decode(written.json)) == exact(decode(encode(redactor.scrub(secret), redact=PLAIN).json))
