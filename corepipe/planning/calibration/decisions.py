"""Decisions by predictions: whether measurements agree, and the extra cost of the first choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np

from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.timing.uncertainty import Interval, Point
from corepipe.planning.calibration.coverage import Covered
from corepipe.planning.calibration.residuals import MeasuredRow
from corepipe.planning.calibration.rows import UNITS, count, degrees, is_rate, text
from corepipe.planning.calibration.score import resolution, run

CHOICES = ("instance", "parallelism", "batch_size")
"""Columns that are chosen, and differ between the two rows of a pair."""

GIVEN = (
    "task", "model", "dtype", "input_len", "output_len", "metric", "percentile", "arrival", "users", "rate",
)  # fmt: skip
"""Columns that are the same for both."""

Intervals = Mapping[tuple[str, str, bool], Interval]


@dataclass(frozen=True, slots=True)
class PairOrder:
    """A number of pairs, and how many of them were predicted in the order in which they were measured."""

    pairs: int
    right: int

    @property
    def share(self) -> float | None:
        return self.right / self.pairs if self.pairs else None


@dataclass(frozen=True, slots=True)
class Regret:
    """The regret over groups of configurations for one workload: how often the one that is cheapest by
    prediction is the cheapest by measurement, and how much dearer it is."""

    groups: int
    best: int
    median: float
    mean: float
    p90: float
    worst: float


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of pairs.  apart, overlapping: pairs by their intervals; by: all pairs, by what differs."""

    apart: PairOrder
    overlapping: PairOrder
    by: Mapping[str, tuple[PairOrder, PairOrder]]
    regret: Regret

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def decisions(found: Sequence[MeasuredRow], held: Iterable[Covered]) -> Decisions:
    """Judges measured rows, each predicted without its family, by the intervals that the others give."""
    intervals = {_key(one.residual.run, one.residual.point): one.interval for one in held}
    judged: defaultdict[tuple[str, bool], list[bool]] = defaultdict(list)
    for one, other in pairs(found):
        apart = not _overlap(one, other, intervals)
        judged[_difference(one, other), apart].append(_right(one, other))
    names = dict.fromkeys(name for name, _ in judged)
    return Decisions(
        apart=_order(hits for (_, apart), hits in judged.items() if apart),
        overlapping=_order(hits for (_, apart), hits in judged.items() if not apart),
        by={name: (_order([judged[name, True]]), _order([judged[name, False]])) for name in names},
        regret=_regret(found),
    )


def _key(name: str, point: Point) -> tuple[str, str, bool]:
    return name, point.kind, point.tail


def pairs(found: Sequence[MeasuredRow]) -> Iterator[tuple[MeasuredRow, MeasuredRow]]:
    """Yields rows of one model and workload on two instances, placements or batches that differ."""
    for group in _groups(found, GIVEN).values():
        for one, other in combinations(group, 2):
            differ = any(text(one.row, name) != text(other.row, name) for name in CHOICES)
            rounding = (resolution(one.row) + resolution(other.row)) / 2
            if differ and abs(one.value - other.value) > rounding:
                yield one, other


def _groups(found: Sequence[MeasuredRow], columns: Sequence[str]) -> dict[tuple[str, ...], list[MeasuredRow]]:
    groups: defaultdict[tuple[str, ...], list[MeasuredRow]] = defaultdict(list)
    for one in found:
        groups[tuple(text(one.row, name) for name in columns)].append(one)
    return groups


def _difference(one: MeasuredRow, other: MeasuredRow) -> str:
    names = {"instance": "instances", "parallelism": "placements", "batch_size": "batches"}
    return next(label for name, label in names.items() if text(one.row, name) != text(other.row, name))


def _overlap(one: MeasuredRow, other: MeasuredRow, intervals: Intervals) -> bool:
    (low, high), (other_low, other_high) = (_around(each, intervals) for each in (one, other))
    return low <= other_high and other_low <= high


def _around(one: MeasuredRow, intervals: Intervals) -> tuple[float, float]:
    return intervals[_key(run(one.row), one.point)].around(one.predicted, rate=is_rate(one.row))


def _right(one: MeasuredRow, other: MeasuredRow) -> bool:
    return (one.predicted < other.predicted) == (one.value < other.value)


def _order(groups: Iterable[Sequence[bool]]) -> PairOrder:
    hits = [hit for group in groups for hit in group]
    return PairOrder(len(hits), sum(hits))


def _regret(found: Sequence[MeasuredRow]) -> Regret:
    """Returns the regret over workloads for which several configurations' costs were measured."""
    priced = [one for one in found if not one.point.tail and _per_token(one) is not None]
    regrets = []
    for group in _groups(priced, GIVEN).values():
        if len({tuple(text(one.row, name) for name in CHOICES) for one in group}) > 1:
            chosen = min(group, key=lambda one: _cost(one, lambda each: each.predicted))
            costs = [_cost(one, lambda each: each.value) for one in group]
            regrets.append(_cost(chosen, lambda each: each.value) / min(costs) - 1)
    if not regrets:
        return Regret(0, 0, 0.0, 0.0, 0.0, 0.0)
    best = sum(regret < 1e-9 for regret in regrets)
    p90 = float(np.quantile(regrets, 0.9))
    middle, mean = float(np.median(regrets)), float(np.mean(regrets))
    return Regret(len(regrets), best, middle, mean, p90, max(regrets))


def _cost(one: MeasuredRow, figure: Callable[[MeasuredRow], float]) -> float:
    """Returns the dollars for one unit of a rate, or for a time: of the instance's part that is used."""
    per_token = _per_token(one)
    assert per_token is not None
    value = figure(one) * UNITS[text(one.row, "unit")]
    return per_token / value if is_rate(one.row) else per_token * value


def _per_token(one: MeasuredRow) -> float | None:
    """Returns the dollars per second of the cores in use, per token that a figure of one yields; None
    where the figure is no throughput, nor a time between tokens, or the instance has no price."""
    row = one.row
    machine, cut = find_instance(text(row, "instance")), degrees(row)
    if machine.price_per_hour is None:
        return None
    share = min(1.0, cut.tensor * cut.pipeline * cut.data / machine.cores)
    dollars = machine.price_per_hour / 3600 * share
    if is_rate(row):
        return dollars
    if text(row, "metric") != "tpot" or text(row, "arrival"):
        return None
    return dollars / (count(row, "batch_size", 1) * cut.data)
