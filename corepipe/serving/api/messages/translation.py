"""Translates Anthropic's requests into chats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from corepipe.answers.parsing.tools import (
    FunctionDefinition,
    FunctionName,
    NamedChoice,
    Tool,
    ToolChoice,
)
from corepipe.serving.api.bodies.protocol import JsonSchemaFormat, ResponseFormat, StreamOptions
from corepipe.serving.api.bodies.reading import explained
from corepipe.serving.api.bodies.values import convert
from corepipe.serving.api.http.errors import echo, invalid
from corepipe.serving.api.messages.body import (
    DISPLAYS,
    AnyTool,
    Choice,
    CountTokensRequest,
    CustomTool,
    MessagesRequest,
    NamedTool,
    NoTool,
    Thinking,
)
from corepipe.serving.api.messages.turns import TurnTranslator
from corepipe.serving.api.routes.chat import ChatRequest
from corepipe.serving.api.routes.chat_dialect import Translation

_STREAMED = StreamOptions(include_usage=True, continuous_usage_stats=True)
"""The renderer of a stream needs the prompt's tokens first, and all tokens at the end."""
_CHOICES: Mapping[type, ToolChoice] = {AnyTool: "required", NoTool: "none"}
_UNUSED_IN_TOOLS = ("input_examples", "allowed_callers", "defer_loading", "eager_input_streaming")


def translated(body: CountTokensRequest, *, drops_hosted: bool) -> Translation:
    """Returns a request as a chat.

    drops_hosted: tools that Anthropic's servers run are left out; else they are refused.  Raises ApiError.
    """
    turns = TurnTranslator()
    messages = turns.messages(body.system, body.messages)
    continued = messages[-1]["role"] == "assistant"
    ignored, places = dict.fromkeys(turns.ignored), dict(_PLACES)
    tools = [*_tools(body.tools or (), ignored, places, drops_hosted=drops_hosted)]
    choice = body.tool_choice
    chat = ChatRequest(
        model=body.model,
        messages=messages,
        tools=tools or None,
        tool_choice=_choice(choice),
        parallel_tool_calls=not getattr(choice, "disable_parallel_tool_use", None),
        add_generation_prompt=not continued,
        continue_final_message=continued,
        response_format=_format(body),
        **_reasoning(body, ignored),
        **(_drawn(body) if isinstance(body, MessagesRequest) else {}),
    )
    return Translation(chat, places, tuple(ignored))


_PLACES = {
    "stop": "stop_sequences",
    "tool_choice.function.name": "tool_choice.name",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
"""Fields of a chat that have another name in this API."""


def _drawn(body: MessagesRequest) -> dict[str, Any]:
    return {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "seed": body.seed,
        "stream": body.stream,
        "stream_options": _STREAMED if body.stream else None,
    }


def _format(body: CountTokensRequest) -> ResponseFormat | None:
    """Returns the schema of the answer.  Raises ApiError where there are two."""
    newer = None if body.output_config is None else body.output_config.format
    given = [one for one in (body.output_format, newer) if one is not None]
    if len(given) == 2 and given[0] != given[1]:
        raise invalid(
            "Send one schema: output_format is another name of output_config.format.", "output_format"
        )
    return ResponseFormat("json_schema", JsonSchemaFormat(given[0].schema)) if given else None


def _reasoning(body: CountTokensRequest, ignored: dict[str, None]) -> dict[str, Any]:
    """Returns the fields of a chat for its reasoning; a template without these variables ignores them."""
    thinking, config = body.thinking or Thinking("adaptive"), body.output_config
    if thinking.budget_tokens is not None:
        ignored["thinking.budget_tokens"] = None
    if thinking.display not in DISPLAYS:
        ignored["thinking.display"] = None
    if config is not None and config.task_budget is not None:
        ignored["output_config.task_budget"] = None
    if not thinking.on:
        return {"reasoning_effort": "none"}
    switch = {"enable_thinking": True, "thinking": True}
    return {
        "reasoning_effort": config and config.effort,
        "chat_template_kwargs": None if body.thinking is None else switch,
    }


def _tools(
    given: Sequence[Mapping[str, Any]],
    ignored: dict[str, None],
    places: dict[str, str],
    *,
    drops_hosted: bool,
) -> Iterator[Tool]:
    kept = 0
    for at, one in enumerate(given):
        where = f"tools[{at}]"
        if one.get("type") in (None, "custom"):
            places[f"tools[{kept}].function.parameters"] = f"{where}.input_schema"
            places[f"tools[{kept}].function"] = where
            yield _tool(one, where, ignored)
            kept += 1
        elif drops_hosted:
            ignored[where] = None
        else:
            raise _not_run(one["type"], where)


def _not_run(kind: object, where: str) -> Exception:
    message = (
        f"{where}: a tool of type {echo(kind)} is neither run nor known here: describe it as a custom tool "
        "that the client runs, or start the server with --drop-hosted-tools."
    )
    return invalid(message, f"{where}.type", "unsupported_value")


def _tool(given: Mapping[str, Any], where: str, ignored: dict[str, None]) -> Tool:
    try:
        tool: CustomTool = convert(given, CustomTool)
    except msgspec.ValidationError as error:
        raise explained(error, where) from None
    for name in _UNUSED_IN_TOOLS:
        if getattr(tool, name) not in (None, False, [], ["direct"]):
            ignored[f"{where}.{name}"] = None
    function = FunctionDefinition(tool.name, tool.description, tool.input_schema, tool.strict)
    return Tool("function", function)


def _choice(choice: Choice | None) -> ToolChoice | None:
    if isinstance(choice, NamedTool):
        return NamedChoice(FunctionName(choice.name))
    return _CHOICES.get(type(choice))


def marks_cache(body: CountTokensRequest) -> bool:
    """Tells whether a request marks anywhere what should be cached."""
    if body.cache_control is not None or any(one.get("cache_control") for one in body.tools or ()):
        return True
    contents = [turn.content for turn in body.messages] + [body.system or ()]
    blocks = [block for content in contents if not isinstance(content, str) for block in content]
    return any(block.cache_control is not None for block in blocks)
