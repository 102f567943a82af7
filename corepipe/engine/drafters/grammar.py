"""Guesses the tokens of what a grammar leaves no choice about: names of fields, quotes, brackets."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.batch.requests import SampledRequest
from corepipe.scheduler.request import Request


class GrammarProposer:
    """Knows what text must come, and guesses that it comes in the tokens in which a tokenizer would write it;
    the model may choose others."""

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """The tokens up to the next choice."""
        assert isinstance(request, SampledRequest)
        return () if request.constraint is None else request.constraint.forced()[:most]
