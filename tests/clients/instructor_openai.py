"""instructor over the openai SDK: tools and JSON modes, retries, streams."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import instructor
from instructor import Mode
from instructor.core.exceptions import IncompleteOutputException, InstructorRetryException
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, field_validator

from tests.clients.rows import KEY, MODEL, URL, Rows
from tests.clients.shapes import QUESTION, City, Place

row = Rows()
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
    "max_tokens": 256,
}


def client(mode: Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=URL, api_key=KEY, max_retries=0), mode=mode)


def made(mode: Mode, shape: type[BaseModel]) -> None:
    answer = client(mode).create(response_model=shape, max_retries=0, **ASKED)
    assert isinstance(answer, shape)


@row
def tools() -> None:
    """Mode.TOOLS: a named tool"""
    made(Mode.TOOLS, City)
    made(Mode.TOOLS, Place)


@row
def tools_strict() -> None:
    """Mode.TOOLS_STRICT: a strict tool"""
    made(Mode.TOOLS_STRICT, City)


@row
def json_schema() -> None:
    """Mode.JSON_SCHEMA: response_format json_schema"""
    made(Mode.JSON_SCHEMA, City)
    made(Mode.JSON_SCHEMA, Place)


@row
def json_object() -> None:
    """Mode.JSON: response_format json_object, the schema in the prompt; an object or a validation error"""
    taken_or_invalid(Mode.JSON)


@row
def markdown() -> None:
    """Mode.MD_JSON: JSON in a code block, nothing forced; an object or a validation error"""
    taken_or_invalid(Mode.MD_JSON)


def taken_or_invalid(mode: Mode) -> None:
    """These modes ask for a schema in words: what a small model says may not fit it."""
    try:
        made(mode, City)
    except InstructorRetryException as error:
        if error.last_completion is None:  # it was not answered
            raise


@row
async def tools_async() -> None:
    """from_openai(AsyncOpenAI), Mode.TOOLS"""
    async with AsyncOpenAI(base_url=URL, api_key=KEY) as one:
        answer = await instructor.from_openai(one, mode=Mode.TOOLS).create(response_model=City, **ASKED)
    assert isinstance(answer, City)


@row
def partial() -> None:
    """create_partial: objects that grow while the call streams"""
    parts = list(client(Mode.TOOLS).create_partial(response_model=City, **ASKED))
    assert City.model_validate(parts[-1].model_dump())


@row
def iterable() -> None:
    """response_model=Iterable: several objects from one call; a small model's list may never end"""
    with suppress(IncompleteOutputException):
        several = client(Mode.TOOLS).create(response_model=Iterable[City], max_retries=0, **ASKED)
        assert all(isinstance(one, City) for one in several)


@row
def iterable_streamed() -> None:
    """create_iterable: the first objects while the call streams"""
    stream = client(Mode.TOOLS).create_iterable(response_model=City, max_retries=0, **ASKED)
    assert isinstance(next(iter(stream)), City)


@row
def with_completion() -> None:
    """create_with_completion: the object and the raw answer"""
    city, raw = client(Mode.TOOLS).create_with_completion(response_model=City, **ASKED)
    assert isinstance(city, City)
    assert raw.choices[0].message.tool_calls[0].function.name == "City"


@row
def reasked() -> None:
    """a validator that fails once: asked again with a tool message that has a name"""
    refusals: list[str] = []

    class Strict(City):
        @field_validator("name")
        @classmethod
        def not_at_first(cls, name: str) -> str:
            if not refusals:
                refusals.append(name)
                raise ValueError("say it again")
            return name

    answer = client(Mode.TOOLS).create(response_model=Strict, max_retries=2, **ASKED)
    assert isinstance(answer, Strict)
    assert len(refusals) == 1


@row.refused("temperature", "it is beyond 2")
def error() -> None:
    """what is refused is the SDK's BadRequestError with the field"""
    client(Mode.TOOLS).create(response_model=City, max_retries=0, **{**ASKED, "temperature": 9})


if __name__ == "__main__":
    row.run()
