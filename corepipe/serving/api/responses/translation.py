"""A request for a response as a chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from corepipe.serving.api.bodies.protocol import JsonSchemaFormat, ResponseFormat, StreamOptions
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.responses.body import (
    ENCRYPTED,
    LOGPROBS,
    SAMPLING,
    SHARED,
    ResponsesRequest,
    TextFormat,
)
from corepipe.serving.api.responses.items import conversation, typed
from corepipe.serving.api.responses.tools import ClientTools, read_tools
from corepipe.serving.api.routes.chat import ChatRequest
from corepipe.serving.api.routes.chat_dialect import Translation

Json = dict[str, Any]

PLACES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
"""Fields of a chat, and where they are in a request."""


@dataclass(frozen=True, slots=True)
class TranslatedResponse(Translation):
    """A request for a response as a chat.

    tools: the client's.  items: the input, after that of the previous response.
    """

    tools: ClientTools = field(default_factory=ClientTools)
    items: Sequence[Json] = ()


def translated(
    body: ResponsesRequest, items: Sequence[Json], *, drop: bool, stored: int = 0
) -> TranslatedResponse:
    """Returns a request as a chat.  items: its input, of which the first `stored` were stored before.

    drop: hosted tools are left out.  Raises ApiError.
    """
    tools = read_tools(body.tools or (), drop=drop)
    said = conversation(
        [typed(one, f"input[{at - stored}]") for at, one in enumerate(items)],
        tools.names,
        body.instructions,
        stored,
    )
    if not said.messages:
        raise invalid("input must not be empty.", "input", "missing_required_parameter")
    return TranslatedResponse(
        _chat(body, tools, said.messages, drop=drop),
        {**PLACES, **tools.places, **said.places},
        (*tools.ignored, *_without_effect(body)),
        tools,
        items,
    )


def _chat(body: ResponsesRequest, tools: ClientTools, messages: list[Json], *, drop: bool) -> ChatRequest:
    reasoning, text = body.reasoning, body.text
    logprobs = LOGPROBS in body.includes
    if body.top_logprobs and not logprobs:
        raise invalid(f"top_logprobs needs include: [{LOGPROBS!r}].", "top_logprobs")
    return ChatRequest(
        model=body.model,
        messages=messages,
        stream=body.stream or body.background,
        stream_options=StreamOptions(include_usage=True) if body.stream or body.background else None,
        max_completion_tokens=body.max_output_tokens,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs or 0,
        tools=tools.functions or None,
        tool_choice=tools.choice(body.tool_choice, drop=drop),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=None if reasoning is None else reasoning.effort,
        verbosity=None if text is None else text.verbosity,
        response_format=_format(text.format) if text and text.format else None,
        **{name: getattr(body, name) for name in (*SAMPLING, *SHARED)},
    )


def _format(wanted: TextFormat) -> ResponseFormat | None:
    """Returns the form of the text as that of a chat.  Raises ApiError for a schema without its type."""
    if wanted.type != "json_schema":
        if wanted.schema is not None:
            raise invalid(f"text.format.schema is not for type {wanted.type}.", "text.format.schema")
        return None if wanted.type == "text" else ResponseFormat(wanted.type)
    if wanted.schema is None:
        name = "text.format.schema"
        raise invalid(f"Missing required parameter: '{name}'.", name, "missing_required_parameter")
    return ResponseFormat("json_schema", JsonSchemaFormat(wanted.schema, wanted.name))


def _without_effect(body: ResponsesRequest) -> list[str]:
    """Returns fields that ask for something that no answer here has."""
    reasoning, options = body.reasoning, body.stream_options
    found = {
        "reasoning.summary": reasoning is not None and reasoning.summary is not None,
        "service_tier": body.service_tier not in (None, "auto", "default"),
        "stream_options.include_obfuscation": options is not None and options.include_obfuscation,
        "max_tool_calls": body.max_tool_calls is not None,
        "context_management": bool(body.context_management),
    }
    others = sorted(body.includes - {ENCRYPTED, LOGPROBS})
    return [*(name for name, there in found.items() if there), *(f"include:{name}" for name in others)]


def turns(messages: Sequence[Json]) -> int:
    """Returns how many turns may be left out: all but the last."""
    return max(0, len([one for one in messages if one["role"] == "user"]) - 1)


def without_turns(messages: Sequence[Json], count: int) -> list[Json]:
    """Returns messages without the first `count` turns; a turn is the user's and all up to the user's next.

    System messages stay.
    """
    kept, begun = [], 0
    for message in messages:
        begun += message["role"] == "user"
        if begun > count or not count or message["role"] in ("system", "developer"):
            kept.append(message)
    return kept
