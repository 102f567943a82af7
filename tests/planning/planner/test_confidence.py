from __future__ import annotations

from typing import Any

import pytest

from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.planning.planner.confidence import METRICS, Validation, shipped_validation
from corepipe.planning.planner.space import DeploymentShape


def shape(instance: str = "inf2.48xlarge", profile: str = "nxdi") -> DeploymentShape:
    return DeploymentShape(instance, FORMATS["bf16"], Placement(), PROFILES[profile])


def cell(instance: str, profile: str, median: float, n: int = 10, **changes: Any) -> dict[str, object]:
    known = {"metric": "tpot", "instance": instance, "profile": profile, "n": n, "median": median}
    return {**known, "noise": 0.0, "validated": True, **changes}


CELLS = [
    cell("trn1.32xlarge", "transformers-neuronx", 0.04, n=99),
    cell("trn1.32xlarge", "nxdi", 0.05),
    cell("inf2.48xlarge", "nxdi", 0.06),
    cell("inf2.48xlarge", "nxdi", 0.01, validated=False),
    cell("trn2.48xlarge", "nxdi", 0.02, validated=False),
]


def test_the_same_instance_and_profile_counts_first() -> None:
    found = Validation(CELLS).of("tpot", shape())
    assert found.error == 0.06
    assert found.basis == "median of 10 measurements, inf2.48xlarge, profile nxdi"
    assert str(found) == "error 6%"


def test_no_figure_is_surer_than_its_measurements() -> None:
    found = Validation([cell("inf2.48xlarge", "nxdi", 0.0, noise=0.03)]).of("tpot", shape())
    assert found.error == 0.03


def test_the_figure_itself_counts_before_others_like_it() -> None:
    cells = [
        cell("inf2.48xlarge", "nxdi", 0.0, n=99, metric="ttft_whole_batch"),
        cell("inf2.48xlarge", "nxdi", 0.2, metric="ttft"),
    ]
    assert Validation(cells).of("ttft", shape()).error == 0.2


def test_then_the_profile_then_the_generation() -> None:
    assert Validation(CELLS).of("tpot", shape("inf2.xlarge")).error in {0.05, 0.06}
    assert Validation(CELLS[:2]).of("tpot", shape()).error == 0.05
    assert Validation(CELLS[:1]).of("tpot", shape()).error == 0.04


def test_nothing_is_known_of_another_generation_or_figure() -> None:
    known = Validation(CELLS)
    assert known.of("tpot", shape("trn2.48xlarge")).error is None
    assert str(known.of("tpot", shape("trn2.48xlarge"))) == "not validated on trn2"
    assert known.of("ttft", shape()).error is None
    assert known.worst(shape()).error is None
    assert known.tied(shape()) == 0.0


def test_the_worst_figure_counts() -> None:
    metrics = {"ttft": 0.2, "tpot": 0.05, "output_throughput": 0.1}
    known = Validation([cell("inf2.48xlarge", "nxdi", error, metric=name) for name, error in metrics.items()])
    assert known.worst(shape()).error == 0.2
    assert known.tied(shape()) == 0.1


@pytest.mark.parametrize("figure", METRICS)
def test_what_is_shipped_can_be_read(figure: str) -> None:
    assert shipped_validation().of(figure, shape("trn2.48xlarge")).error is None
    known = shipped_validation().of(figure, shape()).error
    assert known is None or 0 <= known < 1
