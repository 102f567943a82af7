"""The JSON of answers.  A stream's chunks are rendered from templates in which only the text changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from corepipe.serving.messages import DeviceTimes, TokenLogprobs
from corepipe.serving.telemetry.lateness import Verdict

DONE = b"data: [DONE]\n\n"

encode = msgspec.json.encode


class Logprobs(msgspec.Struct, frozen=True):
    """Logprobs of consecutive tokens; `offsets` are where their texts start.  None: a token without one."""

    tokens: Sequence[int]
    entries: Sequence[TokenLogprobs | None]
    offsets: Sequence[int]


class Ending(msgspec.Struct, frozen=True):
    """Why a choice ended: OpenAI's `finish_reason`, and the stop string or token as `stop_reason`."""

    finish_reason: str
    stop_reason: str | int | None


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


class Vocabulary(Protocol):
    def decode_token(self, token: int, /) -> str: ...

    def token_bytes(self, token: int, /) -> bytes: ...


class Shape(Protocol):
    """How one of the two APIs writes choices."""

    whole_kind: str
    chunk_kind: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice that opens a stream, if the API has one."""
        ...

    def piece(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text of a chunk without logprobs or ending, inside `choices`."""
        ...

    def chunk(
        self, index: int, text: str, logprobs: Logprobs | None, ending: Ending | None
    ) -> dict[str, Any]: ...

    def whole(self, index: int, text: str, logprobs: Logprobs | None, ending: Ending) -> dict[str, Any]: ...


class CompletionShape:
    """`text_completion`."""

    whole_kind = chunk_kind = "text_completion"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def opening(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002
        return None

    def piece(self, index: int) -> tuple[bytes, bytes]:
        before = b'{"index":%d,"text":' % index
        return before, b',"logprobs":null,"finish_reason":null,"stop_reason":null}'

    def chunk(
        self, index: int, text: str, logprobs: Logprobs | None, ending: Ending | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": ending and ending.finish_reason,
            "stop_reason": ending and ending.stop_reason,
        }

    def whole(self, index: int, text: str, logprobs: Logprobs | None, ending: Ending) -> dict[str, Any]:
        return self.chunk(index, text, logprobs, ending)

    def _logprobs(self, logprobs: Logprobs) -> dict[str, Any]:
        name = self._vocabulary.decode_token
        return {
            "tokens": [name(token) for token in logprobs.tokens],
            "token_logprobs": [entry and entry.logprob for entry in logprobs.entries],
            "top_logprobs": [entry and self._top(entry) for entry in logprobs.entries],
            "text_offset": list(logprobs.offsets),
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        name = self._vocabulary.decode_token
        chosen = {name(entry.token): entry.logprob}
        return {name(token): value for token, value in entry.top} | chosen


class ChatShape:
    """`chat.completion` and `chat.completion.chunk`."""

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._choice(index, {"role": "assistant", "content": ""}, None, None)

    def piece(self, index: int) -> tuple[bytes, bytes]:
        before = b'{"index":%d,"delta":{"content":' % index
        return before, b'},"logprobs":null,"finish_reason":null,"stop_reason":null}'

    def chunk(
        self, index: int, text: str, logprobs: Logprobs | None, ending: Ending | None
    ) -> dict[str, Any]:
        return self._choice(index, {"content": text} if text else {}, logprobs, ending)

    def whole(self, index: int, text: str, logprobs: Logprobs | None, ending: Ending) -> dict[str, Any]:
        choice = self._choice(index, {}, logprobs, ending)
        del choice["delta"]
        choice["message"] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        return choice

    def _choice(
        self, index: int, delta: dict[str, Any], logprobs: Logprobs | None, ending: Ending | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": ending and ending.finish_reason,
            "stop_reason": ending and ending.stop_reason,
        }

    def _logprobs(self, logprobs: Logprobs) -> dict[str, Any]:
        entries = [entry for entry in logprobs.entries if entry is not None]
        content = [
            self._token(entry.token, entry.logprob)
            | {"top_logprobs": [self._token(token, value) for token, value in entry.top]}
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._vocabulary.decode_token(token)
        return {"token": text, "logprob": logprob, "bytes": list(self._vocabulary.token_bytes(token))}


class Renderer:
    """Renders the answer to one request.  With `usage_chunk` every other chunk says `"usage": null`."""

    def __init__(self, shape: Shape, envelope: Envelope, *, usage_chunk: bool) -> None:
        self._shape = shape
        self._envelope = envelope
        self._head = encode(envelope.fields(shape.chunk_kind))[:-1]
        self._no_usage = b',"usage":null' if usage_chunk else b""
        self._pieces: dict[int, tuple[bytes, bytes]] = {}

    def piece(self, index: int, text: str) -> bytes:
        """An event with text alone: what a stream mostly consists of."""
        ends = self._pieces.get(index)
        if ends is None:
            before, after = self._shape.piece(index)
            ends = (
                b"data: " + self._head + b',"choices":[' + before,
                after + b"]" + self._no_usage + b"}\n\n",
            )
            self._pieces[index] = ends
        return ends[0] + encode(text) + ends[1]

    def chunk(
        self, index: int, text: str, logprobs: Logprobs | None, ending: Ending | None, extra: dict[str, Any]
    ) -> bytes:
        """An event with logprobs or the ending; `extra` are further fields of the object."""
        return self._event(self._shape.chunk(index, text, logprobs, ending), extra)

    def opening(self, index: int) -> bytes:
        """The event before a choice's first text; empty where the API has none."""
        choice = self._shape.opening(index)
        return b"" if choice is None else self._event(choice, {})

    def usage(self, usage: Usage, extra: dict[str, Any]) -> bytes:
        """The event with no choices that ends a stream with usage."""
        fields = encode({"choices": [], "usage": usage.fields(), **extra})
        return b"data: " + self._head + b"," + fields[1:] + b"\n\n"

    def whole(
        self,
        choices: Sequence[tuple[str, Logprobs | None, Ending]],
        usage: Usage,
        extra: dict[str, Any],
    ) -> bytes:
        """The body of a plain answer."""
        listed = [self._shape.whole(index, *choice) for index, choice in enumerate(choices)]
        fields = self._envelope.fields(self._shape.whole_kind)
        return encode({**fields, "choices": listed, "usage": usage.fields(), **extra})

    def _event(self, choice: dict[str, Any], extra: dict[str, Any]) -> bytes:
        tail = b"," + encode(extra)[1:-1] if extra else b""
        body = b"data: " + self._head + b',"choices":[' + encode(choice) + b"]"
        return body + self._no_usage + tail + b"}\n\n"


def device_fields(instance: str, times: Sequence[DeviceTimes | None], verdict: Verdict) -> dict[str, Any]:
    """The `corepipe` object: emulated times; over several choices, the arrival and the first token are the
    earliest, and the time per token is the mean.  Null where no choice has one.  `verdict` says whether the
    host is fast enough for them.
    """
    known = [one for one in times if one is not None]
    per_token = [one.time_per_output_token_ms for one in known if one.time_per_output_token_ms is not None]
    first = min((one.time_to_first_token_ms for one in known), default=None)
    mean = sum(per_token) / len(per_token) if per_token else None
    shown = {
        "valid": verdict.valid,
        "time_scale_needed": None if verdict.valid else verdict.time_scale_needed,
        "arrived_at_s": min((one.arrived_at_s for one in known), default=None),
        "time_to_first_token_ms": first,
        "time_per_output_token_ms": mean,
    }
    return {"corepipe": {"device": instance, "emulated": True, **shown}}
