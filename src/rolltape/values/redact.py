"""Secrets stay out of the journal: named fields, credentials and passwords in URLs are replaced before encoding.

What is found: the value of a dict entry whose key is one of `names`; a string that as a whole is a `Bearer` or `Basic`
credential; the user and password of a string that as a whole is a URL. What is not found: a secret inside a longer
text, such as a prompt, a shell command or JSON in a string, and one under a name that nobody listed. A redacted value
replays redacted, so a step that returns a secret for later use must not return it under such a name.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DEFAULT_NAMES", "REDACTED", "Redactor"]

REDACTED = "[redacted]"

DEFAULT_NAMES = frozenset(
    (
        "authorization",
        "proxy-authorization",
        "cookie",
        "set-cookie",
        "password",
        "passwd",
        "passphrase",
        "secret",
        "client-secret",
        "secret-key",
        "private-key",
        "api-key",
        "x-api-key",
        "x-goog-api-key",
        "openai-api-key",
        "anthropic-api-key",
        "access-token",
        "refresh-token",
        "session-token",
        "auth-token",
        "x-auth-token",
        "bearer-token",
        "id-token",
        "hf-token",
        "github-token",
        "aws-secret-access-key",
        "aws-session-token",
    )
)
"""Compared without regard to case, '-' and '_', so that `apiKey`, `API_KEY` and `api-key` are one name."""

HIDDEN, DOLLAR, BROKEN = 1, 2, 4
"""What a dict key asks of the encoder: to hide its value, to be escaped, to be tagged (it has a lone surrogate)."""

_KEYS_MAX = 4096
_KEY_CHARS_MAX = 128
_HEADER_BYTES_MAX = 16 * 1024

_CREDENTIAL = re.compile(r"(?i:(Bearer) +[A-Za-z0-9\-._~+/]+=*|(Basic) +([A-Za-z0-9+/]+=*))")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*+://)((?>[^\s/?#]*@))\S*+")  # never goes back: texts can be long


class Keys(dict[str, int]):
    """What each dict key asks for, judged once. Bounded; long keys are judged each time."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.plain: set[str] = set()
        """Keys that ask for nothing: nearly all, and a set tells so in 15 ns."""
        self._names = {_fold(name) for name in names}

    def __missing__(self, key: str) -> int:
        asks = HIDDEN if _fold(key) in self._names else 0
        if key.startswith("$"):
            asks |= DOLLAR
        try:
            key.encode()
        except UnicodeEncodeError:
            asks |= BROKEN
        if len(key) <= _KEY_CHARS_MAX:
            if len(self) >= _KEYS_MAX:
                self.clear()
                self.plain.clear()
            self[key] = asks
            if not asks:
                self.plain.add(key)
        return asks


@dataclass(frozen=True)
class Redactor:
    """What is replaced by "[redacted]" before a value is encoded. Add names by `Redactor(DEFAULT_NAMES | {"pin"})`."""

    names: frozenset[str] = DEFAULT_NAMES
    keys: Keys = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", Keys(self.names))

    def __reduce__(self) -> tuple[Any, ...]:
        return Redactor, (self.names,)

    def text(self, text: str) -> str:
        """Return `text`, the same object unless it is a credential or a URL that holds one."""
        if text[:1] in "Bb" and (found := _CREDENTIAL.fullmatch(text)):
            if found[1] or _is_user_and_password(found[3]):
                return f"{found[1] or found[2]} {REDACTED}"
        elif "@" in text and (found := _URL.fullmatch(text)):
            # A bare user name is a token on the web, and no secret elsewhere (ssh://git@host).
            scheme, userinfo = found[1], found[2][:-1]
            if userinfo != REDACTED and (":" in userinfo or scheme[:4].lower() == "http"):
                return f"{scheme}{REDACTED}@{text[found.end(2) :]}"
        return text

    def octets(self, data: bytes) -> bytes:
        """Return `data`, the same object unless it is a credential or a URL, as HTTP libraries hold them in headers."""
        if len(data) > _HEADER_BYTES_MAX:
            return data
        text = data.decode("latin-1")
        clean = self.text(text)
        return data if clean is text else clean.encode("latin-1")

    def scrub(self, value: Any) -> Any:
        """Return what the encoder records in place of `value`: the same object where there is nothing to hide."""
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind is bytes:
            return self.octets(value)
        if kind is dict:
            fields = {key: self._entry(key, item) for key, item in value.items()}
            return fields if any(fields[key] is not item for key, item in value.items()) else value
        if kind is list or kind is tuple:
            items = [self.scrub(item) for item in value]
            return kind(items) if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    def hides(self, key: Any, value: Any) -> bool:
        """Whether the value of this dict entry is replaced. None stays: it tells nothing but that there is none."""
        if value is None or (type(value) is str and value == REDACTED):
            return False
        if type(key) is bytes:
            key = key.decode("latin-1")
        return type(key) is str and bool(self.keys[key] & HIDDEN)

    def _entry(self, key: Any, value: Any) -> Any:
        return REDACTED if self.hides(key, value) else self.scrub(value)


def _fold(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _is_user_and_password(token: str) -> bool:
    """Tell a `Basic` credential from a sentence that starts with the word."""
    try:
        return b":" in base64.b64decode(token, validate=True)
    except binascii.Error:
        return False


DEFAULT = Redactor()
