"""Exact means and percentiles of the values of many requests."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The mean, percentiles and maximum of `count` values.  A percentile between two values is interpolated
    linearly (as numpy's)."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Floats, times: Floats | None = None) -> Quantiles | None:
        """Returns the quantiles of values, or of ascending values each of which occurs `times` times; None
        where there are none.

        The order of the values does not change a bit of the result.
        """
        if len(values) == 0:
            return None
        ordered = np.sort(values) if times is None else values
        weights = np.ones(len(values)) if times is None else times
        ends = np.cumsum(weights)
        count = int(ends[-1])
        p50, p90, p95, p99 = (_at(ordered, ends, percent / 100 * (count - 1)) for percent in PERCENTILES)
        mean = fsum((ordered * weights).tolist()) / count
        return cls(count, mean, p50, p90, p95, p99, float(ordered[-1]))

    def scaled(self, factor: float) -> dict[str, float]:
        """Returns the figures under their names in reports, converted to another unit by `factor`."""
        names = ("mean", *(f"p{percent}" for percent in PERCENTILES), "max")
        return {name: getattr(self, name) * factor for name in names}


def _at(ordered: Floats, ends: Floats, rank: float) -> float:
    """Returns the value at a rank from 0 on, interpolated between the two nearest."""
    below = int(rank)
    low, high = ordered[np.searchsorted(ends, (below, min(below + 1, int(ends[-1]) - 1)), side="right")]
    return float(low + (high - low) * (rank - below))
