"""The time to the first token of one key's requests while another key floods the server.

The light key has one request at a time.  In turns, the other key has no requests in flight, as many as there
are seats, and eight times as many.  The light key's times to the first token beside the flood may be `MOST`
times those beside the full batch, at p99.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from tests.reliability.load_clients import PACE, Body, Outcome, ask
from tests.servers import TINY, Served, served

SEATS = 8
FLOOD = 8 * SEATS
MOST = 2.0
ROUNDS = 4

LIGHT, HEAVY = "sk-light", "sk-heavy"


@contextlib.contextmanager
def shared(*arguments: object) -> Iterator[Served]:
    """Runs a server with two keys, neither of which has limits of its own.

    Its pace is some milliseconds a step on any host, so that the measured time is that of waiting.
    """
    with TemporaryDirectory() as directory:
        keys = Path(directory) / "keys"
        keys.write_text(f"{LIGHT}\n{HEAVY}\n")
        keys.chmod(0o600)
        with served(
            TINY, *PACE, 40, *arguments, "--served-model-name", "model", "--api-key-file", keys
        ) as server:
            yield server


def client(key: str) -> aiohttp.ClientSession:
    """Makes a client with a key, without a limit on its connections."""
    bearer = {"authorization": f"Bearer {key}"}
    return aiohttp.ClientSession(headers=bearer, connector=aiohttp.TCPConnector(limit=0))


def body(rng: random.Random, tokens: int) -> Body:
    prompt = [rng.randrange(3, 200) for _ in range(32)]
    return {
        "model": "model", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True,
        "device_metrics": True,
    }  # fmt: skip


@dataclass
class Neighbour:
    """A key with `in_flight` requests under way at any time, while it is entered, or until `finish`."""

    url: str
    in_flight: int
    tokens: tuple[int, int]
    outcomes: Counter[str] = field(default_factory=Counter)
    devices: list[dict[str, float]] = field(default_factory=list)
    """The times of each answer on the emulated device."""

    async def __aenter__(self) -> Neighbour:
        self._over = False
        self._session = await client(HEAVY).__aenter__()
        self._tasks = [asyncio.create_task(self._ask(random.Random(n))) for n in range(self.in_flight)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def finish(self) -> None:
        """Sends no more requests and waits for those under way."""
        self._over = True
        await asyncio.gather(*self._tasks)

    async def _ask(self, rng: random.Random) -> None:
        while not self._over:
            outcome = await ask(self._session, self.url, body(rng, rng.randint(*self.tokens)))
            self.outcomes[outcome.kind] += 1
            if outcome.kind == "done":
                self.devices.append(outcome.device)
            if outcome.kind == "refused":
                await asyncio.sleep(0.25)


async def first_tokens(url: str, in_flight: int, seconds: float) -> list[float]:
    """Measures the seconds to the first token of the light key's requests beside `in_flight` of the other."""
    found: list[float] = []
    rng = random.Random(in_flight)
    async with client(LIGHT) as session, Neighbour(url, in_flight, (8, 40)):
        await asyncio.sleep(min(2.0, seconds))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            outcome: Outcome = await ask(session, url, body(rng, 1))
            assert outcome.kind == "done", outcome
            found.append(outcome.first_seconds or 0.0)
            await asyncio.sleep(rng.uniform(0.0, 0.05))
    return found


@dataclass
class Finding:
    """The light key's times to the first token, in seconds, by what the other key had in flight."""

    seconds: dict[int, list[float]] = field(default_factory=lambda: {0: [], SEATS: [], FLOOD: []})

    @property
    def ratio(self) -> float:
        return p99(self.seconds[FLOOD]) / p99(self.seconds[SEATS])

    def show(self) -> str:
        lines = [
            f"{count:3} of the other key in flight: {len(seen)} requests, first token in ms: "
            f"median {statistics.median(seen) * 1e3:.0f}, p99 {p99(seen) * 1e3:.0f}"
            for count, seen in self.seconds.items()
        ]  # fmt: skip
        return "\n".join([*lines, f"p99 beside the flood: {self.ratio:.2f} times that beside a full batch"])


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


async def fairness(server: Served, seconds: float) -> Finding:
    """Measures the cases interleaved, since a shared machine drifts."""
    finding = Finding()
    for _ in range(ROUNDS):
        for count, seen in finding.seconds.items():
            seen.extend(await first_tokens(server.url, count, seconds / ROUNDS / len(finding.seconds)))
    return finding
