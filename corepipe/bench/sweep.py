"""A sweep: rates up to and beyond a server's capacity, to find how latency grows with load and where
throughput stops growing.

First a closed loop estimates the capacity: the number of users is doubled until more users do not get more
done.  Open-loop stages at shares of that follow, the last ones beyond it.  The throughput of the server at
rates that are too high for it is the saturation rate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from math import fsum
from typing import Any

from corepipe.bench.outcome import RequestOutcome
from corepipe.bench.report import LoadReport
from corepipe.bench.runner import RunSpan
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.slo import NO_SLO
from corepipe.workload.workload import Synthetic

SHARES = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3)
"""Rates of the stages, as shares of the estimated capacity."""

FIRST_USERS = 16
MOST_USERS = 4096
GAIN = 1.05
"""Factor of throughput by which twice the users must do better, or there are enough users."""

LAGS, LAGS_REQUESTS = 0.05, 3.0
"""Share and number of the due requests by which a saturated server falls behind, at least; both are required,
as random variation alone makes the requests in progress a little more or less."""

STEPS_UP, STEP_UP = 6, 1.3
"""Number of stages that are added, and the factor between rates, where no stage saturated the server."""

WARM = 0.3
"""Share of a stage that passes before its throughput counts."""

SWEPT = ("saturation_request_rate", "sustained_request_rate", "best_request_goodput")
"""Keys that the result of a sweep has in addition to those of a run."""

Play = Callable[[Synthetic, str], Awaitable[LoadReport | None]]
"""Plays a workload, under a name for people; returns None where the user has interrupted it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One rate.  For its part after the warm-up, `seconds` long: requests per second that were due
    (`offered`), that were completed (`done`), and that also met the objectives (`good`)."""

    rate: float
    offered: float
    done: float
    seconds: float
    report: LoadReport
    good: float = 0.0

    @property
    def saturated(self) -> bool:
        """Tells whether the requests in progress kept growing."""
        behind = (self.offered - self.done) * self.seconds
        return behind > max(LAGS_REQUESTS, LAGS * self.offered * self.seconds)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All stages, by rate."""

    stages: tuple[Stage, ...]

    @property
    def saturation(self) -> float | None:
        """Requests per second at which throughput stops following the rate; None: no stage saturated."""
        beyond = [stage.done for stage in self.stages if stage.saturated]
        return max(beyond) if beyond else None

    @property
    def sustained(self) -> Stage:
        """The stage with the highest rate that did not saturate the server; the lowest, where all did."""
        fine = [stage for stage in self.stages if not stage.saturated]
        return fine[-1] if fine else self.stages[0]

    def best_goodput(self) -> float:
        """Returns the requests per second that met the objectives, in the best stage."""
        return max(stage.good for stage in self.stages)

    def document(self) -> dict[str, Any]:
        """Returns the result of the highest sustained rate, and all stages in it."""
        sustained = self.sustained
        return {
            **sustained.report.document(),
            **dict(zip(SWEPT, (self.saturation, sustained.rate, self.best_goodput()), strict=True)),
            "stages": [
                {
                    **stage.report.document(),
                    "steady_request_throughput": stage.done,
                    "steady_request_goodput": None if stage.report.conditions.slo == NO_SLO else stage.good,
                    "saturated": stage.saturated,
                }
                for stage in self.stages
            ],
        }


async def sweep(
    base: Synthetic, seconds: float, play: Play, rates: Sequence[float] = (), shares: Sequence[float] = SHARES
) -> Sweep | None:
    """Plays stages of `seconds` each at `rates`, or at shares of the server's capacity.

    Returns None where the user interrupted it before the first stage ended.
    """
    chosen = rates
    if not chosen:
        capacity = await estimate(base, seconds, play)
        chosen = [share * capacity for share in shares] if capacity else []
    stages: list[Stage] = []
    for rate in chosen:
        stage = await _stage(base, rate, seconds, play)
        if stage is None:
            break
        stages.append(stage)
    else:
        if not rates and stages:
            await _beyond(base, stages, seconds, play)
    return Sweep(tuple(stages)) if stages else None


async def _beyond(base: Synthetic, stages: list[Stage], seconds: float, play: Play) -> None:
    """Adds stages until one saturates the server."""
    ups = list(accumulate(repeat(STEP_UP, STEPS_UP), lambda rate, up: rate * up, initial=stages[-1].rate))
    for rate in ups[1:]:
        if stages[-1].saturated:
            return
        stage = await _stage(base, rate, seconds, play)
        if stage is None:
            return
        stages.append(stage)


async def estimate(base: Synthetic, seconds: float, play: Play) -> float | None:
    """Estimates the requests per second of a closed loop with enough users; None: the user interrupted it."""
    before = 0.0
    for users in _doubling(FIRST_USERS, MOST_USERS):
        closed = replace(base, arrivals=None, users=users, requests=None, duration=seconds)
        report = await play(closed, f"estimate, {users} at a time")
        if report is None:
            return None
        done = steady(report.recorder.outcomes, report.span, seconds)
        if done < GAIN * before:
            break
        before = done
    return max(before, done) or None


def _doubling(first: int, most: int) -> Iterator[int]:
    while first <= most:
        yield first
        first *= 2


async def _stage(base: Synthetic, rate: float, seconds: float, play: Play) -> Stage | None:
    arrivals = replace(base.arrivals or Arrivals(rate), rate=rate)
    workload = replace(base, arrivals=arrivals, users=None, requests=None, duration=seconds)
    report = await play(workload, f"{rate:.3g} requests/s")
    if report is None or not report.recorder.outcomes:
        return None
    outcomes, span = report.recorder.outcomes, report.span
    begin, end = _window(span, seconds)
    good = [one for one in outcomes if one.end == "completed" and one.meets(report.conditions.slo)]
    done, met = (steady(some, span, seconds) for some in (outcomes, good))
    return Stage(rate, _offered(outcomes, begin, end), done, end - begin, report, met)


def steady(outcomes: Sequence[RequestOutcome], span: RunSpan, seconds: float) -> float:
    """Returns the requests per second that a stage completed, from the end of its warm-up until nothing more
    is sent.

    Each chunk of an answer counts as its share of it: whole requests would be too coarse for a short stage.
    """
    begin, end = _window(span, seconds)
    parts = [
        sum(begin <= stamp < end for stamp in outcome.stamps) / len(outcome.stamps)
        for outcome in outcomes
        if outcome.end == "completed"
    ]
    return fsum(parts) / (end - begin)


def _offered(outcomes: Sequence[RequestOutcome], begin: float, end: float) -> float:
    return sum(begin <= outcome.intended < end for outcome in outcomes) / (end - begin)


def _window(span: RunSpan, seconds: float) -> tuple[float, float]:
    return span.start + WARM * seconds, span.start + seconds
