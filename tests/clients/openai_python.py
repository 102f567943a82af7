"""openai, the Python SDK: plain chats, streams, helpers, tools, structured answers, errors."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from decimal import Decimal
from typing import Any, Literal

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ValidationError

from tests.clients.rows import KEY, MODEL, URL, Rows, raises
from tests.clients.shapes import ASK_WEATHER, City, GetWeather, Node, Place
from tests.clients.shapes import QUESTION as ASKED

row = Rows()
client = OpenAI(base_url=URL, api_key=KEY, max_retries=0)
QUESTION: list[Any] = [{"role": "user", "content": ASKED}]
PLAIN: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 16}
FORCED: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 256}


WEATHER: Any = openai.pydantic_function_tool(GetWeather)
ZONE = {"zone": {"enum": ["UTC", "CET"]}}
TIME: Any = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {"type": "object", "properties": ZONE, "required": ["zone"]},
    },
}
ASK: list[Any] = [{"role": "user", "content": ASK_WEATHER}]
ONE: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
ONE_CALL: dict[str, Any] = {**FORCED, **ONE, "messages": ASK, "tools": [WEATHER]}


@row
def create() -> None:
    """chat.completions.create"""
    answer = client.chat.completions.create(**PLAIN)
    assert answer.object == "chat.completion"
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@row
async def create_async() -> None:
    """chat.completions.create, async"""
    async with AsyncOpenAI(base_url=URL, api_key=KEY) as one:
        answer = await one.chat.completions.create(**PLAIN)
    plain = client.chat.completions.create(**PLAIN)
    assert answer.choices[0].message.content == plain.choices[0].message.content


@row
def streamed() -> None:
    """chat.completions.create(stream=True) has the text of the plain answer, and its usage"""
    asked = {**PLAIN, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    plain = client.chat.completions.create(**PLAIN)
    assert text == plain.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert plain.usage is not None
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens


@row
async def streamed_async() -> None:
    """chat.completions.create(stream=True), async"""
    async with AsyncOpenAI(base_url=URL, api_key=KEY) as one:
        stream = await one.chat.completions.create(**PLAIN, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert "Paris" in text


@row
def stream_helper() -> None:
    """chat.completions.stream: events and the final completion"""
    with client.chat.completions.stream(**PLAIN) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert "Paris" in (final.choices[0].message.content or "")


@row
def several() -> None:
    """n=3 with seed and logprobs, plain and accumulated by the stream helper"""
    drawn = {"n": 3, "temperature": 1, "seed": 7, "logprobs": True, "top_logprobs": 2}
    asked = {**PLAIN, **drawn, "max_tokens": 200, "stop": ["."]}
    plain = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    texts = [choice.message.content for choice in plain.choices]
    assert texts == [choice.message.content for choice in final.choices]
    assert len(set(texts)) > 1
    for one, other in zip(plain.choices, final.choices, strict=True):
        assert one.logprobs is not None
        assert other.logprobs is not None
        tokens = [[t.token for t in each.logprobs.content or []] for each in (one, other)]
        assert tokens[0] == tokens[1]


@row
def raw_response() -> None:
    """with_raw_response: headers, x-request-id, parse()"""
    raw = client.chat.completions.with_raw_response.create(**PLAIN)
    assert raw.headers["content-type"] == "application/json"
    assert raw.http_response.status_code == 200
    assert raw.parse()._request_id == raw.headers["x-request-id"]


@row
def streaming_response() -> None:
    """with_streaming_response: lines as they come"""
    with client.chat.completions.with_streaming_response.create(**PLAIN, stream=True) as raw:
        lines = [line for line in raw.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


@row
def models() -> None:
    """models.list and models.retrieve"""
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@row
def exceptions() -> None:
    """errors are the SDK's exception classes, with param and code"""
    for change, kind, param in (
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"model": "another"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"no_such_field": 1}, openai.BadRequestError, "no_such_field"),
    ):
        with raises(openai.APIStatusError) as caught:
            extra = {"extra_body": change} if "no_such_field" in change else change
            client.chat.completions.create(**{**PLAIN, **extra})
        assert type(caught.error) is kind, caught.error
        assert caught.error.param == param, caught.error.param
        assert caught.error.request_id


