"""The goodput of a server under five times the load that it can serve.

First a closed loop finds the peak: 1.5 times as many clients as seats, which send again when answered.  Then
requests come at five times that rate, whatever their outcome; then the peak again, because a shared machine
drifts.  A finding has goodput under overload over the mean of the two peaks, the times of refusals, and the
outcomes of admitted requests.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from tests.reliability.load_clients import Body, Outcome, ask
from tests.servers import Served

SEATS = 16
FLAGS = ("--max-num-seqs", SEATS, "--max-num-queued-reqs", SEATS, "--max-model-len", 1024)
"""Flags with which admitted requests wait for about as long as an answer takes."""

FACTOR = 5.0


@dataclass
class Load:
    """Outcomes with their times, in seconds since the start."""

    seconds: float
    outcomes: list[tuple[float, Outcome]] = field(default_factory=list)

    def of(self, kind: str) -> list[Outcome]:
        return [outcome for _, outcome in self.outcomes if outcome.kind == kind]

    @property
    def goodput(self) -> float:
        """Returns the answers a second that came in time."""
        return sum(o.kind == "done" and at <= self.seconds for at, o in self.outcomes) / self.seconds


def body(model: str, rng: random.Random, tokens: int) -> Body:
    """Makes a request of `tokens` on average: with equal lengths a whole batch would end at once, and numbers
    of answers would be multiples of its size."""
    prompt = [rng.randrange(3, 200) for _ in range(128)]
    return {
        "model": model, "prompt": prompt, "max_tokens": rng.randint(tokens // 2, tokens + tokens // 2),
        "ignore_eos": True, "temperature": 0, "stream": rng.random() < 0.5,
    }  # fmt: skip


async def peak(url: str, model: str, tokens: int, seconds: float) -> Load:
    """Runs a closed loop: the seats are taken, and some requests wait."""
    load, rng, began = Load(seconds), random.Random(1), time.monotonic()

    async def client(session: aiohttp.ClientSession) -> None:
        while time.monotonic() - began < seconds:
            outcome = await ask(session, url, body(model, rng, tokens))
            load.outcomes.append((time.monotonic() - began, outcome))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*[client(session) for _ in range(SEATS + SEATS // 2)])
    return load


async def flood(url: str, model: str, tokens: int, seconds: float, rate: float) -> Load:
    """Runs an open loop: Poisson arrivals at `rate` a second."""
    load, rng, began = Load(seconds), random.Random(2), time.monotonic()

    async def client(session: aiohttp.ClientSession, asked: Body) -> None:
        outcome = await ask(session, url, asked)
        load.outcomes.append((time.monotonic() - began, outcome))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        due, tasks = 0.0, []
        while (due := due + rng.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, began + due - time.monotonic()))
            tasks.append(asyncio.create_task(client(session, body(model, rng, tokens))))
        await asyncio.gather(*tasks)
    return load


@dataclass(frozen=True)
class Finding:
    """The results of an overload.  ratio: of goodput to the peak."""

    peaks: tuple[float, float]
    offered: float
    load: Load

    @property
    def ratio(self) -> float:
        return self.load.goodput / statistics.mean(self.peaks)

    @property
    def kinds(self) -> Counter[str]:
        return Counter(outcome.kind for _, outcome in self.load.outcomes)

    def show(self) -> str:
        refused = sorted(outcome.seconds for outcome in self.load.of("refused"))
        waited = sorted(outcome.seconds for outcome in self.load.of("done"))
        after = Counter(outcome.retry_after for outcome in self.load.of("refused"))
        lines = [
            f"peak {self.peaks[0]:.2f} and {self.peaks[1]:.2f} answers a second, offered {self.offered:.1f}",
            f"goodput {self.load.goodput:.2f} a second: {self.ratio:.2f} of the peak",
            f"outcomes: {dict(self.kinds)}",
            f"refused in ms: {_quantiles(refused, 1e3)}; Retry-After: {dict(after)}",
            f"answered in s: {_quantiles(waited, 1.0)}",
        ]
        return "\n".join(lines)


def _quantiles(ordered: Sequence[float], unit: float) -> str:
    if not ordered:
        return "none"
    median, p99 = ordered[len(ordered) // 2], ordered[int(0.99 * (len(ordered) - 1))]
    return f"median {median * unit:.1f}, p99 {p99 * unit:.1f}, most {ordered[-1] * unit:.1f}"


async def overload(server: Served, seconds: float, tokens: int) -> Finding:
    model = server.model
    await peak(server.url, model, tokens, min(5.0, seconds))  # warm
    first = (await peak(server.url, model, tokens, seconds / 2)).goodput
    load = await flood(server.url, model, tokens, seconds, FACTOR * first)
    second = (await peak(server.url, model, tokens, seconds / 2)).goodput
    return Finding((first, second), FACTOR * first, load)
