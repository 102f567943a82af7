"""Bad words as token ids, and the check that a request leaves some token to draw."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING

from corepipe.engine.messages import Submit
from corepipe.errors import UserError, shown

if TYPE_CHECKING:  # heavy
    from corepipe.models.text.tokenizer import Tokenizer


def spelled(words: Iterable[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the token ids of each word, and those with a space before it, for the middle of a text.

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


def require_some(submit: Submit) -> Submit:
    """Returns the request.  Raises UserError where no token can be drawn, as all allowed ones are banned."""
    allowed = submit.sampling.allowed_token_ids
    if allowed is None:
        return submit
    words = [word for word in submit.bad_words if set(allowed).issuperset(word)]
    banned = {word[-1] for word in words} | (set(submit.stop_ids) if submit.min_tokens else set())
    banned |= {token for token, bias in submit.sampling.logit_bias.items() if bias == -inf}
    if banned.issuperset(allowed):
        message = "allowed_token_ids: bad_words, logit_bias and min_tokens leave none of them"
        raise UserError(message, "allowed_token_ids")
    return submit