@row
def too_long() -> None:
    """a prompt beyond the context: BadRequestError, code context_length_exceeded"""
    with raises(openai.BadRequestError) as caught:
        messages = [{"role": "user", "content": "word " * 20_000}]
        client.chat.completions.create(**{**PLAIN, "messages": messages})
    assert caught.error.code == "context_length_exceeded"


@row
def timeout() -> None:
    """a timeout ends in APITimeoutError, and the server goes on"""
    long = {**PLAIN, "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
    with raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).chat.completions.create(**long)
    assert client.chat.completions.create(**PLAIN).choices


@row
def retries() -> None:
    """retries: a refusal with 400 is not tried again, what cannot be reached is"""
    sent: list[str] = []
    with OpenAI(base_url=URL, api_key=KEY, max_retries=2) as one:
        one._client.event_hooks = {"request": [lambda request: sent.append(str(request.url))]}
        for change in ({"temperature": 9}, {}):
            sent.clear()
            try:
                one.chat.completions.create(**{**PLAIN, **change})
            except openai.BadRequestError:
                assert change
            assert len(sent) == 1
    with OpenAI(base_url="http://127.0.0.1:9/v1", api_key=KEY, max_retries=1) as one:
        sent.clear()
        one._client.event_hooks = {"request": [lambda request: sent.append(str(request.url))]}
        try:
            one.chat.completions.create(**PLAIN)
        except openai.APIConnectionError:
            assert len(sent) == 2


@row
def leaving() -> None:
    """a stream that is closed early; the next request is answered"""
    stream = client.chat.completions.create(**{**PLAIN, "max_tokens": 1000}, stream=True)
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(**PLAIN).choices


@row
def roles() -> None:
    """developer and system messages, content parts, names"""
    messages: list[Any] = [
        {"role": "developer", "content": "You are brief."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Say hello."}]},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Again."},
    ]
    assert client.chat.completions.create(**{**PLAIN, "messages": messages}).choices[0].message.content


@row
def parse() -> None:
    """chat.completions.parse with a pydantic model"""
    answer = client.chat.completions.parse(**FORCED, messages=QUESTION, response_format=City)
    city = answer.choices[0].message.parsed
    assert isinstance(city, City)
    assert answer.choices[0].finish_reason == "stop"


@row
def parse_nested() -> None:
    """parse: nested models, unions, enums, dates, bounds, arrays"""
    answer = client.chat.completions.parse(**FORCED, messages=QUESTION, response_format=Place)
    assert isinstance(answer.choices[0].message.parsed, Place)


@row
def parse_recursive() -> None:
    """parse: a recursive model, which a small model may never end"""
    try:
        answer = client.chat.completions.parse(**FORCED, messages=QUESTION, response_format=Node)
        assert isinstance(answer.choices[0].message.parsed, Node)
    except openai.LengthFinishReasonError as error:
        text = "".join((error.completion.choices[0].message.content or "").split())
        if not re.match(r'\{"value":[12],"next":\{"value":[12],', text):
            raise


@row
async def parse_async() -> None:
    """parse, async, five at once"""
    async with AsyncOpenAI(base_url=URL, api_key=KEY) as one:
        asked = {**FORCED, "temperature": 1, "messages": QUESTION, "response_format": City}
        answers = await asyncio.gather(*(one.chat.completions.parse(**asked, seed=i) for i in range(5)))
    assert all(isinstance(answer.choices[0].message.parsed, City) for answer in answers)


@row
def parse_streamed() -> None:
    """chat.completions.stream with a pydantic model: parsed snapshots, the same at the end as parse"""
    with client.chat.completions.stream(**FORCED, messages=QUESTION, response_format=City) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0].message
    assert any(event.type == "content.delta" and event.parsed for event in events)
    plain = client.chat.completions.parse(**FORCED, messages=QUESTION, response_format=City)
    assert final.parsed == plain.choices[0].message.parsed


@row
def parse_cut() -> None:
    """parse of an answer that is cut raises LengthFinishReasonError"""
    with raises(openai.LengthFinishReasonError) as caught:
        client.chat.completions.parse(**{**FORCED, "max_tokens": 3}, messages=QUESTION, response_format=City)
    assert caught.error.completion.choices[0].finish_reason == "length"


