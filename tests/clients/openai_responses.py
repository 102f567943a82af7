"""openai, the Python SDK: responses: create, stream, what is kept, tools, structured answers, errors."""

from __future__ import annotations

import json
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import ResponseFunctionToolCall

from tests.clients.rows import KEY, MODEL, SCRIPTED, URL, Rows, raises
from tests.clients.shapes import ASK_WEATHER, QUESTION, GetWeather, Place

row = Rows()
client = OpenAI(base_url=URL, api_key=KEY, max_retries=0)
PLAIN: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 16}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
    "strict": False,
}
AGENT: dict[str, Any] = {"model": SCRIPTED, "input": ASK_WEATHER, "tools": [WEATHER], "temperature": 0}


@row
def create() -> None:
    """responses.create: text, usage, and why it is incomplete"""
    answer = client.responses.create(**PLAIN)
    assert answer.status == "completed"
    cut = client.responses.create(**{**PLAIN, "max_output_tokens": 2})
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert "Paris" in answer.output_text
    assert answer.object == "response"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


@row
async def create_async() -> None:
    """responses.create, async, with instructions and a list of messages"""
    asked = {**PLAIN, "input": [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]}
    async with AsyncOpenAI(base_url=URL, api_key=KEY) as one:
        assert (await one.responses.create(**asked, instructions="Be brief.")).instructions == "Be brief."


@row
def streamed() -> None:
    """responses.create(stream=True): events in their order, and the text of the plain answer"""
    events = list(client.responses.create(**PLAIN, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type in {"response.completed", "response.incomplete"}
    assert text == events[-1].response.output_text == client.responses.create(**PLAIN).output_text


@row
def stream_helper() -> None:
    """responses.stream: events and get_final_response"""
    with client.responses.stream(**{**PLAIN, "max_output_tokens": 200}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.output_text.delta", "response.output_text.done", "response.completed"} <= kinds
    assert "Paris" in final.output_text


@row
def retrieve() -> None:
    """responses.retrieve, plain and as a stream that starts after an event"""
    events = list(client.responses.create(**PLAIN, stream=True))
    answer = events[-1].response  # type: ignore[union-attr]
    assert client.responses.retrieve(answer.id).output == answer.output
    assert list(client.responses.retrieve(answer.id, stream=True)) == events
    assert list(client.responses.retrieve(answer.id, stream=True, starting_after=2)) == events[3:]


@row
def delete() -> None:
    """responses.delete; and store=False keeps nothing"""
    answer = client.responses.create(**PLAIN)
    client.responses.delete(answer.id)
    for gone in (answer.id, client.responses.create(**PLAIN, store=False).id):
        with raises(openai.NotFoundError):
            client.responses.retrieve(gone)


@row
def input_items() -> None:
    """responses.input_items.list, by pages"""
    turns: Any = [{"role": "user", "content": f"{QUESTION} {at}"} for at in range(3)]
    answer = client.responses.create(**{**PLAIN, "input": turns})
    items = list(client.responses.input_items.list(answer.id, limit=2, order="asc"))
    assert [item.content[0].text for item in items] == [turn["content"] for turn in turns]  # type: ignore[union-attr]


@row
def previous() -> None:
    """previous_response_id: the conversation goes on, without the instructions"""
    first = client.responses.create(**PLAIN, instructions="Be brief.")
    second = client.responses.create(**{**PLAIN, "input": "And of Italy?"}, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.instructions is None
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    with raises(openai.NotFoundError):
        client.responses.create(**PLAIN, previous_response_id="resp_nothing")


@row
def background() -> None:
    """background=True: polled until it is complete"""
    answer = client.responses.create(**PLAIN, background=True)
    while answer.status in {"queued", "in_progress"}:
        answer = client.responses.retrieve(answer.id)
    assert "Paris" in answer.output_text


@row
def parsed() -> None:
    """responses.parse: text_format of a pydantic model"""
    answer = client.responses.parse(**{**PLAIN, "max_output_tokens": 300}, text_format=Place)
    assert isinstance(answer.output_parsed, Place)


@row
def parsed_streamed() -> None:
    """responses.stream with text_format: the parsed answer at its end"""
    with client.responses.stream(**{**PLAIN, "max_output_tokens": 300}, text_format=Place) as stream:
        stream.until_done()
        assert isinstance(stream.get_final_response().output_parsed, Place)


@row
def forced_tool() -> None:
    """tools with tool_choice required, parsed by pydantic_function_tool"""
    tool = openai.pydantic_function_tool(GetWeather)["function"]
    asked = {**PLAIN, "input": ASK_WEATHER, "max_output_tokens": 200, "parallel_tool_calls": False}
    answer = client.responses.parse(
        **asked,
        tools=[{"type": "function", **tool}],
        tool_choice="required",  # type: ignore[list-item]
    )
    calls = [item for item in answer.output if item.type == "function_call"]
    assert len(calls) == 1
    GetWeather.model_validate_json(calls[0].arguments)


@row
def agent_loop() -> None:
    """tools with tool_choice auto: reasoning, a call, its output by previous_response_id, an answer"""
    first = client.responses.create(**AGENT)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    (called,) = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    assert json.loads(called.arguments) == {"location": "Paris"}
    result = {"type": "function_call_output", "call_id": called.call_id, "output": "18 degrees"}
    second = client.responses.create(**{**AGENT, "input": [result]}, previous_response_id=first.id)
    assert "18 degrees" in second.output_text
    whole = [{"role": "user", "content": ASK_WEATHER}, *first.output, result]
    stateless = client.responses.create(**{**AGENT, "input": whole}, store=False)
    assert stateless.output_text == second.output_text


@row
def call_streamed() -> None:
    """a call in a stream: its item, its arguments piece by piece, and the plain answer's output"""
    events = list(client.responses.create(**AGENT, stream=True))
    arguments = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert json.loads(arguments) == json.loads(done.arguments) == {"location": "Paris"}
    assert events[-1].type == "response.completed"
    plain = client.responses.create(**AGENT)
    assert [item.type for item in events[-1].response.output] == [item.type for item in plain.output]


@row
def custom_tool() -> None:
    """a tool of type custom: its input is text"""
    tool: Any = {"type": "custom", "name": "note", "description": "Takes a note."}
    answer = client.responses.create(
        **{**PLAIN, "max_output_tokens": 100}, tools=[tool], tool_choice="required"
    )
    assert answer.output[-1].type in {"custom_tool_call", "message"}


@row.refused("tools", "the server searches nothing")
def hosted_tool() -> None:
    """a hosted tool"""
    client.responses.create(**PLAIN, tools=[{"type": "web_search"}])


@row
def errors() -> None:
    """errors are the SDK's exception classes, with param"""
    with raises(openai.BadRequestError) as caught:
        client.responses.create(**{**PLAIN, "temperature": 9})
    assert caught.error.param == "temperature"
    with raises(openai.NotFoundError):
        client.responses.create(**{**PLAIN, "model": "nothing"})


if __name__ == "__main__":
    row.run()
