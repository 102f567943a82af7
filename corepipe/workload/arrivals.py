"""Arrival times of requests in an open loop, where nobody waits for an answer first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, log, log1p, sqrt
from random import Random
from typing import Literal

from corepipe.errors import UserError

ArrivalKind = Literal["poisson", "gamma", "constant"]
RATE_FORMS = "a number, inf, or LOW..HIGH over --duration (LOW..HIGH:exponential)"


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that moves to `to` within `seconds`, linearly or by equal factors, and then stays there."""

    to: float
    seconds: float
    exponential: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.to < inf and 0 < self.seconds < inf):
            raise UserError("--rate LOW..HIGH: give two rates above 0, and a --duration above 0", "rate")

    def time(self, start: float, arrivals: float) -> float:
        """Returns the seconds until so many arrivals are expected: the inverse of the rate's integral."""
        if self.to == start:
            return arrivals / start
        growth, slope = log(self.to / start), (self.to - start) / self.seconds
        within = (self.to - start) / growth if self.exponential else (start + self.to) / 2
        within *= self.seconds
        if arrivals > within:
            return self.seconds + (arrivals - within) / self.to
        if self.exponential:
            return self.seconds / growth * log1p(arrivals * growth / (start * self.seconds))
        return (sqrt(start * start + 2 * slope * arrivals) - start) / slope


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals at `rate` per second (inf: all at once), with gaps of one kind; with a ramp, `rate` is its
    start.

    burstiness: shape of the gamma distribution of gaps; 1 is Poisson, below 1 bursty, above 1 more regular
    (as in vLLM's benchmark).  Raises UserError for a rate or a burstiness that is not positive.
    """

    rate: float
    kind: ArrivalKind = "poisson"
    burstiness: float = 1.0
    ramp: Ramp | None = None

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise UserError(f"--rate must be above 0, not {self.rate}; `inf` sends all at once", "rate")
        if not 0 < self.burstiness < inf:
            raise UserError(
                f"--burstiness must be above 0, not {self.burstiness}; 1 is Poisson", "burstiness"
            )
        if self.burstiness != 1.0 and self.kind != "gamma":
            raise UserError(
                f"--burstiness {self.burstiness} goes with --arrival gamma, not {self.kind}", "burstiness"
            )

    @classmethod
    def parse(
        cls, text: str, kind: ArrivalKind = "poisson", burstiness: float = 1.0, seconds: float | None = None
    ) -> Arrivals:
        """Reads a rate in one of the RATE_FORMS; seconds: the duration of a ramp.  Raises UserError."""
        rates, _, shape = text.partition(":")
        low, *high = rates.split("..")
        try:
            first, last = float(low), [float(rate) for rate in high]
        except ValueError:
            last, first = [], -inf
        if first == -inf or len(last) > 1 or shape not in ({"", "exponential"} if last else {""}):
            raise UserError(f"--rate {text}: give {RATE_FORMS}", "rate")
        if not last:
            return cls(first, kind, burstiness)
        if seconds is None or first == inf:
            raise UserError(f"--rate {text}: a ramp needs a duration; give --duration", "rate")
        return cls(first, kind, burstiness, Ramp(last[0], seconds, shape == "exponential"))

    def divided(self, by: int) -> Arrivals:
        """Returns the arrivals of sessions that have `by` requests each, at the same rate of requests."""
        ramp = self.ramp and replace(self.ramp, to=self.ramp.to / by)
        return replace(self, rate=self.rate / by, ramp=ramp)

    def times(self, random: Random) -> Iterator[float]:
        """Yields the ascending seconds of arrivals from the start, without end; the first follows a gap."""
        now, rate = 0.0, self.rate if self.ramp is None else 1.0
        while True:
            now += self._gap(random, rate)
            yield now if self.ramp is None else self.ramp.time(self.rate, now)

    def _gap(self, random: Random, rate: float) -> float:
        if rate == inf:
            return 0.0
        match self.kind:
            case "constant":
                return 1.0 / rate
            case "poisson":
                return random.expovariate(rate)
            case "gamma":
                return random.gammavariate(self.burstiness, 1.0 / (rate * self.burstiness))
