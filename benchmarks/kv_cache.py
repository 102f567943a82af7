"""Effects of a KV cache in int8 on a model's perplexity and on the time of its steps.

    python benchmarks/kv_cache.py perplexity [--format bf16,int8] [--text tests/data/perplexity.txt]
    python benchmarks/kv_cache.py price [--context 512,2048,8000] [--rounds 9] [--isa avx512,avx2]

perplexity: over windows of 512 predictions, with the cache as it is computed and in int8, the same tokens in
both; the change with its standard error, from the differences of the tokens' losses; exits with 1 if a change
is above 0.1 %.
price: what a step takes in processor time with the cache in int8, over what it takes with the cache as it is
computed: the two in turn in one process, medians and quartiles of the rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from same_bits import cpu_seconds, on_each  # the scripts beside this one
from step import BLOCK, greedy, inputs

from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.models.registry import Model
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import packed_weights

LIMIT = 0.001
"""Share by which int8 may raise a perplexity."""
WINDOW, CHUNK = 512, 128
CASES = {"1 row": (1, 1), "8 rows": (8, 1), "prompt of 128": (1, 128)}


def pair(model: Model, graph: Graph, blocks: int, threads: int) -> tuple[NativeExecutor, NativeExecutor]:
    """Returns executors with a cache as it is computed, and one of int8."""
    weights = packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed")
    pool, programs = native().Pool(threads), compile_graph(graph, Placement())
    plain, int8 = (
        NativeExecutor(programs, weights, blocks, BLOCK, CHUNK, pool, int8_cache=kept)
        for kept in (False, True)
    )
    return plain, int8


def losses(executor: NativeExecutor, window: Sequence[int]) -> np.ndarray:
    """Returns the loss of each token after the first, of a multiple of CHUNK of them."""
    found = []
    for start in range(0, len(window) - 1, CHUNK):
        step = replace(
            inputs(1, CHUNK, start, 1),
            tokens=np.array(window[start : start + CHUNK], np.int32),
            logit_rows=np.arange(CHUNK, dtype=np.int32),
        )
        logits = executor.wait(executor.submit(step, None)).values.astype(np.float64)
        top = logits.max(-1)
        total = np.log(np.exp(logits - top[:, None]).sum(-1)) + top
        found.append(total - logits[np.arange(CHUNK), window[start + 1 : start + CHUNK + 1]])
    return np.concatenate(found)


def perplexity(args: argparse.Namespace) -> None:
    model = registry.load(hub.resolve(args.model))
    tokens = model.tokenizer().encode(args.text.read_text(encoding="utf-8"))
    starts = range(0, len(tokens) - WINDOW, WINDOW + 1)
    windows = [tokens[start : start + WINDOW + 1] for start in starts][: args.windows]
    largest = 0.0
    for fmt in args.format:
        executors = pair(model, model.graph(FORMATS[fmt], WINDOW), WINDOW // BLOCK, args.threads)
        plain, int8 = (np.concatenate([losses(one, w) for w in windows]) for one in executors)
        moved = int8 - plain
        change, error = np.expm1(moved.mean()), moved.std() / len(moved) ** 0.5
        print(f"{native().isa()} {fmt}: {len(moved)} tokens, {np.exp(plain.mean()):.4f} -> ", end="")
        print(f"{np.exp(int8.mean()):.4f}, {change:+.3%} +- {error:.3%}", flush=True)
        largest = max(largest, change)
    sys.exit(int(largest > LIMIT))


def price(args: argparse.Namespace) -> None:
    """Compares the formats on this process's table of kernels."""
    model = registry.load(hub.resolve(args.model))
    longest = max(args.context) + CHUNK
    graph = model.graph(FORMATS[args.format[0]], longest)
    most = max(batch for batch, _ in CASES.values()) * -(-longest // BLOCK)
    executors = pair(model, graph, most, args.threads)
    for context in args.context:
        for name, (batch, rows) in CASES.items():
            step = inputs(batch, rows, context, graph.vocab_size)
            sampling = greedy(step)
            took = np.array(
                [[cpu_seconds(e, step, sampling, 1) for e in executors] for _ in range(args.rounds)]
            )
            low, ratio, high = np.quantile(took[:, 1] / took[:, 0], (0.25, 0.5, 0.75))
            plain, int8 = np.median(took, axis=0) * 1e3
            print(
                f"{native().isa():<12} after {context:>5}: {name:<14} {plain:8.2f} -> {int8:8.2f} ms", end=""
            )
            print(f"  x {ratio:.3f} ({low:.3f} .. {high:.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("what", choices=["perplexity", "price"])
    parser.add_argument("--model", default=hub.DEFAULT_MODEL)
    parser.add_argument("--format", type=words, default=["bf16", "int8"], help="of what is priced: the first")
    parser.add_argument("--text", type=Path, default=Path("tests/data/perplexity.txt"))
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument(
        "--context", type=lambda text: [int(n) for n in words(text)], default=[512, 2048, 8000]
    )
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--isa", type=words, default=[native().isa()])
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        {"perplexity": perplexity, "price": price}[args.what](args)
        return
    on_each(args.isa)


if __name__ == "__main__":
    main()
