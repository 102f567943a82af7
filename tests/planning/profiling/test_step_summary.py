"""Tests of the summary's figures, each against its definition."""

from __future__ import annotations

import pytest

from corepipe.planning.profiling.profile import Phase, ProfileRun
from corepipe.planning.profiling.step_summary import ENGINE_FIELDS, Cause, PhaseMeasurement, measure
from tests.planning.profiles import run

CASES = [
    {},
    {"tensor": 3, "profile": "sync", "decode_steps": 1},
    {"pipeline": 3},
    {"pipeline": 2, "tensor": 3, "profile": "vllm-host-sampling", "decode_steps": 1},
    {"model": "mixtral-8x7b", "where": "trn1.32xlarge", "tensor": 8, "batch": 2, "decode_steps": 1},
    {"where": "inf1.6xlarge", "pipeline": 5, "fmt": "int8", "decode_steps": 1},
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def found(request: pytest.FixtureRequest) -> ProfileRun:
    return run(**request.param)


@pytest.fixture(scope="module", params=list(Phase))
def measured(found: ProfileRun, request: pytest.FixtureRequest) -> PhaseMeasurement:
    return measure(found, request.param)


def test_causes_add_up_to_the_step(found, measured):
    phase = measured.phase
    assert sum(measured.seconds.values()) == pytest.approx(found.seconds(phase))
    assert all(seconds > -1e-12 for seconds in measured.seconds.values())
    assert (measured.seconds[Cause.COLLECTIVES] > 0) == (found.cost.tensor > 1)
    assert (measured.seconds[Cause.HAND_OVER] > 0) == (found.cost.stages > 1)
    device = sum(found.cost.latency(step.shape) for step in found.of(phase)) / len(found.of(phase))
    assert measured.seconds[Cause.HOST] == pytest.approx(found.seconds(phase) - device)


def test_bytes_and_shares(found, measured):
    summary = measured.summary
    assert summary.total_time == pytest.approx(found.seconds(measured.phase))
    assert sum(measured.read.values()) == pytest.approx(summary.hbm_read_bytes)
    assert summary.weight_size_bytes == sum(core.weights for core in found.memory.cores)
    assert measured.read[Cause.WEIGHTS] <= 1.1 * summary.weight_size_bytes
    assert 0 < summary.model_flops <= summary.hardware_flops * 1.0001
    assert 0 < summary.mfu_estimated_percent <= summary.hfu_estimated_percent * 1.0001 <= 100
    assert 0 < summary.mbu_estimated_percent < 100
    for name in ENGINE_FIELDS.values():
        active = getattr(summary, f"{name}_active_time")
        share = getattr(summary, f"{name}_active_time_percent")
        assert share == pytest.approx(100 * active / summary.total_time, rel=0.01)
        assert 0 <= share <= 100


def test_utilisation_of_a_whole_core_by_hand():
    found = run(batch=1, input_len=64, decode_steps=1, profile="ideal")
    summary = measure(found, Phase.DECODE).summary
    instance = found.setup.instance
    moved = summary.hbm_read_bytes + summary.hbm_write_bytes
    seconds = found.cost.latency(found.of(Phase.DECODE)[0].shape)
    assert summary.mbu_estimated_percent == pytest.approx(
        100 * moved / seconds / instance.bank_bytes_per_second
    )
    assert summary.mfu_estimated_percent == pytest.approx(100 * summary.model_flops / seconds / 92e12)
    assert summary.hardware_flops == summary.model_flops


def test_padded_heads_cost_flops_of_the_hardware_alone():
    """Nine heads on two ranks are ten."""
    summary = measure(run(tensor=2), Phase.DECODE).summary
    assert summary.hardware_flops > 1.01 * summary.model_flops
