"""Drafts of an answer that repeats its prompt, or itself, after the same tokens: prompt lookup."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.drafters.lookup import PrefixLookup
from corepipe.scheduler.request import Request


class NGramProposer:
    """Drafts by the last tokens: `least` .. `most` of them must have occurred before."""

    def __init__(self, least: int, most: int) -> None:
        self._lookup = PrefixLookup(least, most)

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """Returns the tokens that followed; where they come to the end of the sequence, they go on with the
        draft itself: a loop."""
        tokens = request.tokens
        self._lookup.follow(tokens)
        place = self._lookup.find(tokens, tokens)
        if place is None:
            return ()
        draft = tokens[place : place + most]
        while len(draft) < most:
            draft.append(draft[len(draft) - (len(tokens) - place)])
        return draft
