"""Kills and stops of a server's engine at random moments under load, and the times until it is back.

Every request must have exactly one outcome, and every text must be that of an undisturbed run, up to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import psutil

from tests.reliability.load_clients import LoadClients, answers, bodies, held_bodies
from tests.servers import Served, metric_of


@dataclass
class Recovery:
    """Seconds from each signal until another engine is ready, by signal; the clients' outcomes."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    clients: LoadClients | None = None


async def disturb(
    server: Served, signals: Sequence[signal.Signals], workers: int, tokens: tuple[int, int], calm: int
) -> Recovery:
    """Sends each of `signals` to the current engine, up to `calm` answers after the last recovery."""
    model = server.model
    asked = [*bodies(model, 12, tokens), *held_bodies(model, 8)]
    clients = LoadClients(server.url, asked, await answers(server.url, asked))
    recovery, rng = Recovery(clients=clients), random.Random(7)
    work = asyncio.create_task(clients.work(workers, seed=1))
    async with aiohttp.ClientSession() as session:
        for number in signals:
            await clients.answered(rng.randint(1, calm))
            seconds = await _strike(server, session, number)
            recovery.seconds.setdefault(number.name, []).append(seconds)
            print(f"{number.name}: ready after {seconds:.2f} s", file=sys.stderr)
    await clients.answered(workers)
    clients.stopped = True
    await work
    return recovery


async def _strike(server: Served, session: aiohttp.ClientSession, number: signal.Signals) -> float:
    engine, lost = server.engine(), await _restarts(server, session)
    began = time.perf_counter()
    while await _restarts(server, session) == lost:
        with contextlib.suppress(psutil.NoSuchProcess):
            engine.send_signal(number)  # again, in case another program continues the stopped process
        await asyncio.sleep(0.05)
    while not await _ready(server, session):
        await asyncio.sleep(0.01)
    return time.perf_counter() - began


async def _ready(server: Served, session: aiohttp.ClientSession) -> bool:
    async with session.get(f"{server.url}/health/ready") as answer:
        return answer.status == 200


async def _restarts(server: Served, session: aiohttp.ClientSession) -> float:
    async with session.get(f"{server.url}/metrics") as answer:
        return metric_of(await answer.text(), "corepipe_engine_restarts_total")


def table(recovery: Recovery) -> str:
    """Writes the table of seconds until the server is ready, and of outcomes."""
    lines = [f"{'':10}{'times':>7}{'median':>9}{'p95':>9}{'most':>9}   seconds to ready"]
    for name, seconds in recovery.seconds.items():
        ordered = sorted(seconds)
        p95 = ordered[round(0.95 * (len(ordered) - 1))]
        lines.append(
            f"{name:10}{len(ordered):7}{statistics.median(ordered):9.2f}{p95:9.2f}{ordered[-1]:9.2f}"
        )
    assert recovery.clients is not None
    outcomes = ", ".join(f"{count} {kind}" for kind, count in recovery.clients.outcomes.most_common())
    lines.append(f"outcomes: {outcomes}; {len(recovery.clients.wrong)} wrong")
    return "\n".join([*lines, *recovery.clients.wrong[:5]])
