"""Intervals around simulated figures, in which measured ones are expected."""

from __future__ import annotations

from functools import cache

from corepipe.engine.assembly.device_plan import DevicePlan
from corepipe.neuron.timing.uncertainty import Figure, Interval
from corepipe.simulation.columns import Floats
from corepipe.workload.quantiles import Quantiles

FIGURES = {
    "ttft": Figure.FIRST_TOKEN,
    "queue": Figure.FIRST_TOKEN,
    "tpot": Figure.DECODE,
    "itl": Figure.DECODE,
    "e2e": Figure.THROUGHPUT,
}
"""The kind of figure that each latency is: the wait in the queue is part of that for a first token."""

SERVED = (Figure.FIRST_TOKEN, Figure.DECODE, Figure.THROUGHPUT)

MIDDLE = frozenset({"mean", "p50"})
"""The others are tails."""

Bounds = tuple[float, float]


class Intervals:
    """The intervals of a deployment's figures under the load of these requests."""

    def __init__(self, device: DevicePlan, requests: dict[str, Floats]) -> None:
        lengths = requests["prompt_tokens"] + requests["output_tokens"]
        self._tokens = round(float(lengths.mean())) if len(lengths) else 1
        self._device = device
        self.of = cache(self._of)

    def _of(self, figure: Figure, *, tail: bool = False) -> Interval:
        """Returns the interval of a kind of figure.  A model that is run once over its input has one kind,
        measured without other load."""
        if not self._device.graph.causal:
            return self._device.interval(Figure.BATCH, self._tokens, load=False, tail=tail)
        return self._device.interval(figure, self._tokens, tail=tail)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Those that the deployment has."""
        return SERVED if self._device.graph.causal else (Figure.BATCH,)

    def latencies(self, name: str, found: Quantiles | None, factor: float) -> dict[str, Bounds] | None:
        """The least and the most that each of the quantiles of a latency may turn out to be."""
        if found is None:
            return None
        figure = FIGURES[name]
        return {
            quantile: self.of(figure, tail=quantile not in MIDDLE).around(value)
            for quantile, value in found.scaled(factor).items()
        }

    def rate(self, value: float) -> Bounds:
        """Returns the bounds of a rate, in requests or tokens a second."""
        return self.of(Figure.THROUGHPUT).around(value, rate=True)

    def cost(self, value: float | None) -> Bounds | None:
        """Returns the bounds of the dollars for tokens: the more tokens a second, the fewer dollars."""
        return None if value is None else self.of(Figure.THROUGHPUT).around(value)
