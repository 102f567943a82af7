"""The metrics of a pool of models: their states, what happened to them, and the requests that wait for them.

No series names a model, so that their number is fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class HasModels(Protocol):
    @property
    def states(self) -> Counter[str]: ...

    @property
    def counts(self) -> Mapping[str, int]: ...

    @property
    def waiting(self) -> int: ...


class PoolMetrics(Collector):
    """The metrics of a pool at `/metrics`."""

    def __init__(self, pool: HasModels) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "corepipe_models", "Models of the server that are there, by state.", labels=("state",)
        )
        for state, count in self._pool.states.items():
            states.add_metric((state,), count)
        events = CounterMetricFamily(
            "corepipe_model_changes",
            "Models that loaded or woke, failed to, fell asleep, or left the memory.",
            labels=("change",),
        )
        for change, count in self._pool.counts.items():
            events.add_metric((change,), count)
        waiting = GaugeMetricFamily(
            "corepipe_requests_waiting_for_model", "Requests that wait until their model is loaded."
        )
        waiting.add_metric((), self._pool.waiting)
        yield from (states, events, waiting)
