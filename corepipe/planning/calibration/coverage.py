"""Coverage: how often intervals contain measurements of families that they were made without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb, exp, log

from corepipe.neuron.timing.uncertainty import LEVEL, Interval, Residual, Uncertainty, Widths, scored

ALL = "all"
TAILS = ", tails"
MANY = 40
"""Number of runs from which on a kind's coverage is checked against its binomial bound."""


@dataclass(frozen=True, slots=True)
class Covered:
    """A left-out run and the interval that the other families gave."""

    residual: Residual
    interval: Interval

    @property
    def holds(self) -> bool:
        return log(self.interval.low) <= self.residual.error <= log(self.interval.high)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of one kind: runs; the share whose measurement lies in its interval; the bounds within
    which a coverage of 90 % would be found 19 times of 20; and the mean width, as the upper end divided by
    the lower."""

    kind: str
    runs: int
    share: float
    least: float
    most: float
    width: float

    @property
    def sound(self) -> bool:
        """Tells whether the share is one that intervals of 90 % would have, as far as so few runs tell."""
        return self.runs < MANY or self.least <= self.share <= self.most

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def nested(
    residuals: Sequence[Residual], widths: Mapping[str, Widths], level: float = LEVEL
) -> list[Covered]:
    """Returns every run with the interval that other families alone give: constants, errors and `widths`
    (by the family that is left out) are all from other families."""
    found = []
    for family in dict.fromkeys(one.family for one in residuals):
        rest = scored([one for one in residuals if one.family != family], widths[family])
        if not rest:
            continue
        known = Uncertainty(rest, widths[family])
        here = (one for one in residuals if one.family == family)
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
    least, most = binomial(len(group), level)
    width = exp(_mean(log(one.interval.high / one.interval.low) for one in group))
    return Coverage(kind, len(group), _mean(one.holds for one in group), least, most, width)


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


def binomial(runs: int, level: float, within: float = 0.95) -> tuple[float, float]:
    """Returns the shares between which that of `runs` draws of probability `level` lies, but for (1 -
    within) / 2 on either side."""
    tail, below, low = (1 - within) / 2, 0.0, None
    for hits in range(runs + 1):
        below += comb(runs, hits) * level**hits * (1 - level) ** (runs - hits)
        if low is None and below > tail:
            low = hits
        if below >= 1 - tail:
            return (low or 0) / runs, hits / runs
    return (low or 0) / runs, 1.0