@row
def json_object() -> None:
    """response_format json_object"""
    answer = client.chat.completions.create(
        **{**FORCED, "max_tokens": 400},
        messages=[{"role": "user", "content": 'Answer with JSON such as {"city": "Paris"}.'}],
        response_format={"type": "json_object"},
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
    else:
        assert (answer.choices[0].message.content or "").lstrip().startswith("{")


@row
def extra_body() -> None:
    """extra_body: structured_outputs with choice and regex, guided_choice"""
    for change, allowed in (
        ({"structured_outputs": {"choice": ["red", "green"]}}, {"red", "green"}),
        ({"structured_outputs": {"regex": "(one|two)!"}}, {"one!", "two!"}),
        ({"guided_choice": ["red", "green"]}, {"red", "green"}),
    ):
        answer = client.chat.completions.create(**FORCED, messages=QUESTION, extra_body=change)
        assert answer.choices[0].message.content in allowed, answer.choices[0]
        assert answer.choices[0].finish_reason == "stop"


@row
def bad_schema() -> None:
    """a schema that is none: BadRequestError whose param has the path"""
    schema = {"type": "object", "properties": {"a": {"type": "strin"}}}
    with raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            **FORCED,
            messages=QUESTION,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},  # type: ignore[typeddict-item]
        )
    assert (caught.error.param or "").startswith("response_format"), caught.error.param
    assert "Invalid schema for response_format" in caught.error.message, caught.error.message


def called(choice: Any, **more: Any) -> Any:
    asked = {**FORCED, "messages": ASK, "tools": [WEATHER, TIME], "tool_choice": choice, **more}
    return client.chat.completions.create(**asked).choices[0]


@row
def tool_required() -> None:
    """tools with tool_choice required: calls that parse, finish_reason tool_calls"""
    choice = called("required")
    assert choice.finish_reason == "tool_calls", choice
    assert choice.message.tool_calls
    for call in choice.message.tool_calls:
        assert call.id
        assert call.type == "function"
        assert call.function.name in {"GetWeather", "get_time"}
        json.loads(call.function.arguments)


@row
def tool_named() -> None:
    """tools with a named tool_choice: its arguments fit its schema"""
    choice = called({"type": "function", "function": {"name": "GetWeather"}})
    assert choice.finish_reason in {"stop", "tool_calls"}
    (call,) = choice.message.tool_calls
    assert call.function.name == "GetWeather"
    GetWeather.model_validate_json(call.function.arguments)


@row
def tool_allowed() -> None:
    """tools with tool_choice allowed_tools"""
    one = {"type": "function", "function": {"name": "get_time"}}
    choice = called({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}})
    assert {call.function.name for call in choice.message.tool_calls} == {"get_time"}


@row
def tool_none() -> None:
    """tools with tool_choice none: text"""
    choice = called("none", max_tokens=32)
    assert not choice.message.tool_calls
    assert choice.message.content


@row
def tool_auto() -> None:
    """tools with tool_choice auto: text or calls, and a finish_reason that says which"""
    choice = called("auto")
    assert bool(choice.message.tool_calls) == (choice.finish_reason == "tool_calls")
    assert choice.message.tool_calls or choice.message.content


@row
def tool_single() -> None:
    """parallel_tool_calls=False: one call"""
    assert len(called("required", parallel_tool_calls=False).message.tool_calls) == 1


@row
def tool_loop() -> None:
    """a loop: call, tool message, answer"""
    messages = list(ASK)
    named = {"type": "function", "function": {"name": "GetWeather"}}
    message = called(named).message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "18 degrees, sunny"})
    choice = called("none", messages=messages, max_tokens=32)
    assert choice.message.content


@row
def tool_streamed() -> None:
    """streamed tool calls: names and ids once, arguments that add up to the plain answer's"""
    chunks = list(client.chat.completions.create(**ONE_CALL, stream=True))
    deltas = [d for c in chunks for one in c.choices for d in one.delta.tool_calls or []]
    assert [d.function.name for d in deltas if d.function.name] == ["GetWeather"]
    assert len([d.id for d in deltas if d.id]) == 1
    plain = client.chat.completions.create(**ONE_CALL).choices[0]
    text = "".join(d.function.arguments or "" for d in deltas)
    assert text == plain.message.tool_calls[0].function.arguments
    assert chunks[-1].choices[0].finish_reason == plain.finish_reason == "tool_calls"


