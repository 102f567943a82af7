"""Tests of intervals that span both figures where no document says which one holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES, as_text, profile
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.otherwise import spanning
from corepipe.neuron.timing.uncertainty import Figure, Interval

TOKENS = 4096
FOUND = Interval(0.8, 1.25, steps=0.0, measured=9, units=12, claimed=True)
PROGRAMS = compile_for_timing(architecture("llama-2-13b").graph(FORMATS["bf16"], TOKENS), Placement(tensor=8))


def cost_of(profile: RuntimeProfile) -> CostModel:
    return CostModel(PROGRAMS, instance("inf2.48xlarge"), profile, batch=4)


@pytest.mark.parametrize("figure", [Figure.FIRST_TOKEN, Figure.DECODE, Figure.THROUGHPUT])
def test_an_interval_reaches_as_far_as_the_slower_figure(figure: Figure) -> None:
    profile = PROFILES["optimum-tnx"]
    prompt = StepShape.of([(0, TOKENS)], 1)
    one, other = (cost_of(PROFILES[name]).latency(prompt) for name in ("optimum-tnx", "optimum-tnx-spilled"))
    found = spanning(FOUND, profile, cost_of, figure, TOKENS)
    slower = 1.0 if figure is Figure.DECODE else other / one
    assert (found.low, found.high) == (FOUND.low, pytest.approx(FOUND.high * slower, rel=0.02))
    assert slower == 1.0 or slower > 1.2


def test_a_measurement_settles_which_figure_holds(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(as_text(replace(PROFILES["optimum-tnx"], name="mine"), "optimum-tnx", {}))
    assert (PROFILES["optimum-tnx"].otherwise, profile(str(file)).otherwise) == ("optimum-tnx-spilled", "")


def test_a_documented_stack_keeps_its_interval() -> None:
    assert spanning(FOUND, PROFILES["optimum-nxdi"], cost_of, Figure.FIRST_TOKEN, TOKENS) is FOUND
