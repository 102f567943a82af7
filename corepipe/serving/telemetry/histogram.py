"""Histograms of Prometheus, and the bounds of their buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric

# Bucket bounds are vLLM's, so that its dashboards and recording rules fit.
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)
FIRST_TOKEN_LONG = (*FIRST_TOKEN, 80, 160, 640, 2560)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
# Grammars are compiled in milliseconds, and masks of most tokens filled in microseconds.
GRAMMAR = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
MASK = (5e-6, 1e-5, 1.5e-5, 2e-5, 3e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1)
# Emulated devices answer faster than 10 ms a token: finer bounds below vLLM's.
DEVICE_PER_TOKEN = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, *PER_TOKEN)


class Histogram:
    """Counts values by bucket without a lock, which is far cheaper: this server has one event loop."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts `value`, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Exports the counts as one series of `family`."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        counts: Iterable[float] = accumulate(self._counts)
        family.add_metric(labels, list(zip(names, counts, strict=True)), self._sum)

    def family(self, name: str, what: str, labels: Mapping[str, str]) -> Metric:
        """Exports the counts as a family of one series."""
        family = HistogramMetricFamily(name, what, labels=tuple(labels))
        self.add_to(family, tuple(labels.values()))
        return family


def token_bounds(largest: int) -> tuple[int, ...]:
    """Returns the bounds 1, 2, 5, 10, ... up to `largest`."""
    steps = (mantissa * 10**power for power in range(10) for mantissa in (1, 2, 5))
    return tuple(step for step in steps if step <= largest)
