"""Steps with adapters over steps without, in turn in one process.

    python benchmarks/adapters.py [MODEL] [--format int8] [--adapters 8] [--rank 16] [--streams 16]
        [--targets all|q_proj,v_proj] [--rounds 9]

MODEL: a directory, or a published name with random weights, such as llama-3.2-1b.  For each step (answers of
`streams` sequences, one sequence's answer, a prompt of 512): tokens a second without adapters, and with each
sequence's own, as a share of that; processor time counts, since a shared machine is busy with other work.
Adapters are random, of the Linears whose names end as `targets` says, and given to sequences in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np
from step import LONGEST, Case, Drawn, greedy, inputs, native_executor, options

from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.models.adapters.adapter import Adapter, adapter_of
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor, Weights
from corepipe.neuron.host.weights import InMemoryWeights, packed_weights
from corepipe.neuron.numerics.low_rank import LowRank
from corepipe.neuron.ops import Linear
from corepipe.neuron.step import StepInputs

SECONDS = 0.5
"""Seconds of a turn."""


def drawn_adapter(graph: Graph, rank: int, targets: str, seed: int) -> Adapter:
    """Returns an adapter of the layers' Linears whose names end so."""
    rng = np.random.default_rng(seed)
    ends = tuple(f"{target}.weight" for target in targets.split(","))
    layers = {}
    for op in graph.ops:
        inside = isinstance(op, Linear) and 0 <= op.layer < graph.num_layers
        if not inside or (targets != "all" and not op.weight.name.endswith(ends)):
            continue
        n, k = op.weight.shape
        a, b = (rng.standard_normal(shape, np.float32) * np.float32(0.02) for shape in ((rank, k), (n, rank)))
        layers[op.weight.name] = LowRank(a, b, 2.0)
    return adapter_of(layers)


def with_adapters(step: StepInputs, adapters: int) -> StepInputs:
    """Gives each sequence one of the adapters."""
    rows = np.diff(step.sequence_starts)
    return replace(step, adapters=np.repeat(np.arange(len(rows)) % adapters, rows).astype(np.int32))


def turn(executor: NativeExecutor, step: StepInputs) -> float:
    """Returns the processor time of a step: the median of those that are taken in a turn."""
    sampling, times, end = greedy(step), [], time.perf_counter() + SECONDS
    while not times or time.perf_counter() < end:
        start = time.process_time()
        executor.wait(executor.submit(step, sampling))
        times.append(time.process_time() - start)
    return statistics.median(times)


def compare(
    executor: NativeExecutor, step: StepInputs, args: argparse.Namespace
) -> tuple[float, list[float]]:
    """Returns the tokens a second without adapters, and for each round the share of that with them."""
    adapted = with_adapters(step, args.adapters)
    pairs = [(turn(executor, step), turn(executor, adapted)) for _ in range(args.rounds)]
    rate = len(step.tokens) / statistics.median(plain for plain, _ in pairs)
    return rate, [plain / other for plain, other in pairs]


def loaded(args: argparse.Namespace, cases: list[Case], pool: object) -> tuple[Graph, NativeExecutor]:
    """Returns the model's graph, and an executor with the adapters in its slots."""
    graph, weights = bound(args)
    executor = native_executor(graph, weights, cases, pool)
    made = [drawn_adapter(graph, args.rank, args.targets, slot) for slot in range(args.adapters)]
    for slot, adapter in enumerate(made):
        executor.adapters.load(slot, adapter)
    wide = 2 if FORMATS[args.format].compute.bytes == 2 else 1
    print(f"{args.adapters} adapters of rank {args.rank}: {made[0].nbytes / wide / 1e6:.1f} MB each")
    return graph, executor


def bound(args: argparse.Namespace) -> tuple[Graph, Weights]:
    """Returns the graph and the weights of a directory, or of a published model with random weights."""
    try:
        model = registry.load(hub.resolve(args.model))
    except Exception:
        graph = registry.architecture(args.model).graph(FORMATS[args.format], LONGEST)
        return graph, InMemoryWeights(graph, Drawn({s.name: s.shape for s in graph.weights()}).read)
    graph = model.graph(FORMATS[args.format], LONGEST)
    return graph, packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--targets", default="all", help="ends of names, such as q_proj,v_proj")
    args = parser.parse_args()
    pool = native().Pool(args.threads)
    cases = [(args.streams, 1, args.context), (1, 1, args.context), (1, 512, 0)]
    graph, executor = loaded(args, cases, pool)
    print(f"{'sequences':>9} {'rows':>5} {'tokens/s':>9}  share of that with adapters: median (least, most)")
    for batch, rows, context in cases:
        rate, shares = compare(executor, inputs(batch, rows, context, graph.vocab_size), args)
        told = f"{statistics.median(shares):.2f} ({min(shares):.2f}, {max(shares):.2f})"
        print(f"{batch:>9} {rows:>5} {rate:>9.0f}  {told}")
    pool.close()


if __name__ == "__main__":
    main()
