"""Guesses that an answer goes on as its prompt, or itself, did after the same tokens: prompt lookup."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.drafters.lookup import PrefixLookup
from corepipe.scheduler.request import Request


class NGramProposer:
    """`least` .. `most`: how many of the last tokens must have been there before."""

    def __init__(self, least: int, most: int) -> None:
        self._lookup = PrefixLookup(least, most)

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """What followed; where that comes to the end, it goes on with what was guessed: a loop."""
        tokens = request.tokens
        self._lookup.follow(tokens)
        place = self._lookup.find(tokens, tokens)
        if place is None:
            return ()
        guess = tokens[place : place + most]
        while len(guess) < most:
            guess.append(guess[len(guess) - (len(tokens) - place)])
        return guess
