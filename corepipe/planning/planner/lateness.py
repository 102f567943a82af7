"""How many requests must be late, whatever a scheduler does: a bound on queues.

`servers` take requests one at a time, each for `seconds` at least; a request is in time if it begins within
`patience` of its arrival.  Late ones are taken to cost nothing, so that no real queue has fewer of them.

First come, first served, and dropping who would begin late, is then the best that can be done.  By
induction over the arrivals it serves as many in time as any other choice, and its servers are free no later:
another choice that serves this one too has dropped an earlier one, which gains at most `seconds`, and spends
`seconds` on this one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

TOLERANCE = 1e-9
"""Of a time, for sums that are taken in another order than a simulation takes them."""


def surely_late(
    arrivals: Sequence[float], servers: int, seconds: float, patience: float, enough: int
) -> bool:
    """Whether at least `enough` of the requests that arrive so, in order of time, are late."""
    patience += TOLERANCE * (1 + seconds)
    seconds *= 1 - TOLERANCE
    free = deque([0.0] * servers)
    late = 0
    for arrival in arrivals:
        start = max(arrival, free[0])
        if start - arrival > patience:
            late += 1
            if late >= enough:
                return True
        else:
            free.popleft()
            free.append(start + seconds)
    return False
