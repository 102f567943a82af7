"""Judgement of simulations by the objectives of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from corepipe.planning.planner.bounds import PlanFailure, Reason
from corepipe.planning.planner.demand import Objectives
from corepipe.planning.planner.search_result import SimulatedOutcome
from corepipe.simulation.columns import Floats
from corepipe.simulation.early_stop import EarlyStop
from corepipe.simulation.record import SimulationRecord
from corepipe.simulation.report import GROWS, Latencies, SimulationReport, queue_growth

SUSTAINED = 0.9
"""Share of the arrival rate at which requests must complete, at least."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Turns the results of simulations into outcomes, with the failure if there is one."""

    objectives: Objectives

    def of_report(self, report: SimulationReport) -> SimulatedOutcome:
        return self._outcome(report.requests, report.throughput.output_tokens)

    def of_record(self, record: SimulationRecord) -> SimulatedOutcome:
        requests = record.requests
        seconds = float(np.ptp([requests["arrival"].min(), requests["last_at"].max()]))
        return self._outcome(requests, float(requests["output_tokens"].sum()) / seconds if seconds else 0.0)

    def of_lost(self, early_stop: EarlyStop, requests: int) -> SimulatedOutcome:
        """Returns the outcome of a simulation of `requests` that was stopped early, which certainly fails."""
        seen = len(early_stop.ttfts) / requests
        quantile = self.objectives.quantile
        ttft, tpot = quantile(np.array(early_stop.ttfts)), quantile(np.array(early_stop.tpots))
        return SimulatedOutcome(ttft, tpot, inf, 0.0, _worst(*self._missed(ttft, tpot)), seen)

    def _outcome(self, requests: dict[str, Floats], tokens_per_second: float) -> SimulatedOutcome:
        objectives, latencies = self.objectives, Latencies.of(requests)
        ttft = objectives.quantile(latencies.ttft)
        tpot = objectives.quantile(latencies.tpot[requests["output_tokens"] > 1])
        queued = _queued(requests) if objectives.ttft is None else None
        failure = _worst(*self._missed(ttft, tpot), _unsustained(requests), queued)
        latency = objectives.quantile(latencies.e2e)
        return SimulatedOutcome(ttft, tpot, latency, tokens_per_second, failure)

    def _missed(self, ttft: float, tpot: float) -> tuple[PlanFailure | None, PlanFailure | None]:
        asked = self.objectives
        return _missed(Reason.TTFT, ttft, asked.ttft), _missed(Reason.TPOT, tpot, asked.tpot)


def _missed(reason: Reason, seconds: float, objective: float | None) -> PlanFailure | None:
    if objective is None or seconds <= objective:
        return None
    return PlanFailure(reason, f"{reason} of {seconds * 1e3:.4g} ms", seconds / objective)


def _worst(*failures: PlanFailure | None) -> PlanFailure | None:
    return max((f for f in failures if f is not None), key=lambda f: f.excess, default=None)


def _unsustained(requests: dict[str, Floats]) -> PlanFailure | None:
    """Returns a failure where requests complete more slowly than they arrive."""
    came, left = float(np.ptp(requests["arrival"])), float(np.ptp(requests["last_at"]))
    if left <= came / SUSTAINED or came == 0:
        return None
    return PlanFailure(Reason.THROUGHPUT, f"sustains {came / left:.0%} of the rate", left / came)


def _queued(requests: dict[str, Floats]) -> PlanFailure | None:
    """Returns a failure where the queue grows as long as requests come: first tokens are then late, even
    without an objective."""
    growth = queue_growth(requests)
    if growth <= GROWS:
        return None
    text = f"the queue grows: requests leave at {1 / (1 + growth):.0%} of the rate at which they come"
    return PlanFailure(Reason.THROUGHPUT, text, 1 + growth)
