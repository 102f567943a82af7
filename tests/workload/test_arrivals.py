from __future__ import annotations

from itertools import islice, pairwise
from math import inf
from random import Random
from statistics import fmean, pstdev

import numpy as np
import pytest

from corepipe.errors import UserError
from corepipe.workload.arrivals import ArrivalKind, Arrivals, Ramp


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


@pytest.mark.parametrize("text", ["2..20", "20..2", "2..20:exponential", "20..2:exponential", "5..5"])
@pytest.mark.parametrize("kind", ["constant", "poisson", "gamma"])
def test_a_ramp_has_its_rate_at_every_moment(text: str, kind: ArrivalKind) -> None:
    seconds = 500.0
    arrivals = Arrivals.parse(text, kind, seconds=seconds)
    low, high = (float(rate) for rate in text.partition(":")[0].split(".."))
    times = np.fromiter(islice(arrivals.times(Random(1)), 12_000), float)
    assert (np.diff(times) > 0).all()
    for at in (0.1, 0.5, 0.9, 1.1):
        part = min(at, 1.0)
        expected = low * (high / low) ** part if "exp" in text else low + (high - low) * part
        found = np.sum(np.abs(times - at * seconds) < 50) / 100
        if at < 1 or times[-1] > at * seconds + 50:
            assert found == pytest.approx(expected, rel=0.15)


def test_a_ramp_of_sessions() -> None:
    divided = Arrivals.parse("2..20", seconds=10.0).divided(2)
    assert (divided.rate, divided.ramp) == (1.0, Ramp(10.0, 10.0))


@pytest.mark.parametrize(
    "text",
    ["", "x", "1..", "..2", "1..2..3", "1:exponential", "1..2:linear", "0..5", "5..0", "inf..3", "1..inf"],
)
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="--rate"):
        Arrivals.parse(text, seconds=10.0)


def test_a_ramp_takes_its_time() -> None:
    with pytest.raises(UserError, match="--duration"):
        Arrivals.parse("1..5")
