"""Times of steps, for native replicas."""

from __future__ import annotations

import numpy as np

from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.timeline import Timeline

StepsTimed = tuple[float, float, float, float, list[float]]
"""Seconds to copy the inputs of a step, to draw its tokens, to return its outputs, and of a draft model; and
[steps, costs, stages, 2], flat: for each cost model of `StepTimes` the seconds to reach each stage, and those
on it."""


class StepTimes:
    """The times of steps on `timeline`, to the last bit.

    lone_differs: whether a step that is alone in the pipeline takes another time on a stage."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._cost = cost = timeline.cost
        self.stages = cost.stages
        self.lone_differs = cost.lone is not cost
        self._costs = [cost.lone, cost] if self.lone_differs else [cost]

    def decoding(self, sequences: int, tokens: int, steps: int) -> tuple[StepsTimed, int | None]:
        """Returns the times of `steps` decode steps, the first with `tokens` tokens of context in all, each
        further one with `sequences` more; and None.  Or those of one, and the last context for which they
        hold, from `tokens` on.  No draft model runs beside them.
        """
        shape = StepShape.decoding(sequences, tokens)
        last = self._last_alike(sequences, tokens)
        if last > tokens:
            return self._timed(shape), last
        contexts = np.arange(tokens, tokens + steps * sequences, sequences, dtype=np.int64)
        stages = np.empty((steps, len(self._costs), self.stages, 2))
        for at, cost in enumerate(self._costs):
            stages[:, at, :, 0] = cost.transfers(shape)
            stages[:, at, :, 1] = cost.decode_seconds(sequences, contexts).T
        return (*self._host(shape), 0.0, stages.ravel().tolist()), None

    def other(
        self, rows: int, logit_rows: int, sequences: int, kv_tokens: int, attended: int, each: int
    ) -> StepsTimed:
        """Returns the times of any step."""
        return self._timed(StepShape((rows, logit_rows), sequences, kv_tokens, attended, each=each))

    def _timed(self, shape: StepShape) -> StepsTimed:
        drafting, stages = self._timeline.drafting_seconds(shape), list[float]()
        for cost in self._costs:
            first, *others = cost.stage_seconds(shape)
            for pair in zip(cost.transfers(shape), (drafting + first, *others), strict=True):
                stages += pair
        return *self._host(shape), drafting, stages

    def _host(self, shape: StepShape) -> tuple[float, float, float]:
        cost = self._cost
        return cost.input_seconds(shape), cost.sampling_seconds(shape), cost.result_seconds(shape)

    def _last_alike(self, sequences: int, tokens: int) -> int:
        """Returns the most tokens of context up to which a decode step is padded to the graph of `tokens`:
        those that the graph is for, as a longer context is never padded to a shorter one."""
        graph = self._cost.padded(StepShape.decoding(sequences, tokens))
        last = sequences * (graph.kv_tokens // graph.sequences)
        alike = last > tokens and self._cost.padded(StepShape.decoding(sequences, last)) == graph
        return last if alike else tokens
