"""Converts the messages of a chat from the forms that the API accepts to those that chat templates take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from corepipe.answers.chat_variables import begins_turn, checked_variables
from corepipe.answers.parsing.tools import MAX_DEPTH, OfferedTools
from corepipe.models.text.content_form import text_of
from corepipe.serving.api.bodies.protocol import Neutral, screen
from corepipe.serving.api.http.errors import echo, invalid
from corepipe.structured.schemas import deeper_than

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

_HONOURED = ("role", "content", "name")
_OF_ROLE: Mapping[str, tuple[str, ...]] = {
    "assistant": ("tool_calls", "reasoning", "reasoning_content"),
    "tool": ("tool_call_id",),
}
NEUTRAL_MESSAGE: Mapping[str, Neutral] = {
    "refusal": Neutral(),
    "audio": Neutral(),
    "annotations": Neutral(([],)),
    "provider_specific_fields": Neutral(type=dict[str, Any]),  # litellm adds it to answers, and sends it back
    "parsed": Neutral(type=Any),  # the openai package adds it, and `parsed_arguments` to a call
    "function_call": Neutral(),
    "tool_calls": Neutral(([],)),
    "tool_call_id": Neutral(),
    "reasoning": Neutral(),
    "reasoning_content": Neutral(),
}
_NEUTRAL_CALL: Mapping[str, Neutral] = {"index": Neutral(type=int)}
_NEUTRAL_FUNCTION: Mapping[str, Neutral] = {"parsed_arguments": Neutral(type=Any)}

TemplateMessage = dict[str, Any]
"""A message in the form that chat templates take."""


MAX_TEMPLATE = 65_536
"""The most characters of a template in a request."""


class ChatFields(Protocol):
    """The fields of a request, beside the messages, that determine its prompt."""

    @property
    def add_generation_prompt(self) -> bool | None: ...

    @property
    def continue_final_message(self) -> bool: ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """The input of a chat template.

    template: the request's own, if it has one.  variables: further variables for the template.  offer: the
    tools.  effort: how much the model reasons.  verbosity: how long its answer is.
    """

    messages: Sequence[TemplateMessage]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    add_special_tokens: bool = False
    offer: OfferedTools | None = None
    effort: str | None = None
    verbosity: str | None = None

    @staticmethod
    def of(
        messages: Sequence[Mapping[str, Any]],
        fields: ChatFields,
        documents: Sequence[Mapping[str, str]] = (),
        *,
        add_special_tokens: bool = False,
        offer: OfferedTools | None = None,
        effort: str | None = None,
        verbosity: str | None = None,
    ) -> TemplateInput:
        """Makes a checked conversation.  Raises ApiError and UserError that name the field."""
        continues = fields.continue_final_message
        begins = begins_turn(fields.add_generation_prompt, continues)
        variables = checked_variables(fields.chat_template_kwargs or {})
        if documents:
            variables["documents"] = documents
        return TemplateInput(
            plain_messages(messages),
            add_generation_prompt=begins,
            continue_final_message=continues,
            template=fields.chat_template,
            variables=variables,
            add_special_tokens=add_special_tokens,
            offer=offer,
            effort=effort,
            verbosity=verbosity,
        )

    @property
    def last_said(self) -> str:
        """The text of the last message if it is the assistant's, else empty."""
        last = self.messages[-1]
        return text_of(last["content"]) if last["role"] == "assistant" else ""


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[TemplateMessage]:
    """Returns messages with a text or text parts as content, and with the arguments of calls as objects.

    A developer message becomes a system message; reasoning is set under all of its names.  Raises ApiError
    for content that is not text, and for fields of a message that are not supported.
    """
    if not messages:
        raise invalid("messages must not be empty.", "messages", "invalid_value")
    return [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]


