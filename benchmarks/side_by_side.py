"""corepipe and another OpenAI-compatible server, in turn in one run: medians and their ratio.

    python benchmarks/side_by_side.py http://127.0.0.1:8000 http://127.0.0.1:9000 --model-b other --rounds 3

Both servers must be running, with models of one vocabulary.  Prompts are random words; each round uses new
ones, so that no prefix cache has seen them (but in the `prefix` work).  All requests stream greedily and
ignore eos.  The ratio is A's speed over B's: above 1 A is faster.  The servers take turns (A B A B ...),
because a shared machine drifts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass

import aiohttp

from corepipe.planning.bench.prompts import all_words

REST_SECONDS = 2.0
"""Before each turn: threads of the other server that spin for their next piece of work go to sleep."""


@dataclass(frozen=True, slots=True)
class Work:
    """`requests` of `prompt` words in and `output` tokens out, `streams` at a time; `shared` words more are
    common to all."""

    prompt: int
    output: int
    streams: int
    requests: int
    shared: int = 0
    first_token: bool = False
    """Measured by the median time to the first token; otherwise by output tokens a second."""


WORKS = {
    "single": Work(512, 128, 1, 2),
    "closed-8": Work(128, 64, 8, 24),
    "closed-32": Work(128, 64, 32, 64),
    "prefill": Work(512, 1, 1, 3, first_token=True),
    "prefix": Work(32, 64, 16, 32, shared=512),
    "one-token": Work(4, 1, 16, 400),
}


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    model: str


def words(rng: random.Random, count: int, vocabulary: list[str]) -> str:
    return "".join(" " + rng.choice(vocabulary) for _ in range(count))


async def request(session: aiohttp.ClientSession, server: Server, prompt: str, output: int) -> float:
    """Seconds to the first event of one streamed completion, which is read to its end."""
    body = {"model": server.model, "prompt": prompt, "max_tokens": output, "temperature": 0, "stream": True}
    start, first = time.perf_counter(), 0.0
    async with session.post(f"{server.url}/v1/completions", json={**body, "ignore_eos": True}) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: {") and not first:
                first = time.perf_counter() - start
                if "error" in json.loads(line[6:]):
                    raise RuntimeError(line.decode())
    return first


async def speed(server: Server, work: Work, vocabulary: list[str], seed: int) -> float:
    """Output tokens a second, or first tokens a second where the first token is what counts."""
    rng = random.Random(seed)
    common = words(rng, work.shared, vocabulary)
    prompts = [common + words(rng, work.prompt, vocabulary) for _ in range(work.requests)]
    firsts: list[float] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=600)
    ) as session:
        await request(session, server, "warm up", 2)
        start = time.perf_counter()

        async def stream() -> None:
            while prompts:
                firsts.append(await request(session, server, prompts.pop(), work.output))

        await asyncio.gather(*(stream() for _ in range(work.streams)))
        seconds = time.perf_counter() - start
    return 1 / statistics.median(firsts) if work.first_token else work.requests * work.output / seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", help="URL of the server in question")
    parser.add_argument("b", help="URL of the server to compare with")
    parser.add_argument("--model-a", default="smollm2-135m-instruct")
    parser.add_argument("--model-b", default="m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", choices=WORKS, nargs="*", default=list(WORKS))
    args = parser.parse_args()
    vocabulary = list(all_words())
    servers = (Server(args.a, args.model_a), Server(args.b, args.model_b))
    print(f"{'work':<10} {'A':>9} {'B':>9} {'A / B':>7}   medians of {args.rounds}, in turn")
    for name in args.work:
        speeds: tuple[list[float], list[float]] = ([], [])
        for _ in range(args.rounds):
            for server, measured in zip(servers, speeds, strict=True):
                time.sleep(REST_SECONDS)
                measured.append(asyncio.run(speed(server, WORKS[name], vocabulary, time.time_ns())))
        a, b = (statistics.median(measured) for measured in speeds)
        ratio = statistics.median(x / y for x, y in zip(*speeds, strict=True))
        print(f"{name:<10} {a:>9.1f} {b:>9.1f} {ratio:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
