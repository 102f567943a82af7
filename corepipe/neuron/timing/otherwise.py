"""Intervals of a deployment whose software may choose otherwise than its profile says: they span both
figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.uncertainty import Figure, Interval


def spanning(
    found: Interval,
    profile: RuntimeProfile,
    cost_of: Callable[[RuntimeProfile], CostModel],
    figure: Figure,
    tokens: int,
) -> Interval:
    """Returns an interval that spans the figures of the profile and of the one that holds otherwise, if there
    is one.

    cost_of: makes the deployment's cost model with a profile.  tokens: of a whole sequence.
    """
    if not profile.otherwise:
        return found
    otherwise = PROFILES[profile.otherwise].with_kernels(profile.kernels)
    one, other = cost_of(profile), cost_of(otherwise)
    factors = [_seconds(other, shape) / _seconds(one, shape) for shape in _shapes(figure, tokens)]
    return replace(found, low=found.low * min(1.0, *factors), high=found.high * max(1.0, *factors))


def _shapes(figure: Figure, tokens: int) -> list[StepShape]:
    """Returns the steps that a figure consists of: a prompt, and a token after it."""
    prompt, token = StepShape.of([(0, tokens)], 1), StepShape.decode(1, tokens)
    return {Figure.FIRST_TOKEN: [prompt], Figure.DECODE: [token]}.get(figure, [prompt, token])


def _seconds(cost: CostModel, shape: StepShape) -> float:
    """Returns the seconds of a step and of sampling its tokens."""
    return cost.latency(shape) + cost.sampling_seconds(shape)
