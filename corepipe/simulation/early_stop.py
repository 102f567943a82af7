"""The early end of a simulation: so many requests are late that its percentiles must miss the objectives."""

from __future__ import annotations

from dataclasses import dataclass, field

from corepipe.simulation.simulated_request import SimulatedRequest
from corepipe.workload.slo import Slo


@dataclass(slots=True)
class EarlyStop:
    """Watches a run and ends it early.  most: late first tokens, or requests with a late time per token,
    after which it is lost.

    ttfts: seconds of the first tokens so far; tpots: of requests that have ended and have more than one."""

    slo: Slo
    most: int
    ttfts: list[float] = field(default_factory=list)
    tpots: list[float] = field(default_factory=list)
    _late_firsts: int = 0
    _late_tokens: int = 0

    def started(self, request: SimulatedRequest) -> None:
        """Notes that a request has its first token."""
        seconds = request.first_at - request.arrival
        self.ttfts.append(seconds)
        self._late_firsts += self.slo.ttft is not None and seconds > self.slo.ttft

    def ended(self, request: SimulatedRequest) -> None:
        """Notes that a request has its last token."""
        if request.num_generated < 2:
            return
        seconds = (request.last_at - request.first_at) / (request.num_generated - 1)
        self.tpots.append(seconds)
        self._late_tokens += self.slo.tpot is not None and seconds > self.slo.tpot

    @property
    def lost(self) -> bool:
        return self._late_firsts >= self.most or self._late_tokens >= self.most
