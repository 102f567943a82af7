"""The demand on a deployment: requests with given lengths at a rate, and objectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np
import numpy.typing as npt

from corepipe.workload.arrivals import Arrivals
from corepipe.workload.lengths import Lengths
from corepipe.workload.workload import Synthetic, Workload, first_requests

LEAST_REQUESTS = 1000
"""Least requests of a simulation by default: a 99th percentile has ten requests above it."""

TURNOVERS = 10
"""Length of a simulation, in times of one request that takes as long as the objectives allow."""

MOST_REQUESTS = 20_000


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Objectives:
    """Service-level objectives in seconds (None: none), held at a percentile; and the rate in requests per
    second.

    margin: share of each objective by which a prediction must be below it.
    """

    ttft: float | None
    tpot: float | None
    percentile: float
    rate: float
    margin: float = 0.0

    @property
    def tightened(self) -> Objectives:
        """The objectives less the margin, which a prediction must meet."""
        left = 1 - self.margin
        return replace(
            self, ttft=self.ttft and self.ttft * left, tpot=self.tpot and self.tpot * left, margin=0.0
        )

    def quantile(self, values: Floats) -> float:
        """Returns the objective's percentile of `values`, interpolated between ranks; 0 for no values."""
        return float(np.percentile(values, self.percentile)) if len(values) else 0.0


@dataclass(frozen=True, slots=True)
class RequestSizes:
    """Tokens of each request's prompt and answer; `shared`: whether prompts may begin alike."""

    prompts: npt.NDArray[np.int64]
    answers: npt.NDArray[np.int64]
    shared: bool = False

    @classmethod
    def of(cls, workload: Workload, most: int) -> RequestSizes:
        """Returns the sizes of the first requests of a workload."""
        turns = first_requests(workload, most)
        prompts = np.array([turn.prompt_tokens for turn in turns], np.int64)
        return cls(prompts, np.array([turn.output_tokens for turn in turns], np.int64))

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return int((self.prompts + self.answers).max())


@dataclass(frozen=True)
class Demand:
    """A demand: lengths as in `corepipe simulate`, and objectives; `requests` None: as many as needed."""

    input_len: Lengths
    output_len: Lengths
    objectives: Objectives
    requests: int | None
    seed: int

    def requests_at(self, rate: float) -> int:
        """Returns the number of requests that show a steady state at this rate of one instance."""
        if self.requests is not None:
            return self.requests
        answer = float(self.sizes.answers.mean())
        seconds = (self.objectives.ttft or 0.0) + answer * (self.objectives.tpot or 0.0)
        return min(MOST_REQUESTS, max(LEAST_REQUESTS, ceil(TURNOVERS * rate * seconds)))

    def stream(self, rate: float, requests: int) -> Synthetic:
        """Returns so many requests at a rate; a shorter stream is a prefix of a longer one."""
        return Synthetic(self.input_len, self.output_len, requests, arrivals=Arrivals(rate), seed=self.seed)

    @property
    def tightened(self) -> Demand:
        """The demand with the objectives that a prediction must meet."""
        return replace(self, objectives=self.objectives.tightened)

    @cached_property
    def sizes(self) -> RequestSizes:
        """The sizes of all requests that any simulation may use."""
        most = self.requests or MOST_REQUESTS
        return RequestSizes.of(self.stream(1.0, most).workload(), most)
