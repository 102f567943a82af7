"""A draft model on the device: its passes, its place and its memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.runtime_profile import SamplingLocation
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.memory import DeploymentLimits, Draft, blocks_that_fit, measure
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.timing import modes
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.neuron.timing.draft_times import DraftTimes
from corepipe.neuron.timing.timeline import Timeline

MACHINE = instance("trn1.32xlarge")
GRAPH = architecture("llama-3.1-8b").graph(FORMATS["bf16"], 1024)
DRAFT = Draft(architecture("llama-3.2-1b").graph(FORMATS["bf16"], 1024))
LIMITS = DeploymentLimits(1024, 4, 512, 32, 128)
GUESSES = StepShape.of([(100, 4), (300, 4)], 8, 4)
PROMPT = StepShape.of([(0, 400), (30, 1)], 2)


def times(profile: str) -> DraftTimes:
    return DraftTimes(CostModel(DRAFT.programs(2), MACHINE, PROFILES[profile]))


def test_as_many_passes_as_guesses_and_one_beside_a_prompt() -> None:
    found = times("vllm-neuron")
    assert found.cost.profile.sampling is SamplingLocation.DEVICE
    one = sum(found.cost.stage_seconds(StepShape.decoding(2, 408 - 2)))
    assert found.seconds(GUESSES) == pytest.approx(3 * one)
    prompt = sum(found.cost.stage_seconds(PROMPT._replace(counts=(PROMPT.rows, 0))))
    assert found.seconds(PROMPT) == pytest.approx(prompt)
    assert found.seconds(StepShape.decode(4, 100)) == 0


def test_the_host_takes_its_time_for_each_pass_where_it_draws() -> None:
    found, step = times("vllm-host-sampling"), StepShape.decoding(2, 406)
    profile = found.cost.profile
    assert profile.sampling is not SamplingLocation.DEVICE
    each = found.cost.sampling_seconds(step) + profile.host_seconds
    assert each > 0
    assert found.seconds(GUESSES) == pytest.approx(3 * (sum(found.cost.stage_seconds(step)) + each))


def test_the_first_stage_runs_its_passes_before_its_own_part() -> None:
    programs = compile_graph(GRAPH, Placement(2, 2))
    cost, draft = CostModel(programs, MACHINE, PROFILES["vllm-neuron"]), times("vllm-neuron")
    alone, both = Timeline(cost), Timeline(cost, draft=draft)
    one, other = alone.submit(GUESSES, 1.0), both.submit(GUESSES, 1.0)
    more = draft.seconds(GUESSES)
    assert both.draft_seconds == more > 0 == alone.draft_seconds
    (start, end), (second, last) = one.stages
    (begins, ends), (later, latest) = other.stages
    assert begins == start
    assert [ends - end, later - second, latest - last] == pytest.approx([more] * 3)


def test_the_first_stages_cores_hold_it() -> None:
    """Weights and KV blocks are added, buffers are shared."""
    programs = compile_graph(GRAPH, Placement(2, 2))
    alone, both = measure(programs, LIMITS), measure(programs, replace(LIMITS, beside=DRAFT))
    own = measure(DRAFT.programs(2), LIMITS)
    assert both[2:] == alone[2:]
    for one, other, draft in zip(alone, both, own, strict=False):
        assert other.weights == one.weights + draft.weights
        assert other.block == one.block + draft.block > one.block
        assert other.buffers == max(one.buffers, draft.buffers)


def test_a_placement_has_room_for_both() -> None:
    """With a draft model as large as the main model fewer replicas fit on the same cores."""
    machine, profile = instance("trn1.32xlarge"), PROFILES["vllm-neuron"]
    limits, found = DeploymentLimits(1024, 4, 512, 32, 128), []
    for beside in (None, Draft(GRAPH)):
        asked = replace(limits, beside=beside)
        placement, _ = modes.resolve("throughput", GRAPH, machine, asked, profile)
        cores = measure(compile_graph(GRAPH, replace(placement, data=1)), asked)
        assert blocks_that_fit(cores, placement.data, machine) >= limits.blocks_per_sequence
        found.append(placement)
    assert found[1].cores_per_replica > found[0].cores_per_replica


def test_who_cannot_be_cut_so_is_named() -> None:
    with pytest.raises(UserError, match=r"--speculative-config: model llama-3\.2-1b: --tensor 64"):
        DRAFT.programs(64)
