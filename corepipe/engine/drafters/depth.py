"""The number of draft tokens that are worth computing."""

from __future__ import annotations

from math import log

ROW_COST = 0.1
"""The cost of another row, as a share of a step of one row: a draft token must be at least so likely to be
worth it. On the host 0.04 to 0.08, as weights are read once for up to 14 rows (`benchmarks/step.py`), and the
cost of the draw."""

MEMORY = 0.85
"""The weight of earlier drafts in the acceptance rate, reduced by this factor after each batch that had
some."""

PROBE_TOKENS = 32
"""After a rejected draft, another is tried after so many tokens."""


class DraftDepth:
    """Follows how often drafts were accepted. The n-th token of a draft is accepted with the n-th power of
    the chance of one, and is proposed while that is more than its `cost`, as a share of a step of one row."""

    def __init__(self, most: int, cost: float = ROW_COST) -> None:
        self._most = most
        self._cost = cost
        self._right, self._judged = 1.6, 2.0
        self._known = self._probe_at = 0

    def next(self, known: int) -> int:
        """Returns how many tokens to draft after `known` tokens."""
        rate = min(self._right / self._judged, 0.99)
        depth = int(log(self._cost) / log(rate)) if rate > self._cost else 0
        self._known = known
        return min(depth or int(known >= self._probe_at), self._most)

    def verified(self, drafts: int, accepted: int) -> None:
        """Takes in how many of the last draft tokens were accepted; those behind the first rejected one carry
        no information."""
        self._probe_at = self._known + PROBE_TOKENS
        self._right = MEMORY * self._right + accepted
        self._judged = MEMORY * self._judged + min(accepted + 1, drafts)
