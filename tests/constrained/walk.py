"""Random tokens from those that a grammar allows, without a model: the most varied answers."""

from __future__ import annotations

import functools
import random

import llguidance
import numpy as np

from corepipe.models.text.tokenizer import Tokenizer


@functools.cache
def vocabulary(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    """Makes llguidance's form of a tokenizer."""
    return llguidance.LLTokenizer(
        tokenizer.backend.to_str(), n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.eos_ids)
    )


def walk(grammar: str, tokenizer: Tokenizer, seed: int, most: int) -> tuple[str, bool]:
    """Draws a text of at most `most` tokens.  Returns it, and whether it has ended."""
    known, draw = vocabulary(tokenizer), random.Random(seed)
    matcher = llguidance.LLMatcher(known, grammar, log_level=0)
    ids: list[int] = []
    for _ in range(most):
        words = np.frombuffer(matcher.compute_bitmask(), np.uint32)
        assert not matcher.is_error(), matcher.get_error()
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: tokenizer.vocab_size]
        token = int(draw.choice(np.flatnonzero(bits)))
        if token in tokenizer.eos_ids:
            return tokenizer.decode(ids, skip_special_tokens=False), True
        assert matcher.consume_token(token), matcher.get_error()
        ids.append(token)
        if matcher.is_stopped():
            return tokenizer.decode(ids, skip_special_tokens=False), True
    return tokenizer.decode(ids, skip_special_tokens=False), False


def takes(grammar: str, text: str) -> bool:
    """Tells whether a text, a byte at a time, is a whole answer."""
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()
