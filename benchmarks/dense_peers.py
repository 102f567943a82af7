"""corepipe in int8 beside other servers of the same model: medians, ratios, shares of the nearer limit.

    python benchmarks/dense_peers.py MODEL \\
        --peer 'llama.cpp=llama-server -m MODEL-q8_0.gguf --port {port} -t 2 -np 8 -c 8192 --cache-ram 0' \\
        --peer 'vllm=vllm serve MODEL-w8a8 --port {port} --dtype bfloat16 --max-model-len 2048'

Each server is started once and suspended but for its turns, so that one runs at a time; turns are short: a
shared machine drifts.  Prompts are random token ids, which no prefix cache has seen, no tokenizer splits.
A ratio is corepipe's speed over the peer's.  The limit is the larger of reading the weights and of the
Linears' operations, at the rates of the same round; attention, sampling and HTTP are not in it.
benchmarks/dense_models.py makes the models that the peers take.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
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
import msgspec
import psutil
from roofline import Limits, measure_limits  # the scripts beside this one
from step import Demand
from turns import Contender

from corepipe.models import hub, registry
from corepipe.neuron.graph import FORMATS
from corepipe.neuron.weights import packed_weights

START_SECONDS = 600.0
OURS = "corepipe={python} -m corepipe serve {model} --dtype int8 --max-model-len 2048 --port {{port}}"


@dataclass(frozen=True, slots=True)
class Work:
    """`requests` of `prompt` tokens in and `output` tokens out, `streams` at a time."""

    prompt: int
    output: int
    streams: int
    requests: int

    def least_seconds(self, demand: Demand, limits: Limits) -> float:
        """In full batches: all prompts of a batch, then a step for each further token."""
        prompts = demand.seconds(limits, self.streams * self.prompt, self.streams)
        step = demand.seconds(limits, self.streams, self.streams)
        return self.requests / self.streams * (prompts + (self.output - 1) * step)


WORKS = {
    "1 stream": Work(prompt=128, output=64, streams=1, requests=2),
    "8 streams": Work(prompt=128, output=32, streams=8, requests=16),
    "512 in, 1 out": Work(prompt=512, output=1, streams=1, requests=3),
}


@dataclass(frozen=True, slots=True)
class Server(Contender):
    """A running server: where it answers, as what it serves its model."""

    url: str
    model: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def served_model(name: str, url: str, process: psutil.Process) -> str:
    """The id of the one model, once the server takes requests; RuntimeError if it never does."""
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
    """NAME=COMMAND as a suspended server; what it says goes to NAME.log."""
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


async def answer(session: aiohttp.ClientSession, server: Server, prompt: list[int], output: int) -> None:
    """Reads one streamed completion; raises RuntimeError if it is shorter than it was asked for."""
    body = {"model": server.model, "prompt": prompt, "max_tokens": output, "temperature": 0, "stream": True}
    options = {"ignore_eos": True, "stream_options": {"include_usage": True}}
    tokens = 0
    async with session.post(f"{server.url}/v1/completions", json=body | options) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {") and (usage := msgspec.json.decode(line[6:]).get("usage")):
                tokens = usage["completion_tokens"]
    if tokens != output:
        raise RuntimeError(f"{server.name}: {tokens} tokens where {output} were asked for")


async def seconds(server: Server, work: Work, vocabulary: range) -> float:
    """Wall time of the whole work, after one short answer."""
    prompts = [random.choices(vocabulary, k=work.prompt) for _ in range(work.requests)]
    connector = aiohttp.TCPConnector(
        limit=0, force_close=True
    )  # llama.cpp's server closes what it has answered on
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await answer(session, server, random.choices(vocabulary, k=4), 2)

        async def stream() -> None:
            while prompts:
                await answer(session, server, prompts.pop(), work.output)

        start = time.perf_counter()
        await asyncio.gather(*(stream() for _ in range(work.streams)))
        return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Turn:
    """One work in one round: seconds by server, and the least it can take."""

    seconds: dict[str, float]
    least: float


def measure(servers: list[Server], work: Work, demand: Demand, vocabulary: range) -> Turn:
    limits = measure_limits("int8", len(os.sched_getaffinity(0)))
    took = {}
    for server in servers:
        with server.turn():
            took[server.name] = asyncio.run(seconds(server, work, vocabulary))
    return Turn(took, work.least_seconds(demand, limits))


def row(name: str, work: Work, turns: list[Turn]) -> str:
    """Medians: corepipe's output tokens a second, ratios to the peers, the share of the limit."""
    ours, *peers = turns[0].seconds
    speed = statistics.median(work.requests * work.output / turn.seconds[ours] for turn in turns)
    ratios = [statistics.median(turn.seconds[peer] / turn.seconds[ours] for turn in turns) for peer in peers]
    share = statistics.median(turn.least / turn.seconds[ours] for turn in turns)
    return f"{name:<14} {speed:>9.1f}" + "".join(f" {ratio:>10.2f}" for ratio in ratios) + f" {share:>10.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="what corepipe serves: a directory, a GGUF file, a packaged model")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="has {port} in it"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logs", type=Path, default=Path(), help="directory for what servers print")
    args = parser.parse_args()
    model = registry.load(hub.resolve(args.model))
    graph = model.graph(FORMATS["int8"], 2048)
    demand = Demand.of(graph, packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed"))
    vocabulary = range(graph.vocab_size // 10, graph.vocab_size * 9 // 10)  # no special tokens, no padding
    ours = OURS.format(python=sys.executable, model=shlex.quote(args.model))
    with ExitStack() as stack:
        servers = [stack.enter_context(started(command, args.logs)) for command in (ours, *args.peer)]
        print(
            f"{'':<14} {'tokens/s':>9}" + "".join(f" {s.name:>10}" for s in servers[1:]) + f" {'limit':>10}"
        )
        rounds = [
            {name: measure(servers, work, demand, vocabulary) for name, work in WORKS.items()}
            for _ in range(args.rounds)
        ]
        for name, work in WORKS.items():
            print(row(name, work, [turns[name] for turns in rounds]))


if __name__ == "__main__":
    main()
