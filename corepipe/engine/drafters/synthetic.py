"""Synthetic drafts: how often they are accepted is assumed, and their tokens are unknown."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.batch.arrays import derive_seed
from corepipe.scheduler.request import Request

RIGHT, WRONG = 0, -1
"""Placeholders of a draft token that is accepted, which is also the token that simulations draw, and of one
that is rejected, which is no token: a runner that computes tokens replaces them
(`synthetic_acceptance.SyntheticAcceptanceRunner`)."""

WHOLE = 2.0**64
"""The range of `derive_seed`."""


class SyntheticDrafter:
    """Implements `drafts.Drafter`: always the most drafts allowed, of which a drawn number is accepted.

    rates: for each position, how often a draft token and all before it are accepted, as a share of all drafts
    and not of those that reach the position. seed: of the request; the number accepted depends on the seed
    and on the number of the request's tokens alone.
    """

    def __init__(self, rates: Sequence[float], seed: int) -> None:
        self.rates = rates
        self.seed = seed

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """Decides by one draw which tokens of the draft are accepted."""
        drawn = derive_seed(self.seed, request.num_generated) / WHOLE
        rates = self.rates[:most]
        right = sum([drawn < rate for rate in rates])
        return [RIGHT] * right + [WRONG] * (len(rates) - right)

    def verified(self, drafts: int, accepted: int) -> None:
        """Learns nothing from it."""
