"""Converts messages' contents to the form that a chat template reads: a text, or parts, or the first part."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from corepipe.errors import UserError

Message = Mapping[str, Any]

WORDS = ("zebra417", "walrus285")
"""The words of a probe: two, so that a template that reads only the first part is recognised."""
ROLES = ("assistant", "system", "tool")
"""Roles besides users, in the order of probing: each probe uses the forms found before."""

_CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}
_TOOL = {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": _TOOL}]
"""Variables of a probe, whose messages call this tool."""


@dataclass(frozen=True, slots=True)
class Form:
    """The forms of a role's content that are rendered whole: `text`, several `parts`, or a single one."""

    text: bool
    parts: bool
    single: bool

    @property
    def known(self) -> bool:
        return self.text or self.parts or self.single

    def of(self, content: object) -> object:
        """Returns a content in a form that the template reads; unchanged where it is one."""
        if isinstance(content, str):
            return _parts(content) if self.known and not self.text else content
        if self.parts or not _is_text(content):
            return content
        return _parts(text_of(content)) if self.single and not self.text else text_of(content)


TEXT = Form(text=True, parts=False, single=False)


class ContentForms:
    """The form of each role's content; roles that are not among `forms` have the user's.

    drops: the template renders nothing of what a user says, in any form.
    """

    def __init__(self, forms: Mapping[str, Form], *, drops: bool) -> None:
        self._forms = forms
        self._others = forms["user"]
        self.drops = drops

    def adapted(self, messages: Sequence[Message]) -> list[Message]:
        """Returns the messages with their contents as the template reads them."""
        return [self._adapted(one) for one in messages]

    def _adapted(self, message: Message) -> Message:
        if "content" not in message or message["content"] is None:
            return message
        form = self._forms.get(str(message.get("role")), self._others)
        return {**message, "content": form.of(message["content"])}


Render = Callable[[Sequence[Message]], "str | None"]
"""A function that renders messages; None where the template refuses them."""


def found_forms(render: Render) -> ContentForms:
    """Tries every role's content in every form, with `TOOLS` to call."""
    lead, user = _first_taken(render)
    forms = {"user": user if user is not None and user.known else TEXT}
    for role in ROLES:
        made = _tried(render, partial(_conversation, role, [] if role == "system" else lead, forms))
        forms[role] = made if made is not None and made.known else forms["user"]
    return ContentForms(forms, drops=user is not None and not user.known)


def _first_taken(render: Render) -> tuple[list[Message], Form | None]:
    """Returns the messages required before a user's, and the form of that message; None: all are refused."""
    found: Form | None = None
    for told in (None, "a", _parts("a")):
        lead: list[Message] = [] if told is None else [{"role": "system", "content": told}]
        form = _tried(render, partial(_asked, lead))
        if form is not None and form.known:
            return lead, form
        found = found or form
    return [], found


def _asked(lead: Sequence[Message], content: object) -> list[Message]:
    return [*lead, {"role": "user", "content": content}]


def _tried(render: Render, conversation: Callable[[object], Sequence[Message]]) -> Form | None:
    """Returns the form in which a content of a conversation is rendered; None: every form is refused."""
    made = [render(conversation(content)) for content in (WORDS[0], _parts(*WORDS), _parts(WORDS[0]))]
    if all(one is None for one in made):
        return None
    said = (WORDS[:1], WORDS, WORDS[:1])
    return Form(*(one is not None and _says(one, words) for one, words in zip(made, said, strict=True)))


def dropped() -> UserError:
    """Returns the error for a template that drops what users say."""
    return UserError(
        "the chat template renders nothing of what a user says, neither as a text nor as a list of "
        '{"type": "text", "text": ...}: give another (--chat-template)',
        "messages",
    )


def text_of(content: object) -> str:
    """Returns the text of a content: texts of parts are lines."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else ()
    return "\n".join(part["text"] for part in parts)


def _is_text(content: object) -> bool:
    """Tells whether the content is a list of texts, and of nothing else."""
    return isinstance(content, list | tuple) and all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    )


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _conversation(
    role: str, lead: Sequence[Message], forms: Mapping[str, Form], content: object
) -> list[Message]:
    """Returns a conversation in which a role says this."""
    said = {"role": role, "content": content}
    user = {"role": "user", "content": forms["user"].of("a")}
    if role == "system":
        return [said, user]
    if role == "assistant":
        return [*lead, user, said, user]
    calls = {"role": "assistant", "content": forms["assistant"].of(""), "tool_calls": [_CALL]}
    return [*lead, user, calls, {**said, "name": "f", "tool_call_id": _CALL["id"]}]


def _says(rendered: str, words: Sequence[str]) -> bool:
    """Tells whether the words are rendered, and not as Python or JSON writes a part."""
    lower = rendered.lower()
    return all(word in lower and not re.search(rf"['\"]text['\"]: ?\\*['\"]{word}", lower) for word in words)
