"""Faults in a fleet under load: the requests that are lost, and the time until the others continue.

Every request must have exactly one outcome, and every text must be that of a server without a fleet.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import aiohttp

from tests.reliability.load_clients import Body, LoadClients, answers, bodies
from tests.servers import Served, metric_of

PORT = 6411
NAMES = ("a", "b", "c")
STREAMS = 8

ANSWERS = 1000
"""The least number of answers beside the faults."""

FELT_SECONDS = 0.1
"""The shortest pause that counts: shorter ones occur on a busy machine."""


@dataclass
class Watched:
    """Streams that are followed token by token during a fault: the times of their tokens."""

    times: list[list[float]] = field(default_factory=list)

    async def follow(self, session: aiohttp.ClientSession, url: str, body: Body) -> None:
        mine: list[float] = []
        self.times.append(mine)
        async with session.post(f"{url}/v1/completions", json={**body, "stream": True}) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    mine.append(time.perf_counter())

    def pauses(self, at: float) -> list[float]:
        """Returns the longest pause after a fault of each stream that was open then and felt it."""
        found = []
        for mine in self.times:
            after = [(one, other) for one, other in pairwise(mine) if other > at]
            if after:
                found.append(max(other - max(one, at) for one, other in after))
        return [pause for pause in found if pause >= FELT_SECONDS]


@dataclass(frozen=True)
class Strike:
    """A fault.  act: causes it; after: waits for the recovery.  loses: a replica is lost; all: every replica
    may be lost for a while, in which new requests are refused.  times: the number of repetitions.

    until: the result of `act` where nothing is lost; the time until then is reported in place of that until
    a loss is seen.
    """

    act: Callable[[], object]
    after: Callable[[], object]
    loses: bool = True
    all: bool = False
    times: int = 3
    until: Callable[[], bool] | None = None


@dataclass
class Report:
    """Seconds from each fault until the front noticed, and until each open stream continued; the outcomes of
    the clients, and the number of those that were refused (503) around a fault."""

    detected: dict[str, list[float]] = field(default_factory=dict)
    pauses: dict[str, list[float]] = field(default_factory=dict)
    sent_away: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)

    def table(self) -> str:
        lines = [f"{'strike':32}{'seen p50':>10}{'p95':>6}{'pause p50':>11}{'p95':>6}{'streams':>9}"]
        for name, pauses in self.pauses.items():
            seen = self.detected[name]
            cells = f"{_at(seen, 0.5):>10}{_at(seen, 0.95):>6}{_at(pauses, 0.5):>11}{_at(pauses, 0.95):>6}"
            lines.append(f"{name:32}{cells}{len(pauses):9}")
        told = ", ".join(f"{count} {kind}" for kind, count in self.outcomes.items())
        return "\n".join([*lines, f"outcomes: {told}; {len(self.wrong)} wrong", *self.wrong[:5]])


def _at(values: Sequence[float], share: float) -> str:
    """Writes a quantile (the nearest rank), in seconds."""
    ordered = sorted(values)
    return f"{ordered[round(share * (len(ordered) - 1))]:.2f}" if ordered else "-"


async def disturbed(
    server: Served, strikes: Sequence[tuple[str, Strike]], alone: str, at_least: int = ANSWERS
) -> Report:
    """Causes each fault under load, in turn; figures are reported by its name.

    `alone`: a server without a fleet, which gives the right answers.  `at_least`: the answers beside the
    faults.
    """
    model = server.model
    asked = bodies(model, 12, (100, 400))
    clients = LoadClients(server.url, asked, await answers(alone, asked))
    report = Report(wrong=clients.wrong)
    work = asyncio.create_task(clients.work(6, seed=1))
    body: Body = {
        "model": model,
        "prompt": [5, 6, 7],
        "max_tokens": 900,
        "ignore_eos": True,
        "temperature": 0,
    }
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for name, strike in strikes:
            before = clients.outcomes["unavailable"]
            for _ in range(strike.times):
                await clients.answered(6)
                await _struck(strike, name, report, session, server.url, body)
            report.sent_away.setdefault(name, 0)
            report.sent_away[name] += clients.outcomes["unavailable"] - before
        await clients.answered(max(6, at_least - clients.outcomes["done"]))
        clients.stopped = True
        await work
    report.outcomes = {kind: count for kind, count in clients.outcomes.items() if count}
    return report


async def _struck(
    strike: Strike, name: str, report: Report, session: aiohttp.ClientSession, url: str, body: Body
) -> None:
    """Causes a fault once, with `STREAMS` open streams that are followed."""

    async def lost() -> float:
        async with session.get(f"{url}/metrics") as answer:
            return metric_of(await answer.text(), "corepipe_engine_restarts_total")

    seen, pauses = report.detected.setdefault(name, []), report.pauses.setdefault(name, [])
    watched, before = Watched(), await lost()
    streams = [
        asyncio.create_task(watched.follow(session, url, {**body, "seed": number}))
        for number in range(STREAMS)
    ]
    while len(watched.times) < STREAMS or not all(watched.times):
        await asyncio.sleep(0.01)
    at = time.perf_counter()
    await asyncio.to_thread(strike.act)
    if strike.loses:
        while await lost() == before:
            await asyncio.sleep(0.005)
        seen.append(time.perf_counter() - at)
    if strike.until is not None:
        while not await asyncio.to_thread(strike.until):
            await asyncio.sleep(0.1)
        seen.append(time.perf_counter() - at)
        if await lost() != before:
            report.wrong.append(f"{name}: a replica was lost")
    await asyncio.gather(*streams)
    pauses += watched.pauses(at)
    print(f"{name}: {seen}, {pauses}", file=sys.stderr)
    await asyncio.to_thread(strike.after)
