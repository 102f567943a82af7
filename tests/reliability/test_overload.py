"""A server that is asked for more than it can do refuses, says when to come back, and loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.reliability.overload import FLAGS, flood, overload
from tests.servers import TINY, default_model, served, until

SLOW = ("--clock", "device", "--instance", "inf1.xlarge", "--dtype", "fp32", "--time-scale", 40)
"""A pace that any host can keep."""


def test_more_than_fits_is_refused_and_the_rest_answered() -> None:
    with served(TINY, *SLOW, "--max-num-seqs", 2, "--max-num-queued-reqs", 3) as server:
        model = server.get("/v1/models").json()["data"][0]["id"]
        load = asyncio.run(flood(server.url, model, tokens=8, seconds=1.0, rate=60.0))
        kinds = {outcome.kind for _, outcome in load.outcomes}
        assert kinds == {"done", "refused"}
        assert all(1 <= (outcome.retry_after or 0) <= 30 for outcome in load.of("refused"))
        assert server.metric("vllm:admission_rejections_total") == len(load.of("refused"))
        assert until(lambda: server.metric("corepipe_kv_blocks_held") == 0)


@pytest.mark.slow
def test_five_times_what_it_can_do() -> None:
    with served(default_model(), *FLAGS) as server:
        finding = asyncio.run(overload(server, 60.0, 128))
        print(finding.show())
        assert set(finding.kinds) == {"done", "refused"}
        assert finding.ratio >= 0.9
