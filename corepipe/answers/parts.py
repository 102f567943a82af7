"""The parts of an answer, whether it is streamed or whole, and the texts that tokens become."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import msgspec

from corepipe.engine.messages import TokenLogprobs


class Logprobs(msgspec.Struct, frozen=True):
    """Logprobs of consecutive tokens; `offsets` are where their texts start.  None: a token without one."""

    tokens: Sequence[int]
    entries: Sequence[TokenLogprobs | None]
    offsets: Sequence[int]


class Text(msgspec.Struct, frozen=True):
    """The next text of a choice; it may be empty, where its tokens have no whole character yet."""

    choice: int
    text: str
    logprobs: Logprobs | None = None


class Reasoning(msgspec.Struct, frozen=True):
    """The next text of a choice's reasoning, which comes before its answer."""

    choice: int
    text: str


class CallStart(msgspec.Struct, frozen=True):
    """The start of call number `index` of a choice."""

    choice: int
    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """The next text of a call's arguments, which are JSON together."""

    choice: int
    index: int
    text: str


class PromptTokens(msgspec.Struct, frozen=True):
    """The tokens of a choice's prompt, and their logprobs; None for what the client did not ask for."""

    choice: int
    tokens: Sequence[int] | None
    logprobs: Sequence[TokenLogprobs | None] | None


class Tokens(msgspec.Struct, frozen=True):
    """The next tokens of a choice, where the client asked for them; its text may lag behind them."""

    choice: int
    tokens: Sequence[int]


class Finish(msgspec.Struct, frozen=True):
    """The end of a choice: OpenAI's `finish_reason`, and the stop string or token as `stop_reason`."""

    choice: int
    finish_reason: str
    stop_reason: str | int | None = None


Said = Text | Reasoning | CallStart | CallArguments | Finish
"""The parts that a choice consists of."""


class Call(msgspec.Struct, frozen=True):
    """A whole call: its arguments are JSON, if the answer was not cut and the model made no mistake."""

    id: str
    name: str
    arguments: str


def joined_calls(parts: Sequence[Said]) -> list[Call]:
    """Joins the parts of the calls of one choice."""
    starts = [part for part in parts if isinstance(part, CallStart)]
    texts: dict[int, list[str]] = {one.index: [] for one in starts}
    for part in parts:
        if isinstance(part, CallArguments):
            texts[part.index].append(part.text)
    return [Call(one.id, one.name, "".join(texts[one.index])) for one in starts]


def joined_reasoning(parts: Iterable[Said]) -> str:
    """Joins the reasoning of one choice."""
    return "".join([part.text for part in parts if isinstance(part, Reasoning)])


def joined_text(texts: Sequence[Text]) -> str:
    """Joins texts one after the other."""
    return texts[0].text if len(texts) == 1 else "".join([one.text for one in texts])


def joined_logprobs(texts: Iterable[Text]) -> Logprobs | None:
    """Joins the logprobs of all tokens; None where there are none."""
    known = [one.logprobs for one in texts if one.logprobs is not None]
    if len(known) < 2:
        return known[0] if known else None
    return Logprobs(
        [token for one in known for token in one.tokens],
        [entry for one in known for entry in one.entries],
        [offset for one in known for offset in one.offsets],
    )


class Decoding(Protocol):
    """The interface of a tokenizer for this module."""

    def decode(self, ids: list[int], skip_special_tokens: bool = ...) -> str: ...

    def token_bytes(self, token: int, /) -> bytes: ...


class Pieces:
    """The bytes of each token of a vocabulary, looked up once; none for special tokens if they are skipped.

    Tokens to `keep` are never skipped: readers of the text look for them.
    """

    def __init__(self, tokenizer: Decoding, skip_special_tokens: bool, keep: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._keep = keep
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        piece = self._known.get(token)
        if piece is None:
            piece = self._known[token] = self._look_up(token)
        return piece

    def join(self, tokens: Sequence[int]) -> bytes:
        """Returns the bytes of several tokens in a row."""
        return b"".join([self[token] for token in tokens])

    def _look_up(self, token: int) -> bytes:
        if self._skip and token not in self._keep and self._is_special(token):
            return b""
        return self._tokenizer.token_bytes(token)

    def _is_special(self, token: int) -> bool:
        shown = self._tokenizer.decode([token], skip_special_tokens=False)
        return bool(shown) and not self._tokenizer.decode([token], skip_special_tokens=True)


class StopStrings:
    """Cuts a text at the first of several strings, without showing any part of it beforehand.

    Text that could be the beginning of a stop string is kept back until the next characters decide.
    """

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Returns the new text that may be shown; sets `matched` at a stop string."""
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.matched = min(found, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            self._held = ""
            return text[: at + len(self.matched)] if self._include else text[:at]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Returns the text that was kept back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Returns the length of the longest end of `text` that begins a stop string."""
        return max(overlap(text, stop) for stop in self._stops)


def overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of `text` that begins `stop`, but is not all of it."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0


class Detokenizer:
    """The text of one sequence, token by token.

    Stop strings are looked for in the text after the first `min_tokens` tokens.  `matched` is the stop string
    that was found; nothing may be fed after it.  `decoded` counts characters, those kept back included.
    """

    def __init__(
        self, pieces: Pieces, stops: Sequence[str] = (), include_stop: bool = False, min_tokens: int = 0
    ) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopStrings(stops, include_stop) if stops else None
        self._min_tokens = min_tokens
        self._fed = 0
        self.decoded = 0

    @property
    def matched(self) -> str | None:
        return self._stops.matched if self._stops else None

    def feed(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Returns (text that may be shown, tokens used); a stop string may leave some tokens unused."""
        if self._stops is None:
            return self._decode(self._pieces.join(tokens)), len(tokens)
        shown: list[str] = []
        for used, token in enumerate(tokens, 1):
            shown.append(self._feed_one(self._stops, token))
            if self._stops.matched is not None:
                return "".join(shown), used
        return "".join(shown), len(tokens)

    def flush(self) -> str:
        """Returns the rest at the end, without stop strings: an unfinished character becomes U+FFFD."""
        rest = self._decode(b"", final=True)
        return self._stops.flush() + rest if self._stops else rest

    def _feed_one(self, stops: StopStrings, token: int) -> str:
        text = self._decode(self._pieces[token])
        self._fed += 1
        if self._fed <= self._min_tokens or not text:
            return text
        return stops.feed(text)

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        text = self._decoder.decode(data, final)
        self.decoded += len(text)
        return text
