"""Strikes at a fleet under load: what is lost, and how soon it goes on.

Every request must have exactly one outcome, and every text must be that of a server without a fleet.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import aiohttp

from tests.reliability.crowd import Body, Crowd, answers, bodies
from tests.servers import Served, metric_of

PORT = 6411
NAMES = ("a", "b", "c")
STREAMS = 8

FELT_SECONDS = 0.1
"""Shorter pauses are those of a busy machine."""


@dataclass
class Watched:
    """Streams that are followed token by token, beside a strike: when each token came."""

    times: list[list[float]] = field(default_factory=list)

    async def follow(self, session: aiohttp.ClientSession, url: str, body: Body) -> None:
        mine: list[float] = []
        self.times.append(mine)
        async with session.post(f"{url}/v1/completions", json={**body, "stream": True}) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    mine.append(time.perf_counter())

    def pauses(self, at: float) -> list[float]:
        """The longest between two tokens after a strike, of each stream that was open then and felt it."""
        found = []
        for mine in self.times:
            after = [(one, other) for one, other in pairwise(mine) if other > at]
            if after:
                found.append(max(other - max(one, at) for one, other in after))
        return [pause for pause in found if pause >= FELT_SECONDS]


@dataclass
class Report:
    """Seconds from each strike until the front knew, and until each open stream went on; the crowd's fate."""

    detected: dict[str, float] = field(default_factory=dict)
    pauses: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)

    def table(self) -> str:
        lines = [f"{'strike':34}{'seen after':>11}{'pause p50':>16}{'p95':>8}{'streams':>9}"]
        for name, pauses in self.pauses.items():
            ordered = sorted(pauses) or [float("nan")]
            p95 = ordered[round(0.95 * (len(ordered) - 1))]
            seen = self.detected.get(name)
            shown = "-" if seen is None else f"{seen:.2f}"
            lines.append(f"{name:34}{shown:>11}{statistics.median(ordered):16.2f}{p95:8.2f}{len(pauses):9}")
        done = ", ".join(f"{count} {kind}" for kind, count in self.outcomes.items())
        return "\n".join([*lines, f"outcomes: {done}; {len(self.wrong)} wrong", *self.wrong[:5]])


Strike = Callable[[], object]

Strikes = Mapping[str, tuple[Strike, Strike, bool]]
"""By name: what strikes, what is waited for afterwards, and whether a replica is lost."""


async def disturbed(server: Served, strikes: Strikes, alone: str) -> Report:
    """Each strike under load.  `alone`: a server without a fleet, which says what is right."""
    model = server.get("/v1/models").json()["data"][0]["id"]
    asked = bodies(model, 12, (100, 400))
    crowd = Crowd(server.url, asked, await answers(alone, asked))
    report = Report(wrong=crowd.wrong)
    work = asyncio.create_task(crowd.work(6, seed=1))
    long: Body = {
        "model": model,
        "prompt": [5, 6, 7],
        "max_tokens": 900,
        "ignore_eos": True,
        "temperature": 0,
    }
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def lost() -> float:
            async with session.get(f"{server.url}/metrics") as answer:
                return metric_of(await answer.text(), "corepipe_engine_restarts_total")

        for name, (strike, after, loses) in strikes.items():
            await crowd.answered(6)
            watched, before = Watched(), await lost()
            streams = [
                asyncio.create_task(watched.follow(session, server.url, {**long, "seed": number}))
                for number in range(STREAMS)
            ]
            while len(watched.times) < STREAMS or not all(watched.times):
                await asyncio.sleep(0.01)
            at = time.perf_counter()
            await asyncio.to_thread(strike)
            while loses and await lost() == before:
                await asyncio.sleep(0.005)
            if loses:
                report.detected[name] = time.perf_counter() - at
            await asyncio.gather(*streams)
            report.pauses[name] = watched.pauses(at)
            print(f"{name}: {report.detected.get(name)}, {report.pauses[name]}", file=sys.stderr)
            await asyncio.to_thread(after)
        await crowd.answered(6)
        crowd.stopped = True
        await work
    report.outcomes = dict(crowd.outcomes)
    return report
