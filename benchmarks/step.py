"""The engine's steps as shares of this machine's limits, measured beside each other in one run.

    python benchmarks/step.py [MODEL] [--format int8] [--context 128] [--rounds 5]

For each batch size: tokens a second of the native executor alone (no scheduler, no HTTP), which draws the
likeliest, and the share of the roofline max(bytes of weights and states / raw memory reading, operations of
the Linears / peak of the ISA's products plus multiply-adds of scans / their peak in fp32).
The limits are probed in turn with the steps, because a shared machine drifts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
from roofline import Limits, measure_limits  # the script beside this one

from corepipe.engine.batch.arrays import LogitRows, pack_scalars
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor, Weights
from corepipe.neuron.host.weights import packed_weights
from corepipe.neuron.numerics.int4 import ALL
from corepipe.neuron.ops import Experts, Linear, SelectiveScan
from corepipe.neuron.step import SamplingBatch, StepInputs

BLOCK = 32
LONGEST = 2048
FP32_BYTES = 4
MULTIPLY_ADDS = 3
"""Multiply-adds of a scan, for an element of a state at a token: its decay, the input, the output."""


@dataclass(frozen=True)
class Drawn:
    """Weights of a graph, drawn at random by their names."""

    shapes: dict[str, tuple[int, ...]]
    fingerprint: str = "drawn"

    def read(self, name: str, rows: slice = ALL) -> npt.NDArray[np.float32]:
        rng = np.random.default_rng(list(name.encode()))
        values = rng.standard_normal(self.shapes[name], dtype=np.float32)
        return values[rows] * np.float32(0.02)

    def stored(self, name: str, rows: slice = ALL) -> npt.NDArray[np.float32]:
        return self.read(name, rows)

    def by_rows(self, name: str) -> bool:  # noqa: ARG002 -- the protocol's: they are drawn from the first on
        return False


@dataclass(frozen=True, slots=True)
class Demand:
    """The operations and bytes of a graph: operations of a row in the layers, of a row with logits in the
    head; bytes of the Linears' weights, and of an expert's in all layers, of which a row takes `top_k` of
    `experts`; bytes of a sequence's state, and a row's operations in scans."""

    layers: float
    head: float
    nbytes: float
    expert: float = 0.0
    experts: int = 1
    top_k: int = 0
    state: int = 0
    scans: float = 0.0

    @classmethod
    def of(cls, graph: Graph, weights: Weights) -> Demand:
        linears = [op for op in graph.ops if isinstance(op, Linear)]
        *layers, head = [op.x.width * op.out.width for op in linears]
        nbytes = sum(weights[op.weight.name].data.nbytes for op in linears)
        mixtures = [op for op in graph.ops if isinstance(op, Experts)]
        if not mixtures:
            state = sum(FP32_BYTES * one.per_sequence for one in graph.states())
            scans = sum(MULTIPLY_ADDS * prod(op.shape) for op in graph.ops if isinstance(op, SelectiveScan))
            return cls(2 * sum(layers), 2 * head, nbytes, state=state, scans=2 * scans)
        first = mixtures[0]
        layers += [3 * op.top_k * op.x.width * op.ffn for op in mixtures]
        stacks = [spec for op in mixtures for spec in op.weights]
        expert = sum(weights[spec.name].data.nbytes for spec in stacks) / first.experts
        return cls(2 * sum(layers), 2 * head, nbytes, expert, first.experts, first.top_k)

    def seconds(self, limits: Limits, rows: int, wanted: int) -> float:
        """Returns the least seconds of a step with as many sequences as rows with logits: weights are
        read, and states read and written; or the operations are done."""
        operations = self.layers * rows + self.head * wanted
        read = self.nbytes + self.expert * self.taken(rows) + 2 * self.state * wanted
        products = operations / limits.product if limits.product else 0.0
        scans = self.scans * rows / limits.fp32 if limits.fp32 else 0.0
        return max(read / limits.read, products + scans) / 1e9

    def taken(self, rows: int) -> float:
        """Returns the expected number of experts that so many rows use, where each is as likely as any
        other."""
        return self.experts * (1 - (1 - self.top_k / self.experts) ** rows)


def inputs(batch: int, rows: int, context: int, vocab: int, block: int = BLOCK) -> StepInputs:
    """Returns `batch` sequences of `rows` new tokens each after `context` cached ones; one logit row per
    sequence."""
    rng = np.random.default_rng(0)
    blocks = -(-(context + rows) // block)
    positions = np.tile(np.arange(context, context + rows), batch)
    return StepInputs(
        tokens=rng.integers(0, vocab, batch * rows, dtype=np.int32),
        positions=positions.astype(np.int32),
        sequence_starts=np.arange(0, batch * rows + 1, rows, dtype=np.int32),
        block_tables=np.arange(batch * blocks, dtype=np.int32).reshape(batch, blocks),
        logit_rows=np.arange(rows - 1, batch * rows, rows, dtype=np.int32),
    )


def blocks_of(cases: Iterable[Case], block: int = BLOCK) -> int:
    """Returns the KV blocks for the largest of these."""
    return max(batch * -(-(context + rows) // block) for batch, rows, context in cases)


def greedy(step: StepInputs) -> SamplingBatch:
    """Samples the most likely token of each row: copying logits out would take longer than sampling."""
    rows = LogitRows()
    for row in step.logit_rows.tolist():
        rows.draw(row, pack_scalars(TokenSampling(temperature=0.0), 0), int(step.positions[row]) + 1, None)
    return rows.sampling()


def seconds(executor: NativeExecutor, step: StepInputs, repeat: int) -> float:
    """Returns the median wall time of a step."""
    times = []
    sampling = greedy(step)
    for _ in range(repeat):
        start = time.perf_counter()
        executor.wait(executor.submit(step, sampling))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


Case = tuple[int, int, int]
"""Sequences, new tokens of each, and cached ones."""


def block_of(graph: Graph) -> int:
    """Returns the positions of a block: a state is one of as many as the longest sequence has."""
    return LONGEST if graph.is_recurrent else BLOCK


def native_executor(graph: Graph, weights: Weights, cases: list[Case], pool: object) -> NativeExecutor:
    block = block_of(graph)
    return NativeExecutor(
        compile_graph(graph, Placement()), weights, blocks_of(cases, block), block, 512, pool
    )


def report(
    executor: NativeExecutor, graph: Graph, demand: Demand, cases: list[Case], args: argparse.Namespace
) -> None:
    """Prints a row for each case."""
    results: dict[Case, list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(args.rounds):
        for case in cases:
            batch, rows, context = case
            limits = measure_limits(args.format, args.threads, args.isa)
            step = inputs(batch, rows, context, graph.vocab_size, block_of(graph))
            took = seconds(executor, step, 10 if rows == 1 else 3)
            floor = demand.seconds(limits, batch * rows, batch)
            results[case].append((batch * rows / took, floor / took))
    print(f"{'batch':>8} {'rows':>5} {'tokens/s':>10} {'share of roofline':>18} {'best round':>11}")
    for (batch, rows, _), runs in results.items():
        rate, share = (statistics.median(column) for column in zip(*runs, strict=True))
        best = max(share for _, share in runs)
        print(f"{batch:>8} {rows:>5} {rate:>10.0f} {share:>17.0%} {best:>11.0%}")
    print(f"medians of {args.rounds} rounds")


def options(doc: str | None) -> argparse.ArgumentParser:
    """Returns the flags that all scripts with such a report have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", default="int8", choices=FORMATS)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--isa", default=native().isa(), choices=native().isas(), help="whose peak to take")
    return parser


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    args = parser.parse_args()

    model = registry.load(hub.resolve(args.model))
    graph = model.graph(FORMATS[args.format], LONGEST)
    weights = packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed")
    pool = native().Pool(args.threads)
    cases = [(b, 1, args.context) for b in (1, 4, 8, 16, 32)] + [(1, 512, 0)]
    executor = native_executor(graph, weights, cases, pool)
    report(executor, graph, Demand.of(graph, weights), cases, args)
    pool.close()


if __name__ == "__main__":
    main()
