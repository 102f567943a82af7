"""Words that an answer must not have (`bad_words`), as the token sequences that spell them."""

from __future__ import annotations

from collections.abc import Iterable

from corepipe.errors import UserError, shown
from corepipe.models.text.tokenizer import Tokenizer


def spelled(words: Iterable[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of each word, and of those with a space before them, for the middle of a text.

    As vLLM reads them: white space in front of a word does not count, and the form with a space does if it
    has as many tokens, the first of them another one.  Raises UserError, which names the field.
    """
    sequences: list[list[int]] = []
    for word in dict.fromkeys(words):
        bare = word.lstrip()
        first = tokenizer.encode(bare, add_special_tokens=False) if bare else []
        if not first:
            raise UserError(f"bad_words: {shown(repr(word))} has no token", "bad_words")
        sequences.append(first)
        spaced = tokenizer.encode(f" {bare}", add_special_tokens=False)
        if len(spaced) == len(first) and spaced[0] != first[0]:
            sequences.append(spaced)
    return sequences
