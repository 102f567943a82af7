"""Translates the messages of Anthropic's requests, block by block, into those of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from corepipe.serving.api.http.errors import ApiError, invalid
from corepipe.serving.api.messages.blocks import (
    AssistantTurn,
    ContentSource,
    DocumentBlock,
    ImageBlock,
    RedactedThinkingBlock,
    ResultContent,
    SearchResultBlock,
    SystemTurn,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    UserContent,
)

ChatTurn = dict[str, Any]
"""A message of a chat, as in its body."""

BILLING = "x-anthropic-billing-header"
"""Claude Code's system prompt begins with a line of this name that differs in each turn."""


class TurnTranslator:
    """Translates the messages of one request.  `ignored`: paths of what has no effect."""

    def __init__(self) -> None:
        self.ignored: list[str] = []
        self._names: dict[str, str] = {}

    def messages(self, system: str | Sequence[TextBlock] | None, turns: Sequence[Turn]) -> list[ChatTurn]:
        """Returns the messages of a chat: the last one is the assistant's if it is to be continued.

        Raises ApiError for blocks that models here cannot read.
        """
        said = self._instructions(system)
        for at, turn in enumerate(turns):
            where = f"messages[{at}].content"
            if isinstance(turn, AssistantTurn):
                said += self._answer(turn, where, last=at == len(turns) - 1)
            elif isinstance(turn, SystemTurn):
                said.append({"role": "system", "content": _texts(turn.content)})
            elif isinstance(turn.content, str):
                said.append({"role": "user", "content": turn.content})
            else:
                said += self._asked(turn.content, where)
        if not said:
            raise invalid("messages must not be empty.", "messages")
        return said

    def _instructions(self, system: str | Sequence[TextBlock] | None) -> list[ChatTurn]:
        texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
        kept = [_unbilled(text) for text in texts]
        changed = [at for at, (text, rest) in enumerate(zip(texts, kept, strict=True)) if text != rest]
        self.ignored += ["system" if isinstance(system, str) else f"system[{at}]" for at in changed]
        text = "\n\n".join(filter(None, kept))
        return [{"role": "system", "content": text}] if text else []

    def _asked(self, blocks: Sequence[UserContent], where: str) -> list[ChatTurn]:
        """Returns results of calls as messages of their own, in their order among the user's texts."""
        said: list[ChatTurn] = []
        for at, block in enumerate(blocks):
            path = f"{where}[{at}]"
            if isinstance(block, ToolResultBlock):
                said.append(self._result(block, path))
                continue
            if not said or said[-1]["role"] != "user":
                said.append({"role": "user", "content": []})
            said[-1]["content"].append({"type": "text", "text": self._text(block, path)})
        return said or [{"role": "user", "content": ""}]

    def _result(self, block: ToolResultBlock, where: str) -> ChatTurn:
        content = block.content or ""
        if not isinstance(content, str):
            path = f"{where}.content[{{}}]"
            content = "\n".join(self._text(one, path.format(at)) for at, one in enumerate(content))
        if block.is_error:
            content = f"Error: {content}" if content else "Error"
        turn = {"role": "tool", "content": content, "tool_call_id": block.tool_use_id}
        named = self._names.get(block.tool_use_id)
        return turn if named is None else {**turn, "name": named}

    def _text(self, block: ResultContent | UserContent, where: str) -> str:
        """Returns what the model reads of a block.  Raises ApiError for what is no text."""
        match block:
            case TextBlock():
                return block.text
            case DocumentBlock():
                self._cites(block, where)
                lines = (block.title, block.context, _document(block, where))
                return "\n\n".join(filter(None, lines))
            case SearchResultBlock():
                self._cites(block, where)
                return "\n".join((block.title, block.source, *(one.text for one in block.content)))
            case ToolReferenceBlock():
                return block.tool_name
        raise _unread(block, where)

    def _cites(self, block: DocumentBlock | SearchResultBlock, where: str) -> None:
        if block.citations is not None and block.citations.enabled:
            self.ignored.append(f"{where}.citations")

    def _answer(self, turn: AssistantTurn, where: str, *, last: bool) -> list[ChatTurn]:
        """Returns a message of the model; none for an empty last one, which begins nothing."""
        blocks = [TextBlock(text=turn.content)] if isinstance(turn.content, str) else turn.content
        said: ChatTurn = {"role": "assistant", "content": ""}
        texts = [one.text for one in blocks if isinstance(one, TextBlock)]
        thoughts = [one.thinking for one in blocks if isinstance(one, ThinkingBlock)]
        calls = [one for one in blocks if isinstance(one, ToolUseBlock)]
        self.ignored += [
            f"{where}[{at}]" for at, one in enumerate(blocks) if isinstance(one, RedactedThinkingBlock)
        ]
        if last and calls:
            raise invalid("messages: the last message calls tools; send their results after it.", "messages")
        if last and not any(texts):
            return []
        said["content"] = "".join(texts)
        if any(thoughts):
            said["reasoning"] = "\n".join(filter(None, thoughts))
        if calls:
            self._names |= {one.id: one.name for one in calls}
            said["tool_calls"] = [_call(one) for one in calls]
        return [said]


def _call(block: ToolUseBlock) -> ChatTurn:
    function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


def _unbilled(text: str) -> str:
    """Returns a system text without the line that differs in each turn, so that its prefix is found again."""
    return text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING) else text


def _texts(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n\n".join(block.text for block in content)


def _document(block: DocumentBlock, where: str) -> str:
    source = block.source
    if isinstance(source, TextSource):
        return source.data
    if not isinstance(source, ContentSource):
        raise _unread(block, where)
    if isinstance(source.content, str):
        return source.content
    for at, one in enumerate(source.content):
        if isinstance(one, ImageBlock):
            raise _unread(one, f"{where}.source.content[{at}]")
    return "\n\n".join(one.text for one in source.content if isinstance(one, TextBlock))


def _unread(block: object, where: str) -> ApiError:
    """Returns the error for images and for documents that are files."""
    what = "a document of this source" if isinstance(block, DocumentBlock) else "an image"
    message = f"{where}: {what} is not supported; this server reads text only."
    return invalid(message, where, "unsupported_value")
