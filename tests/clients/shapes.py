"""The schemas that clients request: pydantic models with bounds, so that a small model's answers end."""

from __future__ import annotations

import datetime
import enum
from typing import Annotated, Literal

from pydantic import BaseModel, Field


class City(BaseModel):
    """A city."""

    name: Annotated[str, Field(max_length=20)]
    country: Literal["France", "Italy"]


class Size(enum.Enum):
    small = "small"
    large = "large"


class Place(BaseModel):
    """A model with nesting, unions, enums, dates, bounds and arrays."""

    city: City
    size: Size
    founded: datetime.date
    visitors: Annotated[int, Field(ge=0, le=9999)]
    note: Annotated[str, Field(max_length=12)] | None
    tags: Annotated[list[Literal["old", "new"]], Field(max_length=3)]


class Node(BaseModel):
    """A recursive model."""

    value: Literal[1, 2]
    next: Node | None


class GetWeather(BaseModel):
    """The weather of a city."""

    city: Annotated[str, Field(max_length=20)]
    unit: Literal["celsius", "fahrenheit"]


QUESTION = "What is the capital of France?"
ASK_WEATHER = "What is the weather in Paris, in celsius?"
