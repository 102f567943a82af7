from __future__ import annotations

from itertools import islice
from random import Random
from statistics import fmean, median

import pytest

from corepipe.errors import UserError
from corepipe.workload.lengths import Lengths


def drawn(spec: str | int, count: int = 5000) -> list[int]:
    return list(islice(Lengths.parse(spec, "input-len").draw(Random(3)), count))


def test_a_number() -> None:
    assert drawn(200, 3) == drawn("200", 3) == [200, 200, 200]


def test_uniform_has_both_ends() -> None:
    found = drawn("uniform:5:9")
    assert set(found) == {5, 6, 7, 8, 9}
    assert fmean(found) == pytest.approx(7, rel=0.05)


def test_lognormal_has_its_median_and_its_bound() -> None:
    assert median(drawn("lognormal:300:0.7")) == pytest.approx(300, rel=0.05)
    assert max(drawn("lognormal:300:0.7")) > 1500
    assert max(drawn("lognormal:300:0.7:800")) == 800
    assert min(drawn("lognormal:2:3")) == 1


def test_a_list_comes_in_turn() -> None:
    assert drawn("list:3,1,2", 7) == [3, 1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    "spec",
    ["", "0", "-3", "x", "1.5", "uniform:5", "uniform:9:5", "uniform:0:5", "normal:5:2", "list:", "list:1,0",
     "lognormal:5", "lognormal:0:1", "lognormal:5:-1", "lognormal:5:1:2:3", "uniform:", "list:1,,2"],
)  # fmt: skip
def test_what_is_refused(spec: str) -> None:
    with pytest.raises(UserError, match=r"--output-len .*lognormal:MEDIAN"):
        Lengths.parse(spec, "output-len")
