"""Drafts of the text that the client has predicted for the answer (OpenAI's `prediction`)."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.drafters.lookup import PrefixLookup
from corepipe.scheduler.request import Request

LEAST, MOST = 2, 8
"""Tokens by which an answer that has left the prediction is found in it again."""


class PredictionProposer:
    """Drafts from `tokens`, which the answer may be, or consist of."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._lookup = PrefixLookup(LEAST, MOST)
        self._lookup.follow([*tokens, -1])  # the end is a place as well
        self._place: int | None = 0
        self._generated = 0

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """Returns the tokens that come next, where the answer is found in the prediction."""
        answer = request.tokens[request.num_prompt + self._generated :]
        self._generated += len(answer)
        self._place = self._after(answer, request)
        return () if self._place is None else self._tokens[self._place : self._place + most]

    def _after(self, answer: Sequence[int], request: Request) -> int | None:
        """Returns the place in the prediction behind these tokens, the latest of the answer."""
        if self._place is not None:
            end = self._place + len(answer)
            if list(self._tokens[self._place : end]) == answer:
                return end
        last = request.tokens[max(request.num_prompt, request.num_tokens - MOST) :]
        return self._lookup.find(self._tokens, last)
