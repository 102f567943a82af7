"""pydantic-ai: agents over its models of chat, of Responses or of Messages: output types, tools, streams."""

from __future__ import annotations

from typing import Any

from pydantic_ai import (
    Agent,
    AgentRunResultEvent,
    NativeOutput,
    PartStartEvent,
    PromptedOutput,
    RunContext,
    ToolOutput,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import ThinkingPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.clients.rows import BASE, FORM, KEY, MODEL, SCRIPTED, URL, Rows
from tests.clients.shapes import ASK_WEATHER, QUESTION, City, Place

row = Rows()


def model(name: str) -> Model:
    """One a row: a client belongs to the loop of its first request."""
    if FORM == "messages":
        profile = ModelProfile(supports_json_schema_output=True)  # not known of other names than Anthropic's
        return AnthropicModel(name, provider=AnthropicProvider(base_url=BASE, api_key=KEY), profile=profile)
    kind = OpenAIResponsesModel if FORM == "responses" else OpenAIChatModel
    return kind(name, provider=OpenAIProvider(base_url=URL, api_key=KEY))


def agent(output: Any = str, max_tokens: int = 256, name: str = MODEL, **more: Any) -> Agent[None, Any]:
    settings = ModelSettings(temperature=0, max_tokens=max_tokens, **more)
    return Agent(model(name), output_type=output, model_settings=settings)


@row
def text() -> None:
    """Agent.run_sync: text and usage"""
    answer = agent(max_tokens=16).run_sync(QUESTION)
    assert "Paris" in answer.output
    assert answer.usage.output_tokens > 0


@row
async def text_async() -> None:
    """Agent.run, with the history of an earlier run"""
    one = agent(max_tokens=16)
    first = await one.run(QUESTION)
    second = await one.run("And of Italy?", message_history=first.all_messages())
    assert second.output


@row
async def text_streamed() -> None:
    """Agent.run_stream: the text of the plain run"""
    async with agent(max_tokens=16).run_stream(QUESTION) as stream:
        parts = [part async for part in stream.stream_text(delta=True)]
    assert "".join(parts) == (await agent(max_tokens=16).run(QUESTION)).output


@row
def output_tool() -> None:
    """output_type=BaseModel: the tool final_result, tool_choice required"""
    answer = agent(City).run_sync(QUESTION)
    assert isinstance(answer.output, City)


@row
def output_tool_strict() -> None:
    """output_type=ToolOutput(..., strict=True)"""
    assert isinstance(agent(ToolOutput(Place, strict=True)).run_sync(QUESTION).output, Place)


@row
def output_union() -> None:
    """output_type=[A, B]: a tool for each"""
    assert isinstance(agent([City, Place]).run_sync(QUESTION).output, City | Place)


@row
def output_native() -> None:
    """output_type=NativeOutput: response_format json_schema"""
    of = City if FORM == "messages" else Place  # the client leaves out bounds of lists there
    assert isinstance(agent(NativeOutput(of)).run_sync(QUESTION).output, of)


@row
def output_prompted() -> None:
    """output_type=PromptedOutput: response_format json_object, the schema in the prompt; json or a retry"""
    try:
        assert isinstance(agent(PromptedOutput(City)).run_sync(QUESTION).output, City)
    except UnexpectedModelBehavior as error:
        # json_object promises JSON, not this schema: what a small model gets wrong the agent may give up on.
        if "output retries" not in str(error) and "token limit" not in str(error):
            raise


@row
async def output_streamed() -> None:
    """run_stream with output_type: partial objects, the last one whole"""
    async with agent(City).run_stream(QUESTION) as stream:
        seen = [part async for part in stream.stream_output(debounce_by=None)]
    assert isinstance(seen[-1], City)


def weather(of: Agent[None, Any]) -> list[str]:
    """Gives an agent a tool; the cities that it is asked for."""
    cities: list[str] = []

    @of.tool
    def get_weather(_: RunContext[None], location: str) -> str:
        """The weather of a city."""
        cities.append(location)
        return "18 degrees, sunny"

    return cities


@row
def tools_auto() -> None:
    """tools, tool_choice auto: the run ends, with or without a call"""
    one = agent(max_tokens=48)
    weather(one)
    assert one.run_sync(ASK_WEATHER).output is not None


@row
def tools_forced() -> None:
    """tools and an output type, tool_choice required: calls, then a final_result"""
    one = agent(City, parallel_tool_calls=False)
    weather(one)
    answer = one.run_sync(ASK_WEATHER)
    assert isinstance(answer.output, City)
    calls = [p for m in answer.all_messages() for p in m.parts if isinstance(p, ToolCallPart)]
    assert calls[-1].tool_name == "final_result"


@row
def tools_scripted() -> None:
    """tools of a model that calls them: its reasoning, a call, the answer, by the history"""
    one = agent(name=SCRIPTED)
    cities = weather(one)
    answer = one.run_sync(ASK_WEATHER)
    assert "18 degrees" in answer.output
    assert cities == ["Paris"]
    kinds = [type(part) for message in answer.all_messages() for part in message.parts]
    assert ThinkingPart in kinds


@row
async def tools_streamed() -> None:
    """run_stream_events with an output type: the events of its call"""
    async with agent(City).run_stream_events(QUESTION) as stream:
        events = [event async for event in stream]
    starts = [e.part for e in events if isinstance(e, PartStartEvent)]
    assert any(isinstance(part, ToolCallPart) and part.tool_name == "final_result" for part in starts)
    (result,) = [e.result.output for e in events if isinstance(e, AgentRunResultEvent)]
    assert isinstance(result, City)


@row.refused("temperature", "it is beyond 2")
def error() -> None:
    """what is refused is a ModelHTTPError with the field"""
    agent(max_tokens=16).run_sync(QUESTION, model_settings=ModelSettings(temperature=9))


if __name__ == "__main__":
    row.run()
