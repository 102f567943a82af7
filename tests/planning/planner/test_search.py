from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from math import ceil, inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.planning.planner.bounds import PlanFailure, Reason
from corepipe.planning.planner.search import INTERRUPTED, MOST_TIES, Search
from corepipe.planning.planner.search_result import (
    SearchProgress,
    SearchResult,
    SearchStopped,
    SimulatedOutcome,
)
from corepipe.planning.planner.space import BatchLimits, Candidate, DeploymentShape, PlannedDeployment

PROFILE = next(iter(PROFILES.values()))
RATE = 10.0
OBJECTIVE = 1.0
LIMITS = tuple(BatchLimits(1024, sequences, 512) for sequences in (1, 8, 64))


def shapes(count: int) -> list[DeploymentShape]:
    return [
        DeploymentShape("inf2.48xlarge", FORMATS["bf16"], Placement(data=i + 1), PROFILE)
        for i in range(count)
    ]


@dataclass
class Queues:
    """A model of queues: a request takes `alone / (1 - load)`; each shape has a price and each candidate a
    time alone and a capacity.  Bounds may be lower than the truth, never higher."""

    prices: dict[DeploymentShape, float]
    times: dict[Candidate, float]
    capacities: dict[Candidate, float]
    optimism: float = 1.0
    measured: list[PlannedDeployment] = field(default_factory=list)

    @classmethod
    def drawn(cls, seed: int, count: int, optimism: float) -> Queues:
        random = Random(seed)
        candidates = [Candidate(shape, limits) for shape in shapes(count) for limits in LIMITS]
        return cls(
            prices={shape: float(random.randint(1, 9)) for shape in shapes(count)},
            times={c: random.uniform(0.2, 1.3) for c in candidates},
            capacities={c: random.uniform(1, 30) for c in candidates},
            optimism=optimism,
        )

    def latency(self, candidate: Candidate, instances: float) -> float:
        left = 1 - RATE / (instances * self.capacities[candidate])
        return self.times[candidate] / left if left > 0 else inf

    def outcome(self, latency: float) -> SimulatedOutcome:
        failure = None if latency <= OBJECTIVE else PlanFailure(Reason.TTFT, "late", latency / OBJECTIVE)
        return SimulatedOutcome(latency, 0.0, latency, 0.0, failure)

    def failure(self, candidate: Candidate) -> PlanFailure | None:
        return self.outcome(self.times[candidate] / self.optimism).failure

    def fewest(self, candidate: Candidate) -> int:
        return ceil(RATE / (self.capacities[candidate] * self.optimism))

    def likely(self, candidate: Candidate) -> int:
        return self.fewest(candidate)

    def estimate(self, candidate: Candidate, instances: int) -> float:
        return self.latency(candidate, instances)

    def price(self, shape: DeploymentShape) -> float:
        return self.prices[shape]

    def measure(self, deployment: PlannedDeployment) -> SimulatedOutcome:
        self.measured.append(deployment)
        return self.outcome(self.latency(deployment.candidate, deployment.instances))

    def alone(self, candidate: Candidate) -> SimulatedOutcome:
        return self.outcome(self.times[candidate])

    def cheapest(self) -> float:
        """Returns the cheapest price by trying everything."""
        return min((self.prices[c.shape] * self.needed(c) for c in self.times), default=inf)

    def needed(self, candidate: Candidate) -> float:
        """Returns the instances with which this candidate meets the objective."""
        if self.times[candidate] > OBJECTIVE:
            return inf
        return next(n for n in count(1) if self.latency(candidate, n) <= OBJECTIVE)


def run(world: Queues, spread: float = 1.0, tied: float = 0.0, most: int = 10**7) -> SearchResult:
    return Search(list(world.prices), LIMITS, world, lambda *_: None, spread, lambda _: tied, most).run()


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([1.0, 1.1, 3.0]), st.sampled_from([1.0, 4.0])
)
def test_pruning_loses_nothing(seed: int, number: int, optimism: float, spread: float) -> None:
    world = Queues.drawn(seed, number, optimism)
    found = run(world, spread)
    assert min((o.price for o in found.options), default=inf) == world.cheapest()


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6))
def test_every_shape_is_accounted_for_once(seed: int) -> None:
    world = Queues.drawn(seed, 6, 1.1)
    found = run(world, 2.0)
    accounted = [o.deployment.candidate.shape for o in found.options]
    accounted += [r.shape for r in found.rejected] + [d.shape for d in found.dearer]
    assert sorted(accounted, key=str) == sorted(world.prices, key=str)
    assert found.configurations == 6 * len(LIMITS)
    assert found.simulations >= len(world.measured)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6))
def test_options_meet_the_objective_and_the_rejected_do_not(seed: int) -> None:
    found = run(Queues.drawn(seed, 6, 3.0), 4.0)
    assert all(o.outcome.latency <= OBJECTIVE for o in found.options)
    assert all(r.failure.excess > 1 for r in found.rejected)


