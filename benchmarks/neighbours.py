"""Speed beside busy processes of equal priority: tokens per second alone and beside them, in turn.

    python benchmarks/neighbours.py [MODEL] [--busy 2] [--rounds 7]
    python benchmarks/neighbours.py --url http://127.0.0.1:8000 --url http://127.0.0.1:8001

For 1, 8 and 32 streams: the native executor alone, as in step.py, or with --url any OpenAI-compatible
servers on this machine, which are suspended but while it is their turn.  With as many busy processes as
threads a fair share is half of the machine.  For the executor its share of the processor time of both is
printed, too, which other processes on the machine do not change.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import psutil
from side_by_side import Server  # the scripts beside this one
from step import BLOCK, blocks_of, greedy, inputs
from turns import Contender
from works import Work, speed

from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import packed_weights

STREAMS = (1, 8, 32)
CONTEXT = 128
VOCABULARY = range(1_000, 30_000)
"""Token ids that no model uses for special tokens."""
SECONDS = 1.0
"""Seconds of a turn of the executor: hundreds of a scheduler's slices."""
LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""A loop that ends when its parent process does."""

Rate = Callable[[int], float]
"""Returns the tokens per second of a number of streams."""


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[list[Contender]]:
    """Starts processes that never wait; they are suspended except in their turn."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
    contenders = [Contender(f"busy {loop.pid}", psutil.Process(loop.pid)) for loop in loops]
    for contender in contenders:
        contender.suspend()
    try:
        yield contenders
    finally:
        for contender in contenders:
            contender.end()


def processor_seconds(busy: list[Contender]) -> float:
    """Returns the processor time of the neighbours so far."""
    return sum(one.process.cpu_times().user for one in busy)


def of_executor(name: str, threads: int) -> Rate:
    """Returns a function that times steps of one token per stream, in int8."""
    model = registry.load(hub.resolve(name))
    graph = model.graph(FORMATS["int8"], 2048)
    weights = packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed")
    blocks = blocks_of((streams, 1, CONTEXT) for streams in STREAMS)
    executor = NativeExecutor(
        compile_graph(graph, Placement()), weights, blocks, BLOCK, 512, native().Pool(threads)
    )

    def rate(streams: int) -> float:
        step = inputs(streams, 1, CONTEXT, graph.vocab_size)
        sampling = greedy(step)
        start, steps = time.perf_counter(), 0
        while (passed := time.perf_counter() - start) < SECONDS:
            executor.wait(executor.submit(step, sampling))
            steps += 1
        return steps * streams / passed

    return rate


def listening(url: str) -> Server:
    """Returns the server that listens at an address of this machine."""
    port = urlsplit(url).port
    sockets = psutil.net_connections("tcp")
    found = [one.pid for one in sockets if one.status == psutil.CONN_LISTEN and one.laddr.port == port]
    if not found or found[0] is None:
        raise SystemExit(f"--url {url}: no server listens there; start one")
    return Server(url, psutil.Process(found[0]), url, httpx.get(f"{url}/v1/models").json()["data"][0]["id"])


def of_server(server: Server) -> Rate:
    def rate(streams: int) -> float:
        work = Work(CONTEXT // 4, 32, streams, streams)
        return asyncio.run(speed(server.url, server.model, work, VOCABULARY))

    return rate


class Turn(NamedTuple):
    """The result of a turn: tokens per second, and this process's share of the processor time of it and
    the neighbours."""

    alone: float
    beside: float
    share: float


def both_ways(rate: Rate, streams: int, busy: list[Contender]) -> Turn:
    alone = rate(streams)
    with contextlib.ExitStack() as turn:
        for one in busy:
            turn.enter_context(one.turn(rest=0.1))
        own, others = time.process_time(), processor_seconds(busy)
        beside = rate(streams)
        own, others = time.process_time() - own, processor_seconds(busy) - others
    return Turn(alone, beside, own / (own + others))


def in_turn(server: Server, streams: int, busy: list[Contender]) -> Turn:
    with server.turn(rest=0.2):
        return both_ways(of_server(server), streams, busy)


def report(name: str, streams: int, turns: Sequence[Turn], *, told: bool) -> None:
    alone, beside, share = (statistics.median(column) for column in zip(*turns, strict=True))
    ratio = statistics.median(turn.beside / turn.alone for turn in turns)
    had = f"{share:.2f}" if told else "-"
    print(f"{streams:>7} {alone:>9.1f} {beside:>9.1f} {ratio:>6.2f} {had:>6}   {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL, help="of the executor")
    parser.add_argument("--url", action="append", default=[], help="of a server that runs")
    parser.add_argument("--busy", type=int, default=2, help="processes that never wait")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=lambda text: [int(one) for one in text.split(",")], default=STREAMS)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the executor")
    args = parser.parse_args()
    servers = [listening(url) for url in args.url]
    for server in servers:
        server.suspend()
    heads = f"{'streams':>7} {'alone':>9} {'beside':>9} {'ratio':>6} {'share':>6}"
    print(f"{heads}   medians of {args.rounds}, in turn")
    with neighbours(args.busy) as busy:
        if not servers:
            rate = of_executor(args.model, args.threads)
            for streams in args.streams:
                turns = [both_ways(rate, streams, busy) for _ in range(args.rounds)]
                report("executor", streams, turns, told=True)
        for streams in args.streams if servers else ():
            rounds = [[in_turn(server, streams, busy) for server in servers] for _ in range(args.rounds)]
            for server, turns in zip(servers, zip(*rounds, strict=True), strict=True):
                report(server.url, streams, turns, told=False)


if __name__ == "__main__":
    main()
