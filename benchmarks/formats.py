"""Steps of one model in several formats, measured in turns: how many times as fast as in the first one.

    python benchmarks/formats.py [MODEL] [--formats int8 int4-weights] [--random] [--rounds 7]

For 1, 8 and 32 streams after a context of 128 tokens, and for a prompt of 512: the native executor alone, as
in step.py.  A ratio is the median of the rounds'.  --random: of a directory with a config.json, or of a
published name, with weights that are drawn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from step import BLOCK, blocks_of, inputs, seconds  # the script beside this one

from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.blocks import TensorSource
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import PackedWeights, packed_weights
from corepipe.neuron.numerics.int4 import ALL

CASES = ((1, 1, 128), (8, 1, 128), (32, 1, 128), (1, 512, 0))
"""Sequences, new tokens of each, tokens before them."""


@dataclass(frozen=True)
class Drawn:
    """Weights of a graph, drawn by their names."""

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


class Contender:
    """A model in one format, on the host's threads."""

    def __init__(self, graph: Graph, weights: PackedWeights, threads: int) -> None:
        self.vocab = graph.vocab_size
        self._pool = native().Pool(threads)
        self.executor = NativeExecutor(
            compile_graph(graph, Placement()), weights, blocks_of(CASES), BLOCK, 512, self._pool
        )

    def seconds(self, case: tuple[int, int, int]) -> float:
        batch, rows, context = case
        return seconds(self.executor, inputs(batch, rows, context, self.vocab), 5 if rows == 1 else 1)


def contenders(args: argparse.Namespace, folder: Path) -> dict[str, Contender]:
    """By format; what is drawn is packed into `folder`."""
    model = registry.architecture(args.model) if args.random else registry.load(hub.resolve(args.model))
    made = {}
    for name in args.formats:
        graph = model.graph(FORMATS[name], 2048)
        checkpoint: TensorSource
        if isinstance(model, registry.Model):
            checkpoint, cache = model.checkpoint, hub.cache_dir() / "packed"
        else:
            shapes = {graph.tied.get(spec.name, spec.name): spec.shape for spec in graph.weights()}
            checkpoint, cache = Drawn(shapes), folder
        made[name] = Contender(graph, packed_weights(graph, checkpoint, cache), args.threads)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--formats", nargs="+", default=["int8", "int4-weights"], choices=FORMATS)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(contenders(args, Path(folder)), args.rounds)


def compare(made: dict[str, Contender], rounds: int) -> None:
    first = next(iter(made))
    print(f"{'batch':>6} {'rows':>5} {'format':>14} {'tokens/s':>10} {'to ' + first:>10}")
    for case in CASES:
        times: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(rounds):
            for name, contender in made.items():
                times[name].append(contender.seconds(case))
        for name, took in times.items():
            rate = case[0] * case[1] / statistics.median(took)
            ratio = statistics.median(a / b for a, b in zip(times[first], took, strict=True))
            print(f"{case[0]:>6} {case[1]:>5} {name:>14} {rate:>10.0f} {ratio:>10.2f}", flush=True)
    print(f"medians of {rounds} rounds")


if __name__ == "__main__":
    main()
