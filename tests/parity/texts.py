"""Texts of every length for encoders, cut out of the perplexity text: the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.models.text.tokenizer import Tokenizer
from tests.parity.families import DATA

LENGTHS = tuple(1 + 255 * n // 499 for n in range(500))
"""Lengths of 500 texts, in tokens: 1 to 256."""
LONG_LENGTHS = tuple(260 + 20 * n for n in range(50))
"""Lengths of 50 texts that are cut."""
STEP = 7919
"""Characters from the begin of a text to the begin of the next, in a circle."""


def make_texts(tokenizer: Tokenizer, lengths: Sequence[int]) -> list[str]:
    """Returns pieces of about so many tokens, each from another place."""
    book = (DATA / "perplexity.txt").read_text(encoding="utf-8")
    return [_piece(tokenizer, book, n * STEP % len(book), length) for n, length in enumerate(lengths)]


def _piece(tokenizer: Tokenizer, book: str, start: int, tokens: int) -> str:
    text = (book[start:] + book[:start])[: 12 * tokens + 64]
    offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
    return text[: offsets[tokens - 1][1]]
