"""Tests of plans for models that run once over their input: trying everything finds nothing cheaper."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import profile
from corepipe.neuron.formats import FORMATS
from corepipe.planning.planner.demand import Demand, Objectives
from corepipe.planning.planner.prices import Price
from corepipe.planning.planner.purchase import REGION, Purchase
from corepipe.planning.planner.search_result import SearchStopped
from corepipe.planning.planner.single_pass import SEATS, PricedShape, offers, search
from corepipe.simulation.report import GROWS, Latencies
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.lengths import Lengths

MODEL = "bert-small"
PRICES = {"inf1.xlarge": 0.228, "inf2.xlarge": 0.758, "inf2.24xlarge": 6.49}


def offered(*names: str) -> list[PricedShape]:
    stacks = {"traced": profile("traced")}
    prices = {name: Price(name, Purchase.ON_DEMAND, REGION, price, "") for name, price in PRICES.items()}
    return list(offers([instance(name) for name in names], prices, [FORMATS["bf16"]], stacks))


def demand(rate: float, seconds: float | None) -> Demand:
    lengths, one = Lengths.parse("uniform:50:400", "input-len"), Lengths.parse(1, "output-len")
    return Demand(lengths, one, Objectives(seconds, None, 99.0, rate), 200, 0)


def does(name: str, data: int, seats: int, instances: int, asked: Demand) -> bool:
    engine = EngineConfig(
        model=MODEL,
        format="bf16",
        instance=name,
        profile="traced",
        pipeline=1,
        tensor=1,
        data=data,
        max_model_len=512,
        max_num_seqs=seats,
        max_num_batched_tokens=min(16384, 512 * seats),
        max_queued_requests=10**9,
        max_queued_tokens=10**9,
    )
    load, limit = asked.stream(asked.objectives.rate / instances, 200), asked.objectives.ttft
    report = simulate(SimulationConfig(engine), load.workload())
    seconds = np.percentile(Latencies.of(report.requests).e2e, 99)
    return report.growth <= GROWS and (limit is None or seconds <= limit)


def test_instances_of_each_shape_are_the_fewest_that_do() -> None:
    asked = demand(4000.0, 0.02)
    found = search(architecture(MODEL), asked, offered("inf1.xlarge", "inf2.xlarge"), 512, lambda _: None)
    fewest = {
        name: next(n for n in count(1) if any(does(name, data, seats, n, asked) for seats in SEATS))
        for name, data in (("inf1.xlarge", 4), ("inf2.xlarge", 2))
    }
    prices = {name: n * PRICES[name] for name, n in fewest.items()}
    best, *others = found.options
    assert best.shape.instance == min(prices, key=lambda name: prices[name])
    assert best.price == pytest.approx(min(prices.values()))
    assert best.deployment.instances == fewest[best.shape.instance]
    assert best.seconds <= 0.02
    assert all(option.price >= best.price for option in others)


def test_without_an_objective_the_queue_does_not_grow() -> None:
    found = search(architecture(MODEL), demand(9000.0, None), offered("inf1.xlarge"), 512, lambda _: None)
    (best,) = found.options
    assert best.report.growth <= GROWS
    assert best.deployment.instances > 1


def test_what_is_too_slow_alone_is_told_and_not_simulated() -> None:
    found = search(architecture(MODEL), demand(10.0, 1e-6), offered("inf2.xlarge"), 512, lambda _: None)
    assert (found.options, found.simulations) == ([], 0)
    (why,) = found.failed.values()
    assert why.startswith("a request alone takes ")


def test_who_watches_may_end_it() -> None:
    def stop(_done: float) -> None:
        raise SearchStopped("enough")

    found = search(architecture(MODEL), demand(10.0, None), offered("inf2.xlarge"), 512, stop)
    assert (found.cut_short, found.options) == ("enough", [])


def test_nothing_to_choose_from_is_refused() -> None:
    assert offered("trn1.2xlarge") == []
    with pytest.raises(UserError, match="nothing to choose from"):
        search(architecture(MODEL), demand(1.0, None), [], 512, lambda _: None)
