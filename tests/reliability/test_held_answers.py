"""Answers with grammars, and forced calls: preemption and draining do not change them.

`test_faults.py` has engines that are killed and hang.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from tests.constrained.longer import longer
from tests.reliability.load_clients import PACE, Body, Outcome, answers, ask, held_bodies
from tests.servers import END_SECONDS, TINY, Served, served, until

CONTEXT = 1024


@pytest.fixture(scope="module")
def model() -> Iterator[Path]:
    with longer(TINY, CONTEXT) as found:
        yield found


async def at_once(url: str, asked: Sequence[Body]) -> list[Outcome]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return await asyncio.gather(*[ask(session, url, body) for body in asked])


def test_preemption_changes_none(model: Path) -> None:
    """The cache holds one full sequence: eight at once preempt each other."""
    with served(model, "--num-blocks", CONTEXT // 32, "--max-num-seqs", 8) as server:
        asked = held_bodies(server.model, 8)
        alone = asyncio.run(answers(server.url, asked))
        assert server.metric("vllm:num_preemptions_total") == 0

        def preempted() -> bool:
            found = asyncio.run(at_once(server.url, asked))
            assert [(one.kind, one.text) for one in found] == [("done", text) for text in alone]
            return server.metric("vllm:num_preemptions_total") > 0

        assert until(preempted)
        assert until(lambda: server.metric("corepipe_kv_blocks_held") == 0)


async def drained(server: Served, asked: Sequence[Body]) -> list[Outcome]:
    """Returns the outcomes of requests where the server is told to end while all of them run."""

    def running() -> float:
        return server.metric("vllm:num_requests_running")

    while True:
        asking = asyncio.create_task(at_once(server.url, asked))
        while not asking.done():
            if await asyncio.to_thread(running) == len(asked):
                server.process.send_signal(signal.SIGTERM)
                return await asking
        # the answers came before the signal


def test_a_drain_changes_none(model: Path) -> None:
    """Open answers complete unchanged."""
    with served(model, *PACE, 40, "--max-num-seqs", 8, "--shutdown-timeout", 600) as server:
        asked = held_bodies(server.model, 8)
        undisturbed = asyncio.run(at_once(server.url, asked))
        assert {one.kind for one in undisturbed} == {"done"}
        found = asyncio.run(drained(server, asked))
        assert [(one.kind, one.text) for one in found] == [(one.kind, one.text) for one in undisturbed]
        assert server.process.wait(END_SECONDS) == 0
