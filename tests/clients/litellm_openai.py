"""litellm, its `openai/` provider: completion, acompletion, streams, tools, response_format."""

from __future__ import annotations

import json
from typing import Any

import litellm
import openai

from tests.clients.rows import KEY, MODEL, URL, Rows, raises
from tests.clients.shapes import ASK_WEATHER, QUESTION, City, GetWeather, Place

row = Rows()
litellm.suppress_debug_info = True
ASKED: dict[str, Any] = {
    "model": f"openai/{MODEL}",
    "api_base": URL,
    "api_key": KEY,
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
    "max_tokens": 16,
    "num_retries": 0,
}
FORCED = {**ASKED, "max_tokens": 256}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": GetWeather.model_json_schema(),
    },
}
CALLED: dict[str, Any] = {
    **FORCED,
    "messages": [{"role": "user", "content": ASK_WEATHER}],
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


@row
def completion() -> None:
    """completion: text and usage"""
    answer = litellm.completion(**ASKED)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


@row
async def acompletion() -> None:
    """acompletion"""
    assert "Paris" in (await litellm.acompletion(**ASKED)).choices[0].message.content


@row
def streamed() -> None:
    """completion(stream=True): the text of the plain answer, rebuilt by stream_chunk_builder with usage"""
    chunks = list(litellm.completion(**ASKED, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks)
    plain = litellm.completion(**ASKED)
    assert built.choices[0].message.content == plain.choices[0].message.content
    assert built.usage.completion_tokens == plain.usage.completion_tokens


@row
async def streamed_async() -> None:
    """acompletion(stream=True)"""
    stream = await litellm.acompletion(**ASKED, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert "Paris" in text


@row
def response_format_model() -> None:
    """response_format=a pydantic model"""
    for shape in (City, Place):
        answer = litellm.completion(**FORCED, response_format=shape)
        shape.model_validate_json(answer.choices[0].message.content)


@row
def response_format_schema() -> None:
    """response_format json_schema as a dict"""
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": City.model_json_schema()}}
    City.model_validate_json(litellm.completion(**FORCED, response_format=wanted).choices[0].message.content)


@row
def response_format_streamed() -> None:
    """response_format, streamed"""
    chunks = list(litellm.completion(**FORCED, response_format=City, stream=True))
    City.model_validate_json(litellm.stream_chunk_builder(chunks).choices[0].message.content)


@row
def tools() -> None:
    """tools: a call whose arguments fit"""
    choice = litellm.completion(**CALLED).choices[0]
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    GetWeather.model_validate_json(call.function.arguments)
    assert choice.finish_reason == "tool_calls"


@row
def tools_streamed() -> None:
    """tools, streamed: stream_chunk_builder has the plain answer's call"""
    built = litellm.stream_chunk_builder(list(litellm.completion(**CALLED, stream=True)))
    plain = litellm.completion(**CALLED)
    (one,), (other,) = built.choices[0].message.tool_calls, plain.choices[0].message.tool_calls
    assert (one.function.name, one.function.arguments) == (other.function.name, other.function.arguments)
    assert one.id


@row
def tool_loop() -> None:
    """a loop: call, tool message, answer"""
    message = litellm.completion(**CALLED).choices[0].message
    (call,) = message.tool_calls
    result = {
        "role": "tool",
        "tool_call_id": call.id,
        "name": "get_weather",
        "content": json.dumps({"t": 18}),
    }
    messages = [*CALLED["messages"], message, result]
    again = {**CALLED, "messages": messages, "tool_choice": "none", "max_tokens": 32}
    assert litellm.completion(**again).choices[0].message.content


@row
def errors() -> None:
    """errors are litellm's exception classes"""
    for change, kind in (
        ({"temperature": 9}, litellm.BadRequestError),
        ({"model": "openai/another"}, litellm.NotFoundError),
        ({"messages": [{"role": "user", "content": "word " * 20_000}]}, litellm.ContextWindowExceededError),
    ):
        with raises(openai.APIStatusError) as caught:
            litellm.completion(**{**ASKED, **change})
        assert type(caught.error) is kind, f"{change!r:.80}: {caught.error!r:.200}"


@row
def router() -> None:
    """Router with two deployments of the server"""
    to = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY}
    deployments = [{"model_name": "small", "litellm_params": dict(to)} for _ in range(2)]
    asked = {"messages": ASKED["messages"], "temperature": 0, "max_tokens": 16}
    answer = litellm.Router(model_list=deployments).completion("small", **asked)
    assert "Paris" in answer.choices[0].message.content


if __name__ == "__main__":
    row.run()
