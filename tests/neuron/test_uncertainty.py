"""Intervals hold the promised share of figures of unseen models, and grow with distance."""

from __future__ import annotations

from dataclasses import replace

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
    Widths,
    architecture_of,
    as_rows,
    fold_widths,
    from_rows,
    interval,
    kind_of,
    record,
    scored,
    shipped_uncertainty,
)
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.coverage import ALL, by_steps, coverage, nested
from corepipe.planning.calibration.predict import Predictor

NEAR = Point("decode", "inf2.48xlarge", "transformers-neuronx", "decoder", 8, 2048)
KNOWN = shipped_uncertainty()


@pytest.fixture(scope="module")
def held():
    return nested(KNOWN.residuals, fold_widths())


def test_left_out_runs_lie_in_their_intervals_as_often_as_is_said(held) -> None:
    found = {one.kind: one for one in coverage(held)}
    assert 0.85 <= found[ALL].share <= 0.95
    assert {one.kind for one in found.values() if not one.sound} <= {ALL}
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


def test_a_left_out_family_does_not_shape_its_own_interval() -> None:
    family = KNOWN.residuals[0].family
    wild = [replace(one, error=one.error * 5) if one.family == family else one for one in KNOWN.residuals]
    before, after = (
        {
            one.residual.run: one.interval
            for one in nested(some, fold_widths())
            if one.residual.family == family
        }
        for some in (KNOWN.residuals, scored(wild, KNOWN.widths))
    )
    assert before == after


def test_few_errors_borrow_the_shape_of_all() -> None:
    many = [
        Residual(NEAR, f"family {i % 7}", str(i), (-1) ** i * 0.01 * (i % 20), 1.0, "s") for i in range(200)
    ]
    one = Residual(replace(NEAR, kind="first token"), "family 8", "x", 0.3, 1.0, "s")
    widths = Widths(growth=1.45, own_families=2.0, others=80.0)
    found = Uncertainty(scored([*many, one], widths), widths).interval(one.point)
    assert 1.2 < found.high < 20
    assert found.measured == 1


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
