"""llama-index: OpenAILike: complete, chat, streams, structured_predict, function calling."""

from __future__ import annotations

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.clients.rows import KEY, MODEL, URL, Rows
from tests.clients.shapes import ASK_WEATHER, QUESTION, City, Place

row = Rows()


def llm(max_tokens: int = 16, **more: Any) -> OpenAILike:
    wanted: dict[str, Any] = {
        "is_chat_model": True,
        "is_function_calling_model": True,
        "context_window": 4096,
        "temperature": 0,
        "max_retries": 0,
    }
    return OpenAILike(model=MODEL, api_base=URL, api_key=KEY, max_tokens=max_tokens, **{**wanted, **more})


ASKED = [ChatMessage(role="user", content=QUESTION)]


@row
def complete() -> None:
    """complete, by the chat route and by the text route"""
    assert "Paris" in llm().complete(QUESTION).text
    assert llm(is_chat_model=False).complete("The capital of France is").text


@row
def chat() -> None:
    """chat, achat"""
    assert "Paris" in (llm().chat(ASKED).message.content or "")


@row
async def chat_async() -> None:
    """achat"""
    assert "Paris" in ((await llm().achat(ASKED)).message.content or "")


@row
def stream_chat() -> None:
    """stream_chat: the text of the plain answer"""
    *_, last = llm().stream_chat(ASKED)
    assert last.message.content == llm().chat(ASKED).message.content


@row
async def stream_chat_async() -> None:
    """astream_chat"""
    parts = [part.delta or "" async for part in await llm().astream_chat(ASKED)]
    assert "Paris" in "".join(parts)


@row
def stream_complete() -> None:
    """stream_complete"""
    *_, last = llm().stream_complete(QUESTION)
    assert "Paris" in last.text


@row
def structured_predict() -> None:
    """structured_predict by function calling"""
    for shape in (City, Place):
        made = llm(256).structured_predict(shape, PromptTemplate(QUESTION))
        assert isinstance(made, shape)


@row
def structured_native() -> None:
    """structured_predict by response_format (should_use_structured_outputs)"""
    made = llm(256, should_use_structured_outputs=True).structured_predict(City, PromptTemplate(QUESTION))
    assert isinstance(made, City)


@row
def structured_stream() -> None:
    """stream_structured_predict by response_format: the last object is whole"""
    one = llm(256, should_use_structured_outputs=True)
    *_, last = one.stream_structured_predict(City, PromptTemplate(QUESTION))
    assert City.model_validate(last.model_dump())


@row
def as_structured_llm() -> None:
    """as_structured_llm(...).chat"""
    assert isinstance(llm(256).as_structured_llm(City).chat(ASKED).raw, City)


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {city}"


TOOL = FunctionTool.from_defaults(get_weather)


@row
def chat_with_tools() -> None:
    """chat_with_tools(tool_required=True): a call with arguments"""
    one = llm(256)
    answer = one.chat_with_tools([TOOL], user_msg=ASK_WEATHER, tool_required=True)
    (call,) = one.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather"
    assert set(call.tool_kwargs) == {"city"}


@row
def stream_chat_with_tools() -> None:
    """stream_chat_with_tools: the call of the plain answer"""
    one = llm(256)
    *_, last = one.stream_chat_with_tools([TOOL], user_msg=ASK_WEATHER, tool_required=True)
    plain = one.chat_with_tools([TOOL], user_msg=ASK_WEATHER, tool_required=True)
    calls = [one.get_tool_calls_from_response(each)[0] for each in (last, plain)]
    assert calls[0].tool_kwargs == calls[1].tool_kwargs


@row
def predict_and_call() -> None:
    """predict_and_call: the function is called, or the model says that it does not"""
    answer = llm(256).predict_and_call([TOOL], user_msg=ASK_WEATHER, error_on_no_tool_call=False)
    assert str(answer) is not None


@row
def tool_loop() -> None:
    """a loop: call, tool message, answer"""
    one = llm(256)
    answer = one.chat_with_tools([TOOL], user_msg=ASK_WEATHER, tool_required=True)
    (call,) = one.get_tool_calls_from_response(answer)
    result = ChatMessage(
        role="tool",
        content=str(get_weather(**call.tool_kwargs)),
        additional_kwargs={"tool_call_id": call.tool_id},
    )
    history = [ChatMessage(role="user", content=ASK_WEATHER), answer.message, result]
    assert llm(24).chat(history).message.content


@row.refused("temperature", "it is beyond 2")
def error() -> None:
    """what is refused is the SDK's BadRequestError with the field"""
    llm(additional_kwargs={"temperature": 9}).chat(ASKED)


if __name__ == "__main__":
    row.run()
