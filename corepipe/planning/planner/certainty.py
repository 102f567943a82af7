"""Comparison of deployments by the intervals of their figures, and the next measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from corepipe.neuron.graph import Graph
from corepipe.neuron.timing.uncertainty import (
    LEVEL,
    Figure,
    Interval,
    ModelKind,
    Point,
    Setup,
    architecture_of,
    interval,
    shipped_uncertainty,
)
from corepipe.planning.planner.demand import Demand
from corepipe.planning.planner.search_result import PlanOption

MEASURED = 0.05
"""Relative error of a deployment's own measurement: served models vary so from day to day."""

TAIL = 75.0
"""Percentile above which figures are less certain than the median."""

FIGURES = {"ttft": Figure.FIRST_TOKEN, "tpot": Figure.DECODE, "e2e": Figure.THROUGHPUT}

Range = tuple[float, float]


def overlap(one: Range, other: Range) -> bool:
    """Tells whether two intervals overlap."""
    return one[0] <= other[1] and other[0] <= one[1]


@dataclass(frozen=True)
class Certainty:
    """The intervals of a plan for a model and a demand.

    level: the share of measurements that lie in an interval; ranks: whether options are ranked by the
    intervals.
    """

    demand: Demand
    graph: Graph
    level: float = LEVEL
    ranks: bool = False

    def interval(self, option: PlanOption, figure: Figure, *, tail: bool = False) -> Interval:
        """Returns the interval of a figure of an option."""
        point = self._point(option, figure, tail=tail)
        return interval(point, option.deployment.candidate.shape.profile, self.level)

    def _point(self, option: PlanOption, figure: Figure, *, tail: bool) -> Point:
        shape = option.deployment.candidate.shape
        setup = Setup(self._architecture, shape.instance, shape.profile, shape.placement)
        return Point.of(figure, setup, self._tokens, load=True, tail=tail)

    def confidence(self, option: PlanOption) -> dict[str, float]:
        """Returns by objective the share of measurements of such figures that would meet it."""
        asked, outcome = self.demand.objectives, option.outcome
        limits = {"ttft": (asked.ttft, outcome.ttft), "tpot": (asked.tpot, outcome.tpot)}
        tail = asked.percentile > TAIL
        return {
            name: shipped_uncertainty().confidence(
                self._point(option, FIGURES[name], tail=tail), limit / seconds
            )
            for name, (limit, seconds) in limits.items()
            if limit is not None and seconds > 0
        }

    @cached_property
    def _architecture(self) -> ModelKind:
        return architecture_of(self.graph)

    @cached_property
    def _tokens(self) -> int:
        return round(float((self.demand.sizes.prompts + self.demand.sizes.answers).mean()))

    def latency(self, option: PlanOption, name: str) -> Range:
        """Returns the bounds in seconds of a ttft, tpot or e2e, at the objectives' percentile."""
        outcome = option.outcome
        seconds = {"ttft": outcome.ttft, "tpot": outcome.tpot, "e2e": outcome.latency}[name]
        tail = self.demand.objectives.percentile > TAIL
        return self.interval(option, FIGURES[name], tail=tail).around(seconds)

    def rate(self, option: PlanOption) -> Range:
        """Returns the bounds of the output tokens per second of the whole deployment."""
        tokens = option.outcome.tokens_per_second * option.deployment.instances
        return self.interval(option, Figure.THROUGHPUT).around(tokens, rate=True)

    def price(self, option: PlanOption) -> Range:
        """Returns the bounds of the dollars per hour for the demanded rate: fewer or more instances are
        needed where each does more or less than was predicted."""
        return self.interval(option, Figure.THROUGHPUT).around(option.price)

    def may_miss(self, option: PlanOption) -> list[str]:
        """Returns the objectives that an option meets by its prediction, but not by the upper end of the
        interval."""
        asked = self.demand.objectives
        limits = {"ttft": asked.ttft, "tpot": asked.tpot}
        return [
            name
            for name, limit in limits.items()
            if limit is not None and self.latency(option, name)[1] > limit
        ]

    def order(self, option: PlanOption) -> tuple[object, ...]:
        """Returns a key that sorts options: by predicted price; or, where they are ranked by certainty,
        first those that surely meet the objectives, then by the upper end of the price."""
        predicted = (option.price, option.outcome.latency)
        return (bool(self.may_miss(option)), self.price(option)[1], *predicted) if self.ranks else predicted

    def alike(self, options: Sequence[PlanOption]) -> list[PlanOption]:
        """Returns the options that cannot be distinguished from the first: their prices' intervals
        overlap, and they meet the objectives as surely."""
        if not options:
            return []
        first, *others = options
        return [one for one in others if self._alike(first, one)]

    def _alike(self, first: PlanOption, other: PlanOption) -> bool:
        as_sure = len(self.may_miss(other)) <= len(self.may_miss(first))
        return as_sure and overlap(self.price(first), self.price(other))

    def undecided(self, options: Sequence[PlanOption]) -> bool:
        """Tells whether no two options can be distinguished: there are several, and all intervals overlap."""
        intervals = [self.price(option) for option in options]
        pairs = ((one, other) for i, one in enumerate(intervals) for other in intervals[:i])
        return len(options) > 1 and all(overlap(one, other) for one, other in pairs)

    def next_measurement(self, options: Sequence[PlanOption]) -> Measurement | None:
        """Returns the measurement that would distinguish most options, first of those whose software is not
        fully documented; of equal ones, that on the cheapest instance.

        Returns None where there is only one option, or where no measurement would distinguish any.
        """
        rivals = [*options[:1], *self.alike(options)]
        if len(rivals) < 2:
            return None
        best = max(self._measurements(rivals), key=worth)
        return best if best.separates else None

    def _measurements(self, rivals: Sequence[PlanOption]) -> Iterator[Measurement]:
        for option in rivals:
            known = (option.price * (1 - MEASURED), option.price * (1 + MEASURED))
            others = [self.price(other) for other in rivals if other is not option]
            low, high = self.price(option)
            separates = sum(not overlap(known, other) for other in others)
            yield Measurement(
                option, separates, len(others), option.price / option.deployment.instances, high / low
            )


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement of one instance of an option, under its part of the load.

    separates: number of the `rivals` that it would then be distinguished from, if it is as predicted; price:
    dollars per hour; width: of the interval now, its upper end divided by its lower.
    """

    option: PlanOption
    separates: int
    rivals: int
    price: float
    width: float

    @property
    def settles(self) -> str:
        """The profile that holds instead if the measurement does not confirm the option's; empty: none."""
        return self.option.deployment.candidate.shape.profile.otherwise


def worth(one: Measurement) -> tuple[bool, int, float, float]:
    """Returns a key that sorts measurements by what they tell."""
    return bool(one.separates and one.settles), one.separates, -one.price, one.width
