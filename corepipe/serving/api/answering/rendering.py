"""Renders the parts of an answer as JSON, streamed or whole.

A stream's events with text alone are made from a template in which only the text changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import msgspec

from corepipe.answers.parts import (
    Finish,
    Logprobs,
    PromptTokens,
    Said,
    Text,
    Tokens,
    joined_logprobs,
    joined_text,
)
from corepipe.engine.messages import DeviceTimes, Predicted, Speculated
from corepipe.serving.api.answering.answers import TokenTexts, prompt_fields
from corepipe.serving.api.answering.submission import AnswerPart
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.telemetry.lateness import LatenessVerdict

encode = msgspec.json.encode


class TokenUsage(msgspec.Struct, frozen=True):
    """Token counts over all choices, each prompt once; `predicted`: set if there was a prediction."""

    prompt: int
    completion: int
    cached: int
    predicted: Predicted | None = None

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
        if self.predicted is not None:
            fields["completion_tokens_details"] = {
                "accepted_prediction_tokens": self.predicted.accepted,
                "rejected_prediction_tokens": self.predicted.rejected,
            }
        return fields


class EmulatedTimes(msgspec.Struct, frozen=True):
    """The emulated device's times for each choice; `verdict`: whether the host keeps the device's pace.
    `speculated`: the results of speculative decoding for each choice."""

    instance: str
    times: Sequence[DeviceTimes | None]
    verdict: LatenessVerdict
    speculated: Sequence[Speculated | None] = ()

    def fields(self) -> dict[str, Any]:
        """Returns the fields of the answer: over several choices the earliest arrival, the earliest first
        token and the mean time per token.  Null where no choice has one."""
        known = [one for one in self.times if one is not None]
        per_token = [t.time_per_output_token_ms for t in known if t.time_per_output_token_ms is not None]
        return {
            "device": self.instance,
            "emulated": True,
            "valid": self.verdict.valid,
            "time_scale_needed": None if self.verdict.valid else self.verdict.time_scale_needed,
            "arrived_at_s": min((one.arrived_at_s for one in known), default=None),
            "time_to_first_token_ms": min((one.time_to_first_token_ms for one in known), default=None),
            "time_per_output_token_ms": sum(per_token) / len(per_token) if per_token else None,
            **_speculation([one for one in self.speculated if one is not None]),
        }


def _speculation(known: Sequence[Speculated]) -> dict[str, Any]:
    """Returns speculative decoding's figures of all choices, under vLLM's names; empty without drafts."""
    if not known:
        return {}
    histogram = [sum(steps) for steps in zip_longest(*(one.histogram for one in known), fillvalue=0)]
    steps, tokens = sum(histogram), sum(one.tokens for one in known)
    accepted = sum(right * count for right, count in enumerate(histogram))
    figures = {
        "mean_acceptance_length": 1 + accepted / steps if steps else None,
        "draft_acceptance_rate": accepted / tokens if tokens else None,
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "assumed": known[0].assumed,
    }
    return {"speculative_decoding": figures}


ResponsePart = AnswerPart | TokenUsage | EmulatedTimes
"""The parts that answers consist of.  A choice's parts have its index, the others are of the whole answer."""


class Renderer(Protocol):
    """Writes the answer to one request."""

    def opening(self, choices: int, parts: Sequence[ResponsePart]) -> bytes:
        """Returns the beginning of a stream of `choices` choices; `parts`: those known before the text."""
        ...

    def event(self, parts: Sequence[ResponsePart]) -> bytes:
        """Returns the event of parts of one choice that came together; empty if there is nothing to send."""
        ...

    def closing(self, parts: Sequence[ResponsePart]) -> bytes:
        """Returns the end of a stream; `parts` of the whole answer are sent in an event of their own."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """Returns the end of a stream that failed."""
        ...

    def whole(self, parts: Sequence[ResponsePart]) -> bytes:
        """Returns the body of an answer that is not streamed."""
        ...


class ChoiceShape(Protocol):
    """The form in which one of OpenAI's APIs writes a choice."""

    whole_kind: str
    chunk_kind: str
    one_prompt: bool
    """True if all choices answer one prompt, whose fields are in the answer, not in each choice."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Returns the choice that opens a stream, if the API has one."""
        ...

    def piece(self, index: int) -> tuple[bytes, bytes]:
        """Returns what is before and after the text of a chunk that has text alone, inside `choices`."""
        ...

    def chunk(
        self, index: int, text: str, logprobs: Logprobs | None, finish: Finish | None
    ) -> dict[str, Any]: ...

    def whole(self, index: int, text: str, logprobs: Logprobs | None, finish: Finish) -> dict[str, Any]: ...


