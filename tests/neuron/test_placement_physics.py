"""The laws of docs/placement-physics.md hold for the cost model, and the page is what its script computes
now."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.timing.cost import CostModel, LimitingResource, StepShape
from corepipe.neuron.timing.modes import compiler

ASYNC = PROFILES["async"]
ROOT = Path(__file__).parent.parent.parent
ALONE = StepShape.decode(1, 256)
BATCH = StepShape.decode(8, 256)


@cache
def curves() -> ModuleType:
    """Returns benchmarks/placement_curves.py as a module."""
    spec = importlib.util.spec_from_file_location("placement_curves", ROOT / "benchmarks/placement_curves.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their annotations there
    spec.loader.exec_module(module)
    return module


@cache
def cost(model: str, fmt: str, where: str, pipeline: int = 1, tensor: int = 1, data: int = 1) -> CostModel:
    hardware = instance(where)
    graph = architecture(model).graph(FORMATS[fmt], 1024)
    return CostModel(
        compiler(graph, hardware, ASYNC)(Placement(pipeline, tensor)),
        hardware,
        ASYNC,
        data,
    )


def hand_over(model: CostModel, shape: StepShape) -> float:
    return sum(model.transfer_seconds(stage, shape) for stage in range(model.stages))


@pytest.mark.parametrize(
    ("model", "fmt"), [("smollm2-135m", "int8"), pytest.param("smollm2-135m", "bf16", marks=pytest.mark.slow)]
)
def test_on_inf1_a_pipeline_cuts_the_time_of_a_token_until_hand_over_dominates(model, fmt):
    """Each stage keeps more on chip, until all but the output head stays there; then transfers dominate."""
    layers = architecture(model).graph(FORMATS[fmt]).num_layers
    models = [cost(model, fmt, "inf1.24xlarge", depth) for depth in range(1, layers + 1)]
    times = [m.latency(ALONE) for m in models]
    best = times.index(min(times))
    assert best > 8
    assert times[: best + 1] == sorted(times[: best + 1], reverse=True)
    assert times[best] < times[0] / 1.6
    for time, m in zip(times[best:], models[best:], strict=True):
        assert time - times[best] <= hand_over(m, ALONE)


@pytest.mark.parametrize("where", ["inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge"])
def test_elsewhere_a_pipeline_only_adds_hand_over(where):
    alone = cost("llama-3.2-1b", "bf16", where).latency(ALONE)
    for depth in (2, 4, 8):
        model = cost("llama-3.2-1b", "bf16", where, depth)
        assert model.latency(ALONE) == pytest.approx(alone + hand_over(model, ALONE), rel=0.01)
        assert hand_over(model, ALONE) > 0


@pytest.mark.parametrize("where", ["inf2.48xlarge", "trn1.32xlarge"])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_throughput_of_a_core_falls_with_the_bubble(where, stages):
    """n batches in flight on P stages: at most n / P of the throughput of a full pipeline, and nearly
    that."""
    model = cost("tinyllama-1.1b", "bf16", where, stages)
    slowest = max(model.stage_seconds(BATCH))
    speeds = [curves().closed_loop(model, BATCH, flying)[0] for flying in range(1, 2 * stages + 1)]
    assert speeds == sorted(speeds)
    for flying, speed in enumerate(speeds, 1):
        full = min(1.0, flying * slowest / model.latency(BATCH))
        assert speed == pytest.approx(full * BATCH.sequences / slowest, rel=0.05)
    assert speeds[0] < 0.75 * speeds[-1]


@pytest.mark.parametrize("where", ["inf2.48xlarge", "trn1.32xlarge"])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_more_batches_than_stages_read_weights_in_vain(where, stages):
    """The same sequences in more and more batches: up to about one per stage they gain; each further one
    reads the weights once more."""
    model = cost("tinyllama-1.1b", "bf16", where, stages)
    speeds = [
        curves().closed_loop(model, StepShape.decode(64 // flying, 256), flying)[0]
        for flying in (1, stages, 2 * stages, 4 * stages)
    ]
    assert speeds[1] >= 0.98 * max(speeds)
    assert speeds[2] < 0.7 * speeds[1]
    assert speeds[3] < 0.6 * speeds[2]


@pytest.mark.parametrize("stages", [1, 4])
def test_a_batch_split_over_a_pipeline_too_small_wastes_cores(stages):
    """Eight sequences, in one batch or one each in flight: a core of a deeper pipeline has a lower
    throughput."""
    shallow = curves().closed_loop(cost("smollm2-135m", "bf16", "inf2.48xlarge", 1), BATCH, 1)[0]
    parts = StepShape.decode(8 // stages, 256)
    deep = curves().closed_loop(cost("smollm2-135m", "bf16", "inf2.48xlarge", stages), parts, stages)[0]
    assert deep / stages <= shallow * 1.001
    assert stages == 1 or deep / stages < shallow / 2


@pytest.mark.parametrize("where", ["inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge"])
@pytest.mark.parametrize("shape", [ALONE, BATCH])
def test_tensor_parallel_falls_to_the_floor_of_its_all_reduces(where, shape):
    degrees = [degree for degree in instance(where).tensor_degrees if degree <= 32 and 32 % degree == 0]
    models = [cost("llama-3.1-8b", "bf16", where, tensor=degree) for degree in degrees]
    parts = [model.explain(0, shape) for model in models]
    together = [part.seconds[LimitingResource.COLLECTIVES] for part in parts]
    own = [part.total - seconds for part, seconds in zip(parts, together, strict=True)]
    assert together[0] == 0
    assert own == sorted(own, reverse=True)
    assert own[-1] < own[0] / (degrees[-1] / 3)
    assert together[1:] == sorted(together[1:])
    latency = [model.latency(shape) for model in models]
    assert all(time > floor for time, floor in zip(latency, together, strict=True))
    shares = [floor / time for time, floor in zip(latency, together, strict=True)]
    assert shares == sorted(shares)


@pytest.mark.parametrize(
    ("where", "tensor"), [("inf2.48xlarge", 2), ("trn1.32xlarge", 2), ("trn2.48xlarge", 4)]
)
def test_data_parallel_scales_throughput_and_not_latency(where, tensor):
    alone = cost("llama-3.1-8b", "bf16", where, tensor=tensor)
    for replicas in (2, 4, instance(where).cores // tensor):
        many = cost("llama-3.1-8b", "bf16", where, tensor=tensor, data=replicas)
        assert many.latency(BATCH) == alone.latency(BATCH)
        speed = replicas * BATCH.sequences / many.latency(BATCH)
        assert speed == pytest.approx(replicas * BATCH.sequences / alone.latency(BATCH))


def test_the_page_and_its_charts_are_what_the_script_computes_now():
    """`make docs-curves` writes them again."""
    old = [str(path) for path, content in curves().files().items() if path.read_text() != content]
    assert old == []


def test_a_page_without_a_mark_is_refused():
    module = curves()
    curve = replace(module.data_parallel(), name="no-such-curve")
    with pytest.raises(ValueError, match="no place for no-such-curve"):
        module.page("# A page\n", [curve])
