from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.workload.quantiles import PERCENTILES, Quantiles

values = st.lists(st.integers(0, 30).map(lambda n: n / 7), min_size=1, max_size=80)


@settings(deadline=None)
@given(values)
def test_the_same_as_numpys_and_of_any_order(found: list[float]) -> None:
    quantiles = Quantiles.of(np.array(found))
    assert quantiles is not None
    exact = [quantiles.p50, quantiles.p90, quantiles.p95, quantiles.p99]
    assert exact == pytest.approx(np.percentile(found, PERCENTILES).tolist())
    assert (quantiles.mean, quantiles.max) == (pytest.approx(np.mean(found)), max(found))
    assert Quantiles.of(np.array(found[::-1])) == quantiles


@settings(deadline=None)
@given(values)
def test_counted_values_are_values(found: list[float]) -> None:
    seconds, times = np.unique(found, return_counts=True)
    counted, listed = Quantiles.of(seconds, times.astype(np.float64)), Quantiles.of(np.array(found))
    assert counted is not None
    assert listed is not None
    assert counted.scaled(1.0) == pytest.approx(listed.scaled(1.0), rel=1e-14)  # the mean adds otherwise


def test_of_nothing_there_is_none() -> None:
    assert Quantiles.of(np.array([])) is None
