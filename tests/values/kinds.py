"""Classes as users write them, in a module of their own, so that another process can import them too."""

from __future__ import annotations

import dataclasses
import enum
from collections import namedtuple
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1  # an alias
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Role(enum.StrEnum):
    USER = "user"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag, boundary=enum.KEEP):
    ONE = 1


@dataclasses.dataclass
class Message:
    role: str
    content: str
    tool_calls: list[Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int
    tags: tuple[str, ...] = ()
    hashed: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass
class Base:
    """Whoever calls it again finds its list longer."""

    x: int
    seed: dataclasses.InitVar[int] = 0
    made: list[int] = dataclasses.field(init=False)
    later: int = dataclasses.field(init=False)

    def __post_init__(self, seed: int) -> None:
        self.made = [seed]
        self.extra = "no field"
        CALLED.append(self)


@dataclasses.dataclass
class Derived(Base, Generic[T]):
    payload: T | None = None
    api_key: str = ""


CALLED: list[Any] = []


@dataclasses.dataclass(eq=False)
class Liar:
    """Equals everything."""

    x: int

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Point(msgspec.Struct):
    x: int
    y: Any = None


class Tagged(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    x: int

    def __post_init__(self) -> None:
        CALLED.append(self)


class TaggedToo(Tagged, frozen=True, kw_only=True):
    note: str


class Open(msgspec.Struct, dict=True):
    x: int


Pair = namedtuple("Pair", "a b")


class Named(NamedTuple):
    a: int
    b: list[Any]


class Refused(Exception):
    """Its arguments are required, and not what `args` holds."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        CALLED.append(self)
        self.code = code
        self.detail = detail


class Group(ExceptionGroup[Exception]):
    def derive(self, excs: Any) -> Group:
        return Group(self.message, excs)


class Outer:
    class Inner(enum.Enum):
        A = "a"
