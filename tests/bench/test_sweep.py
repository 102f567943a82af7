from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from corepipe.bench.page import run_page, sweep_page
from corepipe.bench.sweep import SWEPT, Sweep
from corepipe.workload.slo import Slo
from tests.bench.harness import play, play_sweep, synthetic
from tests.bench.stub import Behaviour, sends

SLOTS, FIRST, GAP, TOKENS = 4, 0.05, 0.005, 11


def capacity(log: Path) -> float:
    """Returns the requests per second, from the seconds for which the server logged that it held a slot
    for one."""
    sent = [line["sent"] for line in sends(log).values()]
    held = [FIRST + times[-1] - times[0] for times in sent if len(times) == TOKENS]
    return SLOTS / float(np.mean(held))


def saturated(tmp_path: Path, seconds: float, **more: object) -> tuple[Sweep, float]:
    log = tmp_path / "log.jsonl"
    stub = Behaviour(first=FIRST, gap=GAP, slots=SLOTS, log=str(log))
    found = play_sweep(stub, synthetic(output=TOKENS, duration=1.0), seconds, **more)
    return found, capacity(log)


def test_the_saturation_rate_is_found(tmp_path: Path) -> None:
    found, true = saturated(tmp_path, 1.6, rates=(20.0, 60.0))
    assert found.saturation == pytest.approx(true, rel=0.05)
    assert found.sustained.rate == 20.0
    assert [stage.saturated for stage in found.stages] == [False, True]


@pytest.mark.slow
def test_the_saturation_rate_is_found_unaided(tmp_path: Path) -> None:
    found, true = saturated(tmp_path, 8.0)
    assert found.saturation == pytest.approx(true, rel=0.05)
    assert found.sustained.rate == pytest.approx(true, rel=0.15)
    assert len(found.stages) >= 8


def test_no_more_meet_the_objectives_than_get_done() -> None:
    """Both are measured after the warm-up of a stage, and count an answer's parts alike."""
    stub = Behaviour(first=FIRST, gap=GAP, slots=SLOTS)
    for slo, met in ((Slo(e2e=9.0), {1.0}), (Slo(ttft=0.06), None), (Slo(tpot=1e-4), {0.0})):
        found = play_sweep(stub, synthetic(output=TOKENS, duration=1.0), 1.0, slo, rates=(10.0, 80.0))
        document = found.document()
        for stage in document["stages"]:
            assert stage["steady_request_goodput"] <= stage["steady_request_throughput"]
            assert met is None or stage["slo_share"] in met
        best = max(stage["steady_request_goodput"] for stage in document["stages"])
        assert document["best_request_goodput"] == best
        shown = sweep_page(found)
        assert "met objectives" in shown
        assert f"Objectives: {slo}." in shown


def test_nothing_saturates_who_answers_all(tmp_path: Path) -> None:
    quick = Behaviour(first=0.01, gap=0.001)
    found = play_sweep(quick, synthetic(output=2, duration=1.0), 0.5, rates=(20.0, 40.0))
    single = play(quick, synthetic(requests=5, output=4))
    assert found.saturation is None
    assert found.sustained.rate == 40.0
    document = found.document()
    assert len(document["stages"]) == 2
    assert set(SWEPT) <= set(document)
    page = sweep_page(found, document)
    assert page.count("<svg") == 5
    assert "got done then" in page
    assert "No stage saturated the server" in page
    assert run_page(single).count("<svg") == 5
    assert "nan" not in run_page(single)
