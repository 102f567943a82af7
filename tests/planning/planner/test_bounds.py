"""Tests of bounds against simulations of the same: they may be lower, never higher."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.models.registry import Architecture, architecture
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.runtime_profile import Buckets
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.planning.planner.bounds import Reason
from corepipe.planning.planner.demand import Demand, Objectives
from corepipe.planning.planner.evaluate import SimulationEvaluator, twin_shape
from corepipe.planning.planner.space import BatchLimits, Candidate, DeploymentShape, PlannedDeployment
from corepipe.simulation.report import Latencies
from corepipe.workload.lengths import Lengths
from tests.planning.planner.test_planner import CONFIG

LONGEST = 1024
NEVER = 1e-9
"""An objective that nothing meets: failures of bounds then tell the best possible figure."""

SHAPES = [
    ("inf2.xlarge", Placement(1, 2, 1), "vllm-neuron"),
    ("inf2.xlarge", Placement(1, 1, 2), "async"),
    ("trn1.32xlarge", Placement(1, 8, 4), "optimum-nxdi"),
    ("inf1.xlarge", Placement(4, 1, 1), "async"),
    ("inf1.xlarge", Placement(2, 1, 2), "vllm-neuron"),
    ("trn2.48xlarge", Placement(1, 16, 4), "vllm-host-sampling"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Architecture:
    path: Path = tmp_path_factory.mktemp("small") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return architecture(str(path))


def bench(small: Architecture, objectives: Objectives, requests: int = 40) -> SimulationEvaluator:
    lengths = Lengths.parse("uniform:100:700", "input-len"), Lengths.parse("uniform:2:40", "output-len")
    prices = {name: 1.0 for name, _, _ in SHAPES}
    return SimulationEvaluator(small, Demand(*lengths, objectives, requests, 0), prices, LONGEST)


def candidate(
    name: str, placement: Placement, profile: str, sequences: int = 8, tokens: int = 256
) -> Candidate:
    shape = DeploymentShape(name, FORMATS["bf16"], placement, PROFILES[profile])
    return Candidate(shape, BatchLimits(LONGEST, sequences, tokens))


def guessing(chosen: Candidate) -> Candidate:
    """Returns the same with speculative decoding, where most drafts are assumed to be accepted."""
    assumed = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=3,
        rejection_sample_method="synthetic",
        synthetic_acceptance_rates=(0.9, 0.7, 0.5),
    )
    return replace(chosen, limits=replace(chosen.limits, speculative_config=assumed))


def each_shape(*others: object) -> list[object]:
    """Returns every shape with one of some values in every run, with the others by `make test-slow`."""
    return [
        pytest.param(shape, other, marks=() if (row + column) % len(others) == 0 else pytest.mark.slow)
        for row, shape in enumerate(SHAPES)
        for column, other in enumerate(others)
    ]


@pytest.mark.parametrize(("shape", "rate"), each_shape(1.0, 300.0), ids=str)
def test_no_simulation_is_faster_than_the_bounds(small: Architecture, shape: tuple, rate: float) -> None:  # type: ignore[type-arg]
    chosen = candidate(*shape)
    report = bench(small, Objectives(None, None, 90.0, rate)).simulate(PlannedDeployment(chosen, 1))
    latencies = Latencies.of(report.requests)
    for reason, seconds in ((Reason.TTFT, latencies.ttft), (Reason.TPOT, latencies.tpot)):
        ttft, tpot = (NEVER, None) if reason is Reason.TTFT else (None, NEVER)
        failure = bench(small, Objectives(ttft, tpot, 90.0, rate)).failure(chosen)
        assert failure is not None
        assert failure.reason is reason
        assert failure.excess * NEVER <= np.percentile(seconds, 90) * (1 + 1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_request_alone_takes_what_the_bound_says(small: Architecture, shape: tuple) -> None:  # type: ignore[type-arg]
    chosen = candidate(*shape)
    alone = bench(small, Objectives(None, None, 90.0, 1.0)).simulate(PlannedDeployment(chosen, 10_000))
    tpot = np.percentile(Latencies.of(alone.requests).tpot, 90)
    bound = bench(small, Objectives(None, NEVER, 90.0, 1.0)).failure(chosen)
    assert bound is not None
    padded = PROFILES[shape[2]].decode_buckets is Buckets.POWERS  # by a batch's mean: all as the shortest
    assert (0.7 if padded else 0.85) * tpot <= bound.excess * NEVER <= (1.0 if padded else 1.15) * tpot


@pytest.mark.parametrize(("shape", "how"), each_shape("plain", "guessing"), ids=str)
def test_no_simulation_sustains_more_than_the_capacity(
    small: Architecture,
    shape: tuple,  # type: ignore[type-arg]
    how: str,
) -> None:
    chosen = guessing(candidate(*shape)) if how == "guessing" else candidate(*shape)
    flood = bench(small, Objectives(None, None, 99.0, 1e6), requests=200)
    rate = 1e6 / flood.fewest(chosen)
    report = flood.simulate(PlannedDeployment(chosen, 1))
    done = np.sort(report.requests["last_at"])
    middle = done[len(done) // 4 : -len(done) // 4]
    assert (len(middle) - 1) / np.ptp(middle) <= rate * 1.05


def test_fewer_instances_are_needed_for_a_slacker_objective(small: Architecture) -> None:
    chosen = candidate(*SHAPES[1])
    tight, slack, none = (
        bench(small, Objectives(None, tpot, 99.0, 1e4)).fewest(chosen) for tpot in (0.0007, 0.002, None)
    )
    assert tight > slack >= none > 1


def test_where_no_batch_can_do_it_takes_one_instance_to_find_out(small: Architecture) -> None:
    """Zero instances have neither a price nor a simulation."""
    objectives = Objectives(None, NEVER, 99.0, 1.0)
    for shape in SHAPES:
        assert bench(small, objectives).fewest(candidate(*shape)) == 1


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_what_is_estimated_of_guesses_is_what_they_give(small: Architecture, shape: tuple) -> None:  # type: ignore[type-arg]
    """They are less than without drafts where the simulation takes less."""
    plain, chosen = candidate(*shape), guessing(candidate(*shape))
    demand = bench(small, Objectives(None, None, 50.0, 1.0))
    ratio = demand.estimate(chosen, 1) / demand.estimate(plain, 1)
    found = [demand.simulate(PlannedDeployment(one, 1)) for one in (chosen, plain)]
    taken = [report.requests["last_at"] - report.requests["arrival"] for report in found]
    assert ratio == pytest.approx(taken[0].mean() / taken[1].mean(), rel=0.35)


def test_instances_with_the_same_device_are_twins() -> None:
    one, other = (candidate(name, Placement(1, 2, 1), "async") for name in ("inf2.xlarge", "trn1.2xlarge"))
    assert twin_shape(other.shape) == twin_shape(one.shape) == one.shape
    assert twin_shape(candidate("trn1.32xlarge", Placement(1, 2, 1), "async").shape) != one.shape


def seeds(quick: range, all_of_them: int) -> list[object]:
    """Returns a few seeds in every run, the others for `make test-slow`."""
    return [pytest.param(i, marks=[] if i in quick else pytest.mark.slow) for i in range(all_of_them)]


def drawn(seed: int) -> tuple[Candidate, Demand]:
    """Draws a deployment and a demand of any kind, without objectives."""
    rng = Random(seed)
    shape = candidate(*rng.choice(SHAPES), rng.choice([1, 4, 16]), rng.choice([128, 256, 1024]))
    if seed % 4 == 3:
        shape = guessing(shape)
    inputs = rng.choice(["400", "uniform:100:700", "lognormal:200:1:600"])
    outputs = rng.choice(["1", "30", "uniform:2:60"])
    objectives = Objectives(None, None, rng.choice([50.0, 90.0, 99.0]), rng.choice([5.0, 50.0, 200.0, 800.0]))
    lengths = Lengths.parse(inputs, "input-len"), Lengths.parse(outputs, "output-len")
    return shape, Demand(*lengths, objectives, rng.choice([40, 150]), seed)


@pytest.mark.parametrize("seed", seeds(range(10), 40))
def test_bounds_discard_nothing_that_a_simulation_finds_to_do(small: Architecture, seed: int) -> None:
    """The objectives are the simulation's results, to the last bit: it meets them, and nothing slower
    does."""
    chosen, demand = drawn(seed)
    instances = Random(seed).choice([1, 2, 5])
    free = SimulationEvaluator(small, demand, {}, LONGEST)
    outcome = free.outcome(free.simulate(PlannedDeployment(chosen, instances)))
    if outcome.failure is not None:
        assert outcome.failure.reason is Reason.THROUGHPUT
        return
    met = replace(demand.objectives, ttft=outcome.ttft, tpot=outcome.tpot or None)
    bench = SimulationEvaluator(small, replace(demand, objectives=met), {}, LONGEST)
    assert bench.failure(chosen) is None
    assert bench.fewest(chosen) <= instances
    assert bench.measure(PlannedDeployment(chosen, instances)) == outcome


@pytest.mark.parametrize("seed", seeds(range(1, 4), 10))
def test_a_simulation_that_is_given_up_would_have_failed(small: Architecture, seed: int) -> None:
    chosen, demand = drawn(seed)
    free = SimulationEvaluator(small, demand, {}, LONGEST)
    outcome = free.outcome(free.simulate(PlannedDeployment(chosen, 1)))
    for ttft, tpot in ((0.999, 2.0), (2.0, 0.999), (0.8, 0.8), (1.0, 1.0)):
        asked = replace(demand.objectives, ttft=outcome.ttft * ttft, tpot=(outcome.tpot or 1.0) * tpot)
        bench = SimulationEvaluator(small, replace(demand, objectives=asked), {}, LONGEST)
        whole = bench.outcome(bench.simulate(PlannedDeployment(chosen, 1)))
        early = bench.measure(PlannedDeployment(chosen, 1))
        assert (early.failure is None) == (whole.failure is None)
        assert early.seen <= 1
        if early.failure is None:
            assert early == whole
