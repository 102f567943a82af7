"""An encoder's steps on the native executor alone, and which kinds of Ops they are spent in.

    python benchmarks/encoder_steps.py [MODEL] [--format int8] [--lengths 16 64 256] [--batches 1 32]

Random weights in the shape of a published model.  For each length and batch: texts and tokens for each second
of processor time on one thread, which other work on the machine disturbs less than a clock does; the share of
the peak of the ISA's products that the Linears reach; and the shares of time of Linears, of attention and of
the rest, each run by itself on the same rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from corepipe.kernels import native
from corepipe.models.registry import architecture
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host import executor as executors
from corepipe.neuron.host.executor import NativeCore, NativeExecutor
from corepipe.neuron.host.lowering import FusedAttention, FusedLinear, Step
from corepipe.neuron.host.weights import InMemoryWeights
from corepipe.neuron.inputs import StepInputs
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.ops import Linear
from corepipe.neuron.values import WeightRole

KINDS = {"linear": FusedLinear, "attention": FusedAttention}


def random_weights(graph: Graph) -> InMemoryWeights:
    """Of the graph's shapes, so that activations stay near 1."""
    rng = np.random.default_rng(0)
    shapes = {spec.name: spec for spec in graph.weights()}

    def read(name: str) -> F32:
        spec = shapes[name]
        scale = spec.shape[1] ** -0.5 if spec.role is WeightRole.MATRIX else 0.5
        return (rng.standard_normal(spec.shape, np.float32) * np.float32(scale)).astype(np.float32)

    return InMemoryWeights(graph, read)


def texts(length: int, batch: int, vocab: int) -> StepInputs:
    """So many texts of a length."""
    starts = np.arange(0, batch * length + 1, length, dtype=np.int32)
    return StepInputs(
        tokens=np.random.default_rng(0).integers(0, vocab, batch * length, dtype=np.int32),
        positions=np.tile(np.arange(length, dtype=np.int32), batch),
        sequence_starts=starts,
        block_tables=np.empty((batch, 0), np.int32),
        logit_rows=starts[:-1].copy(),
        types=np.zeros(batch * length, np.int32),
    )


@contextmanager
def only(kind: str | None) -> Iterator[None]:
    """Cores made meanwhile run Ops of this kind alone; "rest": those of no kind; None: all."""

    class Part(NativeCore):
        def _emit(self, step: Step) -> None:
            found = next((name for name, steps in KINDS.items() if isinstance(step, steps)), "rest")
            if kind in (None, found):
                super()._emit(step)

    with patch.object(executors, "NativeCore", Part):
        yield


def seconds(executor: NativeExecutor, step: StepInputs, budget: float) -> float:
    """The least processor time of a step, of as many as fit into the budget."""
    best, spent = float("inf"), 0.0
    while spent < budget:
        start = time.process_time()
        executor.wait(executor.submit(step, None))
        took = time.process_time() - start
        best, spent = min(best, took), spent + took
    return best


def report(graph: Graph, cases: Sequence[tuple[int, int]], budget: float) -> None:
    weights, pool = random_weights(graph), native().Pool(1)
    programs, rows = compile_graph(graph, Placement()), max(length * batch for length, batch in cases)
    parts = {}
    for kind in (None, *KINDS, "rest"):
        with only(kind):
            parts[kind] = NativeExecutor(programs, weights, 0, 16, rows, pool)
    product = "int8" if graph.format.name == "int8" else "bf16"
    peak = native().probe_products(native().isa(), product, 1, 0.5) * 1e9
    work = sum(2 * op.x.width * op.out.width for op in graph.ops if isinstance(op, Linear))
    print(f"{graph.name}, {graph.format.name}, {native().isa()}: {peak / 1e9:.0f} GOP/s a core")
    print(
        f"{'length':>6} {'batch':>5} {'texts/s':>9} {'tokens/s':>9} {'of peak':>8} " + " ".join(KINDS), "rest"
    )
    for length, batch in cases:
        step = texts(length, batch, graph.vocab_size)
        untyped = replace(step, types=step.types[:0])  # what reads types is of the rest
        took = {
            kind: seconds(part, untyped if kind in KINDS else step, budget) for kind, part in parts.items()
        }
        whole = took.pop(None)
        reached = work * length * batch / peak / took["linear"] if peak else 0.0
        shares = " ".join(f"{kind} {part / whole:.0%}" for kind, part in took.items())
        rate = batch / whole
        print(f"{length:>6} {batch:>5} {rate:>9.1f} {length * rate:>9.0f} {reached:>8.0%} {shares}")
    pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="all-minilm-l6-v2")
    parser.add_argument("--format", default="int8", choices=FORMATS)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--seconds", type=float, default=1.0, help="of processor time for each figure")
    args = parser.parse_args()
    graph = architecture(args.model).graph(FORMATS[args.format], 512)
    report(graph, [(length, batch) for length in args.lengths for batch in args.batches], args.seconds)


if __name__ == "__main__":
    main()
