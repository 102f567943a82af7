"""How long a draft model takes on the device beside the model that it guesses for."""

from __future__ import annotations

from dataclasses import dataclass

from corepipe.neuron.chips.profiles import SamplingLocation
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel


@dataclass(frozen=True, slots=True)
class DraftTimes:
    """What a draft model takes beside the steps of the model that it guesses for; cost: its own."""

    cost: CostModel

    def seconds(self, shape: StepShape) -> float:
        """Before a step with guesses a pass for each guess of a sequence, one after the other, with a row a
        sequence; beside a step with prompts one with the same rows, of which nothing is drawn; else none.

        Where tokens are drawn on the device, passes follow one another there, as in a graph that the compiler
        has fused; else the host takes its time for each.
        """
        if shape.each > 1:
            step = StepShape.decoding(shape.sequences, shape.kv_tokens - shape.sequences)
            return (shape.each - 1) * (self._pass(step) + self._host(step))
        if shape.decodes:
            return 0.0
        return self._pass(shape._replace(counts=(shape.rows, 0)))

    def _pass(self, step: StepShape) -> float:
        return sum(self.cost.lone.stage_seconds(step))

    def _host(self, step: StepShape) -> float:
        profile = self.cost.profile
        if profile.sampling is SamplingLocation.DEVICE:
            return 0.0
        return profile.host_seconds + self.cost.sampling_seconds(step)
