"""corepipe beside other servers of the same model: medians, ratios, shares of the nearer limit.

    python benchmarks/side_by_side.py MODEL [--dtype int8] \\
        --peer 'llama.cpp=llama-server -m MODEL-q8_0.gguf --port {port} -t 2 -np 32 -c 32768 --cache-ram 0' \\
        --peer 'vllm=vllm serve MODEL-w8a8 --port {port} --dtype bfloat16 --max-model-len 2048'

Each server is started once and suspended but for its turns, so that one runs at a time; turns are short: a
shared machine drifts.  A ratio is corepipe's speed over the peer's: above 1 corepipe is faster.  The limit is
the larger of reading the weights and of the Linears' operations, at the rates of the same round; attention,
sampling and HTTP are not in it.  benchmarks/peer_models.py makes the models that the peers take.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import httpx
import psutil
from roofline import Limits, measure_limits  # the scripts beside this one
from step import Demand
from turns import Contender, ends_all_at_sigterm
from works import Work, speed

from corepipe.models import hub, registry
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import packed_weights

START_SECONDS = 600.0
OURS = "corepipe={python} -m corepipe serve {model} --dtype {dtype} --max-model-len 2048 --port {{port}}"

WORKS = {
    "1 stream": Work(prompt=512, output=128, streams=1, requests=2),
    "8 streams": Work(prompt=128, output=64, streams=8, requests=16),
    "32 streams": Work(prompt=128, output=64, streams=32, requests=64),
    "512 in, 1 out": Work(prompt=512, output=1, streams=1, requests=3, first_token=True),
    "shared prefix": Work(prompt=32, output=64, streams=16, requests=32, shared=512),
    "one token": Work(prompt=4, output=1, streams=16, requests=400),
}


@dataclass(frozen=True, slots=True)
class Server(Contender):
    """A running server, with its address and the name of its model."""

    url: str
    model: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def served_model(name: str, url: str, process: psutil.Process) -> str:
    """Returns the id of the one model, once the server takes requests; raises RuntimeError if it never
    does."""
    deadline = time.monotonic() + START_SECONDS
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health").is_success:
                return str(httpx.get(f"{url}/v1/models").json()["data"][0]["id"])
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"{name}: does not serve; see {name}.log")


@contextmanager
def started(named_command: str, logs: Path) -> Iterator[Server]:
    """Starts NAME=COMMAND as a suspended server; its output goes to NAME.log."""
    name, command = named_command.split("=", 1)
    port = free_port()
    words = shlex.split(command.format(port=port))
    with (logs / f"{name}.log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as child:
        process = psutil.Process(child.pid)
        url = f"http://127.0.0.1:{port}"
        try:
            server = Server(name, process, url, served_model(name, url, process))
            server.suspend()
            yield server
        finally:
            Contender(name, process).end()


def least_seconds(work: Work, demand: Demand, limits: Limits) -> float:
    """Returns the least seconds of the whole work in full batches: the shared prefix once, all prompts of
    a batch, then a step for each further token."""
    shared = demand.seconds(limits, work.shared, 0) if work.shared else 0.0
    prompts = demand.seconds(limits, work.streams * work.prompt, work.streams)
    step = demand.seconds(limits, work.streams, work.streams)
    return shared + work.requests / work.streams * (prompts + (work.output - 1) * step)


def limit(work: Work, demand: Demand, limits: Limits) -> float:
    """Returns the speed, in the unit of `works.speed`, that the limits allow."""
    least = least_seconds(work, demand, limits)
    return work.requests / least if work.first_token else work.requests * work.output / least


@dataclass(frozen=True, slots=True)
class Turn:
    """One work in one round: the speed of each server (nan where it did not answer in full), and the speed
    that the limits allow."""

    speeds: dict[str, float]
    limit: float


def speed_of(server: Server, work: Work, vocabulary: range) -> float:
    """Measures a server in its turn; prints an error and returns nan where it fails, so that the others'
    turns are kept."""
    with server.turn():
        try:
            return asyncio.run(speed(server.url, server.model, work, vocabulary))
        except (RuntimeError, TimeoutError, aiohttp.ClientError) as error:
            print(f"{server.name}: {error!r}", file=sys.stderr)
            return math.nan


def median_of_told(values: list[float]) -> float:
    """Returns the median of the values that are numbers; nan if none is."""
    told = [value for value in values if not math.isnan(value)]
    return statistics.median(told) if told else math.nan


def measure(servers: list[Server], work: Work, kind: str, demand: Demand, vocabulary: range) -> Turn:
    limits = measure_limits(kind, len(os.sched_getaffinity(0)))
    speeds = {server.name: speed_of(server, work, vocabulary) for server in servers}
    return Turn(speeds, limit(work, demand, limits))


def row(name: str, turns: list[Turn]) -> str:
    """Returns medians: corepipe's speed, ratios to the peers, the share of the limit."""
    ours, *peers = turns[0].speeds
    speeds = median_of_told([turn.speeds[ours] for turn in turns])
    ratios = [median_of_told([turn.speeds[ours] / turn.speeds[peer] for turn in turns]) for peer in peers]
    share = median_of_told([turn.speeds[ours] / turn.limit for turn in turns])
    return f"{name:<14} {speeds:>9.2f}" + "".join(f" {ratio:>10.2f}" for ratio in ratios) + f" {share:>10.0%}"


def main() -> None:
    ends_all_at_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="what corepipe serves: a directory, a GGUF file, a packaged model")
    parser.add_argument("--dtype", default="int8", choices=FORMATS, help="of corepipe")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="has {port} in it"
    )
    parser.add_argument("--work", choices=WORKS, nargs="*", default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logs", type=Path, default=Path(), help="directory for what servers print")
    args = parser.parse_args()
    model = registry.load(hub.resolve(args.model))
    graph = model.graph(FORMATS[args.dtype], 2048)
    demand = Demand.of(graph, packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed"))
    vocabulary = range(graph.vocab_size // 10, graph.vocab_size * 9 // 10)  # no special tokens, no padding
    ours = OURS.format(python=sys.executable, model=shlex.quote(args.model), dtype=args.dtype)
    with ExitStack() as stack:
        servers = [stack.enter_context(started(command, args.logs)) for command in (ours, *args.peer)]
        heads = "".join(f" {server.name:>10}" for server in servers[1:])
        print(f"{'':<14} {'a second':>9}{heads} {'limit':>10}   medians of {args.rounds}, in turn")
        for name in args.work:
            work = WORKS[name]
            turns = [measure(servers, work, args.dtype, demand, vocabulary) for _ in range(args.rounds)]
            print(row(name, turns), flush=True)


if __name__ == "__main__":
    main()
