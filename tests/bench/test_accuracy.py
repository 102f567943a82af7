"""Tests that the report agrees with the server, by its own log of the times at which it sent tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe.bench.report import LoadReport
from corepipe.workload.workload import Synthetic
from tests.bench.harness import play, synthetic
from tests.bench.stub import Behaviour, sends

WITHIN = 0.002
"""Relative tolerance: histograms are within 0.05 %, and the loop takes an iteration or two to hand over
data."""


def seen_by_the_server(report: LoadReport, log: Path) -> dict[str, np.ndarray]:
    """Returns seconds from the log; only the due time of a request is the client's."""
    sent = sends(log)
    mine = [(o.intended, sent[o.request_id]["sent"]) for o in report.recorder.outcomes]
    return {
        "ttft": np.array([times[0] - due for due, times in mine]),
        "tpot": np.array([(times[-1] - times[0]) / (len(times) - 1) for _, times in mine]),
        "e2el": np.array([times[-1] - due for due, times in mine]),
        "itl": np.concatenate([np.diff(times) for _, times in mine]),
    }


def errors(report: LoadReport, log: Path, percent: float) -> dict[str, float]:
    """Returns relative errors of a percentile; that of single gaps is not promised."""
    truth = seen_by_the_server(report, log)
    names = ("ttft", "tpot", "e2el")
    told = {name: report.recorder.latencies[name].at(percent) for name in names}
    true = {name: np.percentile(truth[name], percent, method="inverted_cdf") for name in names}
    return {name: abs(told[name] / true[name] - 1) for name in names}


def check(workload: Synthetic, tmp_path: Path, **behaviour: Any) -> None:
    log = tmp_path / "sent.jsonl"
    report = play(Behaviour(log=str(log), **behaviour), workload)
    assert report.recorder.ends["completed"] == len(report.recorder.outcomes) > 20
    assert max(errors(report, log, 50.0).values()) < WITHIN
    assert max(errors(report, log, 99.0).values()) < WITHIN


def test_in_an_open_loop_with_a_queue(tmp_path: Path) -> None:
    """The server is too slow for the rate: the wait in its queue is part of the time to the first token."""
    check(synthetic(rate=25.0, duration=1.5), tmp_path, first=0.1, gap=0.01, slots=3)


def test_tokens_that_come_several_at_a_time(tmp_path: Path) -> None:
    workload = synthetic(users=8, requests=24, output=12)
    log = tmp_path / "log.jsonl"
    report = play(Behaviour(log=str(log), first=0.05, gap=0.005, chunk=4), workload)
    assert report.recorder.output_tokens == 24 * 12
    for outcome in report.recorder.outcomes:
        assert len(outcome.stamps) == 3
        assert outcome.tpot == pytest.approx((outcome.last - outcome.first) / 11)


@pytest.mark.parametrize("rate", [None, 20.0, 60.0])
def test_for_longer(rate: float | None, tmp_path: Path) -> None:
    """2,000 tokens a second and more, long answers, many connections."""
    load = {"users": 40, "requests": 120} if rate is None else {"rate": rate, "duration": 5.0}
    check(synthetic(output=50, **load), tmp_path, first=0.2, gap=0.015, slots=0)


def test_a_stall_shows_in_an_open_loop_and_hides_in_a_closed_one() -> None:
    """Tests coordinated omission: clients that wait for answers send fewer requests while there are none.

    The server sends nothing for 0.6 s.  In the open loop all that were due in it have waited; in the closed
    loop just one for each user.
    """
    stalling = Behaviour(first=0.02, gap=0.001, stall=(1.2, 1.8))
    open_loop = play(stalling, synthetic(rate=60.0, duration=2.2))
    closed = play(stalling, synthetic(users=2, duration=2.2))
    waited = [sum(o.ttft > 0.1 for o in r.recorder.outcomes) for r in (open_loop, closed)]
    assert waited[0] > 20
    assert waited[1] <= 6
    assert open_loop.recorder.latencies["ttft"].at(90.0) > 0.2
    assert closed.recorder.latencies["ttft"].at(90.0) < 0.2
