"""Numbers by which positions enter attention: slopes, buckets of distances, factors of later queries."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from corepipe.neuron.numerics import elementary
from corepipe.neuron.numerics.arithmetic import F32


@functools.cache
def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """Returns how much each head's scores fall per position: 2 ** (-most * i / heads), i from 1 (Press et al.
    2022).

    Where `heads` is no power of two, those of the next smaller one come first, then every second one of the
    next larger one.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [elementary.power(2.0, -most * i / power) for i in range(1, power + 1)]
    between = [elementary.power(2.0, -most * i / (2 * power)) for i in range(1, 2 * power, 2)]
    return tuple(float(np.float32(slope)) for slope in (*slopes, *between)[:heads])


MAX_DISTANCE = 128
"""The distance from which on all distances share a bucket (T5Config's and MPNet's default)."""


def distance_buckets(ahead: npt.NDArray[np.integer], buckets: int) -> npt.NDArray[np.integer]:
    """Returns the bucket of biases for a key that lies `ahead` positions after its row (negative: before it).

    Half of the buckets are for keys before the row; in either half the first half are single distances, the
    others ranges that grow with the logarithm (Raffel et al. 2020; transformers,
    MPNetEncoder.relative_position_bucket).
    """
    half = buckets // 2
    single = half // 2
    away = np.abs(ahead)
    # Float64 in between: numpy's own fp32 logarithm has other last bits where the CPU has other instructions.
    ratios = np.maximum(away, 1).astype(np.float32) / np.float32(single)
    steps = np.log(ratios.astype(np.float64)).astype(np.float32)
    share = steps / np.float32(math.log(MAX_DISTANCE / single)) * np.float32(half - single)
    far = np.minimum(single + np.maximum(share, 0).astype(np.int64), half - 1)
    found: npt.NDArray[np.integer] = np.where(ahead > 0, half, 0) + np.where(away < single, away, far)
    return found


class Tempering(NamedTuple):
    """Sharper attention for later queries: a query is multiplied by 1 + by * ln(1 + n), where n is how many
    times `every` positions have passed, its own among them (Nakanishi 2025, arXiv 2501.19399; Llama 4)."""

    every: float
    by: float

    def factors(self, positions: npt.NDArray[np.integer]) -> F32:
        """Returns the factors of queries at these positions."""
        times = np.floor((positions.astype(np.float32) + np.float32(1)) / np.float32(self.every))
        # Float64 in between, as in `distance_buckets`.
        logs = np.log1p(times.astype(np.float64)).astype(np.float32)
        return np.asarray(logs * np.float32(self.by) + np.float32(1), np.float32)
