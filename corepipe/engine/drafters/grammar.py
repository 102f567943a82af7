"""Drafts of the text that a grammar forces: names of fields, quotes, brackets."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.batch.requests import SampledRequest
from corepipe.scheduler.request import Request


class GrammarProposer:
    """Drafts the text that must come in the tokens in which a tokenizer would write it; the model may choose
    others."""

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """Returns the tokens up to the next choice."""
        assert isinstance(request, SampledRequest)
        return () if request.constraint is None else request.constraint.forced()[:most]
