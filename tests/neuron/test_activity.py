"""The engines' activity, estimated from one step in many."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.engines import Engines
from corepipe.neuron.chips.hardware import ENGINES
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.timeline import Activity

SHORT, LONG = StepShape.decode(1, 8), StepShape.decode(4, 4096)
TENSOR, DMA = ENGINES.index("tensor"), ENGINES.index("dma")


ASYNC = PROFILES["async"]


@dataclass(frozen=True)
class TwoKinds:
    """A cost model with two kinds of steps: short ones take 1 s, all on TensorE; long ones 9 s, on later
    stages 1 s, all DMA."""

    stages: int = 1
    tensor: int = 1

    def stage_totals(self, shape):
        if shape == SHORT:
            return [(1.0, Engines(tensor=1.0, flops=10.0))] * self.stages
        return [(s, Engines(dma=s, read=6.0, written=3.0)) for s in [9.0, *[1.0] * (self.stages - 1)]]


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
    """One of ten steps is long: half of the time or a little more is DMA's."""
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


def test_the_cost_models_stages_are_taken_apart_as_their_cores_are():
    graph = architecture("llama-3.1-8b").graph(FORMATS["bf16"])
    cost = CostModel(compile_for_timing(graph, Placement(3, 2)), instance("inf2.48xlarge"), ASYNC)
    for stage, (seconds, totals) in enumerate(cost.stage_totals(LONG)):
        core = stage * cost.tensor
        assert seconds == cost.seconds(core, LONG)
        assert {name: getattr(totals, name, 0.0) for name in ENGINES} == cost.engine_seconds(core, LONG)
        times = cost.op_times(core, LONG)
        assert totals.flops == pytest.approx(sum(time.flops for time in times))
        assert totals.read == pytest.approx(sum(time.hbm_read_bytes for time in times), rel=1e-6)
        assert totals.written == pytest.approx(sum(time.hbm_write_bytes for time in times), rel=1e-6)
