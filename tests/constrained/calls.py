"""Forced calls of models, as clients receive them, judged by other libraries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import jsonschema
import openai
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field

from tests.constrained.answers import SIDE_BY_SIDE, TEMPERATURES, Judged
from tests.constrained.models import Address, Colour, Dates, Pair, Person, Short, Zoo
from tests.servers import PATIENCE_SECONDS, Served

MOST = 768
"""The most tokens of an answer."""
CONTEXT = 8192
"""The context: enough for the tools in the prompt, in a vocabulary of little more than letters."""
BOTH_WAYS = 8
"""One in so many answers is requested both whole and streamed."""


class Weather(BaseModel):
    """Parameters with texts, numbers and enums, some of them optional."""

    city: Short
    unit: Literal["C", "F"]
    days: Annotated[int, Field(ge=1, le=9)] = 1
    exact: bool | None = None


class Book(BaseModel):
    """Nested parameters with patterns, enums, lists and references."""

    person: Person
    guests: Annotated[list[Address], Field(max_length=2)]


class Plan(BaseModel):
    """Parameters with unions, dates and tuples."""

    zoo: Zoo
    when: Dates
    moves: Annotated[list[Pair], Field(max_length=3)]
    colour: Colour


class Clock(BaseModel):
    """No parameters at all."""


FUNCTIONS: Mapping[str, type[BaseModel]] = {"weather": Weather, "book": Book, "plan": Plan, "clock": Clock}


def tool(name: str) -> dict[str, Any]:
    model = FUNCTIONS[name]
    described = {"name": name, "description": model.__doc__, "parameters": model.model_json_schema()}
    return {"type": "function", "function": described}


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@dataclass(frozen=True)
class Ask:
    """A request with tools, and the choice of those that must be called."""

    tools: tuple[str, ...]
    choice: Any
    callable: tuple[str, ...]
    parallel: bool
    temperature: float
    seed: int
    stream: bool = False

    @property
    def named(self) -> bool:
        return isinstance(self.choice, dict) and "function" in self.choice

    def body(self) -> dict[str, Any]:
        """Returns the body as the openai package takes it."""
        return {
            "messages": [{"role": "user", "content": f"Call {' or '.join(self.callable)}. {self.seed}"}],
            "tools": [tool(name) for name in self.tools],
            "tool_choice": self.choice,
            "parallel_tool_calls": self.parallel,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": MOST,
        }


def asks(count: int, seed: int) -> Iterator[Ask]:
    """Yields requests over all choices, functions and temperatures; every other one is streamed."""
    every = tuple(FUNCTIONS)
    for number in range(count):
        name, turn = every[number % len(every)], number // len(every)
        one, two = (name,), (name, every[(number + 1 + turn) % len(every)])
        few = {"mode": "required", "tools": [_named(each) for each in dict.fromkeys(two)]}
        ways = [
            (one, "required", one),
            (every, "required", every),
            (every, _named(name), one),
            (every, {"type": "allowed_tools", "allowed_tools": few}, two),
        ]
        tools, choice, callable_ = ways[turn % len(ways)]
        temperature = TEMPERATURES[(number + turn) % len(TEMPERATURES)]
        parallel = turn // len(ways) % 2 == 1
        yield Ask(tools, choice, callable_, parallel, temperature, seed + number, stream=turn % 2 == 0)


@dataclass(frozen=True)
class Answer:
    """An answer as a client received it; calls are (id, name, arguments)."""

    calls: tuple[tuple[str, str, str], ...]
    text: str
    finish: str

    @property
    def said(self) -> object:
        """Returns all but the ids, which are drawn anew."""
        return [call[1:] for call in self.calls], self.text, self.finish


def check(ask: Ask, answer: Answer) -> None:
    """Raises if a finished answer does not fit its request."""
    assert answer.finish == ("stop" if ask.named else "tool_calls")
    assert answer.text == ""
    assert len(answer.calls) == 1 if ask.named or not ask.parallel else answer.calls
    assert len({number for number, *_ in answer.calls} - {""}) == len(answer.calls)
    for _, name, arguments in answer.calls:
        assert name in ask.callable
        schema = FUNCTIONS[name].model_json_schema()
        jsonschema.Draft202012Validator(schema).validate(json.loads(arguments))
        FUNCTIONS[name].model_validate_json(arguments)


def judge(judged: Judged, who: str, ask: Ask, answer: Answer) -> None:
    judged.judge(who, f"{who}, {ask}: {answer}", answer.finish, lambda: check(ask, answer))


def _answer(completion: ChatCompletion) -> Answer:
    (choice,) = completion.choices
    calls = tuple(
        (one.id, one.function.name, one.function.arguments) for one in choice.message.tool_calls or ()
    )
    return Answer(calls, choice.message.content or "", choice.finish_reason)


def hear(client: openai.OpenAI, model: str, ask: Ask) -> Answer:
    """Requests an answer through the package's own parser, or its helper for streams."""
    try:
        if not ask.stream:
            return _answer(client.chat.completions.create(model=model, **ask.body()))
        with client.chat.completions.stream(model=model, **ask.body()) as stream:
            return _answer(stream.get_final_completion())
    except openai.LengthFinishReasonError as error:  # the package's error for an answer that was cut
        return _answer(error.completion)
    except openai.APIError as error:
        return Answer((), str(error), "error")


def by_http(server: Served, who: str, wanted: Sequence[Ask], judged: Judged) -> None:
    model = server.get("/v1/models").json()["data"][0]["id"]

    def answered(at: int) -> tuple[Answer, Answer]:
        ask = wanted[at]
        first = hear(client, model, ask)
        return first, first if at % BOTH_WAYS else hear(client, model, replace(ask, stream=not ask.stream))

    with (
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=10 * PATIENCE_SECONDS
        ) as client,
        ThreadPoolExecutor(SIDE_BY_SIDE) as pool,
    ):
        for at, (first, other) in enumerate(pool.map(answered, range(len(wanted)))):
            judge(judged, who, wanted[at], first)
            if first.said != other.said:
                judged.wrong.append(f"{who}, {wanted[at]}: {first} and, the other way, {other}")