def joined_messages(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Joins consecutive messages of the same role and name into one, with empty lines between.

    Messages with calls or their results stay unchanged.
    """
    turns: list[TemplateMessage] = []
    for message in messages:
        texts_alone = message.keys() <= {*_HONOURED} and message["role"] != "tool"
        if turns and texts_alone and {**turns[-1], "content": ""} == {**message, "content": ""}:
            turns[-1]["content"] = "\n\n".join(map(text_of, (turns[-1]["content"], message["content"])))
        else:
            turns.append(dict(message))
    return turns


def with_objects(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Wraps arguments that are no object into an object, for templates that take nothing else."""
    return [
        {**turn, "tool_calls": [_with_object(call) for call in turn["tool_calls"]]}
        if "tool_calls" in turn
        else turn
        for turn in messages
    ]


def _with_object(call: TemplateMessage) -> TemplateMessage:
    function = call["function"]
    if isinstance(function["arguments"], dict):
        return call
    return {**call, "function": {**function, "arguments": {"arguments": function["arguments"]}}}


def _plain(message: Mapping[str, Any], where: str) -> TemplateMessage:
    said = message.get("role")
    role = ROLES.get(said) if isinstance(said, str) else None
    fields = screen(message, _HONOURED + _OF_ROLE.get(role or "", ()), NEUTRAL_MESSAGE, f"{where}.")
    if role is None:
        raise invalid(f"{where}.role must be one of {', '.join(ROLES)}, not {echo(said)}.", f"{where}.role")
    calls = _calls(fields.get("tool_calls", []), f"{where}.tool_calls")
    content = fields.get("content")
    if role == "assistant" and content in (None, []):  # an answer without text, perhaps with calls
        content = ""
    plain: TemplateMessage = {"role": role, "content": _content(content, f"{where}.content")}
    for name in ("name", "tool_call_id"):
        if name in fields:
            plain[name] = _string(fields[name], f"{where}.{name}")
    if calls:
        plain["tool_calls"] = calls
    return plain | _reasoning(fields, where)


def _reasons(fields: Mapping[str, Any]) -> bool:
    return "reasoning" in fields or "reasoning_content" in fields


def _reasoning(fields: Mapping[str, Any], where: str) -> TemplateMessage:
    """Returns the reasoning under all its names, of which templates read one; gpt-oss reads `thinking`."""
    if not _reasons(fields):
        return {}
    for name in ("reasoning", "reasoning_content"):
        _string(fields.get(name, ""), f"{where}.{name}")
    text = fields.get("reasoning") or fields.get("reasoning_content", "")
    return {"reasoning": text, "reasoning_content": text, "thinking": text}


def _calls(calls: object, where: str) -> list[TemplateMessage]:
    if not isinstance(calls, list):
        raise invalid(f"{where} must be a list.", where, "invalid_type")
    return [_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _call(call: object, where: str) -> TemplateMessage:
    fields = screen(_object(call, where), ("id", "type", "function"), _NEUTRAL_CALL, f"{where}.")
    if fields.get("type", "function") != "function":
        raise invalid(f"{where}.type: the only supported type is function.", f"{where}.type")
    inside = f"{where}.function"
    given = _object(fields.get("function"), inside)
    function = screen(given, ("name", "arguments"), _NEUTRAL_FUNCTION, f"{inside}.")
    name = _string(function.get("name"), f"{inside}.name")
    written = _string(function.get("arguments", ""), f"{inside}.arguments")
    arguments = _arguments(written)
    number = {"id": _string(fields["id"], f"{where}.id")} if "id" in fields else {}
    return {**number, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(written: str) -> object:
    """Returns arguments as an object, or as the text itself if it is no object or nested too deeply."""
    if not written.strip():
        return {}
    try:
        value = msgspec.json.decode(written)
    except (msgspec.DecodeError, RecursionError):
        return written
    return value if isinstance(value, dict) and not deeper_than(MAX_DEPTH, value) else written


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"{where} must be an object.", where, "invalid_type")
    return value


def _content(content: object, where: str) -> str | list[TemplateMessage]:
    if isinstance(content, list) and content:
        return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    return _string(content, where)


def _part(part: object, where: str) -> TemplateMessage:
    if not isinstance(part, dict):
        raise invalid(f"{where} must be an object.", where, "invalid_type")
    if part.get("type") != "text":
        kind = echo(part.get("type"))
        message = f"{where}: unsupported content part of type {kind}; this server reads text only."
        raise invalid(message, where, "unsupported_value")
    text = screen(part, ("type", "text"), {}, f"{where}.").get("text")
    return {"type": "text", "text": _string(text, f"{where}.text")}


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{where} must be text, not {type(value).__name__}.", where, "invalid_type")
    return value
