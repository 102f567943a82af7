"""What is asked of a deployment: requests of some lengths at a rate, and objectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np

from corepipe.planning.planner.bounds import Objectives, RequestSizes
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.lengths import Lengths
from corepipe.workload.workload import Synthetic, first_requests

LEAST_REQUESTS = 1000
"""Requests of a simulation, unless it takes more to see a steady state: a 99th percentile then has ten
requests above it."""

TURNOVERS = 10
"""A simulation lasts as long as so many requests one after the other, at the objectives."""

MOST_REQUESTS = 20_000


@dataclass(frozen=True)
class Demand:
    """What is asked for: lengths as `corepipe simulate` takes them; `requests` None: as many as it takes."""

    input_len: Lengths
    output_len: Lengths
    objectives: Objectives
    requests: int | None
    seed: int

    def requests_at(self, rate: float) -> int:
        """How many requests show a steady state at this rate of one instance."""
        if self.requests is not None:
            return self.requests
        answer = float(self.sizes.answers.mean())
        seconds = (self.objectives.ttft or 0.0) + answer * (self.objectives.tpot or 0.0)
        return min(MOST_REQUESTS, max(LEAST_REQUESTS, ceil(TURNOVERS * rate * seconds)))

    def stream(self, rate: float, requests: int) -> Synthetic:
        """So many requests at a rate; fewer are the first of more."""
        return Synthetic(self.input_len, self.output_len, requests, arrivals=Arrivals(rate), seed=self.seed)

    @property
    def tightened(self) -> Demand:
        """With what a prediction must meet for its objectives."""
        return replace(self, objectives=self.objectives.tightened)

    @cached_property
    def sizes(self) -> RequestSizes:
        """Of every request that any simulation may hold."""
        most = self.requests or MOST_REQUESTS
        turns = first_requests(self.stream(1.0, most).workload(), most)
        return RequestSizes(
            np.array([turn.prompt_tokens for turn in turns]), np.array([turn.output_tokens for turn in turns])
        )
