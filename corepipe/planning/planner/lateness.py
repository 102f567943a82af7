"""The number of requests that must be late, whatever a scheduler does: a bound on queues.

`servers` take requests one at a time, each for `seconds` at least; a request is in time if it begins within
`patience` of its arrival.  Late ones are assumed to cost nothing, so that no real queue has fewer of them.

The best strategy is then first come, first served, where requests that would begin late are dropped.  By
induction over the arrivals it serves as many in time as any other choice, and its servers are free no later:
another choice that serves this one too has dropped an earlier one, which gains at most `seconds`, and spends
`seconds` on this one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 1e-9
"""Relative tolerance of a time, for sums that a simulation takes in another order."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of requests for `servers` servers, each of which takes at least `seconds` for a request;
    requests that wait longer than `patience` seconds are late."""

    servers: int
    seconds: float
    patience: float


def surely_late(arrivals: Sequence[float], queue: Queue, enough: int) -> bool:
    """Tells whether at least `enough` of the requests with these arrival times, in order, are late."""
    patience = queue.patience + TOLERANCE * (1 + queue.seconds)
    seconds = queue.seconds * (1 - TOLERANCE)
    free = deque([0.0] * queue.servers)
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
