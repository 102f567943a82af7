"""Guesses what the client has said that the answer will be (OpenAI's `prediction`)."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.drafters.lookup import PrefixLookup
from corepipe.scheduler.request import Request

LEAST, MOST = 2, 8
"""Tokens of an answer that has left what was predicted by which it is found there again."""


class PredictionProposer:
    """`tokens`: of what the answer may be, or be made of."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._lookup = PrefixLookup(LEAST, MOST)
        self._lookup.follow([*tokens, -1])  # the end is a place, too
        self._place: int | None = 0
        self._generated = 0

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """What comes next where the answer is in it."""
        answer = request.tokens[request.num_prompt + self._generated :]
        self._generated += len(answer)
        self._place = self._after(answer, request)
        return () if self._place is None else self._tokens[self._place : self._place + most]

    def _after(self, answer: Sequence[int], request: Request) -> int | None:
        """The place behind these tokens of the answer, its latest."""
        if self._place is not None:
            end = self._place + len(answer)
            if list(self._tokens[self._place : end]) == answer:
                return end
        last = request.tokens[max(request.num_prompt, request.num_tokens - MOST) :]
        return self._lookup.find(self._tokens, last)
