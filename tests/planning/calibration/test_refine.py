"""Tests of a few rows of one model: its own scales are found, the rest stays, and intervals shrink with
more rows."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from corepipe.neuron.chips.constants import fitted, shipped
from corepipe.neuron.chips.scales import Scales, Site
from corepipe.neuron.timing.uncertainty import Point, Residual
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.predict import Predictor
from corepipe.planning.calibration.refine import family_share, narrowing, refine
from tests.planning.calibration.test_predict import DECODER

CASES = Cases()
OWN = Scales(1.5, 0.8)
"""Scales of the model's steps with prompts, and of others."""


def measured(metric: str, batch: int, length: int) -> dict[str, str]:
    row = DECODER | {
        "task": "text-generation", "sdk": "2.22", "percentile": "mean", "metric": metric,
        "batch_size": str(batch), "input_len": str(length),
    }  # fmt: skip
    return row | {"value": repr(Predictor(cases=CASES, scales=OWN).predict(row).value)}


ROWS = [measured(metric, batch, 512) for metric in ("ttft", "tpot") for batch in (1, 8, 32)]


def errors(rows, predictor) -> list[float]:
    return [abs(predictor.predict(row).value / float(row["value"]) - 1) for row in rows]


def test_five_rows_halve_the_error_of_the_others() -> None:
    five = [ROWS[i] for i in (0, 1, 3, 4, 5)]
    others = [ROWS[2], measured("ttft", 4, 1024), measured("tpot", 16, 1024), measured("tpot", 64, 128)]
    found = refine(five, CASES)
    before, after = errors(others, Predictor(cases=CASES)), errors(others, found.predictor(CASES))
    assert median(after) < median(before) / 4
    prompts, others = (
        [found.scales.of(site) for site, _ in found.scales.learnt if site.decodes is decodes]
        for decodes in (False, True)
    )
    assert prompts == pytest.approx([OWN.prompt] * len(prompts), rel=0.1)
    assert others == pytest.approx([OWN.decode] * len(others), rel=0.1)


def test_constants_stay_near_what_all_families_agree_on() -> None:
    found = refine(ROWS, CASES).constants["v2"]
    for name in fitted(found):
        assert getattr(found, name) == pytest.approx(getattr(shipped()["v2"], name), rel=0.1), name


def test_what_was_not_measured_is_as_it_was() -> None:
    tokens = [row for row in ROWS if row["metric"] == "tpot"]
    scales = refine(tokens, CASES).scales
    near = Site(decodes=True, generation="v2", instance=DECODER["instance"], rows=16)
    assert scales.of(near) == pytest.approx(OWN.decode, rel=0.1)
    assert scales.of(replace(near, decodes=False)) == 1
    assert scales.of(replace(near, generation="v3")) == 1
    further = scales.of(replace(near, instance="trn1.32xlarge"))
    assert scales.of(near) < further < 1


def test_one_row_that_is_mistaken_does_not_move_the_others() -> None:
    mistaken = ROWS[4] | {"value": repr(float(ROWS[4]["value"]) * 8)}
    five = [ROWS[0], ROWS[1], ROWS[3], mistaken, ROWS[5]]
    after = errors([ROWS[4], measured("tpot", 16, 1024)], refine(five, CASES).predictor(CASES))
    assert max(after) < 0.15


def test_intervals_shrink_as_rows_come_and_never_below_the_noise() -> None:
    shares = [narrowing(0.75, runs) for runs in range(6)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] > 0.25**0.5
    assert narrowing(0.0, 5) == 1.0


def test_a_familys_own_part_of_the_errors() -> None:
    point = Point("decode", "inf2.48xlarge", "nxdi", "decoder", 8, 1024)
    offsets = {"a": 0.3, "b": -0.2, "c": 0.05}
    every = [
        Residual(point, name, "campaign", f"{name}{i}", offset + noise, 1.0, "s")
        for name, offset in offsets.items()
        for i, noise in enumerate((0.01, -0.01, 0.0))
    ]
    assert family_share(every, "decode") > 0.95
    assert family_share([replace(one, error=0.1 * (-1) ** i) for i, one in enumerate(every)], "decode") < 0.2
    assert family_share(every, "no such kind") == 0.0
