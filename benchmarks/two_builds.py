"""Steps of two builds of corepipe, by turns: how many times as fast the second is as the first.

    python benchmarks/two_builds.py BEFORE AFTER [MODEL] [--format int8] [--steps 8x1@128] [--rounds 9]

BEFORE and AFTER are clones, each with its .venv (`make setup`).  A step is SEQUENCESxROWS@CACHED: so many
sequences, new tokens of each, and tokens of each that are in the cache.  Each build has a process with the
model in it; in a round each takes steps for a second while the other waits, and the median of its steps
counts.  Told are the medians of the ratios, with the smallest and the largest: a shared machine drifts, but
less from one turn to the next.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from step import LONGEST, Case, block_of, greedy, inputs, native_executor

from corepipe.kernels import native
from corepipe.models import hub, registry
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import packed_weights

STEPS = "1x1@128,8x1@128,32x1@128,1x512@0"
SECONDS = 1.0
"""Seconds of a turn; a step that takes longer is taken once."""


def case_of(text: str) -> Case:
    """Reads 8x1@128; raises ValueError for anything else."""
    counts, cached = text.split("@")
    sequences, rows = counts.split("x")
    return int(sequences), int(rows), int(cached)


class Build:
    """A process of a clone's own interpreter, which answers a step's number with its milliseconds."""

    def __init__(self, clone: Path, args: argparse.Namespace) -> None:
        """Starts it.  Raises RuntimeError where it does not start; the reason is on stderr."""
        script = [clone / ".venv" / "bin" / "python", __file__, clone, clone, args.model, "--turns"]
        options = ["--steps", args.steps, "--format", args.format, "--threads", args.threads]
        self._process = subprocess.Popen(
            [str(word) for word in script + options],
            cwd=clone,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.clone = clone
        self._line()

    def __enter__(self) -> Build:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def milliseconds(self, number: int) -> float:
        """Returns the median of a turn's steps."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.clone}: its process ended; make setup builds what it needs")
        return line


def take_turns(args: argparse.Namespace, cases: Sequence[Case]) -> None:
    """Runs the process of a build: takes steps on request."""
    model = registry.load(hub.resolve(args.model))
    graph = model.graph(FORMATS[args.format], LONGEST)
    weights = packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed")
    executor = native_executor(graph, weights, list(cases), native().Pool(args.threads))
    steps = [inputs(*case, graph.vocab_size, block_of(graph)) for case in cases]
    print("ready", flush=True)
    for line in sys.stdin:
        step, times = steps[int(line)], list[float]()
        sampling, until = greedy(step), time.perf_counter() + SECONDS
        while not times or time.perf_counter() < until:
            start = time.perf_counter()
            executor.wait(executor.submit(step, sampling))
            times.append(time.perf_counter() - start)
        print(1e3 * statistics.median(times), flush=True)


def compare(args: argparse.Namespace, texts: Sequence[str]) -> None:
    """Prints a row for each step."""
    with ExitStack() as stack:
        before, after = [stack.enter_context(Build(one, args)) for one in (args.before, args.after)]
        print(f"{'step':<12} {'before, ms':>10} {'after, ms':>10} {'times as fast':>14}")
        for number, text in enumerate(texts):
            turns = [(before.milliseconds(number), after.milliseconds(number)) for _ in range(args.rounds)]
            old, new = (statistics.median(column) for column in zip(*turns, strict=True))
            ratios = sorted(one / other for one, other in turns)
            ratio, spread = statistics.median(ratios), f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
            print(
                f"{text:<12} {old:>10.2f} {new:>10.2f} {ratio:>14.3f} {spread}",
                flush=True,
            )
        print(f"medians of {args.rounds} rounds")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--format", default="int8", choices=FORMATS)
    parser.add_argument("--steps", default=STEPS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    texts = args.steps.split(",")
    cases = [case_of(text) for text in texts]
    if args.turns:
        take_turns(args, cases)
    else:
        compare(args, texts)


if __name__ == "__main__":
    main()
