"""Steps of a random model of Mamba2-130M's shape, as shares of the limits or beside transformers'.

    python benchmarks/scan.py [--format int8] [--rounds 5] [--peer]

One stream, eight, and a prompt of 512 tokens, as `step.py` measures them.  --peer: beside transformers'
Mamba2ForCausalLM in bf16 instead, in turn, where torch is installed (as `make parity` does it); it has no
kernels of its own for CPUs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from step import (  # the script beside this one
    LONGEST,
    Demand,
    Drawn,
    inputs,
    native_executor,
    options,
    report,
    seconds,
)

from corepipe.kernels import native
from corepipe.models import published, registry
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import InMemoryWeights

MODEL = "mamba2-130m"


def transformers_steps() -> Callable[[int, int], float]:
    """Returns a function that times a step of transformers: seconds, by sequences and new tokens of each."""
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
    parser.add_argument("--peer", action="store_true", help="measure transformers instead of limits")
    args = parser.parse_args()

    graph = registry.architecture(MODEL).graph(FORMATS[args.format], LONGEST)
    drawn = Drawn({graph.tied.get(spec.name, spec.name): spec.shape for spec in graph.weights()})
    weights = InMemoryWeights(graph, drawn.read)
    pool = native().Pool(args.threads)
    cases = [(1, 1, args.context), (8, 1, args.context), (1, 512, 0)]
    executor = native_executor(graph, weights, cases, pool)
    demand = Demand.of(graph, weights)
    print(f"{demand.nbytes / 1e6:.0f} MB of weights, {demand.state / 1e6:.1f} MB of state a sequence")
    if not args.peer:
        report(executor, graph, demand, cases, args)
        pool.close()
        return
    peer = transformers_steps()
    print(f"{'batch':>8} {'rows':>5} {'x transformers':>15}")
    for batch, rows, context in cases:
        step = inputs(batch, rows, context, graph.vocab_size, LONGEST)
        ratios = [
            peer(batch, rows) / seconds(executor, step, 10 if rows == 1 else 3) for _ in range(args.rounds)
        ]
        print(f"{batch:>8} {rows:>5} {statistics.median(ratios):>15.1f}")
    print(f"medians of {args.rounds} rounds")
    pool.close()


if __name__ == "__main__":
    main()
