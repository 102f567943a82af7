"""Rates up to and beyond what a server can take: how latency grows with load, and where throughput stops.

First a closed loop tells roughly how much the server does: as many users as it takes until more of them do
not get more done.  Open-loop stages at shares of that follow, the last ones beyond it.  What the server gets
done while more is asked of it than that is the saturation rate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from math import fsum
from typing import Any

from corepipe.bench.outcome import Outcome
from corepipe.bench.report import Report
from corepipe.bench.runner import Span
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.slo import NO_SLO
from corepipe.workload.workload import Synthetic

SHARES = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3)
"""Of the estimated capacity: the rates of the stages."""

FIRST_USERS = 16
MOST_USERS = 4096
GAIN = 1.05
"""Twice the users must get this much more done, or they are enough."""

LAGS, LAGS_REQUESTS = 0.05, 3.0
"""A server is saturated that falls behind by this share of what is asked of it, and by so many requests:
chance alone makes the work under way a little more or less."""

STEPS_UP, STEP_UP = 6, 1.3
"""Stages that are added where none was too much."""

WARM = 0.3
"""Share of a stage that passes before its throughput counts."""

SWEPT = ("saturation_request_rate", "sustained_request_rate", "best_request_goodput")
"""Keys that the result of a sweep has beside those of a run."""

Play = Callable[[Synthetic, str], Awaitable[Report | None]]
"""Plays a workload, under a name for people; None: the user has had enough."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One rate.  Of its warm part, `seconds` long: requests a second that were due, that got done, and of
    these those that met the objectives (`good`)."""

    rate: float
    offered: float
    done: float
    seconds: float
    report: Report
    good: float = 0.0

    @property
    def saturated(self) -> bool:
        """Whether the work under way grew and grew."""
        behind = (self.offered - self.done) * self.seconds
        return behind > max(LAGS_REQUESTS, LAGS * self.offered * self.seconds)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All stages, by rate."""

    stages: tuple[Stage, ...]

    @property
    def saturation(self) -> float | None:
        """Requests a second at which throughput no longer follows the rate; None: no stage was too much."""
        beyond = [stage.done for stage in self.stages if stage.saturated]
        return max(beyond) if beyond else None

    @property
    def sustained(self) -> Stage:
        """The highest rate that the server followed; the lowest, where it followed none."""
        fine = [stage for stage in self.stages if not stage.saturated]
        return fine[-1] if fine else self.stages[0]

    def best_goodput(self) -> float:
        """Requests a second that met the objectives, in the best stage."""
        return max(stage.good for stage in self.stages)

    def document(self) -> dict[str, Any]:
        """The result of the highest sustained rate, and beside it all stages."""
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
    """Stages of `seconds` each at `rates`, or at shares of what the server can do.

    None: the user had enough before the first stage ended.
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
    """Goes on until a stage is too much."""
    ups = list(accumulate(repeat(STEP_UP, STEPS_UP), lambda rate, up: rate * up, initial=stages[-1].rate))
    for rate in ups[1:]:
        if stages[-1].saturated:
            return
        stage = await _stage(base, rate, seconds, play)
        if stage is None:
            return
        stages.append(stage)


async def estimate(base: Synthetic, seconds: float, play: Play) -> float | None:
    """Requests a second in a closed loop of as many users as are worth it; None: the user had enough."""
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


def steady(outcomes: Sequence[Outcome], span: Span, seconds: float) -> float:
    """Requests a second that were got done in a stage, from when it is warm until nothing more is sent.

    Each chunk of an answer counts as its share of it: whole requests would be too coarse for a short stage.
    """
    begin, end = _window(span, seconds)
    parts = [
        sum(begin <= stamp < end for stamp in outcome.stamps) / len(outcome.stamps)
        for outcome in outcomes
        if outcome.end == "completed"
    ]
    return fsum(parts) / (end - begin)


def _offered(outcomes: Sequence[Outcome], begin: float, end: float) -> float:
    return sum(begin <= outcome.intended < end for outcome in outcomes) / (end - begin)


def _window(span: Span, seconds: float) -> tuple[float, float]:
    return span.start + WARM * seconds, span.start + seconds
