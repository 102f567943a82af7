"""From the parts of an answer to its JSON, streamed or whole.

A stream's events with text alone are made from a template in which only the text changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from corepipe.serving.messages import DeviceTimes
from corepipe.serving.parts import Finish, Logprobs, Said, Text, joined_logprobs, joined_text
from corepipe.serving.telemetry.lateness import Verdict

encode = msgspec.json.encode


class Usage(msgspec.Struct, frozen=True):
    """Tokens counted over all choices, each prompt once."""

    prompt: int
    completion: int
    cached: int

    def fields(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Emulated(msgspec.Struct, frozen=True):
    """What the emulated device would have taken for each choice; `verdict`: does the host keep its pace?"""

    instance: str
    times: Sequence[DeviceTimes | None]
    verdict: Verdict

    def fields(self) -> dict[str, Any]:
        """Over several choices, the arrival and the first token are the earliest, and the time per token is
        the mean.  Null where no choice has one."""
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
        }


Part = Said | Usage | Emulated
"""Of what answers consist.  What a choice says bears its index, the others are of the whole answer."""


class Renderer(Protocol):
    """Writes the answer to one request."""

    def opening(self, choices: int) -> bytes:
        """What a stream of so many choices begins with."""
        ...

    def event(self, parts: Sequence[Part]) -> bytes:
        """Parts of a stream that came together, of one choice at most; empty where they say nothing."""
        ...

    def closing(self) -> bytes:
        """What a stream ends with."""
        ...

    def whole(self, parts: Sequence[Part]) -> bytes:
        """The body of an answer that is not streamed."""
        ...


class Shape(Protocol):
    """How one of OpenAI's APIs writes a choice."""

    whole_kind: str
    chunk_kind: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice that opens a stream, if the API has one."""
        ...

    def piece(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text of a chunk without logprobs or end, inside `choices`."""
        ...

    def chunk(
        self, index: int, text: str, logprobs: Logprobs | None, finish: Finish | None
    ) -> dict[str, Any]: ...

    def whole(self, index: int, text: str, logprobs: Logprobs | None, finish: Finish) -> dict[str, Any]: ...


class Vocabulary(Protocol):
    """What shapes need of a tokenizer."""

    def decode_token(self, token: int, /) -> str: ...

    def token_bytes(self, token: int, /) -> bytes: ...


class Envelope(msgspec.Struct, frozen=True):
    """What every object of one answer says: who answers, when, and in which configuration."""

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
    """Answers that list `choices`.  With `usage_chunk` every chunk but that one says `"usage": null`."""

    def __init__(self, shape: Shape, envelope: Envelope, *, usage_chunk: bool) -> None:
        self._shape = shape
        self._envelope = envelope
        self._head = b"data: " + encode(envelope.fields(shape.chunk_kind))[:-1]
        self._no_usage = b',"usage":null' if usage_chunk else b""
        self._pieces: dict[int, tuple[bytes, bytes]] = {}

    def opening(self, choices: int) -> bytes:
        opened = [self._shape.opening(index) for index in range(choices)]
        return b"".join(self._chunk(choice, b"") for choice in opened if choice is not None)

    def event(self, parts: Sequence[Part]) -> bytes:
        if len(parts) == 1 and type(only := parts[0]) is Text and only.logprobs is None:
            return self._piece(only.choice, only.text) if only.text else b""
        texts, finish, rest = _sorted(parts)
        if not texts and finish is None:
            return self._head + b',"choices":[]' + rest + b"}\n\n" if rest else b""
        text, logprobs = joined_text(texts), joined_logprobs(texts)
        if not text and logprobs is None and finish is None:
            return b""
        index = texts[0].choice if texts else finish.choice  # type: ignore[union-attr]
        return self._chunk(self._shape.chunk(index, text, logprobs, finish), rest)

    def closing(self) -> bytes:
        return b"data: [DONE]\n\n"

    def whole(self, parts: Sequence[Part]) -> bytes:
        said: dict[int, list[Said]] = {}
        ends: dict[int, Finish] = {}
        fields: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, Usage | Emulated):
                fields |= _answer_fields(part)
            elif isinstance(part, Finish):
                ends[part.choice] = part
            else:
                said.setdefault(part.choice, []).append(part)
        choices = [self._whole(said.get(index, []), ends[index]) for index in sorted(ends)]
        return encode({**self._envelope.fields(self._shape.whole_kind), "choices": choices, **fields})

    def _whole(self, said: Sequence[Said], finish: Finish) -> dict[str, Any]:
        texts = [part for part in said if isinstance(part, Text)]
        return self._shape.whole(finish.choice, joined_text(texts), joined_logprobs(texts), finish)

    def _piece(self, index: int, text: str) -> bytes:
        """An event with text alone: what a stream mostly consists of."""
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


def _sorted(parts: Iterable[Part]) -> tuple[list[Text], Finish | None, bytes]:
    """(texts, end, further fields of the object) of parts of one choice at most."""
    texts, finish = [], None
    fields: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, Text):
            texts.append(part)
        elif isinstance(part, Finish):
            finish = part
        elif isinstance(part, Usage | Emulated):
            fields |= _answer_fields(part)
    return texts, finish, b"," + encode(fields)[1:-1] if fields else b""


def _answer_fields(part: Usage | Emulated) -> dict[str, Any]:
    return {"usage" if isinstance(part, Usage) else "corepipe": part.fields()}
