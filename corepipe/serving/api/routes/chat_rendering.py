"""Renders chat completions as JSON: texts, and for models that have them, reasoning and calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from corepipe.answers.parts import (
    CallArguments,
    CallStart,
    Finish,
    Logprobs,
    Reasoning,
    joined_calls,
    joined_reasoning,
)
from corepipe.serving.api.answering.answers import (
    ApiFinishReason,
    DeviceTimes,
    PromptDetails,
    Strict,
    TokenTexts,
    Usage,
)
from corepipe.serving.api.answering.rendering import (
    ChoiceParts,
    ChoicesRenderer,
    ResponsePart,
    TokenUsage,
    rest_of,
)


class TopLogprob(Strict):
    token: str
    logprob: float | None
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Strict):
    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Strict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(Strict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ApiFinishReason | Literal["tool_calls"]
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(PromptDetails, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    corepipe: DeviceTimes | UnsetType = UNSET


class ChatShape:
    """The form of choices in a `chat.completion` and a `chat.completion.chunk`."""

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    one_prompt = True

    def __init__(self, vocabulary: TokenTexts) -> None:
        self._vocabulary = vocabulary

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._choice(index, {"role": "assistant", "content": ""}, None, None)

    def piece(self, index: int) -> tuple[bytes, bytes]:
        before = b'{"index":%d,"delta":{"content":' % index
        return before, b'},"logprobs":null,"finish_reason":null,"stop_reason":null}'

    def chunk(
        self, index: int, text: str, logprobs: Logprobs | None, finish: Finish | None
    ) -> dict[str, Any]:
        return self._choice(index, {"content": text} if text else {}, logprobs, finish)

    def whole(self, index: int, text: str, logprobs: Logprobs | None, finish: Finish) -> dict[str, Any]:
        choice = self._choice(index, {}, logprobs, finish)
        del choice["delta"]
        choice["message"] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        return choice

    def _choice(
        self, index: int, delta: dict[str, Any], logprobs: Logprobs | None, finish: Finish | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": finish and finish.finish_reason,
            "stop_reason": finish and finish.stop_reason,
        }

    def _logprobs(self, logprobs: Logprobs) -> dict[str, Any]:
        return {"content": token_logprobs(self._vocabulary, logprobs), "refusal": None}


def token_logprobs(vocabulary: TokenTexts, logprobs: Logprobs) -> list[dict[str, Any]]:
    """Returns the logprobs of tokens, and of the most likely tokens in place of each."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = vocabulary.decode_token(token)
        return {"token": text, "logprob": logprob, "bytes": list(vocabulary.token_bytes(token))}

    return [
        entry(one.token, one.logprob) | {"top_logprobs": [entry(token, value) for token, value in one.top]}
        for one in logprobs.entries
        if one is not None
    ]


class ChatRenderer(ChoicesRenderer):
    """Renders answers that may have reasoning and calls.  The content of a message without text is null."""

    def _opened(self, index: int) -> dict[str, Any] | None:
        return _said(index, {"role": "assistant", "content": None})

    def event(self, parts: Sequence[ResponsePart]) -> bytes:
        """Returns a chunk for each run of parts of one kind; the end shares a chunk only with text."""
        usage = [part for part in parts if isinstance(part, TokenUsage)]
        rest = [part for part in parts if not isinstance(part, TokenUsage)]
        return b"".join(self._run(list(run), usage) for _, run in groupby(rest, _kind))

    def _run(self, parts: Sequence[ResponsePart], usage: Sequence[TokenUsage]) -> bytes:
        thoughts = [part for part in parts if isinstance(part, Reasoning)]
        if thoughts:
            return self._delta(thoughts[0].choice, _reasoning(joined_reasoning(thoughts)), usage)
        called = [part for part in parts if isinstance(part, CallStart | CallArguments)]
        if called:
            return self._delta(called[0].choice, {"tool_calls": _fragments(called)}, usage)
        return super().event([*parts, *usage])

    def _delta(self, index: int, delta: dict[str, Any], usage: Sequence[TokenUsage]) -> bytes:
        return self._chunk(_said(index, delta), b"".join(rest_of({"usage": one.fields()}) for one in usage))

    def _whole(self, index: int, parts: ChoiceParts) -> dict[str, Any]:
        choice = super()._whole(index, parts)
        message = choice["message"]
        message["content"] = message["content"] or None
        if thoughts := joined_reasoning(parts.others):
            message |= _reasoning(thoughts)
        if calls := joined_calls(parts.others):
            message["tool_calls"] = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in calls
            ]
        return choice


class UnreasonedRenderer(ChatRenderer):
    """Renders the same answers without reasoning (`include_reasoning: false`)."""

    def event(self, parts: Sequence[ResponsePart]) -> bytes:
        return super().event(_unreasoned(parts))

    def whole(self, parts: Sequence[ResponsePart]) -> bytes:
        return super().whole(_unreasoned(parts))


def _unreasoned(parts: Sequence[ResponsePart]) -> list[ResponsePart]:
    return [part for part in parts if not isinstance(part, Reasoning)]


def _said(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, "stop_reason": None}


def _kind(part: ResponsePart) -> str:
    if isinstance(part, Reasoning):
        return "thoughts"
    return "calls" if isinstance(part, CallStart | CallArguments) else "text"


def _reasoning(text: str) -> dict[str, str]:
    """Returns reasoning under both of its names: clients read one of them."""
    return {"reasoning": text, "reasoning_content": text}


def _fragments(parts: Sequence[CallStart | CallArguments]) -> list[dict[str, Any]]:
    """Returns a fragment for each call; clients join fragments by index, all fields but index and type."""
    found: dict[int, dict[str, Any]] = {}
    for part in parts:
        if isinstance(part, CallStart):
            function = {"name": part.name, "arguments": ""}
            found[part.index] = {"index": part.index, "id": part.id, "type": "function", "function": function}
        else:
            empty = {"index": part.index, "function": {"arguments": ""}}
            found.setdefault(part.index, empty)["function"]["arguments"] += part.text
    return list(found.values())
