"""The constants are few and sound, and their provenance is recorded."""

from __future__ import annotations

import pytest

from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.chips.constants import IDEAL, as_json, fitted, parse, provenance, shipped


def test_at_most_five_constants_a_generation():
    assert all(len(fitted(constants)) <= 5 for constants in shipped().values())
    assert {i.chip.core.version for i in INSTANCES} == set(shipped())


@pytest.mark.parametrize("version", sorted(shipped()))
def test_shares_are_shares(version):
    constants = shipped()[version]
    assert 0 < constants.memory_efficiency <= 1
    assert 0 < constants.engine_efficiency <= 1
    assert parse(as_json(constants)) == constants


def test_their_origin_is_written_down():
    known = provenance()
    assert {"date", "rows_sha256", "rows_used", "folds", "cells"} <= set(known)
    for fold in known["folds"].values():
        for values in fold.values():
            parse(values)


GOOD = as_json(shipped()["v2"])


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {**GOOD, "other": 1.0},
        {**GOOD, "core_bytes_per_second": 1e10},
        {**GOOD, "memory_efficiency": "1"},
        {**GOOD, "memory_efficiency": True},
        {**GOOD, "engine_efficiency": 0.0},
        {**GOOD, "collective_seconds": -1.0},
        {**GOOD, "collective_seconds": float("nan")},
    ],
)
def test_what_is_no_set_of_constants(bad):
    with pytest.raises(ValueError, match=r"needs|must be"):
        parse(bad)


def test_the_data_sheet_alone():
    assert (IDEAL.memory_efficiency, IDEAL.engine_efficiency, IDEAL.start_seconds) == (1, 1, 0)
