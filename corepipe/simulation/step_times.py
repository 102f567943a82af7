"""Times of steps on one stage, for native replicas."""

from __future__ import annotations

import numpy as np

from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel


class StepTimes:
    """The times of steps of a deployment with this `cost`: those of `Timeline`, to the last bit."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost.lone

    def decoding(
        self, sequences: int, tokens: int, steps: int
    ) -> tuple[float, float, float, list[float], int | None]:
        """Returns the times of decode steps, the first with `tokens` tokens of context in all, each further
        one with `sequences` more: seconds to copy the inputs, to draw the tokens and to return the outputs,
        which are the same for each step; the device's seconds for each of `steps` steps; and None.  Or one
        device time, and the last context for which it holds, from `tokens` on.
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
        """Returns the times of any step: seconds to copy its inputs, on the device, to draw tokens, and to
        return its outputs."""
        cost, shape = self._cost, StepShape((rows, logit_rows), sequences, kv_tokens, attended)
        seconds = cost.stage_seconds(shape)[0]
        return cost.input_seconds(shape), seconds, cost.sampling_seconds(shape), cost.result_seconds(shape)

    def _last_alike(self, sequences: int, tokens: int) -> int:
        """Returns the most tokens of context up to which a decode step is padded to the graph of `tokens`:
        those that the graph is for, as a longer context is never padded to a shorter one."""
        graph = self._cost.padded(StepShape.decoding(sequences, tokens))
        last = sequences * (graph.kv_tokens // graph.sequences)
        alike = last > tokens and self._cost.padded(StepShape.decoding(sequences, last)) == graph
        return last if alike else tokens
