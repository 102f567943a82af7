"""Writes the parts of an answer as a response: its events, or the whole object, which the last event has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from corepipe.answers.parts import CallArguments, CallStart, Finish, Reasoning, Text
from corepipe.serving.api.answering.rendering import EmulatedTimes, ResponsePart, TokenUsage
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.responses.output import (
    Event,
    GrowingCall,
    GrowingCustomCall,
    GrowingItem,
    GrowingMessage,
    GrowingReasoning,
    call_id_of,
)
from corepipe.serving.api.responses.resource import ResponseObject, failure_code, usage_fields
from corepipe.serving.api.responses.tools import CalledTool
from corepipe.serving.api.routes.chat_rendering import token_logprobs

if TYPE_CHECKING:  # slow to import
    from corepipe.models.text.tokenizer import Tokenizer


class ResponseRenderer:
    """Renders one response.

    tools: the client's tools, by the names that the model knows.  encrypted, reasoned: reasoning is sealed,
    too, or left out.
    """

    def __init__(
        self,
        response: ResponseObject,
        tokenizer: Tokenizer,
        tools: Mapping[str, CalledTool],
        *,
        encrypted: bool = False,
        reasoned: bool = True,
    ) -> None:
        self._response = response
        self._tokenizer = tokenizer
        self._tools = tools
        self._encrypted = encrypted
        self._reasoned = reasoned
        self._sent = 0
        self._done: list[dict[str, Any]] = []
        self._open: GrowingItem | None = None
        self._calls = 0
        self._thoughts: list[str] = []
        self._finish: Finish | None = None

    def opening(self, choices: int, parts: Sequence[ResponsePart]) -> bytes:  # noqa: ARG002
        begun = {"response": self._response.fields("in_progress", ())}
        return self._written((("response.created", begun), ("response.in_progress", begun)))

    def event(self, parts: Sequence[ResponsePart]) -> bytes:
        return self._written(self._events(parts))

    def closing(self, parts: Sequence[ResponsePart]) -> bytes:
        ended = self._ended(parts)
        return self._written([(f"response.{ended['status']}", {"response": ended})])

    def failed(self, error: ApiError) -> bytes:
        ended = self._response.failed(error, self._done)
        told = {"code": failure_code(error), "message": error.message, "param": error.param}
        error_event = {**told, "error": {"type": error.type, **told}}
        return self._written((("error", error_event), ("response.failed", {"response": ended})))

    def whole(self, parts: Sequence[ResponsePart]) -> bytes:
        for _ in self._events(parts):
            pass
        return msgspec.json.encode(self._ended(parts))

    def _ended(self, parts: Sequence[ResponsePart]) -> dict[str, Any]:
        assert self._finish is not None
        usage: dict[str, Any] | None = None
        for part in parts:
            if isinstance(part, TokenUsage):
                thoughts = self._tokenizer.encode("".join(self._thoughts), add_special_tokens=False)
                usage = usage_fields(part, len(thoughts))
        ended = self._response.ended(self._finish.finish_reason, self._done, usage)
        for part in parts:
            if isinstance(part, EmulatedTimes):
                ended["corepipe"] = part.fields()
        return ended

    def _written(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._numbered(kind, fields) for kind, fields in events])

    def _numbered(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        data = msgspec.json.encode({"type": kind, "sequence_number": self._sent, **fields})
        self._sent += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _events(self, parts: Iterable[ResponsePart]) -> Iterator[Event]:
        for part in parts:
            if isinstance(part, Text):
                yield from self._text(part)
            elif isinstance(part, Reasoning):
                yield from self._thought(part.text)
            elif isinstance(part, CallStart):
                yield from self._call(part)
            elif isinstance(part, CallArguments):
                assert isinstance(self._open, GrowingCall)
                yield from self._open.add(part.text)
            elif isinstance(part, Finish):
                yield from self._end(part)

    def _text(self, part: Text) -> Iterator[Event]:
        logprobs = token_logprobs(self._tokenizer, part.logprobs) if part.logprobs else []
        if part.text and not isinstance(self._open, GrowingMessage):
            yield from self._begun(GrowingMessage(*self._next))
        if isinstance(self._open, GrowingMessage) and (part.text or logprobs):
            yield self._open.add(part.text, logprobs)

    def _thought(self, text: str) -> Iterator[Event]:
        self._thoughts.append(text)
        if not (self._reasoned and text):
            return
        if not isinstance(self._open, GrowingReasoning):
            yield from self._begun(GrowingReasoning(*self._next, encrypted=self._encrypted))
        assert isinstance(self._open, GrowingReasoning)
        yield self._open.add(text)

    def _call(self, start: CallStart) -> Iterator[Event]:
        tool = self._tools.get(start.name, CalledTool(start.name))
        call_id = call_id_of(self._response.id, self._calls, start.id)
        self._calls += 1
        kind = GrowingCustomCall if tool.custom else GrowingCall
        yield from self._begun(kind(*self._next, call_id, tool))

    @property
    def _next(self) -> tuple[str, int]:
        """The response, and the place of its next item."""
        return self._response.id, len(self._done) + (self._open is not None)

    def _begun(self, item: GrowingItem) -> Iterator[Event]:
        yield from self._closed("completed")
        self._open = item
        yield from item.opened()

    def _closed(self, status: str) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.closed(status)
            self._done.append(self._open.fields(status))
            self._open = None

    def _end(self, finish: Finish) -> Iterator[Event]:
        """Ends the last item; an answer without any item has an empty message."""
        self._finish = finish
        if self._open is None and not self._done:
            yield from self._begun(GrowingMessage(*self._next))
        yield from self._closed("incomplete" if finish.finish_reason == "length" else "completed")
