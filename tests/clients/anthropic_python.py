"""anthropic, the Python SDK: messages, streams, tools and their runner, counts, parsed answers, errors."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic, beta_tool

from tests.clients.rows import BASE, KEY, MODEL, SCRIPTED, Rows, raises
from tests.clients.shapes import ASK_WEATHER, QUESTION, City

row = Rows()
client = Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
TURNS: Any = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0}
"""Sent in the body: the SDK has no argument for it any more."""
PLAIN: dict[str, Any] = {"model": MODEL, "messages": TURNS, "max_tokens": 16, "extra_body": GREEDY}
SCHEMA = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
WEATHER: Any = {"name": "get_weather", "description": "The weather of a city.", "input_schema": SCHEMA}
ASKED: Any = [{"role": "user", "content": ASK_WEATHER}]
AGENT: dict[str, Any] = {"model": SCRIPTED, "messages": ASKED, "max_tokens": 200, "tools": [WEATHER]}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@row
def create() -> None:
    """messages.create: text, usage, stop_reason"""
    answer = client.messages.create(**PLAIN)
    assert "Paris" in text_of(answer)
    assert (answer.type, answer.role) == ("message", "assistant")
    assert answer.stop_reason in {"end_turn", "max_tokens"}
    assert answer.usage.input_tokens > 0
    assert 0 < answer.usage.output_tokens <= 16


@row
async def create_async() -> None:
    """messages.create, async, with system blocks, cache_control and metadata"""
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    async with AsyncAnthropic(base_url=BASE, api_key=KEY) as one:
        answer = await one.messages.create(**PLAIN, system=system, metadata={"user_id": "rows"})
    assert text_of(answer)


@row
def streamed() -> None:
    """messages.create(stream=True): events in their order, and the text of the plain answer"""
    events = list(client.messages.create(**PLAIN, stream=True))
    kinds = [event.type for event in events if event.type != "ping"]  # type: ignore[comparison-overlap]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == text_of(client.messages.create(**PLAIN))


@row
def stream_helper() -> None:
    """messages.stream: text_stream, get_final_message"""
    with client.messages.stream(**PLAIN) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(final) == text_of(client.messages.create(**PLAIN))
    assert final.usage.output_tokens > 0


@row
async def stream_helper_async() -> None:
    """messages.stream, async: get_final_text"""
    async with AsyncAnthropic(base_url=BASE, api_key=KEY) as one, one.messages.stream(**PLAIN) as stream:
        assert "Paris" in await stream.get_final_text()


@row
def stop_sequences() -> None:
    """stop_sequences: stop_reason and stop_sequence"""
    answer = client.messages.create(**PLAIN, stop_sequences=["Paris"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Paris")


@row
def count_tokens() -> None:
    """messages.count_tokens: what messages.create counts"""
    asked: Any = {"model": MODEL, "messages": TURNS, "system": "Be brief.", "tools": [WEATHER]}
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@row
def cached() -> None:
    """cache_read_input_tokens: a prompt that was there before"""
    turns = [{"role": "user", "content": QUESTION + " Think of it again." * 40}]
    first, second = [client.messages.create(**{**PLAIN, "messages": turns}).usage for _ in range(2)]
    assert second.cache_read_input_tokens
    assert second.input_tokens + second.cache_read_input_tokens == (
        first.input_tokens + (first.cache_read_input_tokens or 0)
    )


@row
def forced_tool() -> None:
    """tool_choice any and tool: a call"""
    for choice in (
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "get_weather"},
    ):
        answer = client.messages.create(
            **{**PLAIN, "messages": ASKED, "max_tokens": 200},
            tools=[{**WEATHER, "input_schema": {**SCHEMA, "properties": {"location": {"enum": ["Paris"]}}}}],
            tool_choice=choice,
        )
        assert answer.stop_reason == "tool_use"
        (use,) = [block for block in answer.content if block.type == "tool_use"]
        assert (use.name, use.input) == ("get_weather", {"location": "Paris"})


@row
def agent_loop() -> None:
    """tools: thinking, a call, its tool_result, an answer"""
    first = client.messages.create(**AGENT, thinking=THINKING)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    assert first.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "18 degrees"}  # type: ignore[union-attr]
    turns = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(**{**AGENT, "messages": turns}, thinking=THINKING)
    assert "18 degrees" in text_of(second)
    assert second.stop_reason == "end_turn"


@row
def call_streamed() -> None:
    """messages.stream with tools: the blocks of the plain answer, thinking too"""
    with client.messages.stream(**AGENT, thinking=THINKING) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"text", "thinking", "input_json"} <= kinds
    plain = client.messages.create(**AGENT, thinking=THINKING)
    without = {"content": {"__all__": {"id", "signature", "parsed_output"}}}
    told = [one.model_dump(include={"content"}, exclude=without) for one in (final, plain)]
    assert told[0] == told[1]


@beta_tool
def get_weather(location: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {location}"


@row
def tool_runner() -> None:
    """beta.messages.tool_runner: it calls, and ends with the answer"""
    runner = client.beta.messages.tool_runner(**{**AGENT, "tools": [get_weather]})
    assert "18 degrees" in text_of(runner.until_done())


@row
def tool_runner_streamed() -> None:
    """beta.messages.tool_runner(stream=True)"""
    runner = client.beta.messages.tool_runner(**{**AGENT, "tools": [get_weather]}, stream=True)
    assert "18 degrees" in [text_of(stream.get_final_message()) for stream in runner][-1]


@row
def parsed() -> None:
    """messages.parse: output_format of a pydantic model"""
    answer = client.messages.parse(**{**PLAIN, "max_tokens": 200}, output_format=City)
    assert isinstance(answer.parsed_output, City)


@row
def models() -> None:
    """models.list and models.retrieve"""
    assert MODEL in [one.id for one in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@row
def errors() -> None:
    """errors are the SDK's exception classes, with their type"""
    for change, kind, name in (
        ({"extra_body": {"temperature": 9}}, anthropic.BadRequestError, "invalid_request_error"),
        ({"model": "nothing"}, anthropic.NotFoundError, "not_found_error"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
    ):
        with raises(kind) as caught:
            client.messages.create(**{**PLAIN, **change})
        assert caught.error.body["error"]["type"] == name


@row.refused("tools", "the server searches nothing")
def hosted_tool() -> None:
    """a hosted tool"""
    client.messages.create(**PLAIN, tools=[{"type": "web_search_20250305", "name": "web_search"}])


if __name__ == "__main__":
    row.run()
