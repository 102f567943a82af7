"""What busy processes of equal priority leave of the speed: tokens a second alone and beside them, in turn.

    python benchmarks/neighbours.py [MODEL] [--busy 2] [--rounds 7]
    python benchmarks/neighbours.py --url http://127.0.0.1:8000 [MODEL]

For 1, 8 and 32 streams: the native executor alone, as in step.py, or with --url any OpenAI-compatible server.
With as many busy processes as threads a fair share is half of the machine.  Of the executor the share is told
that it had of the processor time of both, which others on the machine do not change.
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
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psutil
from step import BLOCK, blocks_of, greedy, inputs  # the scripts beside this one
from turns import Contender
from works import Work, speed

from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.neuron.compiler import compile_graph
from corepipe.neuron.executor import NativeExecutor
from corepipe.neuron.graph import FORMATS
from corepipe.neuron.placement import Placement
from corepipe.neuron.weights import packed_weights

STREAMS = (1, 8, 32)
CONTEXT = 128
VOCABULARY = range(1_000, 30_000)
"""Ids that no model has for special tokens."""
SECONDS = 1.0
"""Of a turn of the executor: hundreds of a scheduler's slices."""
LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with whoever started it, however that ends."""

Rate = Callable[[int], float]
"""Tokens a second of so many streams."""


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[list[Contender]]:
    """Processes that never wait; suspended but while it is their turn."""
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
    """Of the neighbours so far."""
    return sum(one.process.cpu_times().user for one in busy)


def of_executor(name: str, threads: int) -> Rate:
    """Steps of one token a stream, in int8."""
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


def of_server(url: str, name: str) -> Rate:
    def rate(streams: int) -> float:
        return asyncio.run(speed(url, name, Work(CONTEXT, 64, streams, 2 * streams), VOCABULARY))

    return rate


class Turn(NamedTuple):
    """Tokens a second, and this process's share of the processor time that it and the neighbours had."""

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--url", help="of a server that runs; then MODEL is how it calls its model")
    parser.add_argument("--busy", type=int, default=2, help="processes that never wait")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the executor")
    args = parser.parse_args()
    rate = of_server(args.url, args.model) if args.url else of_executor(args.model, args.threads)
    heads = f"{'streams':>7} {'alone':>9} {'beside':>9} {'ratio':>6} {'share':>6}"
    print(f"{heads}   medians of {args.rounds}, in turn")
    with neighbours(args.busy) as busy:
        for streams in STREAMS:
            turns = [both_ways(rate, streams, busy) for _ in range(args.rounds)]
            alone, beside, share = (statistics.median(column) for column in zip(*turns, strict=True))
            ratio = statistics.median(turn.beside / turn.alone for turn in turns)
            told = "-" if args.url else f"{share:.2f}"
            print(f"{streams:>7} {alone:>9.1f} {beside:>9.1f} {ratio:>6.2f} {told:>6}", flush=True)


if __name__ == "__main__":
    main()
