"""How many tokens are worth guessing."""

from __future__ import annotations

from math import log

ROW_COST = 0.1
"""What another row costs, of a step of one: what a guess must be likely by to be worth it.  On the host
0.04 to 0.08, as weights are read once for up to 14 rows (`benchmarks/step.py`), and what is drawn at it."""

MEMORY = 0.85
"""What counts of the guesses before in the share that is right, after each batch that had some."""

PROBE_TOKENS = 32
"""Who has guessed wrongly guesses one again after so many tokens."""


class DraftDepth:
    """Follows how often guesses were right.  Of several in a row the n-th stands with the n-th power of the
    chance of one, and is guessed while that is more than it costs: `cost`, of a step of one."""

    def __init__(self, most: int, cost: float = ROW_COST) -> None:
        self._most = most
        self._cost = cost
        self._right, self._judged = 1.6, 2.0
        self._known = self._probe_at = 0

    def next(self, known: int) -> int:
        """How many to guess behind so many known tokens."""
        rate = min(self._right / self._judged, 0.99)
        depth = int(log(self._cost) / log(rate)) if rate > self._cost else 0
        self._known = known
        return min(depth or int(known >= self._probe_at), self._most)

    def verified(self, drafts: int, accepted: int) -> None:
        """What came of the last ones; those behind the first wrong one say nothing."""
        self._probe_at = self._known + PROBE_TOKENS
        self._right = MEMORY * self._right + accepted
        self._judged = MEMORY * self._judged + min(accepted + 1, drafts)
