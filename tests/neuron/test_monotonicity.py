"""Improvements never worsen a prediction, for any instance, software and step; and times have the documented
units."""

from __future__ import annotations

from dataclasses import replace

import pytest
from device_graphs import SMOLLM2, TINY, llama, pipeline, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Features

from corepipe.neuron.chips.catalog import INSTANCES, instance
from corepipe.neuron.chips.constants import IDEAL
from corepipe.neuron.chips.hardware import Instance, dollars_per_million_tokens
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.memory import DeploymentLimits
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import TIMED_FORMATS
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.modes import resolve

LONGEST, BATCH = 4096, 64
ROUNDING = 1 + 1e-9

MACHINES = st.sampled_from(
    [*INSTANCES[:14], instance("trn3.48xlarge"), instance("trn3.48xlarge").with_lnc(1)]
)
SOFTWARE = st.sampled_from([PROFILES[name] for name in sorted(PROFILES)])
NUMBERS = st.sampled_from([TIMED_FORMATS[name] for name in ("bf16", "int8-weights", "fp8", "mxfp8", "mxfp4")])
LAYERS = st.integers(1, 6)
SEQUENCES = st.integers(1, BATCH)
CONTEXTS = st.integers(1, LONGEST)

SIZES = Features(6, 1024, replace(SMOLLM2.heads, heads=16, kv_heads=8, head_dim=64), 4096, 32_000)


@st.composite
def steps(draw: st.DrawFn) -> StepShape:
    """Draws decode steps, and chunks of a prompt."""
    if draw(st.booleans()):
        return StepShape.decode(draw(SEQUENCES), draw(CONTEXTS))
    count = draw(st.integers(2, 2048))
    return StepShape.of([(draw(st.integers(0, LONGEST - count)), count)], 1)


def seconds(machine: Instance, software, fmt, step: StepShape, layers: int = 2, **more) -> float:
    programs = whole(replace(llama(replace(SIZES, layers=layers)), format=fmt))
    programs = tuple(replace(program, format=fmt) for program in programs)
    model = CostModel(programs, machine, software, batch=more.pop("batch", BATCH), longest=LONGEST, **more)
    return model.latency(step)


def with_bandwidth(machine: Instance, memory: float = 1.0, link: float = 1.0) -> Instance:
    chip = replace(machine.chip, memory_bytes_per_second=machine.chip.memory_bytes_per_second * memory)
    speed = machine.link_bytes_per_second
    return replace(machine, chip=chip, link_bytes_per_second=speed and speed * link)


@settings(max_examples=60)
@given(MACHINES, SOFTWARE, NUMBERS, steps(), st.floats(1, 10))
def test_more_bandwidth_of_memory_is_never_slower(machine, software, fmt, step, factor):
    more = with_bandwidth(machine, memory=factor)
    assert seconds(more, software, fmt, step) <= seconds(machine, software, fmt, step) * ROUNDING


@settings(max_examples=30)
@given(
    st.sampled_from([m for m in INSTANCES if m.link_bytes_per_second]), SOFTWARE, steps(), st.floats(1, 10)
)
def test_more_bandwidth_between_chips_is_never_slower(machine, software, step, factor):
    tensor = min(8, machine.cores)
    programs = compile_graph(llama(replace(SIZES, layers=1)), Placement(1, tensor))
    times = [
        CostModel(programs, there, software, longest=LONGEST).latency(step)
        for there in (with_bandwidth(machine, link=factor), machine)
    ]
    assert times[0] <= times[1] * ROUNDING


@settings(max_examples=40)
@given(MACHINES, SOFTWARE, NUMBERS, steps(), LAYERS, LAYERS)
def test_fewer_layers_are_never_slower(machine, software, fmt, step, some, others):
    fewer, more = sorted((some, others))
    assert (
        seconds(machine, software, fmt, step, fewer) <= seconds(machine, software, fmt, step, more) * ROUNDING
    )


@settings(max_examples=60)
@given(MACHINES, SOFTWARE, NUMBERS, SEQUENCES, SEQUENCES, CONTEXTS)
def test_a_smaller_batch_is_never_slower(machine, software, fmt, some, others, context):
    fewer, more = (StepShape.decode(n, context) for n in sorted((some, others)))
    assert seconds(machine, software, fmt, fewer) <= seconds(machine, software, fmt, more) * ROUNDING


@settings(max_examples=40)
@given(MACHINES, SOFTWARE, SEQUENCES, SEQUENCES, CONTEXTS)
def test_graphs_for_fewer_sequences_are_never_slower(machine, software, some, others, context):
    """For steps that fit both graphs."""
    fewer, more = sorted((some, others))
    step, fmt = StepShape.decode(fewer, context), TIMED_FORMATS["bf16"]
    few = seconds(machine, software, fmt, step, batch=fewer)
    assert few <= seconds(machine, software, fmt, step, batch=more) * ROUNDING


