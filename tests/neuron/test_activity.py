"""What engines have done, estimated from one step in many."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from corepipe.neuron.activity import Activity
from corepipe.neuron.engines import Engines
from corepipe.neuron.step import StepShape
from corepipe.neuron.tables import ENGINES

SHORT, LONG = StepShape.decode(1, 8), StepShape.decode(4, 4096)
TENSOR, DMA = ENGINES.index("tensor"), ENGINES.index("dma")


@dataclass(frozen=True)
class TwoKinds:
    """Short steps take 1 s, all of it TensorE's; long ones 9 s, on later stages 1 s, all of it DMA."""

    stages: int = 1
    tensor: int = 1

    def seconds(self, core, shape):
        return 1.0 if shape == SHORT or core >= self.tensor else 9.0

    def totals(self, core, shape):
        seconds = self.seconds(core, shape)
        if shape == SHORT:
            return Engines(tensor=seconds, flops=10.0)
        return Engines(dma=seconds, read=6.0, written=3.0)


def test_one_step_is_taken_apart_exactly():
    activity = Activity(TwoKinds(stages=2, tensor=2))
    activity.add(LONG, 10.0)
    first, second = activity.look((9.0, 9.0, 1.0, 1.0))
    assert (first.engines[DMA], first.memory_bytes) == (9.0, 9.0)
    assert (second.engines[DMA], second.memory_bytes) == (1.0, 9.0)
    activity.add(SHORT, 1.0)
    first, second = activity.look((10.0, 10.0, 1.0, 1.0))
    assert (first.engines[TENSOR], first.engines[DMA], first.flops) == (1.0, 9.0, 10.0)
    assert second.engines[TENSOR] == 0.0


def test_a_look_without_a_step_changes_nothing_and_loses_nothing():
    activity = Activity(TwoKinds())
    assert activity.look((5.0,))[0].engines[TENSOR] == 0.0
    activity.add(SHORT, 1.0)
    assert activity.look((6.0,))[0].engines[TENSOR] == 6.0


def test_the_estimate_grows_as_the_sum_does():
    """Of each ten steps one is long: half of the time or a little more is DMA's."""
    activity = Activity(TwoKinds())
    busy = 0.0
    for _ in range(2000):
        for shape in [SHORT] * 9 + [LONG]:
            seconds = 9.0 if shape == LONG else 1.0
            activity.add(shape, seconds)
            busy += seconds
        (work,) = activity.look((busy,))
    assert work.engines[DMA] + work.engines[TENSOR] == pytest.approx(busy)
    assert work.engines[DMA] == pytest.approx(busy / 2, rel=0.05)
