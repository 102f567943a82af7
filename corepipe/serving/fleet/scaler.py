"""The wanted number of hosts: more if the queue drains slowly or answers are late, fewer if one can go."""

from __future__ import annotations

from dataclasses import dataclass

SLOW_SECONDS = 2.0
"""A queue that takes this long to drain at its current rate is too long."""

PATIENT_SECONDS = 3.0
"""A queue must be too long for this time before a host is added: a burst ends sooner than a host loads."""

GOOD_SHARE = 0.95
"""The share of answers that must meet the objective; below it there are too few hosts."""

IDLE_SECONDS = 60.0
"""The time for which one host less must have been enough before one is released."""

IDLE_SHARE = 0.5
"""The share of the seats of the remaining hosts that may be taken when a host is released."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The load of a fleet.

    hosts: the number of hosts that are wanted now.  serving: the number of hosts that take requests.
    waiting: requests of which nothing is computed yet.  rate: requests a second that leave the queue.  open:
    all open requests.  good: the share of answers that meet the objective; None: there is none, or too few
    answers ended.
    """

    hosts: int
    serving: int
    waiting: int
    rate: float
    open: int
    good: float | None = None


class Scaler:
    """Chooses between `least` and `most` hosts, each with `seats` sequences at a time, one host at a step."""

    def __init__(self, least: int, most: int, seats: int) -> None:
        self.least = least
        self._most = most
        self._seats = seats
        self._slow_since: float | None = None
        self._idle_since: float | None = None

    def wanted(self, work: FleetLoad, now: float) -> int:
        """Returns the wanted number of hosts; called again and again, with a `now` that never goes back."""
        late = work.good is not None and work.good < GOOD_SHARE
        slow = late or (work.waiting > 0 and work.waiting >= SLOW_SECONDS * work.rate)
        idle = not late and not work.waiting and work.open <= IDLE_SHARE * self._seats * (work.serving - 1)
        self._slow_since = _since(self._slow_since, now, slow)
        self._idle_since = _since(self._idle_since, now, idle)
        settled = work.serving >= work.hosts
        wanted = work.hosts
        if settled and _lasts(self._slow_since, now, PATIENT_SECONDS):
            self._slow_since, wanted = None, wanted + 1
        elif _lasts(self._idle_since, now, IDLE_SECONDS):
            self._idle_since, wanted = None, wanted - 1
        return min(max(wanted, self.least), self._most)


def _since(before: float | None, now: float, holds: bool) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _lasts(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since >= seconds
