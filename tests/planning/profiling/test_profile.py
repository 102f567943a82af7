"""Tests of the steps of a profiled run: their content, and that each starts when the previous one is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corepipe.errors import UserError
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.timing import modes
from corepipe.planning.profiling.profile import Phase, ProfileRun, placed
from tests.planning.profiles import run, setup

DEGREES = ({}, {"tensor": 3}, {"pipeline": 3}, {"pipeline": 2, "tensor": 3, "data": 2})
PROFILES = ("ideal", "async", "sync", "nxdi", "vllm-host-sampling")


@pytest.mark.parametrize(
    ("profile", "degrees"),
    [
        pytest.param(profile, degrees, marks=() if (row + column) % 4 == 0 else pytest.mark.slow)
        for row, profile in enumerate(PROFILES)
        for column, degrees in enumerate(DEGREES)
    ],
)
def test_steps_follow_one_another_and_take_the_predicted_time(profile, degrees):
    found = run(profile=profile, **degrees)
    assert [step.phase for step in found.steps] == [Phase.PREFILL, Phase.DECODE, Phase.DECODE]
    now = 0.0
    for step in found.steps:
        assert step.submitted == now
        device = found.cost.latency(step.shape) + found.cost.sampling_seconds(step.shape)
        assert step.seconds == pytest.approx(device + found.setup.profile.host_seconds)
        now = step.timing.ready_at
    assert found.seconds(Phase.DECODE) == pytest.approx((now - found.steps[0].timing.ready_at) / 2)


def test_prompts_run_together_only_where_the_software_takes_them_so():
    assert run(profile="transformers-neuronx").steps[0].shape.rows == 400
    assert run(profile="nxdi").steps[0].shape.rows == 100
    assert run(profile="async").steps[0].shape.rows == 400


def test_contexts_grow_by_a_token_a_step():
    steps = run(decode_steps=3).of(Phase.DECODE)
    assert [step.shape.kv_tokens for step in steps] == [4 * 101, 4 * 102, 4 * 103]


def test_an_encoder_has_no_decode_steps():
    found = run("bert-base-uncased")
    assert found.phases == [Phase.PREFILL]


def test_model_flops_do_not_depend_on_the_placement():
    """Twice the parameters a token, and attention; of the last layer some is needed for the logits alone."""
    whole, cut = run(), run(tensor=3, pipeline=2)
    shape = whole.steps[0].shape
    assert whole.model_flops(shape) == cut.model_flops(shape)
    parameters = whole.setup.architecture.parameters
    (heads,) = whole.programs[0].head_layouts
    layers, width = whole.graph.num_layers, heads.heads * heads.head_dim
    embedding = whole.graph.vocab_size * 576
    expected = 2 * (parameters - embedding) * 400 + 2 * embedding * 4 + 4 * width * layers * shape.attended
    assert whole.model_flops(shape) == pytest.approx(expected, rel=0.04)


def test_model_flops_count_the_chosen_experts_alone():
    """Mixtral chooses two of its eight experts: 12.9 of 46.7 billion weights work for a token."""
    found = run("mixtral-8x7b", "trn1.32xlarge", tensor=8, batch=4, input_len=64)
    prefill = found.steps[0].shape
    assert found.model_flops(prefill) == pytest.approx(2 * 12.8e9 * 256, rel=0.05)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"does not fit the memory of inf2\.xlarge; use --instance"):
        run("llama-3.1-70b", "inf2.xlarge")
    with pytest.raises(
        UserError, match=r"--batch 1000: .* holds \d+ sequences of 4002 tokens; use --batch \d+"
    ):
        run("llama-2-7b", "inf2.xlarge", profile="nxdi", batch=1000, input_len=4000)
    with pytest.raises(UserError, match="--tensor 16: the model has 9 attention heads"):
        run("smollm2-135m", tensor=16)


def test_degrees_that_are_not_given_are_the_modes():
    wanted = setup("llama-3.2-1b")
    chosen, reason = placed(wanted, "latency", modes.RequestedDegrees(tensor=4))
    assert chosen.placement.tensor == 4
    assert reason.startswith("latency: ")
    assert len(ProfileRun(replace(chosen, placement=Placement(tensor=4))).programs) == 4
