"""`truncate_prompt_tokens`: how many tokens of a prompt that is too long are kept, and from which end."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from corepipe.models.text.tokenizer import Side
from corepipe.serving.api.http.errors import invalid

READABLE = 65_536
"""Tokens up to which a text is always encoded whole before it is cut: each takes 350 bytes meanwhile."""


class TruncationFields(Protocol):
    """The fields of a body that say how prompts are truncated."""

    @property
    def truncate_prompt_tokens(self) -> int | None: ...
    @property
    def truncation_side(self) -> Side: ...


class Truncation(NamedTuple):
    """A truncation to at most `most` tokens; `side` is the end that is cut off."""

    most: int
    side: Side

    @staticmethod
    def of(body: TruncationFields, context: int, answer: int) -> Truncation | None:
        """Returns the truncation that a body requests, or None.

        context: the tokens of the model's context.  -1 keeps as many as leave room for an answer of `answer`
        tokens.  Raises ApiError for more than the context has.
        """
        asked = body.truncate_prompt_tokens
        if asked is None:
            return None
        if asked > context:
            message = f"truncate_prompt_tokens is at most {context} here (max_model_len)."
            raise invalid(message, "truncate_prompt_tokens")
        return Truncation(max(context - answer, 1) if asked == -1 else asked, body.truncation_side)

    @property
    def readable(self) -> int:
        """The tokens that a text may have before it is cut."""
        return max(self.most, READABLE)
