"""Cost of a load generator: CPU time per streamed token, and its delay in noticing one.

    python benchmarks/generator_cost.py

A stub in a process of its own sends 2,000 tokens a second over 40 streams and writes down when; the streams
are read by httpx, by aiohttp, by the connections of `corepipe bench`, and by the whole of `corepipe bench`
with its records and histograms.  All readers but the last do the same with what they read.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time

import aiohttp
import httpx
import msgspec
import numpy as np
import uvloop

from corepipe.bench.stream import StreamChunk, StreamedAnswer
from corepipe.bench.target import Http, Target

ROOT = Path(__file__).parent.parent
STREAMS, TOKENS, GAP = 40, 200, 0.02
BODY = {"model": "stub", "prompt": "x", "max_tokens": TOKENS, "stream": True}
ROUNDS = 3

Read = Callable[[str, list[StreamedAnswer]], Awaitable[None]]


@contextmanager
def stub(log: Path) -> Iterator[str]:
    """Starts the stub of the tests; yields its URL."""
    settings = json.dumps({"first": 0.05, "gap": GAP, "log": str(log)})
    command = [sys.executable, "-m", "tests.bench.stub", settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


async def by_httpx(url: str, answers: list[StreamedAnswer]) -> None:
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60) as client:

        async def one(answer: StreamedAnswer) -> None:
            async with client.stream("POST", f"{url}/v1/completions", json=BODY) as response:
                answer.start(response.status_code)
                async for data in response.aiter_raw():
                    answer.read(data, perf_counter())

        await asyncio.gather(*map(one, answers))


async def by_aiohttp(url: str, answers: list[StreamedAnswer]) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(answer: StreamedAnswer) -> None:
            async with session.post(f"{url}/v1/completions", json=BODY) as response:
                answer.start(response.status)
                async for data in response.content.iter_any():
                    answer.read(data, perf_counter())

        await asyncio.gather(*map(one, answers))


async def by_ours(url: str, answers: list[StreamedAnswer]) -> None:
    http = Http(Target.parse(url), None)
    request = http.request("POST", "/v1/completions", msgspec.json.encode(BODY))
    await asyncio.gather(*(http.pool.exchange(request, answer) for answer in answers))
    http.pool.close()


def measure(read: Read) -> tuple[float, float, float, float]:
    """Returns tokens per second, share of a core, microseconds per token, and mean microseconds from
    sending to the time stamp."""
    decoder = msgspec.json.Decoder(StreamChunk)
    answers = [StreamedAnswer(decoder) for _ in range(STREAMS)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        with stub(log) as url:
            cpu, wall = process_time(), perf_counter()
            uvloop.run(read(url, answers))
            cpu, wall = process_time() - cpu, perf_counter() - wall
            time.sleep(0.2)
        sent = [line for text in log.read_text().splitlines() for line in json.loads(text)["sent"]]
    stamps = np.sort(np.concatenate([np.array(answer.stamps) for answer in answers]))
    count = len(stamps)
    return count / wall, cpu / wall, cpu / count * 1e6, float((stamps - np.sort(sent)).mean()) * 1e6


def whole() -> tuple[float, float, float]:
    """Returns the figures of `measure` for `corepipe bench`, with its own measure of its CPU time."""
    with tempfile.TemporaryDirectory() as folder, stub(Path(folder) / "log.jsonl") as url:
        load = ["--concurrency", str(STREAMS), "--requests", str(4 * STREAMS), "--output-len", str(TOKENS)]
        command = [sys.executable, "-m", "corepipe", "bench", url, *load, "--input-len", "64", "--json"]
        result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    share, rate = result["generator_cpu_share"], result["output_throughput"]
    return rate, share, share / rate * 1e6


def main() -> None:
    readers = {"httpx": by_httpx, "aiohttp": by_aiohttp, "ours": by_ours}
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in (*readers, "corepipe bench")}
    for _ in range(ROUNDS):  # in turn: a shared machine drifts
        for name, read in readers.items():
            rows[name].append(measure(read))
        rows["corepipe bench"].append(whole())
    print(
        f"{'reader':<16}{'tokens/s':>10}{'of a core':>11}{'us/token':>10}{'us late':>9}   medians of {ROUNDS}"
    )
    for name, found in rows.items():
        rate, share, each, *late = np.median(np.array(found), axis=0)
        told = f"{late[0]:>9.0f}" if late else ""
        print(f"{name:<16}{rate:>10.0f}{share:>11.1%}{each:>10.1f}{told}")


if __name__ == "__main__":
    main()