class Envelope(msgspec.Struct, frozen=True):
    """The fields that all objects of one answer share: id, time, model and configuration."""

    id: str
    created: int
    model: str
    fingerprint: str

    def fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class ChoicesRenderer:
    """Renders answers that list `choices`.  With `usage_chunk` all chunks but that have `"usage": null`."""

    def __init__(
        self, shape: ChoiceShape, vocabulary: TokenTexts, envelope: Envelope, *, usage_chunk: bool
    ) -> None:
        self._shape = shape
        self._vocabulary = vocabulary
        self._envelope = envelope
        self._head = b"data: " + encode(envelope.fields(shape.chunk_kind))[:-1]
        self._no_usage = b',"usage":null' if usage_chunk else b""
        self._pieces: dict[int, tuple[bytes, bytes]] = {}

    def opening(self, choices: int, parts: Sequence[ResponsePart]) -> bytes:
        opened = [one for one in map(self._opened, range(choices)) if one is not None]
        if not opened:
            return b""
        by_choice, fields = _sorted(parts)
        rest = [rest_of(fields | self._of_answer(by_choice)), *[rest_of(fields)] * (len(opened) - 1)]
        return b"".join(map(self._chunk, opened, rest))

    def _opened(self, index: int) -> dict[str, Any] | None:
        return self._shape.opening(index)

    def event(self, parts: Sequence[ResponsePart]) -> bytes:
        if len(parts) == 1 and type(only := parts[0]) is Text and only.logprobs is None:
            return self._piece(only.choice, only.text) if only.text else b""
        choices, fields = _sorted(parts)
        if not choices:
            return b""
        rest = rest_of(fields)
        ((index, choice),) = choices.items()
        text, logprobs, finish = joined_text(choice.texts), joined_logprobs(choice.texts), choice.finish
        details = self._of_choice(choice)
        if not text and logprobs is None and finish is None and not any(details.values()):
            return b""
        return self._chunk(self._shape.chunk(index, text, logprobs, finish) | details, rest)

    def closing(self, parts: Sequence[ResponsePart]) -> bytes:
        _, fields = _sorted(parts)
        usage = self._head + b',"choices":[]' + rest_of(fields) + b"}\n\n" if fields else b""
        return usage + b"data: [DONE]\n\n"

    def failed(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n"

    def whole(self, parts: Sequence[ResponsePart]) -> bytes:
        by_choice, fields = _sorted(parts)
        choices = [self._whole(index, one) for index, one in sorted(by_choice.items())]
        envelope = self._envelope.fields(self._shape.whole_kind)
        return encode({**envelope, "choices": choices, **fields, **self._of_answer(by_choice)})

    def _whole(self, index: int, parts: ChoiceParts) -> dict[str, Any]:
        assert parts.finish is not None
        text, logprobs = joined_text(parts.texts), joined_logprobs(parts.texts)
        return self._shape.whole(index, text, logprobs, parts.finish) | self._of_choice(parts)

    def _of_choice(self, parts: ChoiceParts) -> dict[str, Any]:
        """Returns the fields of a choice beside its text."""
        fields: dict[str, Any] = {} if parts.tokens is None else {"token_ids": parts.tokens}
        if parts.prompt is not None and not self._shape.one_prompt:
            fields |= prompt_fields(parts.prompt, self._vocabulary)
        return fields

    def _of_answer(self, choices: Mapping[int, ChoiceParts]) -> dict[str, Any]:
        """Returns the fields of the whole answer; they are the same in each choice."""
        prompts = [one.prompt for one in choices.values() if one.prompt is not None]
        return prompt_fields(prompts[0], self._vocabulary) if prompts and self._shape.one_prompt else {}

    def _piece(self, index: int, text: str) -> bytes:
        """Returns an event with text alone: most events of a stream are such."""
        ends = self._pieces.get(index)
        if ends is None:
            before, after = self._shape.piece(index)
            ends = self._pieces[index] = (
                self._head + b',"choices":[' + before,
                after + b"]" + self._no_usage + b"}\n\n",
            )
        return ends[0] + encode(text) + ends[1]

    def _chunk(self, choice: dict[str, Any], rest: bytes) -> bytes:
        return self._head + b',"choices":[' + encode(choice) + b"]" + self._no_usage + rest + b"}\n\n"


@dataclass(slots=True)
class ChoiceParts:
    """The parts of one choice, sorted by the field that they become."""

    texts: list[Text] = field(default_factory=list)
    finish: Finish | None = None
    prompt: PromptTokens | None = None
    tokens: list[int] | None = None
    others: list[Said] = field(default_factory=list)

    def add(self, part: AnswerPart) -> None:
        if isinstance(part, Text):
            self.texts.append(part)
        elif isinstance(part, Finish):
            self.finish = part
        elif isinstance(part, PromptTokens):
            self.prompt = part
        elif isinstance(part, Tokens):
            self.tokens = self.tokens or []
            self.tokens += part.tokens
        else:
            self.others.append(part)


def _sorted(parts: Iterable[ResponsePart]) -> tuple[dict[int, ChoiceParts], dict[str, Any]]:
    """Returns the parts of each choice, and the fields of the whole object."""
    choices: dict[int, ChoiceParts] = {}
    fields: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, TokenUsage | EmulatedTimes):
            fields["usage" if isinstance(part, TokenUsage) else "corepipe"] = part.fields()
        else:
            choices.setdefault(part.choice, ChoiceParts()).add(part)
    return choices, fields


def rest_of(fields: Mapping[str, Any]) -> bytes:
    """Returns further fields of an object whose first fields are written already."""
    return b"," + encode(fields)[1:-1] if fields else b""
