"""The masks of a request's rows: the tokens that may be drawn next, and after each token of a draft."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.batch.masks import GrammarMatcher, Mask, ban
from corepipe.engine.batch.requests import SampledRequest

NOTHING_LEFT = "The answer cannot go on: its grammar allows none of allowed_token_ids here."


def fill(mask: Mask, request: SampledRequest) -> None:
    """Writes the mask of the request's next token: before `min_tokens` it allows the end of the answer only
    where nothing else can follow."""
    _fill(mask, request, request.constraint, request.num_generated)


def fill_after_drafts(masks: Mask, request: SampledRequest, drafts: Sequence[int]) -> int:
    """Writes the masks of the tokens after each draft token, a row of `masks` each; returns after how many
    draft tokens that was possible.

    The request's own constraint does not change: the draft has not been accepted.
    """
    constraint = None if request.constraint is None else request.constraint.copy()
    for at, (mask, draft) in enumerate(zip(masks, drafts, strict=True)):
        if constraint is not None:
            constraint.take(draft)
            if constraint.finished or constraint.error is not None:
                return at
        _fill(mask, request, constraint, request.num_generated + at + 1)
        if constraint is not None and constraint.error is not None:
            return at
    return len(drafts)


def _fill(mask: Mask, request: SampledRequest, constraint: GrammarMatcher | None, generated: int) -> None:
    if constraint is not None:
        constraint.fill(mask)
    if request.allowed is not None:
        mask &= request.allowed
        if constraint is not None and constraint.error is None and not mask.any():
            constraint.contradict(NOTHING_LEFT)
    if generated < request.min_tokens:
        ban(mask, request.stop_ids)
