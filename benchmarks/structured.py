"""What it costs to hold answers to a grammar: 16 streams, all constrained against none, in turn in one run.

    python benchmarks/structured.py [--random tinyllama-1.1b] [--streams 16] [--tokens 128] [--rounds 5]

In this process, without HTTP.  Free and constrained requests have the same prompts, draw at temperature 1 and
are as long.  The grammar is that of a JSON schema whose answers are longer than that.  Printed are medians of
tokens a second and of processor time a token, their ratio by turn, and the processor time that a mask takes:
to be filled while the batch is computed, and to be told of the token after it.  Beside other work the ratio
of processor times is the one that says something.

--random: a published shape with random weights, and the default model's vocabulary, in that model's place.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llguidance import LLMatcher

from corepipe.engine.assembly.device_plan import batch_policy, plan_device, scheduler_config
from corepipe.engine.batch.masks import GrammarMatcher, Mask
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.deployment import Deployment, ReplicaParts
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Ready, Submit, TokenSampling
from corepipe.kernels import native, packing
from corepipe.models import hub, published, registry
from corepipe.models.fields import Fields
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import PackedTensor, pack, packed_weights
from corepipe.neuron.timing.clock import HostClock
from corepipe.neuron.values import WeightRole

CONTEXT, BLOCKS = 512, 1024
SCHEMA = {
    "type": "array",
    "minItems": 500,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 10, "maxLength": 60},
            "kind": {"enum": ["first", "second", "third"]},
            "score": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
        },
        "required": ["name", "kind", "score", "tags"],
        "additionalProperties": False,
    },
}


class RandomWeights:
    """A published shape's weights, made up as they are asked for."""

    def __init__(self, graph: Graph) -> None:
        self._specs = {spec.name: spec for spec in graph.weights()}
        self._format = graph.format
        self._rng = np.random.default_rng(0)

    def __getitem__(self, name: str) -> PackedTensor:
        spec = self._specs[name]
        if spec.role is not WeightRole.MATRIX:
            values = self._rng.standard_normal(spec.shape, dtype=np.float32)
            return pack(spec, self._format, values * 0.02 + (spec.role is WeightRole.VECTOR))
        rows, columns = spec.shape
        data = np.frombuffer(self._rng.bytes(packing.packed_bytes("int8", rows, columns)), np.uint8)
        return PackedTensor("int8", spec.shape, data, np.full(rows, 2e-4, np.float32))


def engine(shape: str | None, threads: int) -> Driver:
    """One core, in this process."""
    model = registry.load(hub.resolve(hub.DEFAULT_MODEL))
    fields = published.config(shape) | {"vocab_size": model.config.vocab_size} if shape else {}
    timed = registry.Architecture(shape, Fields(Path(shape), fields)) if shape else model
    one_core = {"pipeline": 1, "tensor": 1, "data": 1}
    config = EngineConfig(
        model=str(model.path), format="int8", instance="trn1.2xlarge", max_model_len=CONTEXT, **one_core
    )
    device = plan_device(config, timed)
    graph = device.graph
    known = packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed") if not shape else None
    executor = NativeExecutor(
        device.programs,
        RandomWeights(graph) if known is None else known,
        BLOCKS,
        config.block_size,
        config.max_num_batched_tokens,
        native().Pool(threads),
    )
    limits = scheduler_config(config, device, BLOCKS, CONTEXT, None)
    parts = ReplicaParts(executor, device.timeline(0), limits, batch_policy(config, device))
    ready = Ready({}, BLOCKS, config.block_size, CONTEXT, native().isa(), 0.0)
    return Driver(Deployment((parts,), HostClock(), graph.vocab_size, 0, ready, model.tokenizer))


@dataclass
class Times:
    """Seconds of processor time of each mask, and of each token that a grammar was told of."""

    fills: list[float]
    takes: list[float]

    def measure(self) -> None:
        """From now on."""
        fill, take = GrammarMatcher.fill, GrammarMatcher.take

        def timed_fill(constraint: GrammarMatcher, mask: Mask) -> None:
            began = time.thread_time()
            fill(constraint, mask)
            self.fills.append(time.thread_time() - began)

        def timed_take(constraint: GrammarMatcher, token: int) -> None:
            began = time.thread_time()
            take(constraint, token)
            self.takes.append(time.thread_time() - began)

        GrammarMatcher.fill, GrammarMatcher.take = timed_fill, timed_take  # type: ignore[method-assign]


def submits(turn: int, streams: int, tokens: int, grammar: str) -> Iterator[Submit]:
    for stream in range(streams):
        prompt = [100 + (turn * 7919 + stream * 104_729 + i * 31) % 20_000 for i in range(32)]
        yield Submit(
            f"{turn}-{stream}", prompt, tokens, TokenSampling(temperature=1.0, seed=stream), grammar=grammar
        )


def run(driver: Driver, requests: list[Submit]) -> tuple[float, float]:
    """Tokens a second after the prompts, and seconds of processor time a token."""
    for request in requests:
        driver.handle(request)
    first: set[str] = set()
    while len(first) < len(requests):
        first |= {output.id for output in driver.turn() if output.tokens}
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    while driver.busy:
        for output in driver.turn():
            assert output.error is None, output.error
            count += len(output.tokens)
    return count / (time.perf_counter() - began), (time.process_time() - cpu) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--random", metavar="SHAPE", help="a published shape with random weights")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    driver = engine(args.random, args.threads)
    grammar = LLMatcher.grammar_from_json_schema(
        json.dumps(SCHEMA), overrides={"whitespace_pattern": r"[\x20\n\r\t]{1,8}"}
    )
    times = Times([], [])
    times.measure()
    found: dict[str, list[tuple[float, float]]] = {"free": [], "constrained": []}
    for turn in range(args.rounds + 1):
        for name, text in (("free", ""), ("constrained", grammar)):
            speed = run(driver, list(submits(turn, args.streams, args.tokens, text)))
            if turn:  # the first warms up
                found[name].append(speed)
        if turn == 0:
            times.fills.clear(), times.takes.clear()
    driver.close()
    report(found, times)


def report(found: dict[str, list[tuple[float, float]]], times: Times) -> None:
    """The medians, the ratios by turn, and what masks take."""
    for name, runs in found.items():
        rate, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:12} {rate:9.1f} tokens/s {cpu * 1e3:9.3f} ms of processor time a token")
    pairs = list(zip(found["constrained"], found["free"], strict=True))
    rates, cpus = ([a[i] / b[i] for a, b in pairs] for i in (0, 1))
    print(
        f"constrained / free: tokens/s {statistics.median(rates):.3f} ({min(rates):.3f} .. {max(rates):.3f})"
    )
    print(f"             processor time {statistics.median(cpus):.3f} ({min(cpus):.3f} .. {max(cpus):.3f})")
    for name, seconds in (("fill", times.fills), ("token", times.takes)):
        p50, p99 = np.percentile(seconds, [50, 99]) * 1e6
        print(f"{name:12} p50 {p50:.1f} us, p99 {p99:.1f} us, mean {np.mean(seconds) * 1e6:.1f} us")


if __name__ == "__main__":
    main()
