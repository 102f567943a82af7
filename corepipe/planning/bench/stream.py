"""What a server says while it answers: server-sent events, and the chunks of completions in them."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

DONE = b"[DONE]"
MOST_DETAIL = 200
"""Characters of an error that are kept."""


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class TokenCounts(msgspec.Struct):
    """Tokens as the server counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Device(msgspec.Struct):
    """A corepipe server's prediction for this answer, in emulated milliseconds."""

    time_to_first_token_ms: float | None = None
    time_per_output_token_ms: float | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Any = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    def said(self) -> str:
        """The text of this chunk, of whatever kind."""
        if self.delta is None:
            return self.text or ""
        return self.delta.content or self.delta.reasoning_content or self.delta.reasoning or ""

    def called(self) -> bool:
        return self.delta is not None and bool(self.delta.tool_calls)


class Chunk(msgspec.Struct):
    """An event of either API; fields that nobody here needs are skipped unread."""

    choices: list[Choice] = []
    usage: TokenCounts | None = None
    error: Any = None
    corepipe: Device | None = None


class Events:
    """Splits bytes, in whatever pieces they come, into the data of server-sent events.

    Each `data:` line is an event of its own: JSON needs no line breaks, and no server of this API has them.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class Answer:
    """Reads one streamed answer; times are of `perf_counter`.

    first, last: of the first and the last token; stamps: of every chunk with tokens.  The last chunk may hold
    nothing but the reason to finish: then the last token made no text, and is as late as that.
    """

    def __init__(self, decoder: msgspec.json.Decoder[Chunk], most_chunks: int | None = None) -> None:
        self.status = 0
        self.enough = False
        self.stamps = array("d")
        self.last = 0.0
        self.usage: TokenCounts | None = None
        self.device: Device | None = None
        self.finished = False
        self.failure = ""
        self._decoder = decoder
        self._most = most_chunks
        self._events = Events()
        self._said: list[str] = []
        self._refusal = bytearray()

    @property
    def first(self) -> float | None:
        return self.stamps[0] if self.stamps else None

    @property
    def text(self) -> str:
        return "".join(self._said)

    @property
    def refusal(self) -> str:
        """What a server that did not answer 200 said."""
        return error_message(bytes(self._refusal))

    def start(self, status: int) -> None:
        self.status = status

    def read(self, data: bytes, now: float) -> None:
        if self.status != 200:
            self._refusal += data[: 4096 - len(self._refusal)]
            return
        for event in self._events.feed(data):
            if self.enough:
                return
            if event == DONE:
                self.finished = True
            elif event:
                self._take(event, now)

    def _take(self, event: bytes, now: float) -> None:
        try:
            chunk = self._decoder.decode(event)
        except (msgspec.DecodeError, RecursionError) as error:
            self.failure = self.failure or f"a chunk that is not of this API: {error}"
            return
        if chunk.error is not None:
            self.failure = error_message(event)
        for choice in chunk.choices:
            self._hear(choice, now)
        self.usage = chunk.usage or self.usage
        self.device = chunk.corepipe or self.device

    def _hear(self, choice: Choice, now: float) -> None:
        said = choice.said()
        if said or choice.called():
            self.stamps.append(now)
            self._said.append(said)
            self.last = now
            self.enough = self._most is not None and len(self.stamps) >= self._most
        if choice.finish_reason is not None:
            self.finished, self.last = True, now


def decoded(body: bytes) -> object:
    """A JSON document; None for what is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def error_message(body: bytes) -> str:
    """The message in an error of this API, or its first words, on one line."""
    document = decoded(body)
    if document is None:
        document = body.decode(errors="replace")
    if isinstance(document, dict):
        error = document.get("error", document)
        document = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(document).split())[:MOST_DETAIL]
