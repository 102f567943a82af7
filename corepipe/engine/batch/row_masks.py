"""The masks of a request's rows: what may be drawn next, and after each of some drafts."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.batch.masks import GrammarMatcher, Mask, ban
from corepipe.engine.batch.requests import SampledRequest

NOTHING_LEFT = "The answer cannot go on: its grammar allows none of allowed_token_ids here."


def fill(mask: Mask, request: SampledRequest) -> None:
    """What the request may draw next: the end of an answer before `min_tokens` only where nothing else can
    follow."""
    _fill(mask, request, request.constraint, request.num_generated)


def fill_after_drafts(masks: Mask, request: SampledRequest, drafts: Sequence[int]) -> int:
    """What it may draw after each of its drafts, a row of `masks` each; after how many that can be said.

    Its constraint stays where it is: whatever a draft leads to has not happened.
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
