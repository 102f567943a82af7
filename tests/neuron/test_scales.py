"""Corrections from a fit: likeness is a covariance, falls with distance, and survives its file."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from device_graphs import llama, whole
from hypothesis import given
from hypothesis import strategies as st

from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES, as_text, profile
from corepipe.neuron.chips.scales import MOST_SCALE, Scales, Site, parse
from corepipe.neuron.timing.cost import CostModel, StepShape

SITES = st.builds(
    Site,
    st.booleans(),
    st.sampled_from(["v2", "v3"]),
    st.sampled_from(["inf2.48xlarge", "trn1.32xlarge"]),
    st.integers(1, 1 << 17),
)
HERE = Site(decodes=True, generation="v2", instance="inf2.48xlarge", rows=8)


@given(st.lists(SITES, min_size=1, max_size=8))
def test_likeness_is_a_covariance(sites) -> None:
    matrix = np.array([[one.likeness(other) for other in sites] for one in sites])
    assert np.allclose(matrix, matrix.T, rtol=1e-12, atol=0)
    assert np.linalg.eigvalsh(matrix).min() > -1e-12


def test_likeness_falls_with_distance() -> None:
    away = [HERE, replace(HERE, rows=16), replace(HERE, rows=256), replace(HERE, rows=256, instance="trn1")]
    found = [HERE.likeness(site) for site in away]
    assert found == sorted(found, reverse=True)
    assert found[-1] > 0
    assert HERE.likeness(replace(HERE, decodes=False)) == 0
    assert HERE.likeness(replace(HERE, generation="v3")) == 0


def test_a_scale_is_bounded_whatever_was_learnt() -> None:
    assert Scales(learnt=((HERE, 1e9),)).of(HERE) == pytest.approx(MOST_SCALE)
    assert Scales(learnt=((HERE, -1e9),)).of(HERE) == pytest.approx(1 / MOST_SCALE)


@given(st.floats(0.2, 5), st.floats(0.2, 5), st.lists(st.tuples(SITES, st.floats(-50, 50)), max_size=4))
def test_what_is_written_is_read_again(prompt, decode, learnt) -> None:
    scales = Scales(prompt, decode, tuple(learnt))
    assert parse(json.loads(json.dumps(scales.as_json()))) == scales


def test_a_profile_keeps_what_was_learnt_and_files_of_before_are_read(tmp_path) -> None:
    base, file = PROFILES["nxdi"], tmp_path / "mine.json"
    mine = replace(base, name="mine", scales=Scales(learnt=((HERE, 3.0),)))
    file.write_text(as_text(mine, "nxdi", {}))
    assert profile(str(file)).scales == mine.scales
    before = json.loads(file.read_text()) | {"scales": {"prompt": 1.25, "decode": 0.5}}
    file.write_text(json.dumps(before))
    assert profile(str(file)).scales == Scales(1.25, 0.5)


@pytest.mark.parametrize(
    "learnt",
    [
        [{"decodes": True}],
        [{"decodes": 1, "generation": "v2", "instance": "x", "rows": 1, "weight": 1}],
        [{"decodes": True, "generation": "v2", "instance": "x", "rows": 0, "weight": 1}],
        [{"decodes": True, "generation": "v2", "instance": "x", "rows": 1, "weight": "much"}],
    ],
)
def test_what_is_no_scale(learnt) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        parse({"learnt": learnt})


def test_steps_take_what_was_learnt_where_it_was_learnt() -> None:
    machine = instance("inf2.48xlarge")
    plain = CostModel(whole(llama()), machine, PROFILES["ideal"])
    shape, prompt = StepShape.decode(8, 64), StepShape.of([(0, 64)], 1)
    site = plain.site(shape)
    assert (site.decodes, site.generation, site.instance, site.rows) == (True, "v2", machine.name, 8)
    scales = Scales(learnt=((site, 4.0),))
    scaled = plain.with_scales(scales)
    assert scaled.stage_seconds(shape)[0] == pytest.approx(plain.stage_seconds(shape)[0] * scales.of(site))
    assert scaled.seconds(0, shape) == pytest.approx(plain.seconds(0, shape) * scales.of(site))
    assert scaled.decode_seconds(8, np.array([512]))[0, 0] == scaled.stage_seconds(shape)[0]
    assert scaled.stage_seconds(prompt) == plain.stage_seconds(prompt)
