"""Converts the messages of a chat from the forms that the API accepts to those that chat templates take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from corepipe.answers.chat_variables import begins_turn, checked_variables
from corepipe.answers.parsing.tools import MAX_DEPTH, FunctionDefinition, OfferedTools, Tool
from corepipe.models.text.content_form import text_of
from corepipe.serving.api.bodies.reading import Chosen, Nested, explained
from corepipe.serving.api.bodies.values import Neutral, convert
from corepipe.serving.api.http.errors import ApiError, echo, invalid
from corepipe.structured.schemas import deeper_than


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Called(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function and the arguments of an assistant's call."""

    name: str
    arguments: str = ""
    parsed_arguments: Any = None


class MessageCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a function by the assistant."""

    function: Called
    id: str | None = None
    type: Literal["function"] | None = None
    index: int | None = None


Content = str | Annotated[list[TextPart], Meta(min_length=1)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a chat; developer messages count as system messages."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: str | None = None


class AssistantMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of the assistant, perhaps without text."""

    role: Literal["assistant"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[MessageCall] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ToolMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str | None = None
    name: str | None = None


AnyMessage = Message | AssistantMessage | ToolMessage

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
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


def _no_role(path: str, value: object) -> ApiError:
    message = f"{path}.role must be one of {', '.join(ROLES)}, not {echo(value)}."
    return invalid(message, f"{path}.role")


def _no_text(path: str, value: object) -> ApiError:
    message = f"{path}: unsupported content part of type {echo(value)}; this server reads text only."
    return invalid(message, path, "unsupported_value")


_PARTS = Chosen("type", {"text": Nested(TextPart)}, _no_text)
_CALLS = Nested(MessageCall, nested={"function": Nested(Called)})
_TYPES: Mapping[str, type[msgspec.Struct]] = {"assistant": AssistantMessage, "tool": ToolMessage}
MESSAGES = Chosen(
    "role",
    {
        role: Nested(_TYPES.get(role, Message), NEUTRAL_MESSAGE, {"content": _PARTS, "tool_calls": _CALLS})
        for role in ROLES
    },
    _no_role,
)
"""The messages of a chat."""
CHAT_OBJECTS: Mapping[str, Nested | Chosen] = {
    "messages": MESSAGES,
    "tools": Nested(Tool, nested={"function": Nested(FunctionDefinition, converted=True)}, converted=True),
}
"""The objects in a body that has a chat."""

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
    """Returns the messages of a body that was read as templates take them: the arguments of calls as objects.

    A developer message becomes a system message; reasoning is set under all of its names.  Raises ApiError
    for a message that does not fit its type.
    """
    if not messages:
        raise invalid("messages must not be empty.", "messages", "invalid_value")
    return [_plain(_typed(message, f"messages[{index}]")) for index, message in enumerate(messages)]


def _typed(message: Mapping[str, Any], path: str) -> AnyMessage:
    try:
        typed: AnyMessage = convert(message, MESSAGES.of(message, path).request)
    except msgspec.ValidationError as error:
        fault = explained(error, path)
        fault.code = "invalid_value" if str(error).startswith("Invalid enum") else "invalid_type"
        raise fault from None
    return typed


def joined_messages(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Joins consecutive messages of the same role and name into one, with empty lines between.

    Messages with calls or their results stay unchanged.
    """
    turns: list[TemplateMessage] = []
    for message in messages:
        texts_alone = message.keys() <= {"role", "content", "name"} and message["role"] != "tool"
        if turns and texts_alone and {**turns[-1], "content": ""} == {**message, "content": ""}:
            turns[-1]["content"] = "\n\n".join(map(text_of, (turns[-1]["content"], message["content"])))
        else:
            turns.append(dict(message))
    return turns


def system_first(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Puts system messages before all others, for templates that take them nowhere else."""
    return sorted(messages, key=lambda message: bool(message["role"] != "system"))


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


def _plain(message: AnyMessage) -> TemplateMessage:
    plain: TemplateMessage = {"role": ROLES[message.role], "content": _content(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage) and message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if not isinstance(message, AssistantMessage):
        return plain
    if message.tool_calls:
        plain["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.reasoning is None and message.reasoning_content is None:
        return plain
    text = message.reasoning or message.reasoning_content or ""
    # Templates read one of these names; gpt-oss reads `thinking`.
    return plain | {"reasoning": text, "reasoning_content": text, "thinking": text}


def _content(content: str | list[TextPart] | None) -> str | list[TemplateMessage]:
    """Returns a text, or parts; an answer without text, perhaps with calls, has an empty one."""
    if isinstance(content, list):
        return [{"type": "text", "text": part.text} for part in content] or ""
    return content or ""


def _call(call: MessageCall) -> TemplateMessage:
    number = {} if call.id is None else {"id": call.id}
    function = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
    return {**number, "type": "function", "function": function}


def _arguments(written: str) -> object:
    """Returns arguments as an object, or as the text itself if it is no object or nested too deeply."""
    if not written.strip():
        return {}
    try:
        value = msgspec.json.decode(written)
    except (msgspec.DecodeError, RecursionError):
        return written
    return value if isinstance(value, dict) and not deeper_than(MAX_DEPTH, value) else written
