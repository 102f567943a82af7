"""Text from tokens as they come: only whole characters, and stop strings found wherever tokens split them.

A token costs amortised constant time.  Its bytes are looked up and fed to an incremental UTF-8 decoder, which
keeps back the bytes of an unfinished character; nothing is ever decoded twice.  Streamed and whole answers
use the same code, so that they cannot differ.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol


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
