"""Two models in one server: what each does beside the other, as a share of what it does alone.

    python benchmarks/mixed_models.py --a smollm2-135m-instruct --b all-minilm-l6-v2 --rounds 3

Starts a server of both (`--also`), the threads divided between them.  In each round take turns: A alone, B
alone, both at work, and each under a flood of the other.  Alone means that the other model has nothing to do,
while as many processes as it has threads read memory: what is left is what a model's share of the cores can
do, not the whole machine.  Shares are medians over the rounds; at 1 a model does not notice the other.

A model that embeds counts requests of 64 words a second, one that generates its output tokens; of each the
median and the 99th percentile of its requests' times are printed, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import aiohttp
import numpy as np

from corepipe.bench.prompts import all_words

READ_BYTES = 256 << 20
"""Bytes of memory that a reader reads repeatedly: more than caches hold."""

REST_SECONDS = 1.0
"""Seconds of rest before each turn."""

PROMPT_WORDS, OUTPUT_TOKENS = 64, 48


@dataclass(frozen=True, slots=True)
class Load:
    """Clients of each model, which send the next request when they have an answer; processes that read
    memory."""

    a: int = 0
    b: int = 0
    readers: int = 0


@dataclass(slots=True)
class Done:
    """The work of a model in a turn: units of work, and the seconds of each answered request."""

    units: int = 0
    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    def row(self, span: float) -> dict[str, float]:
        times = sorted(self.seconds) or [math.nan]
        return {
            "rate": self.units / span,
            "p50_ms": 1e3 * statistics.median(times),
            "p99_ms": 1e3 * times[min(len(times) - 1, int(0.99 * len(times)))],
            "requests": len(self.seconds),
            "failed": self.failed,
        }


def read_memory() -> None:
    """Reads memory until it is terminated."""
    memory = np.ones(READ_BYTES // 8)
    while True:
        memory.sum()


@contextmanager
def reading(count: int) -> Iterator[None]:
    """Starts processes that read memory."""
    readers = [multiprocessing.Process(target=read_memory, daemon=True) for _ in range(count)]
    for one in readers:
        one.start()
    try:
        yield
    finally:
        for one in readers:
            one.kill()
            one.join()


@contextmanager
def server(asked: argparse.Namespace) -> Iterator[str]:
    """Starts a server with both models; yields its URL."""
    also = ",".join([f"b={asked.b}", *(asked.b_options or [])])
    command = [sys.executable, "-m", "corepipe", "serve", asked.a, "--served-model-name", "a", "--port", "0"]
    command += ["--also", also, *(asked.serve or [])]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"(http://\S+)/v1 ", line):
                print("".join(each for each in lines if ": ready in " in each), end="")
                yield found[1]
                return
        raise SystemExit("".join(lines))
    finally:
        process.terminate()
        process.wait()


class Client:
    """A client that sends requests to one model repeatedly."""

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str, embeds: bool, seed: int) -> None:
        self._http = http
        self._url = f"{url}/v1/{'embeddings' if embeds else 'completions'}"
        self._name = name
        self._embeds = embeds
        self._rng = random.Random(seed)
        self._words = all_words()

    def _body(self) -> Mapping[str, object]:
        text = " ".join(self._rng.choices(self._words, k=PROMPT_WORDS))
        if self._embeds:
            return {"model": self._name, "input": text}
        return {
            "model": self._name,
            "prompt": text,
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }

    async def run(self, done: Done) -> None:
        """Runs until it is cancelled.  Tokens count as they come, requests when they are answered."""
        while True:
            began, counted = time.perf_counter(), 0
            async with self._http.post(self._url, json=self._body()) as answer:
                if answer.status != 200:
                    done.failed += 1
                    await asyncio.sleep(0.01)
                    continue
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        count = json.loads(line[6:])["usage"]["completion_tokens"]
                        done.units, counted = done.units + count - counted, count
            done.units += self._embeds
            done.seconds.append(time.perf_counter() - began)


async def turn(url: str, load: Load, asked: argparse.Namespace, seed: int) -> dict[str, dict[str, float]]:
    """Returns the work of each model under this load."""
    await asyncio.sleep(REST_SECONDS)
    done = {"a": Done(), "b": Done()}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()
    ) as http:
        tasks = [
            asyncio.create_task(
                Client(http, url, name, asked.b_embeds and name == "b", seed + at).run(done[name])
            )
            for name, clients in (("a", load.a), ("b", load.b))
            for at in range(clients)
        ]
        with reading(load.readers):
            await asyncio.sleep(asked.seconds / 4)  # all clients have begun, what is cold is warm
            for one in done.values():
                one.units, one.seconds = 0, []
            began = time.perf_counter()
            await asyncio.sleep(asked.seconds)
            span = time.perf_counter() - began
            rows = {name: one.row(span) for name, one in done.items()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return rows


def loads(asked: argparse.Namespace) -> dict[str, Load]:
    """Returns the turns of a round."""
    a, b = asked.clients
    readers = max(1, len(os.sched_getaffinity(0)) // 2)
    return {
        "A alone": Load(a=a, readers=readers),
        "B alone": Load(b=b, readers=readers),
        "both": Load(a=a, b=b),
        "A, B floods": Load(a=a, b=asked.flood),
        "B, A floods": Load(a=asked.flood, b=b),
    }


def shares(rounds: list[dict[str, dict[str, dict[str, float]]]]) -> dict[str, float]:
    """Returns shares of the rates alone, medians over the rounds."""

    def share(turn: str, model: str) -> float:
        alone = f"{model.upper()} alone"
        return statistics.median(one[turn][model]["rate"] / one[alone][model]["rate"] for one in rounds)

    return {
        "A beside B": share("both", "a"),
        "B beside A": share("both", "b"),
        "A under B's flood": share("A, B floods", "a"),
        "B under A's flood": share("B, A floods", "b"),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--a", default="smollm2-135m-instruct", help="a model that generates")
    parser.add_argument("--b", default="smollm2-135m-instruct", help="a model of either kind")
    parser.add_argument("--b-embeds", action="store_true", help="B is asked for embeddings")
    parser.add_argument("--b-options", nargs="*", help="of --also, as dtype=fp32")
    parser.add_argument("--serve", nargs="*", help="further flags of the server")
    parser.add_argument("--clients", nargs=2, type=int, default=(4, 4), metavar=("A", "B"))
    parser.add_argument("--flood", type=int, default=64, help="clients of a flood")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="a file for all figures")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    rounds = []
    with ExitStack() as stack:
        url = stack.enter_context(server(asked))
        for number in range(asked.rounds):
            rows = {}
            for name, load in loads(asked).items():
                rows[name] = asyncio.run(turn(url, load, asked, 1000 * number))
                told = (
                    f"{model} {row['rate']:8.1f}/s p50 {row['p50_ms']:7.1f} p99 {row['p99_ms']:7.1f} ms"
                    for model, row in rows[name].items()
                    if row["rate"]
                )
                print(f"{number} {name:12} {'   '.join(told)}", flush=True)
            rounds.append(rows)
    found = shares(rounds)
    for name, share in found.items():
        print(f"{name:18} {share:.3f} of what its share of the cores does alone")
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"shares": found, "rounds": rounds}, file, indent=1)


if __name__ == "__main__":
    main()
