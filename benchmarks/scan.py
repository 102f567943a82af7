"""Steps of a random model of Mamba2-130M's shape, as shares of the limits, and beside transformers'.

    python benchmarks/scan.py [--format int8] [--rounds 5] [--peer]

One stream, eight, and a prompt of 512 tokens, as `step.py` measures them.  The limit: the weights are read,
and the states read and written; or the operations of the Linears are done, and after them the scans'
multiply-adds in fp32.  --peer: also transformers' Mamba2ForCausalLM in bf16, in turn, where torch is
installed (as `make parity` does it); it has no kernels of its own for CPUs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
from formats import Drawn  # the scripts beside this one
from roofline import Limits, measure_limits
from step import Demand, inputs, options, seconds

from corepipe.kernels import native
from corepipe.models import published, registry
from corepipe.neuron.compiler import compile_graph, state_bytes
from corepipe.neuron.executor import NativeExecutor
from corepipe.neuron.graph import FORMATS
from corepipe.neuron.ops import SelectiveScan
from corepipe.neuron.placement import Placement
from corepipe.neuron.weights import InMemoryWeights

MODEL = "mamba2-130m"
CASES = ((1, 1), (8, 1), (1, 512))
"""Sequences, and new tokens of each."""
LONGEST = 2048
IN_FP32 = ("avx512-vnni", "avx2")
"""Tables whose products of bf16 are multiply-adds in fp32, the widest first."""


@dataclass(frozen=True)
class Need:
    """What a step asks for: of the Linears; bytes of a sequence's state; multiply-adds of scans a row."""

    linears: Demand
    state: int
    scans: float

    def seconds(self, linears: Limits, scans: Limits, sequences: int, rows: int) -> float:
        """The least that a step can take."""
        read = (self.linears.nbytes + 2 * self.state * sequences) / linears.read
        products = (self.linears.layers * rows + self.linears.head * sequences) / linears.product
        return max(read, products + 2 * self.scans * rows / scans.product) / 1e9


def transformers_steps() -> Callable[[int, int], float]:
    """What measures a step of transformers': seconds, by sequences and new tokens of each."""
    torch, transformers = import_module("torch"), import_module("transformers")
    config = transformers.Mamba2Config(
        **{k: v for k, v in published.config(MODEL).items() if k != "model_type"}
    )
    model = transformers.Mamba2ForCausalLM(config).to(torch.bfloat16).eval()

    @torch.no_grad()
    def measured(sequences: int, rows: int) -> float:
        ids = torch.zeros((sequences, rows), dtype=torch.long)
        kept: dict[str, Any] = {}
        if rows == 1:
            kept["cache_params"] = model(ids.expand(-1, 8), use_cache=True).cache_params
        times = []
        for _ in range(3):
            start = time.perf_counter()
            model(ids, use_cache=True, logits_to_keep=1, **kept)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    return measured


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--peer", action="store_true", help="measure transformers, too")
    args = parser.parse_args()

    graph = registry.architecture(MODEL).graph(FORMATS[args.format], LONGEST)
    drawn = Drawn({graph.tied.get(spec.name, spec.name): spec.shape for spec in graph.weights()})
    weights = InMemoryWeights(graph, drawn.read)
    pool = native().Pool(args.threads)
    programs = compile_graph(graph, Placement())
    executor = NativeExecutor(programs, weights, 8, LONGEST, 512, pool)
    scans = sum(3 * prod(op.shape) for op in graph.ops if isinstance(op, SelectiveScan))
    need = Need(Demand.of(graph, weights), state_bytes(programs[0]), scans)
    fp32 = next(isa for isa in IN_FP32 if isa in native().isas())
    peer = transformers_steps() if args.peer else None
    print(f"{need.linears.nbytes / 1e6:.0f} MB of weights, {need.state / 1e6:.1f} MB of state a sequence")
    results: dict[tuple[int, int], list[tuple[float, float, float]]] = {case: [] for case in CASES}
    for _ in range(args.rounds):
        for batch, rows in CASES:
            limits = (
                measure_limits(args.format, args.threads, args.isa),
                measure_limits("bf16", args.threads, fp32),
            )
            context = args.context if rows == 1 else 0
            step = replace(
                inputs(batch, rows, context, graph.vocab_size),
                block_tables=np.arange(batch, dtype=np.int32)[:, None],  # a state is one block
            )
            took = seconds(executor, step, 10 if rows == 1 else 3)
            share = need.seconds(*limits, batch, batch * rows) / took
            ratio = peer(batch, rows) / took if peer else 0.0
            results[batch, rows].append((batch * rows / took, share, ratio))
    print(f"{'batch':>8} {'rows':>5} {'tokens/s':>10} {'share of limit':>15} {'x transformers':>15}")
    for (batch, rows), runs in results.items():
        rate, share, ratio = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{batch:>8} {rows:>5} {rate:>10.0f} {share:>15.0%} {ratio:>15.1f}")
    print(f"medians of {args.rounds} rounds")
    pool.close()


if __name__ == "__main__":
    main()
