"""Pydantic models as applications write them, for `.parse` and `LLM`."""

from __future__ import annotations

import datetime
import enum
import ipaddress
import uuid
from typing import Annotated, Literal, NamedTuple

from pydantic import UUID1, UUID4, UUID7, BaseModel, ConfigDict, Field, IPvAnyAddress, RootModel, SecretStr

Short = Annotated[str, Field(max_length=12)]
Name = Annotated[str, Field(min_length=1, max_length=16, pattern=r"^[A-Z][a-z]+$")]


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "light blue"


class Level(enum.IntEnum):
    LOW = 1
    MIDDLE = 5
    HIGH = 10


class Flat(BaseModel):
    name: Short
    age: Annotated[int, Field(ge=0, le=150)]
    height: Annotated[float, Field(gt=0, lt=3, multiple_of=0.25)]
    member: bool


class Address(BaseModel):
    street: Short
    number: Annotated[int, Field(gt=0, lt=10_000)]
    code: Annotated[str, Field(pattern=r"^\d{5}$")]


class Person(BaseModel):
    name: Name
    address: Address
    former: Annotated[list[Address], Field(max_length=2)]
    colour: Colour
    level: Level


class Choices(BaseModel):
    either: Annotated[int, Field(ge=-5, le=5)] | Short | None
    literal: Literal["a", 'b"c', "d\\e", 7, True, None]
    optional: bool | None = None
    flags: Annotated[list[Literal["x", "y", "z"]], Field(min_length=1, max_length=3)]


class Dates(BaseModel):
    day: datetime.date
    moment: datetime.datetime
    time: datetime.time
    length: datetime.timedelta
    id: uuid.UUID
    v4: ipaddress.IPv4Address


class Named(BaseModel):
    """Formats with names of pydantic's own."""

    first: UUID1
    fourth: UUID4
    seventh: UUID7
    network: ipaddress.IPv4Network
    host: ipaddress.IPv4Interface
    wide: IPvAnyAddress
    secret: Annotated[SecretStr, Field(max_length=8)]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: Annotated[list[Short], Field(max_length=2)]


class Zoo(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    other: Cat | Dog


class Node(BaseModel):
    value: Annotated[int, Field(ge=0, le=9)]
    children: Annotated[list[Node], Field(max_length=2)] = []


class Tree(BaseModel):
    left: Tree | None = None
    right: Tree | None = None
    leaf: Annotated[str, Field(max_length=3)] = ""


class Pair(NamedTuple):
    x: Annotated[int, Field(ge=0, le=99)]
    y: Annotated[int, Field(ge=0, le=99)]


class Shapes(BaseModel):
    pair: Pair
    triple: tuple[bool, Annotated[int, Field(ge=0, le=9)], Literal["end"]]
    scores: Annotated[dict[str, Annotated[int, Field(ge=0, le=9)]], Field(max_length=2)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    even: Annotated[int, Field(multiple_of=2, ge=0, le=1000)]
    word: Annotated[str, Field(pattern="^(yes|no|maybe)$")]
    padded: Annotated[str, Field(min_length=3, max_length=5)]


class Steps(BaseModel):
    """The steps of an answer, as in examples of structured output; its texts have no bound."""

    class Step(BaseModel):
        explanation: str
        output: str

    steps: list[Step]
    final_answer: str


class Event(BaseModel):
    name: str
    date: str
    participants: list[str]


class Anything(BaseModel):
    """Unbounded numbers, texts and maps, and extra fields."""

    model_config = ConfigDict(extra="allow")

    count: int
    share: float
    more: dict[str, float]
    note: str = ""


class Colours(RootModel[Annotated[list[Colour], Field(max_length=4)]]):
    pass


BOUNDED: tuple[type[BaseModel], ...] = (
    Flat, Address, Person, Choices, Dates, Named, Cat, Dog, Zoo, Shapes, Strict, Colours,
)  # fmt: skip
"""Models whose texts and lists have bounds, so that their answers end."""
UNBOUNDED: tuple[type[BaseModel], ...] = (Node, Tree, Steps, Event, Anything)
