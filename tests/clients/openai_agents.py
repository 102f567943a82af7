"""openai-agents: agents over its models of Responses and of chat: tools, handoffs, sessions."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

from tests.clients.rows import KEY, MODEL, SCRIPTED, URL, Rows
from tests.clients.shapes import ASK_WEATHER, QUESTION, City

row = Rows()
set_tracing_disabled(disabled=True)


def agent(name: str = MODEL, kind: Any = OpenAIResponsesModel, max_tokens: int = 200, **more: Any) -> Agent:
    """One a row: a client belongs to the loop of its first request."""
    model = kind(model=name, openai_client=AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0))
    return Agent(
        "rows", model=model, model_settings=ModelSettings(temperature=0, max_tokens=max_tokens), **more
    )


@function_tool
def get_weather(location: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {location}"


@row
async def text() -> None:
    """Runner.run: text and usage"""
    answer = await Runner.run(agent(instructions="Be brief."), QUESTION)
    assert "Paris" in answer.final_output
    assert answer.context_wrapper.usage.output_tokens > 0


@row
async def text_streamed() -> None:
    """Runner.run_streamed: the text of the plain run"""
    stream = Runner.run_streamed(agent(), QUESTION)
    events = [event async for event in stream.stream_events()]
    deltas = [
        event.data.delta
        for event in events
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    assert "".join(deltas) == stream.final_output == (await Runner.run(agent(), QUESTION)).final_output


@row
async def output_type() -> None:
    """output_type of a pydantic model: text.format, strict"""
    assert isinstance((await Runner.run(agent(output_type=City), QUESTION)).final_output, City)


@row
async def tools() -> None:
    """tools: a call, its output, an answer; in the forms of Responses and of chat"""
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        answer = await Runner.run(agent(SCRIPTED, kind, tools=[get_weather]), ASK_WEATHER)
        assert "18 degrees" in answer.final_output
        assert "tool_call_output_item" in [item.type for item in answer.new_items]


@row
async def tools_streamed() -> None:
    """tools in Runner.run_streamed"""
    stream = Runner.run_streamed(agent(SCRIPTED, tools=[get_weather]), ASK_WEATHER)
    names = [event.name async for event in stream.stream_events() if event.type == "run_item_stream_event"]
    assert "18 degrees" in stream.final_output
    assert {"reasoning_item_created", "tool_called", "tool_output", "message_output_created"} <= set(names)


@row
async def previous() -> None:
    """auto_previous_response_id: the server keeps the conversation"""
    one = agent(SCRIPTED, tools=[get_weather])
    first = await Runner.run(one, ASK_WEATHER, auto_previous_response_id=True)
    second = await Runner.run(one, "And now?", previous_response_id=first.last_response_id)
    assert second.final_output


@row
async def session() -> None:
    """a session: the conversation is sent again, with its calls and reasoning"""
    one, session = agent(SCRIPTED, tools=[get_weather]), SQLiteSession("rows")
    for question in (ASK_WEATHER, "And now?"):
        answer = await Runner.run(one, question, session=session)
        assert "18 degrees" in answer.final_output


@row
async def handoff() -> None:
    """handoffs: a tool of a name that the SDK makes, which the model must call"""
    other = agent(max_tokens=16)
    other.name = "other"
    one = agent(handoffs=[other])
    one.model_settings.tool_choice = "transfer_to_other"
    answer = await Runner.run(one, QUESTION)
    assert answer.last_agent.name == "other"


if __name__ == "__main__":
    row.run()
