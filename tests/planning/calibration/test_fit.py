"""Tests of fitting: constants are recovered from their predictions, and few rows change them little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from corepipe.neuron.chips.constants import fitted, shipped
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.fit import fit, least_squares, leave_one_out, usable
from corepipe.planning.calibration.predict import Predictor
from tests.planning.calibration.test_predict import DECODER, ENCODER

TRUE = replace(
    shipped()["v2"],
    memory_efficiency=0.5,
    descriptor_bytes=400.0,
    engine_efficiency=0.45,
    collective_seconds=40e-6,
    collective_bytes_per_second=30e9,
)
SHAPES = [
    DECODER | {"task": "text-generation", "sdk": "2.22", "metric": metric, "batch_size": batch, "family": "a"}
    for metric in ("tpot", "ttft")
    for batch in ("1", "8", "64")
] + [ENCODER | {"batch_size": batch, "family": "b"} for batch in ("1", "16")]


@pytest.fixture(scope="module")
def cases():
    return Cases()


@pytest.fixture(scope="module")
def measured(cases):
    """Returns measurements of a device with other constants."""
    predictor = Predictor({"v2": TRUE}, cases)
    return [row | {"value": str(predictor.predict(row).value)} for row in SHAPES]


def test_constants_are_found_again(cases, measured):
    found = fit(usable(measured, cases), cases)
    assert found.rows == {"v2": len(SHAPES)}
    for name in fitted(TRUE):
        assert getattr(found.constants["v2"], name) == pytest.approx(getattr(TRUE, name), rel=0.05), name


def test_few_rows_move_the_constants_little(cases, measured):
    free = fit(measured[:1], cases).constants["v2"].memory_efficiency
    drawn = fit(measured[:1], cases, pull=50.0).constants["v2"].memory_efficiency
    start = shipped()["v2"].memory_efficiency
    assert free < drawn < start


def test_families_and_campaigns_are_predicted_from_the_others(cases, measured):
    folds = leave_one_out(measured, cases, fit)
    assert {name: fold.rows["v2"] for name, fold in folds.items()} == {
        "a": 2,
        "b": 6,
        "encoder 2.26.0 inf2.xlarge": 6,
        "text-generation 2.22 inf2.48xlarge": 2,
    }
    other = Predictor(folds["a"].constants, cases).predict(measured[0]).value
    assert other != pytest.approx(float(measured[0]["value"]), rel=1e-3)


def test_rows_that_cannot_be_compared_are_left_out(cases, measured):
    bad = [
        measured[0] | {"value": ""},
        measured[0] | {"value": "1e9"},
        measured[0] | {"percentile": "p99"},
        measured[0] | {"task": "serving", "arrival": "synchronous"},
        measured[0] | {"task": "cnn"},
    ]
    assert usable([*bad, measured[0]], cases) == [measured[0]]


def test_a_server_with_one_user_counts_on_cores_that_few_measured_alone(cases):
    row = DECODER | {"task": "serving", "arrival": "synchronous", "users": "1", "config_id": "x"}
    row |= {"metric": "itl", "unit": "ms", "parallelism": "TP4", "value": "30", "percentile": "mean"}
    rows = [row | {"instance": name} for name in ("trn2.48xlarge", "inf2.48xlarge")]
    assert usable(rows, cases) == rows[:1]


def test_least_squares_stays_within_its_bounds():
    def residuals(x):
        return np.array([x[0] - 3, 10 * (x[1] + x[0] - 4)])

    free = least_squares(residuals, np.zeros(2), np.full(2, -9.0), np.full(2, 9.0))
    assert free == pytest.approx([3, 1], abs=1e-3)
    bound = least_squares(residuals, np.zeros(2), np.full(2, -9.0), np.full(2, 2.0))
    assert bound == pytest.approx([2, 2], abs=1e-3)
