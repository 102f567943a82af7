"""Streamed answers: server-sent events, and the chunks of completions in them."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

DONE = b"[DONE]"
MOST_DETAIL = 200
"""Characters of an error that are kept."""

NO_WORDS = "an error without a message"

MOST_UNREAD = 4096
"""Bytes that are kept of an answer that is no stream."""

NO_REASON = frozenset(("", "null"))
"""Values that some servers write, instead of null, as `finish_reason` of chunks that are not the last."""

GOOD_ENDS = frozenset((
    "stop", "length", "tool_calls", "function_call", "tool_use", "end_turn", "stop_token", "stop_sequence",
    "stop_str", "eos", "eos_token", "max_tokens", "max_length", "max_new_tokens", "model_length",
    "repetition", "complete", "completed",
))  # fmt: skip
"""Reasons to finish that mean a complete answer, in OpenAI's words and in those of other servers.

Any other (error, abort, content_filter, a proxy's timeout) means an incomplete one.
"""


class PromptTokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class TokenCounts(msgspec.Struct):
    """Tokens as the server counts them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptTokenDetails | None = None


class DevicePrediction(msgspec.Struct):
    """A corepipe server's prediction for this answer, in emulated milliseconds."""

    time_to_first_token_ms: float | None = None
    time_per_output_token_ms: float | None = None


class StreamDelta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Any = None


class StreamChoice(msgspec.Struct):
    index: int | None = None
    text: str | None = None
    delta: StreamDelta | None = None
    finish_reason: str | None = None
    error: Any = None

    def said(self) -> str:
        """Returns the text of this chunk, of whatever kind."""
        if self.delta is None:
            return self.text or ""
        return self.delta.content or self.delta.reasoning_content or self.delta.reasoning or ""

    def called(self) -> bool:
        return self.delta is not None and bool(self.delta.tool_calls)


class StreamChunk(msgspec.Struct):
    """An event of either API; fields that are not needed here are not parsed.

    detail, message: an error, as frameworks write it, where there are no choices.
    """

    choices: list[StreamChoice] | None = None
    usage: TokenCounts | None = None
    error: Any = None
    detail: Any = None
    message: Any = None
    corepipe: DevicePrediction | None = None

    def failed(self) -> bool:
        """Tells whether the event reports an error."""
        if self.error or any(choice.error for choice in self.choices or ()):
            return True
        return self.choices is None and bool(self.detail or self.message)


class EventSplitter:
    """Splits bytes, in whatever pieces they come, into the data of server-sent events.

    Each `data:` line is an event of its own: JSON needs no line breaks, and no server of this API sends them.
    errors: the data of events that are named `error`, and of llama.cpp's `error:` lines.
    """

    def __init__(self) -> None:
        self.rest = b""
        self.errors: list[bytes] = []
        self._error = False

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of all events that end in these bytes and are not errors."""
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        found: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                (self.errors if self._error else found).append(line[5:].strip())
            elif line.startswith(b"event:"):
                self._error = line[6:].strip() == b"error"
            elif line.startswith(b"error:"):
                self.errors.append(line[6:].strip())
            elif not line.strip():
                self._error = False
        return found


class StreamedAnswer:
    """Reads one streamed answer; times are of `perf_counter`.

    first, last: times of the first and the last token; stamps: times of every chunk with tokens.  The last
    chunk may hold nothing but the reason to finish: then the last token produced no text, and its time is
    that chunk's.
    """

    def __init__(self, decoder: msgspec.json.Decoder[StreamChunk], most_chunks: int | None = None) -> None:
        self.status = 0
        self.enough = False
        self.stamps = array("d")
        self.last = 0.0
        self.usage: TokenCounts | None = None
        self.device: DevicePrediction | None = None
        self.failure = ""
        self._decoder = decoder
        self._most = most_chunks
        self._events = EventSplitter()
        self._said: list[str] = []
        self._unread = bytearray()
        self._streams = self._done = False
        self._reasons: dict[int, str] = {}

    @property
    def first(self) -> float | None:
        return self.stamps[0] if self.stamps else None

    @property
    def text(self) -> str:
        return "".join(self._said)

    @property
    def refusal(self) -> str:
        """The message of a server that did not answer with status 200 or not with a stream."""
        return error_message(bytes(self._unread))

    @property
    def finished(self) -> bool:
        """Tells whether the end mark came, or a reason to finish for each choice that was seen."""
        return self._done or (bool(self._reasons) and all(self._reasons.values()))

    def reported_failure(self) -> tuple[str, str] | None:
        """Returns the kind and the message of a failure that the server reported; None: it reported none."""
        if self.status not in {0, 200}:
            return str(self.status), self.refusal
        if self.failure:
            return "error in stream", self.failure
        bad = next((reason for reason in self._reasons.values() if reason and not _is_good(reason)), None)
        return None if bad is None else (f"finish_reason {bad}"[:MOST_DETAIL], "the server ended the answer")

    def missing(self) -> tuple[str, str] | None:
        """Returns what a completely read answer lacks, in the form of `reported_failure`; None: nothing."""
        if not self._streams and self._unread.strip():
            return "no stream", self.refusal
        if not self.finished:
            return "cut", "the stream ended before the answer did"
        return None if self.stamps else ("empty", "an answer without a token")

    def start(self, status: int) -> None:
        self.status = status

    def read(self, data: bytes, now: float) -> None:
        if not self._streams:
            self._unread += data[: MOST_UNREAD - len(self._unread)]
        if self.status == 200:
            for event in self._events.feed(data):
                self._read(event, now)
            if self._events.errors:
                self._streams, self.failure = True, error_message(self._events.errors[0]) or NO_WORDS

    def end(self, now: float) -> None:
        """Reads a last event that no line break follows."""
        if self._events.rest.rstrip().endswith((b"}", DONE)):
            self.read(b"\n", now)

    def _read(self, event: bytes, now: float) -> None:
        self._streams = True
        if self.enough:
            return
        if event == DONE:
            self._done = True
        elif event:
            self._take(event, now)

    def _take(self, event: bytes, now: float) -> None:
        try:
            chunk = self._decoder.decode(event)
        except (msgspec.DecodeError, RecursionError) as error:
            self.failure = self.failure or f"a chunk that is not of this API: {error}"
            return
        if chunk.failed():
            self.failure = error_message(event) or NO_WORDS
        for choice in chunk.choices or ():
            self._take_choice(choice, now)
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            self.usage = chunk.usage
        self.device = chunk.corepipe or self.device

    def _take_choice(self, choice: StreamChoice, now: float) -> None:
        said = choice.said()
        if said or choice.called():
            self.stamps.append(now)
            self._said.append(said)
            self.last = now
            self.enough = self._most is not None and len(self.stamps) >= self._most
        index, reason = choice.index or 0, choice.finish_reason or ""
        if reason in NO_REASON:
            self._reasons.setdefault(index, "")
        else:
            self._reasons[index], self.last = reason, now


def _is_good(reason: str) -> bool:
    return reason.lower() in GOOD_ENDS


def decoded(body: bytes) -> object:
    """Returns the JSON document; None for bytes that are none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def error_message(body: bytes) -> str:
    """Returns the message in an error of this API, or the start of the body, on one line."""
    document = decoded(body)
    if document is None:
        document = body.decode(errors="replace")
    if isinstance(document, dict):
        error = document.get("error", document)
        document = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(document).split())[:MOST_DETAIL]
