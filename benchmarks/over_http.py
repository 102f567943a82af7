"""Cost of HTTP: tokens per second of streams, divided by those of the executor's steps alone.

    python benchmarks/over_http.py [MODEL] [--dtype int8] [--streams 1,8,32] [--rounds 5]

A server of the model, a process of its own, streams answers over a socket to a client in this one; the native
executor, here too, takes steps of as many rows at the context that these answers have on average.  The two in
turn, each suspended or asleep while the other runs.  Of the answers only the time counts in which all of them
generate: after the last has begun, before the first has ended.  And the processor time per token of the
server's own process, without its engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from side_by_side import OURS, Server, started  # the scripts beside this one
from step import LONGEST, block_of, greedy, inputs, native_executor
from turns import ends_all_at_sigterm

from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import packed_weights

PROMPT, OUTPUT = 128, 256
CONTEXT = PROMPT + OUTPUT // 2
SECONDS = 1.0
"""Seconds of the executor's turn."""
HEAD = (
    "POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    "Content-Length: {length}\r\nConnection: close\r\n\r\n"
)


class Measured(NamedTuple):
    """Tokens per second, and milliseconds of processor time per token."""

    rate: float
    cost: float


class Executor:
    """Steps of one token per stream, as in step.py."""

    def __init__(self, name: str, kind: str, streams: int, threads: int) -> None:
        model = registry.load(hub.resolve(name))
        graph = model.graph(FORMATS[kind], LONGEST)
        weights = packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed")
        self._native = native_executor(graph, weights, [(streams, 1, CONTEXT)], native().Pool(threads))
        self._block = block_of(graph)
        self.vocabulary = graph.vocab_size

    def measure(self, streams: int) -> Measured:
        step = inputs(streams, 1, CONTEXT, self.vocabulary, self._block)
        sampling = greedy(step)
        start, used, steps = time.perf_counter(), time.process_time(), 0
        while (passed := time.perf_counter() - start) < SECONDS:
            self._native.wait(self._native.submit(step, sampling))
            steps += 1
        tokens = steps * streams
        return Measured(tokens / passed, 1e3 * (time.process_time() - used) / tokens)


async def answer(server: Server, prompt: Sequence[int]) -> list[float]:
    """Returns the time of each event with a choice of a streamed completion; raises RuntimeError for an
    error."""
    address = urlsplit(server.url)
    body = {"model": server.model, "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0}
    sent = json.dumps(body | {"stream": True, "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(HEAD.format(host=address.netloc, length=len(sent)).encode() + sent)
    events = [(time.perf_counter(), line) async for line in reader if line.startswith(b'data: {"')]
    writer.close()
    if not events or b'"finish_reason":"length"' not in events[-1][1]:
        raise RuntimeError(f"{server.url}: an answer of {OUTPUT} tokens did not come to its end")
    return [at for at, _ in events]


async def rate_of(server: Server, streams: int, vocabulary: int) -> float:
    """Returns the tokens per second while all streams generate; a token that ends in the middle of a
    character has no event of its own, so that events stand for their share of the tokens."""
    words = range(vocabulary // 10, vocabulary * 9 // 10)  # no special tokens, no padding
    prompts = [random.choices(words, k=PROMPT) for _ in range(streams)]
    streamed = await asyncio.gather(*(answer(server, prompt) for prompt in prompts))
    begun, ended = max(times[0] for times in streamed), min(times[-1] for times in streamed)
    tokens = 0.0
    for times in streamed:
        tokens += sum(begun < at <= ended for at in times) * OUTPUT / len(times)
    return tokens / (ended - begun)


def over_http(server: Server, streams: int, vocabulary: int) -> Measured:
    """Measures the streams; their cost includes that of the prompts."""
    with server.turn(rest=0.2):
        before = used(server)
        rate = asyncio.run(rate_of(server, streams, vocabulary))
        return Measured(rate, 1e3 * (used(server) - before) / (streams * OUTPUT))


def used(server: Server) -> float:
    """Returns the processor time of the server's process alone."""
    times = server.process.cpu_times()
    return times.user + times.system


def report(server: Server, executor: Executor, streams: int, rounds: int) -> None:
    turns = [
        (executor.measure(streams), over_http(server, streams, executor.vocabulary)) for _ in range(rounds)
    ]
    alone, served = (statistics.median(one.rate for one in column) for column in zip(*turns, strict=True))
    ratios = sorted(here.rate / there.rate for there, here in turns)
    cost = statistics.median(here.cost for _, here in turns)
    spread = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
    ratio = statistics.median(ratios)
    print(f"{streams:>7} {alone:>9.1f} {served:>9.1f} {ratio:>6.3f} {spread:<16} {cost:>8.2f}", flush=True)


def main() -> None:
    ends_all_at_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--dtype", default="int8", choices=FORMATS)
    parser.add_argument(
        "--streams", type=lambda text: [int(one) for one in text.split(",")], default=[1, 8, 32]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the executor")
    parser.add_argument("--logs", type=Path, default=Path(), help="directory for what the server prints")
    args = parser.parse_args()
    executor = Executor(args.model, args.dtype, max(args.streams), args.threads)
    ours = OURS.format(python=sys.executable, model=shlex.quote(args.model), dtype=args.dtype)
    with ExitStack() as stack:
        server = stack.enter_context(started(ours, args.logs))
        print(f"streams     alone over HTTP  ratio {'':<16} server, ms a token; medians of {args.rounds}")
        for streams in args.streams:
            report(server, executor, streams, args.rounds)


if __name__ == "__main__":
    main()
