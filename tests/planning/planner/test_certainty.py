"""Tests of a plan's intervals: the deployments that they distinguish, the choice, and the next
measurement."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from corepipe.models.registry import architecture
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.timing.uncertainty import Figure
from corepipe.planning.planner.certainty import MEASURED, Certainty, Measurement, worth
from corepipe.planning.planner.commands import measure_commands
from corepipe.planning.planner.search_result import PlanOption, SimulatedOutcome, worst
from corepipe.planning.planner.space import BatchLimits, Candidate, DeploymentShape, PlannedDeployment
from tests.planning.planner.test_planner import demand

GRAPH = architecture("llama-3.1-8b").graph(FORMATS["bf16"])
ASKED = demand(2.0, 0.5, 0.05)


def option(price: float, ttft: float = 0.01, profile: str = "optimum-nxdi", instances: int = 1) -> PlanOption:
    shape = DeploymentShape("inf2.48xlarge", FORMATS["bf16"], Placement(tensor=8, data=3), PROFILES[profile])
    deployment = PlannedDeployment(Candidate(shape, BatchLimits(512, 8, 512)), instances)
    return PlanOption(deployment, price, SimulatedOutcome(ttft, 0.01, 1.0, 60.0, None))


def certainty(level: float = 0.9, ranks: bool = True) -> Certainty:
    return Certainty(ASKED, GRAPH, level, ranks)


def ends(known: Certainty) -> float:
    low, high = known.price(option(1.0))
    return high / low


def test_prices_far_apart_are_told_apart_and_near_ones_are_not() -> None:
    known = certainty()
    first, near, far = option(10.0), option(10.5), option(10.5 * ends(known))
    assert known.alike([first, near, far]) == [near]
    assert not known.undecided([first, near, far])
    assert known.undecided([first, near])
    assert not known.undecided([first])
    assert not known.undecided([])


def test_less_certainty_tells_more_apart() -> None:
    wide, narrow = certainty(0.9), certainty(0.5)
    options = [option(10.0), option(10.0 * (ends(narrow) + ends(wide)) / 2)]
    assert wide.undecided(options)
    assert not narrow.undecided(options)


def test_by_certainty_what_may_miss_its_objectives_comes_later() -> None:
    known = certainty()
    likely = option(5.0, ttft=0.45)
    sure = option(9.0, ttft=0.01)
    assert (known.may_miss(likely), known.may_miss(sure)) == (["ttft"], [])
    assert sorted([likely, sure], key=known.order) == [sure, likely]
    assert sorted([likely, sure], key=certainty(ranks=False).order) == [likely, sure]
    assert known.alike([sure, likely]) == []


def test_a_stack_that_was_never_measured_is_less_sure() -> None:
    known = certainty()
    measured, unknown = option(1.0), option(1.0, profile="vllm-neuron")
    assert known.interval(unknown, Figure.THROUGHPUT).high > known.interval(measured, Figure.THROUGHPUT).high


def test_the_measurement_that_tells_most_apart_is_the_one_asked_for() -> None:
    known = certainty()
    half = ends(known) ** 0.5  # an interval's end from its middle
    first, middle, last = option(10.0), option(10.0 * half), option(10.0 * half * half * 0.999)
    found = known.next_measurement([first, middle, last])
    assert found is not None
    assert found.rivals == 2
    told = {
        id(one): sum(
            not (
                one.price * (1 - MEASURED) <= known.price(other)[1]
                and known.price(other)[0] <= one.price * (1 + MEASURED)
            )
            for other in (first, middle, last)
            if other is not one
        )
        for one in (first, middle, last)
    }
    assert found.separates == max(told.values())
    assert told[id(found.option)] == found.separates


def test_of_equal_measurements_the_cheapest_instance_is_rented() -> None:
    known = certainty()
    apart = 1.2 * ends(known) ** 0.5
    many, one = option(10.0, instances=5), option(10.0 * apart)
    found = known.next_measurement([many, one])
    assert found is not None
    assert (found.option, found.separates) == (many, 1)
    assert found.price == pytest.approx(2.0)


def test_what_would_tell_nothing_apart_is_not_measured() -> None:
    assert certainty().next_measurement([option(10.0, instances=5), option(10.1)]) is None


def test_nothing_is_measured_where_everything_is_told_apart() -> None:
    known = certainty()
    assert known.next_measurement([option(1.0), option(1.0 * ends(known) * 2)]) is None
    assert known.next_measurement([]) is None


def test_intervals_hold_the_prediction() -> None:
    known, one = certainty(), option(10.0)
    for name, seconds in (("ttft", 0.01), ("tpot", 0.01), ("e2e", 1.0)):
        low, high = known.latency(one, name)
        assert 0 < low < seconds < high < inf
    low, high = known.rate(one)
    assert low < 60.0 < high
    double = replace(one, deployment=replace(one.deployment, instances=2))
    assert known.rate(double) == pytest.approx((2 * low, 2 * high))


def test_the_measurement_is_a_bench_of_one_instances_part_and_a_fit_of_its_result() -> None:
    bench, fit = measure_commands("llama-3.1-8b", option(10.0, instances=4).deployment, "optimum-nxdi", ASKED)
    assert bench[:2] == ["corepipe", "bench"]
    assert bench[bench.index("--rate") + 1] == "0.5"
    assert fit[:3] == ["corepipe", "fit", "measured/result.json"]
    assert (fit[fit.index("--tensor") + 1], fit[fit.index("--data") + 1]) == ("8", "3")
    assert "--expert" not in fit


def test_the_measurement_of_divided_experts_says_so() -> None:
    plain = option(10.0).deployment
    shape = replace(plain.candidate.shape, placement=Placement(tensor=8, expert=8))
    divided = replace(plain, candidate=replace(plain.candidate, shape=shape))
    _, fit = measure_commands("mixtral-8x7b", divided, "vllm-neuron", ASKED)
    assert fit[fit.index("--expert") + 1] == "8"


def test_where_no_document_decides_the_worse_counts_and_is_measured_first() -> None:
    fused, spilled = (
        SimulatedOutcome(0.1, 0.02, 1.0, 50.0, None),
        SimulatedOutcome(0.3, 0.01, 2.0, 60.0, None),
    )
    found = worst([fused, spilled])
    assert (found.ttft, found.tpot, found.latency, found.tokens_per_second) == (0.3, 0.02, 2.0, 50.0)
    documented, unknown, useless = (
        Measurement(option(10.0, profile=name), separates, 2, 10.0, 2.0)
        for name, separates in (("optimum-nxdi", 2), ("optimum-tnx", 1), ("optimum-tnx", 0))
    )
    assert sorted([unknown, useless, documented], key=worth) == [useless, documented, unknown]
    assert (documented.settles, unknown.settles) == ("", "optimum-tnx-spilled")
