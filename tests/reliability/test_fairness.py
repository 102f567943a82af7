"""A key that floods the server gets only its share and takes nothing from another key's."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import pytest

from tests.reliability.fairness import LIGHT, MOST, SEATS, Neighbour, body, client, fairness, shared
from tests.reliability.load_clients import ask, until
from tests.servers import PATIENCE_SECONDS, Served

RUNNING = 2
QUEUE = 16
"""The places in the queue, half of which one key may have."""

CONTESTED = 4
"""The requests of the other key that find several of the flood's waiting."""

LONG = (24, 24)
"""The tokens of the flood's answers: queue places stay taken for longer than its clients need to send."""


def test_who_floods_is_refused_and_the_other_does_not_queue_behind_it() -> None:
    """The device's times show the order of the server's decisions, however late the host is."""
    with shared("--max-num-seqs", RUNNING, "--max-num-queued-reqs", QUEUE) as server:
        found = asyncio.run(beside_a_flood(server))
    assert max(found) <= RUNNING + 1, "what had a seat when it came, and one that had its turn before it"


async def beside_a_flood(server: Served) -> list[int]:
    """Counts the flood's first tokens between arrival and first token of each contested request."""
    rng, mine = random.Random(1), list[Times]()
    async with client(LIGHT) as session, Neighbour(server.url, QUEUE, LONG) as flood:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(contested(mine, flood)) < CONTESTED:
                await refused_once_more(flood)
                outcome = await ask(session, server.url, body(rng, 4))
                assert outcome.kind == "done", outcome
                mine.append(Times.of(outcome.device))
        await flood.finish()
        assert set(flood.outcomes) == {"done", "refused"}
        others = [Times.of(device) for device in flood.devices]
        return [
            sum(one.arrival < other.first < one.first for other in others) for one in contested(mine, flood)
        ]


async def refused_once_more(flood: Neighbour) -> None:
    """Waits until the flood's share of the queue is full, by another refusal."""
    before = flood.outcomes["refused"]
    assert await until(lambda: flood.outcomes["refused"] > before)


class Times(NamedTuple):
    """The times of a request's arrival at the emulated device and of its first token, in seconds."""

    arrival: float
    first: float

    @classmethod
    def of(cls, device: dict[str, float]) -> Times:
        arrival = device["arrived_at_s"]
        return cls(arrival, arrival + device["time_to_first_token_ms"] / 1e3)


def contested(mine: list[Times], flood: Neighbour) -> list[Times]:
    """Returns the requests that came while many of the flood waited; a slow flood leaves room now and then.

    Only answered ones are known: there may be more later.
    """
    others = [Times.of(device) for device in flood.devices]
    waiting = [sum(other.arrival < one.arrival < other.first for other in others) for one in mine]
    return [one for one, count in zip(mine, waiting, strict=True) if count > RUNNING + 2][:CONTESTED]


@pytest.mark.slow
def test_the_first_token_comes_as_soon_beside_a_flood_as_beside_a_full_batch() -> None:
    with shared("--max-num-seqs", SEATS) as server:
        finding = asyncio.run(fairness(server, 60.0))
    print(finding.show())
    assert finding.ratio <= MOST
