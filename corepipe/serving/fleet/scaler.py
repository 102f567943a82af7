"""How many hosts are wanted: more where what waits takes long to drain or answers come late, fewer where one
less would do."""

from __future__ import annotations

from dataclasses import dataclass

SLOW_SECONDS = 2.0
"""A queue that takes so long to drain at the rate of now is too long."""

PATIENT_SECONDS = 3.0
"""For which it must be so before a host is added: a burst is over sooner than a host loads."""

GOOD_SHARE = 0.95
"""Of the answers, which come as soon as they are to; where it is less there are too few hosts."""

IDLE_SECONDS = 60.0
"""For which one host less must have done before one is let go."""

IDLE_SHARE = 0.5
"""Of the seats of the hosts that would be left, which may be taken then."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """What a fleet has to do.

    hosts: that are wanted now; serving: those that take requests.  waiting: requests of which nothing is
    computed yet; rate: of those that leave the queue in a second; open: all requests.  good: the share of
    answers that come as soon as they are to; None: nothing is asked of them, or too few came.
    """

    hosts: int
    serving: int
    waiting: int
    rate: float
    open: int
    good: float | None = None


class Scaler:
    """Between `least` and `most` hosts, each with so many seats.  One step at a time."""

    def __init__(self, least: int, most: int, seats: int) -> None:
        self.least = least
        self._most = most
        self._seats = seats
        self._slow_since: float | None = None
        self._idle_since: float | None = None

    def wanted(self, work: FleetLoad, now: float) -> int:
        """Hosts from now on; asked again and again, at any `now` that does not go back."""
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
