"""Chats: from the shapes the API allows to what a chat template is given, plain text above all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from corepipe.serving.api.http_errors import echo, invalid
from corepipe.serving.api.protocol import Neutral, screen
from corepipe.serving.chat_variables import checked_variables

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}

_HONOURED = ("role", "content", "name")
NEUTRAL_MESSAGE: Mapping[str, Neutral] = {
    "refusal": Neutral(),
    "audio": Neutral(),
    "annotations": Neutral(([],)),
    "function_call": Neutral(),
    "tool_calls": Neutral(([],)),
    "tool_call_id": Neutral(),
    "reasoning": Neutral(),
    "reasoning_content": Neutral(),
}


MAX_TEMPLATE = 65_536
"""Characters of a template that a request brings."""


class ChatFields(Protocol):
    """What a request says of its prompt beside the messages."""

    @property
    def add_generation_prompt(self) -> bool | None: ...

    @property
    def continue_final_message(self) -> bool: ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template is given.

    template: the request's own, if it brings one.  variables: what the template sees besides.
    """

    messages: Sequence[Mapping[str, str]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    add_special_tokens: bool = False

    @staticmethod
    def of(
        messages: Sequence[Mapping[str, Any]],
        fields: ChatFields,
        documents: Sequence[Mapping[str, str]] = (),
        *,
        add_special_tokens: bool = False,
    ) -> Conversation:
        """Checked: raises ApiError, which names the field."""
        opens, continues = fields.add_generation_prompt, fields.continue_final_message
        if opens and continues:
            raise invalid(
                "continue_final_message goes on with the last message, and add_generation_prompt: true "
                "begins another: send one of them.",
                "continue_final_message",
            )
        variables = checked_variables(fields.chat_template_kwargs or {})
        if documents:
            variables["documents"] = documents
        return Conversation(
            plain_messages(messages),
            add_generation_prompt=not continues if opens is None else opens,
            continue_final_message=continues,
            template=fields.chat_template,
            variables=variables,
            add_special_tokens=add_special_tokens,
        )

    @property
    def last_said(self) -> str:
        """The last message, if it is the assistant's."""
        last = self.messages[-1]
        return last["content"] if last["role"] == "assistant" else ""


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """`{"role", "content"[, "name"]}` for each message, its text parts joined by newlines.

    A developer message becomes a system message.  Raises ApiError for what is not text, and for the
    fields of a message that ask for more, such as `tool_calls`.
    """
    if not messages:
        raise invalid("messages must not be empty.", "messages", "invalid_value")
    return [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]


def joined(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """One message for those of the same role and name that follow each other, with empty lines between."""
    turns: list[dict[str, str]] = []
    for message in messages:
        if turns and {**turns[-1], "content": ""} == {**message, "content": ""}:
            turns[-1]["content"] += "\n\n" + message["content"]
        else:
            turns.append(dict(message))
    return turns


def _plain(message: Mapping[str, Any], where: str) -> dict[str, str]:
    fields = screen(message, _HONOURED, NEUTRAL_MESSAGE, f"{where}.")
    role = fields.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}.role must be one of {', '.join(ROLES)}, not {echo(role)}.", f"{where}.role")
    plain = {"role": ROLES[role], "content": _text(fields.get("content"), f"{where}.content")}
    if "name" in fields:
        plain["name"] = _string(fields["name"], f"{where}.name")
    return plain


def _text(content: object, where: str) -> str:
    if isinstance(content, list) and content:
        return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))
    return _string(content, where)


def _part(part: object, where: str) -> str:
    if not isinstance(part, dict):
        raise invalid(f"{where} must be an object.", where, "invalid_type")
    if part.get("type") != "text":
        kind = echo(part.get("type"))
        message = f"{where}: unsupported content part of type {kind}; this server reads text only."
        raise invalid(message, where, "unsupported_value")
    return _string(screen(part, ("type", "text"), {}, f"{where}.").get("text"), f"{where}.text")


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{where} must be text, not {type(value).__name__}.", where, "invalid_type")
    return value