@row
def tool_helper() -> None:
    """chat.completions.stream with tools: events and parsed arguments"""
    with client.chat.completions.stream(**ONE_CALL) as stream:
        kinds = [event.type for event in stream]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert "tool_calls.function.arguments.delta" in kinds
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert isinstance(call.function.parsed_arguments, GetWeather)


@row
def tool_parse() -> None:
    """chat.completions.parse with pydantic_function_tool: parsed arguments"""
    answer = client.chat.completions.parse(
        **FORCED,
        messages=ASK,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "GetWeather"}},
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, GetWeather)


@row
def tool_several() -> None:
    """n=2 with tools: each choice has calls with ids of their own"""
    asked = {"n": 2, "temperature": 1, "seed": 3, "parallel_tool_calls": False}
    answer = client.chat.completions.create(
        **{**FORCED, **asked}, messages=ASK, tools=[WEATHER], tool_choice="required"
    )
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls or []]
    assert len(ids) == len(set(ids)) == 2


@row
def reasoning() -> None:
    """reasoning_content and reasoning of an assistant message are taken"""
    for name in ("reasoning_content", "reasoning"):
        told = {"role": "assistant", "content": "Paris.", name: "It is Paris."}
        messages: list[Any] = [*QUESTION, told, *QUESTION]
        assert client.chat.completions.create(**{**PLAIN, "messages": messages}).choices


@row
def unknown_tool() -> None:
    """a tool_choice that names no tool: BadRequestError, param tool_choice"""
    with raises(openai.BadRequestError) as caught:
        called({"type": "function", "function": {"name": "another"}})
    assert (caught.error.param or "").startswith("tool_choice"), caught.error.param


class Price(BaseModel):
    price: Decimal


@row
def parse_decimal() -> None:
    """parse: a model with a Decimal, to the SDK a number or any text: parsed, or a ValidationError"""
    with suppress(ValidationError):
        answer = client.chat.completions.parse(**FORCED, messages=QUESTION, response_format=Price)
        assert isinstance(answer.choices[0].message.parsed, Price)


class Unique(BaseModel):
    tags: set[Literal["a", "b"]]


@row.refused("response_format", "uniqueItems, a set in pydantic, is not in the grammar")
def parse_set() -> None:
    """parse: a model with a set"""
    client.chat.completions.parse(**FORCED, messages=QUESTION, response_format=Unique)


@row.refused("messages", "messages are text; no model here sees images")
def image() -> None:
    """an image_url part"""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    client.chat.completions.create(**{**PLAIN, "messages": [{"role": "user", "content": [part]}]})


@row.refused("tools", "custom tools are no functions, and have no schema to force")
def custom_tool() -> None:
    """a tool of type custom"""
    client.chat.completions.create(**PLAIN, tools=[{"type": "custom", "custom": {"name": "code"}}])


@row.refused("functions", "deprecated by OpenAI in favour of tools")
def functions() -> None:
    """functions and function_call, the old form of tools"""
    client.chat.completions.create(**PLAIN, functions=[{"name": "f", "parameters": {"type": "object"}}])


@row.refused("audio", "no model here speaks")
def audio() -> None:
    """modalities with audio"""
    client.chat.completions.create(**PLAIN, audio={"voice": "alloy", "format": "wav"})


@row.refused("web_search_options", "the server searches nothing")
def web_search() -> None:
    """web_search_options"""
    client.chat.completions.create(**PLAIN, web_search_options={})


@row
def without_effect() -> None:
    """service_tier, verbosity, ...: taken without effect, and named in a header"""
    raw = client.chat.completions.with_raw_response.create(
        **PLAIN, service_tier="flex", verbosity="low", prompt_cache_retention="24h"
    )
    named = raw.headers["x-corepipe-ignored"].split(", ")
    assert sorted(named) == ["prompt_cache_retention", "service_tier", "verbosity"]
    plain = client.chat.completions.create(**PLAIN).choices[0].message.content
    assert raw.parse().choices[0].message.content == plain


@row
def wrong_base() -> None:
    """a base URL without /v1: NotFoundError that names the right one"""
    with (
        OpenAI(base_url=URL.removesuffix("/v1"), api_key=KEY, max_retries=0) as lost,
        raises(openai.NotFoundError) as caught,
    ):
        lost.chat.completions.create(**PLAIN)
    assert f"base URL of clients is {URL}" in caught.error.message


if __name__ == "__main__":
    row.run()
