"""Guesses of which it is assumed how often they are right: nobody knows what they are."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.engine.batch.sampling import derive_seed
from corepipe.scheduler.request import Request

RIGHT, WRONG = 0, -1
"""What stands for a guess that is right, which is the token that simulations draw, and for one that is wrong,
which is none: who computes tokens puts them in its place (`assuming.AssumingRunner`)."""

WHOLE = 2.0**64
"""Of what `derive_seed` gives."""


class SyntheticDrafter:
    """Implements `drafts.Drafter`: as many guesses as there may be, of which so many are right.

    rates: of each place, how often a guess and all before it are right, in all and not of those that come to
    it.  seed: of the request; how many are right hangs on it and on the number of its tokens alone.
    """

    def __init__(self, rates: Sequence[float], seed: int) -> None:
        self._rates = rates
        self._seed = seed

    def propose(self, request: Request, most: int) -> Sequence[int]:
        """One draw decides about all of them."""
        drawn = derive_seed(self._seed, request.num_generated) / WHOLE
        rates = self._rates[:most]
        right = sum([drawn < rate for rate in rates])
        return [RIGHT] * right + [WRONG] * (len(rates) - right)

    def verified(self, drafts: int, accepted: int) -> None:
        """Nothing is learnt from it."""
