from __future__ import annotations

from itertools import islice, pairwise
from math import inf
from random import Random
from statistics import fmean, pstdev

import pytest

from corepipe.errors import UserError
from corepipe.planning.arrivals import ArrivalKind, Arrivals


def gaps(arrivals: Arrivals, count: int = 20_000) -> list[float]:
    times = [0.0, *islice(arrivals.times(Random(1)), count)]
    return [after - before for before, after in pairwise(times)]


@pytest.mark.parametrize(
    ("kind", "burstiness", "spread"),
    [
        ("poisson", 1.0, 1.0),
        ("gamma", 1.0, 1.0),
        ("gamma", 0.25, 2.0),
        ("gamma", 4.0, 0.5),
        ("constant", 1.0, 0.0),
    ],
)
def test_gaps_have_the_mean_and_the_spread_of_their_kind(
    kind: ArrivalKind, burstiness: float, spread: float
) -> None:
    found = gaps(Arrivals(4.0, kind, burstiness))
    assert fmean(found) == pytest.approx(0.25, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(spread, abs=0.05)
    assert min(found) >= 0


def test_all_at_once() -> None:
    assert set(gaps(Arrivals(inf), 10)) == {0.0}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ((0.0,), "--rate"),
        ((-1.0,), "--rate"),
        ((float("nan"),), "--rate"),
        ((1.0, "gamma", 0.0), "--burstiness"),
        ((1.0, "poisson", 2.0), "--arrival gamma"),
    ],
)
def test_what_is_refused(fields: tuple, named: str) -> None:
    with pytest.raises(UserError, match=named):
        Arrivals(*fields)
