"""A key that floods the server takes nothing from another but what is its share."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.reliability.crowd import ask, until
from tests.reliability.fairness import LIGHT, MOST, PACE, SEATS, Neighbour, body, client, fairness, shared
from tests.servers import Served

QUEUE = 40
"""Places in the queue, half of which one key may have."""


def test_who_floods_is_refused_and_the_other_does_not_queue_behind_it() -> None:
    with shared(*PACE, "--max-num-seqs", 2, "--max-num-queued-reqs", QUEUE) as server:
        found = asyncio.run(beside_a_flood(server, requests=6))
    assert found["done"] <= 6 * 5, "as many of the flood's as have a seat when it comes, and as it runs"
    assert found["refused"] > 0


async def beside_a_flood(server: Served, requests: int) -> dict[str, int]:
    """What became of a flood while another key's requests were answered, one after the other."""
    rng = random.Random(1)
    async with client(LIGHT) as session, Neighbour(server.url, 2 * QUEUE, (8, 8)) as flood:
        assert await until(lambda: flood.outcomes["refused"] >= QUEUE and flood.outcomes["done"] > 0, 20)
        before = flood.outcomes.copy()
        for _ in range(requests):
            outcome = await ask(session, server.url, body(rng, 4))
            assert outcome.kind == "done", outcome
        return flood.outcomes - before


@pytest.mark.slow
def test_the_first_token_comes_as_soon_beside_a_flood_as_beside_a_full_batch() -> None:
    with shared(*PACE, "--max-num-seqs", SEATS) as server:
        finding = asyncio.run(fairness(server, 60.0))
    print(finding.show())
    assert finding.ratio <= MOST
