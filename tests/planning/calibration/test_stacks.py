"""Which software a row was measured with."""

from __future__ import annotations

import pytest

from corepipe.planning.calibration.rows import Degrees, Unpredictable
from corepipe.planning.calibration.stacks import profile_of


@pytest.mark.parametrize(
    ("task", "sdk", "batch", "name"),
    [
        ("static-batch(optimum-neuron)", "n/s (2024-06-18)", 8, "optimum-tnx"),
        ("static-batch(optimum-neuron)", "n/s (2024-06-18)", 1, "transformers-neuronx"),
        ("static-batch(optimum-neuron)", "n/s (2025-06-04)", 8, "optimum-nxdi"),
        ("static-batch(optimum-neuron)", "", 8, "optimum-nxdi"),
        ("text-generation", "2.18.1", 1, "transformers-neuronx"),
        ("text-generation", "2.22.0", 1, "nxdi"),
        ("text-generation", "2.2x", 1, "nxdi"),
        ("text-generation", "", 1, "nxdi"),
        ("text-generation(in+out)", "2.14.0", 1, "transformers-neuronx-hsb"),
        ("serving", "2.2x", 32, "optimum-nxdi"),
        ("serving-tgi", "2.18-2.19", 4, "optimum-tnx"),
        ("Encoder", "2.26.0", 4, "data-parallel"),
    ],
)
def test_task_and_release_name_the_profile(task, sdk, batch, name):
    row = {"task": task, "sdk": sdk, "instance": "inf2.48xlarge"}
    assert profile_of(row, batch, Degrees()).name == name


def test_encoders_on_inf1():
    row = {"task": "encoder", "instance": "inf1.6xlarge"}
    assert profile_of(row, 1, Degrees(pipeline=16)).name == "neuroncore-pipeline"
    assert profile_of(row, 1, Degrees(data=4)).name == "data-parallel-2"
    assert profile_of(row, 1, Degrees()).name == "data-parallel"


def test_the_profile_column_wins():
    row = {"task": "encoder", "instance": "inf2.xlarge", "profile": "nxdi"}
    assert profile_of(row, 1, Degrees()).name == "nxdi"


@pytest.mark.parametrize("row", [{}, {"task": "cnn"}, {"task": "x"}, {"task": "encoder", "profile": "?"}])
def test_what_is_not_known(row):
    with pytest.raises(Unpredictable):
        profile_of(row, 1, Degrees())
