"""Intervals hold the promised share of figures of unseen models, and grow with distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log, sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.models.registry import architecture
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.timing.uncertainty import (
    LEVEL,
    Figure,
    ModelKind,
    Point,
    Residual,
    Uncertainty,
    architecture_of,
    as_rows,
    from_rows,
    interval,
    kind_of,
    record,
    shipped_uncertainty,
)
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.coverage import ALL, binomial, by_steps, coverage, left_out
from corepipe.planning.calibration.predict import Predictor

NEAR = Point("decode", "inf2.48xlarge", "transformers-neuronx", "decoder", 8, 2048)
KNOWN = shipped_uncertainty()


@pytest.fixture(scope="module")
def held():
    return left_out(KNOWN.residuals)


def test_left_out_runs_lie_in_their_intervals_as_often_as_is_said(held) -> None:
    found = {one.kind: one for one in coverage(held)}
    assert 0.85 <= found[ALL].share <= 0.96
    assert all(one.sound for one in found.values() if one.kind != ALL)
    assert {one["kind"]: one["share"] for one in record()["coverage"]} == pytest.approx(
        {one.kind: one.share for one in found.values()}, abs=0.01
    )


def test_intervals_are_wider_where_errors_are_larger(held) -> None:
    steps = by_steps(held)
    assert steps[0][2] < steps[1][2]
    assert steps[0][3] < steps[1][3]


FURTHER = (
    {"instance": "trn2.48xlarge"},
    {"profile": "vllm-neuron"},
    {"architecture": "mixture of experts"},
    {"architecture": "recurrent"},
    {"tensor": 256},
    {"tokens": 1 << 20},
    {"divided": True},
)


@pytest.mark.parametrize("change", FURTHER, ids=lambda change: next(iter(change)))
def test_what_was_never_measured_is_less_sure(change) -> None:
    near, far = (KNOWN.interval(point) for point in (NEAR, replace(NEAR, **change)))
    assert (near.steps, far.steps >= 1) == (0, True)
    assert far.high / far.low > near.high / near.low
    again = (
        replace(NEAR, **change, profile="no-such")
        if "profile" not in change
        else replace(NEAR, **change, tensor=512)
    )
    assert KNOWN.interval(again).steps > far.steps


@given(
    st.builds(
        Point,
        st.sampled_from(["decode", "first token, under load", "no such kind"]),
        st.sampled_from(["inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge", "no-such"]),
        st.sampled_from(["optimum-nxdi", "vllm-neuron"]),
        st.sampled_from([str(kind) for kind in ModelKind]),
        st.integers(1, 64),
        st.integers(1, 1 << 17),
        st.booleans(),
    ),
    st.floats(1e-6, 1e6),
)
@settings(max_examples=60)
def test_an_interval_is_around_its_figure_and_wider_for_more_certainty(point, value) -> None:
    found, surer, less = (KNOWN.interval(point, level) for level in (LEVEL, 0.97, 0.5))
    assert surer.low <= found.low <= less.low <= 1 <= less.high <= found.high <= surer.high
    for rate in (False, True):
        low, high = found.around(value, rate=rate)
        assert low <= value <= high


def test_a_left_out_campaign_does_not_shape_its_own_interval(held) -> None:
    owner = KNOWN.residuals[0].owner
    wild = [replace(one, error=one.error * 5) if one.owner == owner else one for one in KNOWN.residuals]
    before, after = (
        {one.residual.run: one.interval for one in some if one.residual.owner == owner}
        for some in (held, left_out(wild))
    )
    assert before == after


def truth(random: Random, units: int, hidden: float = 0.3) -> list[Residual]:
    """Returns errors of a made-up world: runs of a family in a campaign share an error, each run has a little
    of its own, and one unit in eight obeys a rule that the model does not know."""
    found = []
    for unit in range(units):
        common = random.gauss(0, 0.1) + hidden * (random.random() < 1 / 8)
        found += [
            Residual(NEAR, f"family {unit % 5}", f"campaign {unit}", f"{unit} {run}", error, 1.0, "s")
            for run in range(random.choice((1, 3, 20)))
            for error in (common + random.gauss(0, 0.02),)
        ]
    return found


def by_runs(known: Sequence[Residual], one: Residual) -> bool:
    """Tells whether a run lies within nine tenths of all known runs, as if each run were independent."""
    sizes = sorted(abs(each.error) for each in known)
    return abs(one.error) <= sizes[min(len(sizes) - 1, int(0.9 * (len(sizes) + 1)))]


@pytest.mark.parametrize("units", [10, 14, 30])
def test_intervals_hold_what_they_claim_in_a_world_with_hidden_rules(units) -> None:
    random = Random(units)
    within, naive = [], []
    for _ in range(400):
        world = truth(random, units + 1)
        one = world[-1]
        known = [each for each in world if each.owner != one.owner]
        found = Uncertainty(known).interval(one.point)
        assert found.claimed
        within.append(found.low <= exp(one.error) <= found.high)
        naive.append(by_runs(known, one))
    least, most = binomial(len(within), LEVEL, 0.999)
    assert least <= sum(within) / len(within) <= most + 0.05
    assert sum(naive) < sum(within)
    if units == 10:
        assert sum(naive) / len(naive) < least


def test_few_campaigns_claim_no_level_and_reach_to_the_largest_error() -> None:
    random = Random(3)
    known = truth(random, 9)
    found = Uncertainty(known).interval(NEAR)
    assert not found.claimed
    assert log(found.high) >= max(abs(one.error) for one in known) * 0.9
    assert "too few campaigns" in found.basis
    assert Uncertainty(truth(random, 10)).interval(NEAR).claimed


def test_the_confidence_in_a_limit_rises_with_it() -> None:
    factors = (0.2, 0.8, 1.0, 1.1, 1.5, 9.0)
    found = [KNOWN.confidence(NEAR, factor) for factor in factors]
    assert found == sorted(found)
    assert 0 < found[0] < 0.2 < found[2] <= found[3] < 0.99
    at_the_end = KNOWN.interval(NEAR).high * 1.0001
    assert KNOWN.confidence(NEAR, at_the_end) >= 0.95


def test_a_prediction_of_two_values_spans_both() -> None:
    found = KNOWN.interval(NEAR)
    assert found.around(1.0, 3.0) == (found.low, 3 * found.high)
    assert found.around(3.0, 1.0, rate=True) == (1 / found.high, 3 / found.low)


@pytest.mark.parametrize("draws", [0, 1, 40, 1554, 100_000])
def test_the_bounds_of_a_share_are_known_for_any_number_of_draws(draws) -> None:
    least, most = binomial(draws, 0.9)
    assert 0 <= least <= 0.9 <= most <= 1
    expected = 1.96 * sqrt(0.9 * 0.1 / draws) if draws else 1.0
    if draws > 1000:
        assert (0.9 - least, most - 0.9) == pytest.approx((expected, expected), rel=0.05)


def test_a_fit_narrows_its_own_kind_of_figure_alone() -> None:
    mine = replace(PROFILES["nxdi"], name="mine", refines="nxdi", narrowed=(("decode", 0.5),))
    point = replace(NEAR, profile=mine.stack)
    before, after = interval(point, PROFILES["nxdi"]), interval(point, mine)
    assert after.high == pytest.approx(before.high**0.5)
    other = replace(point, kind="first token")
    assert interval(other, mine) == interval(other, PROFILES["nxdi"])


def test_what_is_written_is_read_again() -> None:
    assert as_rows(from_rows(record()["residuals"])) == record()["residuals"]


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("llama-3.1-8b", ModelKind.DECODER),
        ("qwen3-30b-a3b", ModelKind.MIXTURE),
        ("mamba2-130m", ModelKind.RECURRENT),
        ("bert-base", ModelKind.ENCODER),
        ("flan-t5-xl", ModelKind.ENCODER_DECODER),
    ],
)
def test_models_are_told_apart_by_their_graphs(model, kind) -> None:
    assert architecture_of(architecture(model).graph(FORMATS["bf16"])) is kind


def test_kinds_of_figures() -> None:
    assert kind_of(Figure.DECODE, ModelKind.DECODER, load=True) == "decode, under load"
    assert kind_of(Figure.DECODE, ModelKind.ENCODER_DECODER) == "encoder-decoder"


STALE = "the cost model has changed: run `make intervals ROWS=...` (benchmarks/residuals.py)"
NEARLY = 0.03
"""A change of the cost model that moves a figure by more than this share moves intervals."""


def test_the_residuals_are_those_of_this_cost_model() -> None:
    document = record()
    predictor = Predictor(cases=Cases())
    for check in document["checks"]:
        found = predictor.predict(check)
        assert found.value == pytest.approx(check["predicted"], rel=NEARLY), (
            f"{STALE}: {check} {found.reason}"
        )
