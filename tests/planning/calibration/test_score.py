"""Tests of errors: by cell, within the rounding of the source, beside the roofline's."""

from __future__ import annotations

import pytest

from corepipe.planning.calibration.predict import RowPrediction
from corepipe.planning.calibration.score import cells, pair, resolution

STATIC = {
    "instance": "inf2.48xlarge",
    "model": "m",
    "task": "static-batch(optimum-neuron)",
    "metric": "ttft_whole_batch",
    "unit": "ms",
    "percentile": "mean",
    "value": "1100",
}
MEASURED = STATIC | {"task": "text-generation", "metric": "tpot", "percentile": "p50", "value": "10"}


def guess(value: float | None) -> RowPrediction:
    return RowPrediction(value, "", "nxdi")


@pytest.mark.parametrize(
    ("predicted", "error"), [(1100, 0), (1149, 0), (1051, 0), (1150 + 110, 0.1), (1050 - 55, -0.05)]
)
def test_within_the_rounding_there_is_no_error(predicted, error):
    assert resolution(STATIC) == 100
    (one,) = pair([STATIC], [guess(predicted)])
    assert one.error() == pytest.approx(error)


def test_cells():
    rows = [MEASURED | {"value": str(v)} for v in (10, 20, 40)]
    scored = pair(rows, [guess(v) for v in (11, 18, 40)], [guess(v) for v in (5, 10, 20)])
    (cell,) = cells(scored)
    assert (cell.metric, cell.instance, cell.profile, cell.n) == ("tpot", "inf2.48xlarge", "nxdi", 3)
    assert cell.validated
    assert (cell.median, cell.bias) == pytest.approx((0.1, 0.0))
    assert cell.p90 == pytest.approx(0.1)
    assert cell.roofline_median == cell.roofline_p90 == pytest.approx(0.5)
    assert cell.noise > 0.3  # three very different values of one configuration


def test_tails_and_rare_instances_are_cells_of_their_own():
    rows = [MEASURED, MEASURED | {"percentile": "p99"}, MEASURED | {"instance": "trn2.48xlarge"}]
    found = cells(pair(rows, [guess(10)] * 3))
    assert [(c.metric, c.instance, c.validated) for c in found] == [
        ("tpot", "inf2.48xlarge", True),
        ("tpot", "trn2.48xlarge", False),
        ("tpot p99", "inf2.48xlarge", False),
    ]


@pytest.mark.parametrize("value", ["", "x", "nan", "0", "-1", "inf"])
def test_rows_without_a_value_are_not_scored(value):
    assert pair([MEASURED | {"value": value}], [guess(1)]) == []


def test_rows_without_a_prediction_are_not_scored():
    assert pair([MEASURED], [guess(None)]) == []
