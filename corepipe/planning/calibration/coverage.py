"""Coverage: how often intervals contain measurements of families and campaigns that they were made
without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import exp, lgamma, log

from corepipe.neuron.timing.uncertainty import ENOUGH, LEVEL, Interval, Residual, Uncertainty

ALL = "all"
TAILS = ", tails"


@dataclass(frozen=True, slots=True)
class Covered:
    """A left-out run and the interval that the other families and campaigns gave."""

    residual: Residual
    interval: Interval

    @property
    def holds(self) -> bool:
        return log(self.interval.low) <= self.residual.error <= log(self.interval.high)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of one kind: runs; units, which are families in campaigns; the share whose measurement
    lies in its interval, each unit weighing the same; the bounds within which a coverage of 90 % of so many
    units would be found 19 times of 20; and the mean width, as the upper end divided by the lower.  claimed:
    the share of intervals that claim their level."""

    kind: str
    runs: int
    units: int
    share: float
    least: float
    most: float
    width: float
    claimed: float

    @property
    def sound(self) -> bool:
        """Tells whether the share is one that intervals of 90 % would have, as far as so few units tell."""
        return self.units < ENOUGH or self.least <= self.share

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def left_out(residuals: Sequence[Residual], level: float = LEVEL) -> list[Covered]:
    """Returns every run with the interval that is made without its family in its campaign."""
    found = []
    for owner in dict.fromkeys(one.owner for one in residuals):
        rest = [one for one in residuals if one.owner != owner]
        if rest:
            known = Uncertainty(rest)
            here = (one for one in residuals if one.owner == owner)
            found += [Covered(one, known.interval(one.point, level)) for one in here]
    return found


def coverage(found: Iterable[Covered], level: float = LEVEL) -> list[Coverage]:
    """Returns the coverage by kind, all together first."""
    groups: defaultdict[str, list[Covered]] = defaultdict(list)
    for one in found:
        point = one.residual.point
        groups[ALL].append(one)
        groups[point.kind + TAILS * point.tail].append(one)
    return [_of(kind, group, level) for kind, group in groups.items()]


def by_steps(found: Iterable[Covered]) -> dict[int, tuple[int, float, float, float]]:
    """Returns {steps away: (runs, coverage, mean width, mean error)}: intervals should grow as errors do."""
    groups: defaultdict[int, list[Covered]] = defaultdict(list)
    for one in found:
        groups[round(one.interval.steps)].append(one)
    return {
        steps: (
            len(group),
            _mean(one.holds for one in group),
            exp(_mean(log(one.interval.high / one.interval.low) for one in group)),
            _mean(abs(one.residual.error) for one in group),
        )
        for steps, group in sorted(groups.items())
    }


def _of(kind: str, group: Sequence[Covered], level: float) -> Coverage:
    owners: defaultdict[tuple[str, ...], list[bool]] = defaultdict(list)
    for one in group:
        owners[(one.residual.point.kind, *one.residual.owner)].append(one.holds)
    least, most = binomial(len(owners), level)
    return Coverage(
        kind=kind,
        runs=len(group),
        units=len(owners),
        share=_mean(_mean(held) for held in owners.values()),
        least=least,
        most=most,
        width=exp(_mean(log(one.interval.high / one.interval.low) for one in group)),
        claimed=_mean(one.interval.claimed for one in group),
    )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


def binomial(draws: int, level: float, within: float = 0.95) -> tuple[float, float]:
    """Returns the shares between which that of `draws` draws of probability `level` lies, but for (1 -
    within) / 2 on either side; for any number of draws, as each probability is computed from logarithms."""
    if not draws:
        return 0.0, 1.0
    tail, below, low = (1 - within) / 2, 0.0, None
    for hits in range(draws + 1):
        ways = lgamma(draws + 1) - lgamma(hits + 1) - lgamma(draws - hits + 1)
        below += exp(ways + hits * log(level) + (draws - hits) * log(1 - level))
        if low is None and below > tail:
            low = hits
        if below >= 1 - tail:
            return (low or 0) / draws, hits / draws
    return (low or 0) / draws, 1.0
