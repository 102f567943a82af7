"""When requests come, where nobody waits for an answer before sending the next one (open loop)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Literal

from corepipe.errors import UserError

ArrivalKind = Literal["poisson", "gamma", "constant"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`rate` arrivals a second (inf: all at once), with gaps of this kind.

    burstiness: shape of the gamma distribution of gaps; 1 is Poisson, below 1 bursty, above 1 more regular
    (as in vLLM's benchmark).  Raises UserError for a rate or a burstiness that is not positive.
    """

    rate: float
    kind: ArrivalKind = "poisson"
    burstiness: float = 1.0

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

    def times(self, random: Random) -> Iterator[float]:
        """Seconds from the start, ascending and without end; the first arrival comes after a gap."""
        now = 0.0
        while True:
            now += self._gap(random)
            yield now

    def _gap(self, random: Random) -> float:
        if self.rate == inf:
            return 0.0
        match self.kind:
            case "constant":
                return 1.0 / self.rate
            case "poisson":
                return random.expovariate(self.rate)
            case "gamma":
                return random.gammavariate(self.burstiness, 1.0 / (self.rate * self.burstiness))
