"""`truncate_prompt_tokens`: how much of a prompt that is too long is kept, and of which end."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from corepipe.models.text.tokenizer import Side
from corepipe.serving.api.http.errors import invalid

READABLE = 65_536
"""Tokens up to which a text is sure to be read whole, to be cut then: each takes 350 bytes meanwhile."""


class TruncationFields(Protocol):
    """A body that says how prompts are cut."""

    @property
    def truncate_prompt_tokens(self) -> int | None: ...
    @property
    def truncation_side(self) -> Side: ...


class Truncation(NamedTuple):
    """At most so many tokens, cut from a side."""

    most: int
    side: Side

    @staticmethod
    def of(body: TruncationFields, context: int, answer: int) -> Truncation | None:
        """None where the request asks for no cut.

        -1 keeps what leaves room for an answer of `answer` tokens.  Raises ApiError for more than a context.
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
        """Tokens that a text may have before it is cut."""
        return max(self.most, READABLE)
