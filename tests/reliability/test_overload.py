"""An overloaded server refuses requests with the time of a retry, and loses none."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import aiohttp
import pytest

from tests.reliability.load_clients import PACE, Outcome, ask
from tests.reliability.overload import FLAGS, body, overload
from tests.servers import PATIENCE_SECONDS, TINY, default_model, served, until

ENOUGH = 20
"""The answers, and the refusals, to wait for."""


def test_more_than_fits_is_refused_and_the_rest_answered() -> None:
    with served(TINY, *PACE, 40, "--max-num-seqs", 2, "--max-num-queued-reqs", 3) as server:
        model = server.model
        outcomes = asyncio.run(overloaded(server.url, model))
        assert {outcome.kind for outcome in outcomes} == {"done", "refused"}
        refused = [outcome for outcome in outcomes if outcome.kind == "refused"]
        assert all(1 <= (outcome.retry_after or 0) <= 30 for outcome in refused)
        assert server.metric("vllm:admission_rejections_total") == len(refused)
        assert until(lambda: server.metric("corepipe_kv_blocks_held") == 0)


async def overloaded(url: str, model: str, clients: int = 16) -> list[Outcome]:
    """Runs three times as many clients as there are places, each sending again and again, until enough
    requests are answered and enough refused, however fast the clients and the server are."""
    outcomes: list[Outcome] = []

    def enough() -> bool:
        kinds = Counter(outcome.kind for outcome in outcomes)
        return min(kinds["done"], kinds["refused"]) >= ENOUGH or bool(kinds.keys() - {"done", "refused"})

    async def client(session: aiohttp.ClientSession, rng: random.Random) -> None:
        while not enough():
            outcomes.append(await ask(session, url, body(model, rng, tokens=8)))
            if outcomes[-1].kind != "done":
                await asyncio.sleep(0.05)

    async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as session:
        await asyncio.gather(*[client(session, random.Random(number)) for number in range(clients)])
    return outcomes


@pytest.mark.slow
def test_five_times_what_it_can_do() -> None:
    with served(default_model(), *FLAGS) as server:
        finding = asyncio.run(overload(server, 60.0, 128))
        print(finding.show())
        assert set(finding.kinds) == {"done", "refused"}
        assert finding.ratio >= 0.9