@settings(max_examples=60)
@given(MACHINES, SOFTWARE, SEQUENCES, CONTEXTS, CONTEXTS)
def test_a_shorter_context_is_never_slower(machine, software, sequences, some, others):
    fmt = TIMED_FORMATS["bf16"]
    shorter, longer = (StepShape.decode(sequences, n) for n in sorted((some, others)))
    assert seconds(machine, software, fmt, shorter) <= seconds(machine, software, fmt, longer) * ROUNDING


@settings(max_examples=60)
@given(MACHINES, SOFTWARE, st.integers(0, 2000), st.integers(2, 2048), st.integers(2, 2048))
def test_a_shorter_piece_of_a_prompt_is_never_slower(machine, software, before, some, others):
    fmt = TIMED_FORMATS["bf16"]
    shorter, longer = (StepShape.of([(before, n)], 1) for n in sorted((some, others)))
    assert seconds(machine, software, fmt, shorter) <= seconds(machine, software, fmt, longer) * ROUNDING


@settings(max_examples=30)
@given(MACHINES, SOFTWARE, steps(), st.integers(1, 4), st.integers(1, 4))
def test_fewer_replicas_beside_it_never_slow_one(machine, software, step, some, others):
    fewer, more = (min(n, machine.cores) for n in sorted((some, others)))
    fmt = TIMED_FORMATS["bf16"]
    alone = seconds(machine, software, fmt, step, data=fewer)
    assert alone <= seconds(machine, software, fmt, step, data=more) * ROUNDING


@pytest.mark.parametrize(
    ("few", "many"),
    [
        ("inf1.xlarge", "inf1.6xlarge"),
        ("inf2.xlarge", "inf2.48xlarge"),
        ("trn1.2xlarge", "trn1.32xlarge"),
        ("trn2.3xlarge", "trn2.48xlarge"),
        ("trn3sn.3xlarge", "trn3sn.48xlarge"),
    ],
)
def test_more_cores_never_slow_the_best_placement(few, many):
    """The larger instance can run every placement of the smaller one."""
    graph, software = llama(replace(SIZES, layers=4)), PROFILES["async"]
    limits = DeploymentLimits(1024, 4, 512, 32, 128)
    step = StepShape.decode(1, 512)

    def best(name: str) -> float:
        place, _ = resolve("latency", graph, instance(name), limits, software)
        return CostModel(compile_graph(graph, place), instance(name), software, place.data).latency(step)

    assert best(many) <= best(few) * 1.001


def faster(machine: Instance, factor: float) -> Instance:
    """Returns the machine with every rate multiplied by a factor."""
    core = machine.chip.core
    tensor = replace(core.tensor, peak={name: rate * factor for name, rate in core.tensor.peak.items()})
    engines = {
        name: replace(getattr(core, name), clock_hz=getattr(core, name).clock_hz * factor)
        for name in ("vector", "scalar")
    }
    chip = replace(machine.chip, core=replace(core, tensor=tensor, **engines), hop_seconds=None)
    return with_bandwidth(replace(machine, chip=chip), factor, factor)


@settings(max_examples=40)
@given(MACHINES, NUMBERS, steps(), st.floats(1.5, 8))
def test_times_are_quantities_over_rates(machine, fmt, step, factor):
    """Dimensional analysis: with all rates times f and no fixed times, a step takes 1 / f of its time."""
    one, other = (
        seconds(there, PROFILES["ideal"], fmt, step, constants=IDEAL)
        for there in (faster(machine, 1.0), faster(machine, factor))
    )
    assert other == pytest.approx(one / factor, rel=1e-9)


@settings(max_examples=20)
@given(steps(), st.integers(1, 4))
def test_stages_add_up(step, stages):
    """The seconds of a pipeline without transfers are the sum of its stages."""
    machine = faster(instance("inf2.48xlarge"), 1.0)
    model = CostModel(
        pipeline(llama(replace(TINY, layers=4)), stages), machine, PROFILES["ideal"], constants=IDEAL
    )
    moved = sum(model.transfer_seconds(stage, step) for stage in range(stages))
    assert model.latency(step) == pytest.approx(sum(model.stage_seconds(step)) + moved)


@given(st.floats(0.01, 100), st.floats(0.1, 1e5), st.floats(1, 10))
def test_dollars_for_a_million_tokens(price, tokens, factor):
    """An hour has 3600 seconds; the cost grows with the price and falls with the speed."""
    cost = dollars_per_million_tokens(price, tokens)
    assert cost * tokens * 3600 / 1e6 == pytest.approx(price)
    assert dollars_per_million_tokens(price * factor, tokens) >= cost
    with pytest.raises(ValueError, match="positive"):
        dollars_per_million_tokens(price, 0)
    assert dollars_per_million_tokens(price, tokens * factor) <= cost
