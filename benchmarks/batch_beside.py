"""The time to the first token of live requests, beside a batch and alone, in turn on one server.

    python benchmarks/batch_beside.py [MODEL] [--requests 120] [--rounds 4] [--prompt 128] [--answer 16]
        [--clients 2] [--pause 0.3] [FLAGS OF corepipe serve, such as --threads=1]

So many clients send so many requests a turn, each with a prompt of its own, and pause after each for a random
time of up to twice `pause` seconds.  Turns with and without a batch follow each other in changing order.
Prints medians and 99th percentiles of both kinds, their ratios, and how many lines were answered: on the
clock, and in the engine's processor time from a request to its first token, which a busy machine does not
stretch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import openai

from corepipe.models import hub
from tests.servers import served

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school")
LINES = 5_000
COMPLETIONS = "/v1/completions"


def options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--answer", type=int, default=16)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.3)
    return parser.parse_known_args()


def text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words))


class FirstToken(NamedTuple):
    """The time to a first token: on the clock, and of the engine's processor time."""

    clock: float
    processor: float


def processor_seconds(engine: int) -> float:
    """Returns the processor time that the threads of a process have used."""
    used = 0
    for thread in Path(f"/proc/{engine}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            used += int((thread / "schedstat").read_text().split()[0])
    return used / 1e9


async def first_token(client: openai.AsyncOpenAI, engine: int, prompt: str, answer: int) -> FirstToken:
    """Returns the time until the first token of a streamed answer; reads the rest."""
    used, began, first = processor_seconds(engine), time.perf_counter(), None
    stream = await client.completions.create(
        model="m", prompt=prompt, max_tokens=answer, temperature=0, stream=True
    )
    async for _ in stream:
        first = first or FirstToken(time.perf_counter() - began, processor_seconds(engine) - used)
    assert first is not None
    return first


async def turn(
    client: openai.AsyncOpenAI, engine: int, given: argparse.Namespace, seed: int
) -> list[FirstToken]:
    """Returns the times of one turn; each seed sends other requests."""

    async def one(number: int) -> list[FirstToken]:
        draw, times = random.Random(1000 * seed + number), []
        for _ in range(given.requests // given.clients):
            await asyncio.sleep(draw.random() * 2 * given.pause)
            times.append(await first_token(client, engine, text(draw, given.prompt), given.answer))
        return times

    return [time for times in await asyncio.gather(*map(one, range(given.clients))) for time in times]


async def started(client: openai.AsyncOpenAI, given: argparse.Namespace) -> str:
    """Starts a batch; returns its id once it has answered a line."""
    draw, lines = random.Random(0), []
    for number in range(LINES):
        body = {
            "model": "m",
            "prompt": f"{number} {text(draw, given.prompt)}",
            "max_tokens": 4 * given.answer,
        }
        lines.append({"custom_id": str(number), "method": "POST", "url": COMPLETIONS, "body": body})
    file = await client.files.create(
        file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch"
    )
    batch = await client.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h")
    while not await answered(client, batch.id):
        await asyncio.sleep(0.1)
    return batch.id


async def answered(client: openai.AsyncOpenAI, batch: str) -> int:
    counts = (await client.batches.retrieve(batch)).request_counts
    return 0 if counts is None else counts.completed


async def measure(url: str, engine: int, given: argparse.Namespace) -> None:
    found: dict[bool, list[FirstToken]] = {False: [], True: []}
    lines = 0
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        await turn(client, engine, given, seed=0)
        for number in range(given.rounds):
            for with_batch in (False, True) if number % 2 == 0 else (True, False):
                batch = await started(client, given) if with_batch else ""
                before = await answered(client, batch) if batch else 0
                found[with_batch] += await turn(client, engine, given, seed=2 * number + with_batch + 1)
                if batch:
                    lines += await answered(client, batch) - before
                    await client.batches.cancel(batch)
            print(f"after {number + 1} rounds, {len(found[True])} requests of each kind:", flush=True)
            for name in FirstToken._fields:
                print("  ", shown(name, found), flush=True)
    print(f"lines answered beside the live requests: {lines}")


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98]


def shown(name: str, found: dict[bool, list[FirstToken]]) -> str:
    alone, beside = ([getattr(one, name) for one in found[kind]] for kind in (False, True))
    median = statistics.median(beside) / statistics.median(alone)
    return (
        f"{name}: alone {1e3 * statistics.median(alone):.1f} ms (p99 {1e3 * p99(alone):.1f}), beside a batch "
        f"{1e3 * statistics.median(beside):.1f} ms ({1e3 * p99(beside):.1f}): "
        f"x{median:.3f}, p99 x{p99(beside) / p99(alone):.3f}"
    )


def main() -> None:
    given, flags = options()
    more: list[Any] = ["--served-model-name", "m", *flags]
    with (
        TemporaryDirectory() as folder,
        served(given.model, "--store-dir", Path(folder) / "s", *more) as server,
    ):
        asyncio.run(measure(server.url, server.engine().pid, given))


if __name__ == "__main__":
    main()
