"""Renders the parts of an answer as an Anthropic message: blocks, whole or in events."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from pydantic_core import from_json

from corepipe.answers.parts import CallArguments, CallStart, Finish, Reasoning, Text
from corepipe.serving.api.answering.rendering import EmulatedTimes, ResponsePart, TokenUsage
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.routes.route import ANTHROPIC

encode = msgspec.json.encode

JsonObject = dict[str, Any]
BlockPart = Text | Reasoning | CallStart | CallArguments
BlockKey = tuple[str, int]
"""The type of a block, and the number of its call."""


class MessageForm(NamedTuple):
    """Facts about a request on which the form of its answer depends.

    most: the most tokens that it asked for.  block_size: that of the prefix cache if the request marks what
    to cache, else 0.  shows_thinking: reasoning has its text.
    """

    id: str
    model: str
    most: int
    block_size: int = 0
    shows_thinking: bool = True

    def message(self, blocks: Sequence[JsonObject], end: JsonObject, usage: TokenUsage) -> JsonObject:
        """Returns a message; `end`: why it ended."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": blocks,
            **end,
            "usage": {**self.usage(usage), "service_tier": "standard"},
        }

    def usage(self, usage: TokenUsage) -> JsonObject:
        """Returns counts of tokens: those of the prompt are divided into read from the prefix cache, written
        to it because the request asked for that, and others."""
        whole = usage.prompt // self.block_size * self.block_size if self.block_size else 0
        written = max(whole - usage.cached, 0)
        return {
            "input_tokens": usage.prompt - usage.cached - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.completion,
        }

    def end(self, finish: Finish, usage: TokenUsage, *, called: bool) -> JsonObject:
        """Returns the reason why an answer ended: at a stop sequence, with calls, cut, or by itself."""
        if isinstance(finish.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": finish.stop_reason}
        reason = "tool_use" if called else "end_turn"
        if finish.finish_reason == "length":
            reason = "max_tokens" if usage.completion >= self.most else "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": None}


_UNENDED = {"stop_reason": None, "stop_sequence": None}


class MessageRenderer:
    """Renders one answer."""

    def __init__(self, form: MessageForm) -> None:
        self._form = form
        self._finish: Finish | None = None
        self._open: BlockKey | None = None
        self._index = -1
        self._called = False
        self._delta = (b"", b"")
        self._thoughts = hashlib.sha256()

    def opening(self, choices: int, parts: Sequence[ResponsePart]) -> bytes:  # noqa: ARG002 -- there is one
        message = self._form.message([], _UNENDED, _usage(parts))
        return event("message_start", {"message": message}) + event("ping", {})

    def event(self, parts: Sequence[ResponsePart]) -> bytes:
        self._finish = next((part for part in parts if isinstance(part, Finish)), self._finish)
        return b"".join([self._part(key, part) for key, part in in_blocks(parts)])

    def closing(self, parts: Sequence[ResponsePart]) -> bytes:
        assert self._finish is not None
        usage = _usage(parts)
        delta = self._form.end(self._finish, usage, called=self._called)
        fields = {"delta": delta, "usage": self._form.usage(usage), **_device(parts)}
        return self._closed() + event("message_delta", fields) + event("message_stop", {})

    def failed(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + error.body(ANTHROPIC) + b"\n\n"

    def whole(self, parts: Sequence[ResponsePart]) -> bytes:
        usage = _usage(parts)
        ends = [part for part in parts if isinstance(part, Finish)]
        runs = groupby(in_blocks(parts), lambda item: item[0])
        blocks = [self._block(key, [part for _, part in run]) for key, run in runs]
        called = any(one["type"] == "tool_use" for one in blocks)
        message = self._form.message(blocks, self._form.end(ends[-1], usage, called=called), usage)
        return encode(message | _device(parts))

    def _block(self, key: BlockKey, parts: Sequence[BlockPart]) -> JsonObject:
        """Returns a whole block of these parts."""
        text = "".join([part.text for part in parts if not isinstance(part, CallStart)])
        if key[0] == "text":
            return {"type": "text", "text": text, "citations": None}
        if key[0] == "thinking":
            shown = text if self._form.shows_thinking else ""
            return {
                "type": "thinking",
                "thinking": shown,
                "signature": _signature(hashlib.sha256(text.encode())),
            }
        return {**_opened(key, parts[0]), "input": arguments(text)}

    def _part(self, key: BlockKey, part: BlockPart) -> bytes:
        """Returns the events of a part; it may end a block and begin another."""
        begun = b"" if key == self._open else self._closed() + self._begun(key, part)
        if isinstance(part, CallStart):
            return begun
        if isinstance(part, Reasoning):
            self._thoughts.update(part.text.encode())
            if not self._form.shows_thinking:
                return begun
        return begun + self._delta[0] + encode(part.text) + self._delta[1]

    def _begun(self, key: BlockKey, part: BlockPart) -> bytes:
        self._index += 1
        self._open = key
        self._called |= key[0] == "tool_use"
        kind, field = _DELTAS[key[0]]
        before, after = event(_DELTA, {"index": self._index, "delta": {"type": kind, field: ""}}).split(b'""')
        self._delta = (before, after)
        return event("content_block_start", {"index": self._index, "content_block": _opened(key, part)})

    def _closed(self) -> bytes:
        """Returns the end of the open block, if there is one; reasoning ends with its signature."""
        if self._open is None:
            return b""
        signed = b""
        if self._open[0] == "thinking":
            delta = {"type": "signature_delta", "signature": _signature(self._thoughts)}
            signed = event(_DELTA, {"index": self._index, "delta": delta})
            self._thoughts = hashlib.sha256()
        self._open = None
        return signed + event("content_block_stop", {"index": self._index})


_DELTA = "content_block_delta"
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type of the deltas of each type of block, and the field of their text."""


def event(name: str, fields: JsonObject) -> bytes:
    """Returns an event of a stream."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **fields}))


def in_blocks(parts: Iterable[ResponsePart]) -> Iterator[tuple[BlockKey, BlockPart]]:
    """Yields the parts that add something to a block, and which block that is."""
    for part in parts:
        if isinstance(part, Text):
            if part.text:
                yield ("text", 0), part
        elif isinstance(part, Reasoning):
            yield ("thinking", 0), part
        elif isinstance(part, CallStart | CallArguments):
            yield ("tool_use", part.index), part


def _opened(key: BlockKey, part: BlockPart) -> JsonObject:
    """Returns a block as it begins, without the text that follows."""
    if isinstance(part, CallStart):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
    if key[0] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": "", "citations": None}


def arguments(text: str) -> JsonObject:
    """Returns the arguments of a call as an object: of one that was cut, what is complete, as Anthropic's
    package reads it.  Text that is no JSON at all is the only argument."""
    try:
        value = from_json(text or "{}", allow_partial=True)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def _signature(digest: Any) -> str:  # noqa: ANN401 -- hashlib names no type for all hashes
    """Returns a signature of reasoning: clients send it back, and some want it not to be empty."""
    return b64encode(digest.digest()).decode()


def _usage(parts: Iterable[ResponsePart]) -> TokenUsage:
    return next(part for part in parts if isinstance(part, TokenUsage))


def _device(parts: Iterable[ResponsePart]) -> JsonObject:
    """Returns the emulated device's times, if they were asked for."""
    times = [part.fields() for part in parts if isinstance(part, EmulatedTimes)]
    return {"corepipe": times[0]} if times else {}
