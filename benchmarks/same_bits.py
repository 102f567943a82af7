"""Test of `--bits same` on this machine's tables of kernels, and its cost.

    python benchmarks/same_bits.py digests [--requests 1000] [--concurrency 1,4,8,32] [--isa avx2,portable]
    python benchmarks/same_bits.py price [--rounds 7] [--isa avx512]

digests: a SHA-256 of the tokens and logprobs of all requests, for each table and concurrency; exits with 1
where they differ.  price: the processor time of a step with the same bits everywhere, divided by its time
with the fastest kernels: the two in turn in one process, on one thread, medians of the rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import time

import numpy as np
from step import BLOCK, greedy, inputs  # the script beside this one

from corepipe import LLM, SamplingParams
from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import packed_weights
from corepipe.neuron.step import SamplingBatch, StepInputs

WAYS = ({"temperature": 0.0}, {"temperature": 0.8}, {"top_p": 0.9}, {"top_k": 40, "min_p": 0.02})
CASES = {"1 row": (1, 1, 128), "8 rows": (8, 1, 128), "32 rows": (32, 1, 128), "prompt of 512": (1, 512, 0)}


def digest(llm: LLM, requests: int, vocab: int) -> str:
    """Returns the digest of the answers to random prompts of 4 to 24 tokens, greedy and sampled, with
    logprobs."""
    rng = np.random.default_rng(17)
    prompts = [rng.integers(0, vocab, rng.integers(4, 25)).tolist() for _ in range(requests)]
    params = [
        SamplingParams(**WAYS[i % len(WAYS)], seed=i, max_tokens=4, logprobs=2, ignore_eos=True)
        for i in range(requests)
    ]
    said = [(one.token_ids, one.logprobs) for one in llm.generate(prompts, params)]
    return hashlib.sha256(repr(said).encode()).hexdigest()


def digests(args: argparse.Namespace) -> None:
    """Prints the digests on this process's table of kernels."""
    vocab = registry.load(hub.resolve(args.model)).tokenizer().vocab_size
    for concurrency in args.concurrency:
        start = time.process_time()
        options = {"format": args.format, "bits": args.bits, "max_num_seqs": concurrency}
        with LLM(args.model, **options, max_model_len=64, prefix_cache=False) as llm:
            found = digest(llm, args.requests, vocab)
        took = time.process_time() - start
        print(f"{native().isa():<12} {concurrency:>3} at a time  {found}  ({took:.0f} s of CPU)", flush=True)


def price(args: argparse.Namespace) -> None:
    """Prints the price on this process's table of kernels."""
    model = registry.load(hub.resolve(args.model))
    graph = model.graph(FORMATS[args.format], 2048)
    weights = packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed")
    pool, programs = native().Pool(1), compile_graph(graph, Placement())
    executors = [
        NativeExecutor(programs, weights, 256, BLOCK, 512, pool, same_bits=same) for same in (False, True)
    ]
    for name, (batch, rows, context) in CASES.items():
        step = inputs(batch, rows, context, graph.vocab_size)
        sampling, repeat = greedy(step), 10 if rows == 1 else 1
        took = [[cpu_seconds(one, step, sampling, repeat) for one in executors] for _ in range(args.rounds)]
        fast, same = (statistics.median(column) for column in zip(*took, strict=True))
        ratio = statistics.median(b / a for a, b in took)
        rates = f"{batch * rows / fast:7.0f} -> {batch * rows / same:7.0f} tokens/s of CPU time"
        print(f"{native().isa():<12} {name:<14} {rates}  x {ratio:.3f}", flush=True)
    pool.close()


def cpu_seconds(executor: NativeExecutor, step: StepInputs, sampling: SamplingBatch, repeat: int) -> float:
    """Returns the processor time of one step."""
    start = time.process_time()
    for _ in range(repeat):
        executor.wait(executor.submit(step, sampling))
    return (time.process_time() - start) / repeat


def on_each(isas: list[str]) -> list[str]:
    """Runs this command on each table, in a process of its own; returns their outputs."""
    printed = []
    for isa in isas:
        command = [sys.executable, *sys.argv, "--here"]
        child = subprocess.Popen(
            command, env={**os.environ, "COREPIPE_ISA": isa}, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            printed.append(line)
        if child.wait() != 0:
            raise SystemExit(child.returncode)
    return printed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["digests", "price"])
    parser.add_argument("--model", default=hub.DEFAULT_MODEL)
    parser.add_argument("--format", default="int8", choices=FORMATS)
    parser.add_argument("--bits", default="same", choices=["same", "fast"], help="of the digests")
    parser.add_argument("--isa", type=lambda text: text.split(","), default=native().isas())
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--concurrency", type=lambda text: [int(one) for one in text.split(",")], default=[1, 4, 8, 32]
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        {"digests": digests, "price": price}[args.what](args)
        return
    printed = on_each(args.isa)
    if args.what == "digests":
        found = {word for line in printed for word in line.split() if len(word) == 64}
        print(f"{len(found)} digest{'s' if len(found) > 1 else ''}")
        raise SystemExit(len(found) > 1)


if __name__ == "__main__":
    main()
