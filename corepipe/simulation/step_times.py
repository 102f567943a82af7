"""How long steps of one stage take, as native replicas ask for it."""

from __future__ import annotations

import numpy as np

from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel


class StepTimes:
    """Of a deployment of `cost`; the same numbers as `Timeline`'s, to the last bit."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost.lone

    def decoding(
        self, sequences: int, tokens: int, steps: int
    ) -> tuple[float, float, float, list[float], int | None]:
        """Of decode steps with `tokens` tokens of context in all, and so many more in each as there are
        sequences: seconds to copy the inputs, to draw the tokens and to return what the step gives, which are
        those of each step, and of the device for each of `steps` steps; or one that holds for all contexts
        from `tokens` to the last number.
        """
        cost, shape = self._cost, StepShape.decoding(sequences, tokens)
        host = cost.input_seconds(shape), cost.sampling_seconds(shape), cost.result_seconds(shape)
        last = self._last_alike(sequences, tokens)
        if last > tokens:
            return *host, cost.stage_seconds(shape)[:1], last
        contexts = np.arange(tokens, tokens + steps * sequences, sequences, dtype=np.int64)
        return *host, cost.decode_seconds(sequences, contexts)[0].tolist(), None

    def other(
        self, rows: int, logit_rows: int, sequences: int, kv_tokens: int, attended: int
    ) -> tuple[float, float, float, float]:
        """Of any step: seconds to copy its inputs, of the device, to draw tokens, to return what it gives."""
        cost, shape = self._cost, StepShape((rows, logit_rows), sequences, kv_tokens, attended)
        seconds = cost.stage_seconds(shape)[0]
        return cost.input_seconds(shape), seconds, cost.sampling_seconds(shape), cost.result_seconds(shape)

    def _last_alike(self, sequences: int, tokens: int) -> int:
        """The most tokens of context up to which a decode step is padded to the graph of `tokens`: those that
        the graph is for, as what is longer is never padded to less."""
        graph = self._cost.padded(StepShape.decoding(sequences, tokens))
        last = sequences * (graph.kv_tokens // graph.sequences)
        alike = last > tokens and self._cost.padded(StepShape.decoding(sequences, last)) == graph
        return last if alike else tokens
