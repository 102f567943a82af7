"""Tests of a benchmark's load: its amount, its lengths, and its times."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.load import SWEEP_REQUESTS, SWEPT, RowLoad, ServedRequests, load, serve

SERVED = {
    "instance": "inf2.48xlarge",
    "model": "llama-3.1-8b",
    "task": "serving",
    "dtype": "bf16",
    "parallelism": "TP8",
    "batch_size": "32",
    "input_len": "1500",
    "output_len": "250",
    "seq_len": "4096",
}
SMALL_VOCABULARY = 32_000


@cache
def played(**changes: str) -> ServedRequests:
    row, cases = SERVED | changes, Cases()
    case = cases.read(row)
    return serve(case, cases.cost(case), load(row, case.vocabulary))


def offered(**changes: str) -> RowLoad:
    return load(SERVED | changes, SMALL_VOCABULARY)


def test_a_sweep_sends_five_times_what_one_user_had_answered() -> None:
    """guidellm 0.1 limits its throughput run so, where that ends before its time does."""
    alone = played(arrival="synchronous", users="32")
    swept = played(arrival="throughput", users="32")
    assert len(swept.outputs) == SWEEP_REQUESTS * len(alone.outputs)
    assert swept.seconds < 60
    longer = played(arrival="concurrent", users="32")
    assert longer.seconds > 110
    assert swept.first.mean() > 1.5 * longer.first.mean()


def test_more_users_than_a_sweep_has_requests_send_them_at_once() -> None:
    crowds = [played(arrival="throughput", users=users, parallelism="TP8xDP3") for users in ("96", "128")]
    assert len(crowds[0].outputs) < 96
    assert crowds[0].first.tolist() == crowds[1].first.tolist()


def test_a_sweeps_answers_end_by_themselves_and_its_prompts_are_nearly_alike() -> None:
    assert SWEPT.inputs * 1500 == pytest.approx(math.sqrt(150))
    assert SWEPT.outputs * 250 == pytest.approx(math.sqrt(20))
    outputs = played(arrival="poisson", rate="2", users="128").outputs
    assert np.mean(outputs < 230) == pytest.approx(SWEPT.ended, abs=0.05)
    assert outputs.max() < 250 + 5 * math.sqrt(20)
    assert outputs.mean() == pytest.approx(250 * SWEPT.ended / -math.log(1 - SWEPT.ended), rel=0.03)
    others = played(arrival="poisson", rate="2").outputs
    assert others.mean() == pytest.approx(250, rel=0.03)
    assert others.std() == pytest.approx(20, rel=0.2)


def test_users_beside_what_needs_none_mark_a_sweep() -> None:
    assert offered(arrival="synchronous", users="32").lengths is SWEPT
    assert offered(arrival="poisson", rate="2", users="128") == RowLoad(None, 2.0, "constant", lengths=SWEPT)
    for plain in ({"arrival": "synchronous", "users": "1"}, {"arrival": "poisson", "rate": "2"}):
        assert offered(**plain).lengths is not SWEPT
