from __future__ import annotations

import pytest

from corepipe.cli.output.common import seconds
from corepipe.errors import UserError
from corepipe.workload.slo import NO_SLO, Slo, seconds_of


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft:500ms", Slo(ttft=0.5)),
        ("ttft:500ms tpot:.05s", Slo(0.5, 0.05)),
        ("tpot:50ms,e2el:9s", Slo(None, 0.05, 9.0)),
        ("ttft:200ms e2e:1.5s", Slo(0.2, None, 1.5)),
    ],
)
def test_objectives_as_text(text: str, slo: Slo) -> None:
    assert Slo.parse(text) == slo


@pytest.mark.parametrize(
    "text", ["1", "500", "0.5", "1e3ms", "5 ms", "1m", "", "x", "-1", "0ms", "1.2.3s", "1e9s"]
)
def test_every_objective_has_a_unit_wherever_it_is_given(text: str) -> None:
    assert seconds_of(text) is None
    with pytest.raises(UserError, match=r"--ttft .*with its unit"):
        seconds("--ttft", text)
    with pytest.raises(UserError, match=r"--slo .*(with its unit|no objective)"):
        Slo.parse(f"ttft:{text}")


@pytest.mark.parametrize("text", ["", "ttft", "itl:5ms", "500"])
def test_objectives_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match=r"--slo .*ttft:500ms tpot:50ms"):
        Slo.parse(text)


def test_every_objective_must_be_met() -> None:
    slo = Slo(ttft=0.5, tpot=0.05)
    assert slo.met(0.5, 0.05, 99.0)
    assert not slo.met(0.51, 0.05, 0.0)
    assert not slo.met(0.5, 0.06, 0.0)
    assert NO_SLO.met(1e9, 1e9, 1e9)
