"""The device time of a draft model beside the main model."""

from __future__ import annotations

from dataclasses import dataclass

from corepipe.neuron.chips.runtime_profile import SamplingLocation
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel


@dataclass(frozen=True, slots=True)
class DraftTimes:
    """The time of a draft model beside the steps of the main model; cost: the draft model's own."""

    cost: CostModel

    def seconds(self, shape: StepShape) -> float:
        """Returns the time of the draft model's passes for a step of the main model.

        Before a step with drafts: a pass for each draft of a sequence, one after the other, with a row per
        sequence.  With a step that has prompts: one pass with the same rows, without sampling.  Otherwise
        none.

        Where tokens are sampled on the device, passes follow one another there, as in a graph that the
        compiler has fused; otherwise the host takes its time for each.
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