def world(*rows: tuple[float, float, float]) -> Queues:
    """Makes shapes, given as (price, time alone, capacity), with one relevant candidate each."""
    result = Queues({}, {}, {})
    for shape, (price, time, capacity) in zip(shapes(len(rows)), rows, strict=True):
        result.prices[shape] = price
        for limits in LIMITS:
            result.times[Candidate(shape, limits)] = time
            result.capacities[Candidate(shape, limits)] = capacity
    return result


def test_several_small_instances_may_be_cheaper_than_a_large_one() -> None:
    found = run(world((1.0, 0.5, 8.0), (5.0, 0.5, 100.0)))
    assert found.options[0].deployment.instances == 3
    assert found.options[0].price == 3.0
    assert [o.price for o in found.options] == [3.0]
    assert [d.shape for d in found.dearer] == shapes(2)[1:]


def test_what_costs_nearly_the_same_is_looked_at_where_it_may_be_tied() -> None:
    near = ((1.0, 0.5, 100.0), (1.05, 0.6, 100.0), (1.5, 0.6, 100.0))
    assert [o.price for o in run(world(*near)).options] == [1.0]
    assert [o.price for o in run(world(*near), tied=0.1).options] == [1.0, 1.05]


def test_of_many_that_cost_the_same_the_first_few_are_simulated() -> None:
    queues = world(*((1.0, 0.5 + i / 100, 100.0) for i in range(20)))
    assert len(run(queues).options) == MOST_TIES
    assert len(queues.measured) == MOST_TIES


def test_no_price_hides_between_two_steps() -> None:
    """Steps of 3 % go from 101 instances to 105, where 102 would suffice: cheaper than the other shape."""
    queues = world((1.0, 0.5, 0.2), (103.0, 0.5, 100.0))
    queues.optimism = 2.0
    best = min(n for n in range(1, 200) if queues.latency(Candidate(shapes(1)[0], LIMITS[0]), n) <= OBJECTIVE)
    assert best == 100
    queues.prices[shapes(2)[1]] = best + 0.5
    assert run(queues).options[0].deployment.instances == best


def test_beyond_the_cheapest_only_what_is_faster_is_simulated() -> None:
    queues = world((1.0, 0.5, 100.0), (2.0, 0.6, 100.0), (3.0, 0.2, 100.0))
    assert [o.price for o in run(queues, spread=4.0).options] == [1.0, 3.0]
    assert len(queues.measured) == 2


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_what_fails_alone_is_not_tried_with_more_instances(spread: float) -> None:
    queues = world((1.0, 1.05, 100.0))
    queues.optimism = 2.0  # the bound does not see it
    found = run(queues, spread)
    assert found.options == []
    assert [d.instances for d in queues.measured] == [1] * len(LIMITS)
    assert found.rejected[0].failure.excess == pytest.approx(1.05)
    assert found.rejected[0].outcome is not None


def test_a_bound_spares_the_simulation() -> None:
    queues = world((1.0, 2.0, 100.0))
    found = run(queues)
    assert (queues.measured, found.simulations) == ([], 0)
    assert found.rejected[0].failure.excess == 2.0


def test_what_needs_too_many_instances_is_rejected() -> None:
    found = run(world((1.0, 0.5, 0.1)), most=50)
    assert found.options == []
    assert (found.rejected[0].failure.reason, found.rejected[0].failure.text) == (
        Reason.THROUGHPUT,
        "needs 100 instances",
    )


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 60), st.booleans())
def test_cut_short_it_has_the_best_so_far_and_says_what_is_possible(
    seed: int, number: int, moments: int, by_hand: bool
) -> None:
    world = Queues.drawn(seed, number, 1.1)
    told: list[SearchProgress] = []

    def watch(progress: SearchProgress) -> None:
        told.append(progress)
        if len(told) == moments:
            raise KeyboardInterrupt if by_hand else SearchStopped("time limit")

    found = Search(list(world.prices), LIMITS, world, watch, 4.0).run()
    best = min((option.price for option in found.options), default=inf)
    assert found.least <= world.cheapest() <= best
    if len(told) < moments:
        assert found.cut_short is None
        assert found.least == best
        return
    assert found.cut_short == (INTERRUPTED if by_hand else "time limit")
    assert all(
        world.latency(o.deployment.candidate, o.deployment.instances) <= OBJECTIVE for o in found.options
    )
    assert [p.tried for p in told] == sorted(p.tried for p in told)
    seen = [p.best.price for p in told if p.best is not None]
    assert seen == sorted(seen, reverse=True)
    assert not seen or best <= seen[-1]


def test_what_fails_by_chance_is_tried_with_fewer_instances() -> None:
    """Five instances fail, and four do, as where the hundredth of late requests is nearly met."""
    queues = world((1.0, 0.5, 5.0), (5.5, 0.5, 100.0))
    queues.optimism = 2.0
    lucky, five = queues.latency, {5}
    queues.latency = lambda c, n: 1.01 if n in five else lucky(c, n)  # type: ignore[method-assign]
    assert [lucky(Candidate(shapes(1)[0], LIMITS[0]), n) <= OBJECTIVE for n in (3, 4)] == [False, True]
    assert run(queues).options[0].deployment.instances == 4
