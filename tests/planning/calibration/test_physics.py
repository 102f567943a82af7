"""Tests that adversarial rows are refused, with their number and the reason, and real measurements are
not."""

from __future__ import annotations

import pytest

from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.physics import consistent, refused
from corepipe.planning.calibration.predict import Predictor
from tests.planning.calibration.test_predict import DECODER, ENCODER

CASES = Cases()
ROW = DECODER | {"task": "text-generation", "sdk": "2.22", "percentile": "mean"}
LOADED = ROW | {"task": "serving", "arrival": "concurrent", "users": "8"}


def predicted(row: dict[str, str], factor: float = 1.0) -> dict[str, str]:
    """Returns the row with its prediction as its value."""
    value = Predictor(cases=CASES).predict(row).value
    assert value is not None
    return row | {"value": repr(value * factor)}


GOOD = [
    predicted(ROW | {"metric": metric, "unit": unit})
    for metric, unit in (("ttft", "ms"), ("tpot", "ms"), ("output_throughput", "tokens/s"))
] + [predicted(ENCODER)]


def test_what_can_be_is_believed() -> None:
    assert refused(GOOD, CASES) == []


BAD = {
    "no unit": (GOOD[1] | {"unit": ""}, "has no unit"),
    "unknown unit": (GOOD[1] | {"unit": "minutes"}, "not known"),
    "negative": (GOOD[1] | {"value": "-3"}, "above 0"),
    "zero": (GOOD[1] | {"value": "0"}, "above 0"),
    "infinite": (GOOD[1] | {"value": "inf"}, "above 0"),
    "nan": (GOOD[1] | {"value": "nan"}, "above 0"),
    "words": (GOOD[1] | {"value": "fast"}, "no number"),
    "seconds as ms": (predicted(ROW | {"metric": "tpot", "unit": "ms"}, 1e-3), "data sheet"),
    "a prompt too fast": (predicted(ROW | {"metric": "ttft", "unit": "ms"}, 1e-3), "data sheet"),
    "too many tokens": (
        predicted(ROW | {"metric": "output_throughput", "unit": "tokens/s"}, 100),
        "data sheet",
    ),
    "an encoder too fast": (predicted(ENCODER, 1e-3), "data sheet"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_with_its_number_and_the_reason(name) -> None:
    row, reason = BAD[name]
    (found,) = refused([GOOD[0] | {"config_id": "other"}, row], CASES)
    assert found.number == 2
    assert reason in found.reason


def test_a_batch_whose_times_and_rate_disagree_is_refused() -> None:
    one_run = [row | {"config_id": "a"} for row in GOOD[:3]]
    slow = one_run[2] | {"value": repr(float(one_run[2]["value"]) / 3)}
    found = refused([*one_run[:2], slow], CASES)
    assert [one.number for one in found] == [1, 2, 3]
    assert "tokens/s, and by its times" in found[0].reason


def test_a_quarter_is_as_much_as_times_and_rate_may_disagree() -> None:
    one_run = [row | {"config_id": "a"} for row in GOOD[:3]]
    for factor, count in ((1.2, 0), (1.3, 3)):
        other = one_run[2] | {"value": repr(float(one_run[2]["value"]) / factor)}
        assert len(refused([*one_run[:2], other], CASES)) == count
        assert len(consistent([*one_run[:2], other], CASES)) == 3 - count


def test_an_encoder_of_idle_cores_is_refused() -> None:
    time = GOOD[3] | {"config_id": "e"}
    rate = predicted(ENCODER | {"metric": "throughput", "unit": "inferences/s"}) | {"config_id": "e"}
    assert refused([time, rate], CASES) == []
    assert len(refused([time, rate | {"value": repr(float(rate["value"]) / 4)}], CASES)) == 2


def test_more_in_flight_than_there_are_users_is_refused() -> None:
    rows = [
        LOADED | {"metric": "request_rate", "unit": "req/s", "value": "2", "config_id": "a"},
        LOADED | {"metric": "request_latency", "unit": "s", "value": "9", "config_id": "a"},
    ]
    found = refused(rows, CASES)
    assert [one.number for one in found] == [1, 2]
    assert "18 in flight, of 8 users" in found[0].reason
    assert refused([rows[0], rows[1] | {"value": "4"}], CASES) == []


def test_rows_that_nobody_can_predict_are_no_contradictions() -> None:
    assert refused([GOOD[0] | {"model": "no-such-model"}, {"model": "x", "value": ""}], CASES) == []
