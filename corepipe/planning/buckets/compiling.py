"""The cost of compiling a model's graphs: minutes as a range, memory of the host, known failures.

Nobody has published a formula.  The figures are what documents and recipes report, each with its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corepipe.neuron.chips.hardware import GIB, Instance
from corepipe.neuron.compile.program import Program
from corepipe.neuron.timing.cost import StepShape
from corepipe.planning.profiling.instructions import matmul_instructions

MINUTES_A_GRAPH = (0.35, 11.0)
"""Minutes of a cold compilation, the least and the most: 51 models of NxD Inference's
contrib/models/*/README.md, two graphs each at a batch of one, take 0.7 to 22 minutes, the median about 5;
not monotonic in size."""

LARGE_PARAMETERS = 30e9
LARGE_MINUTES = 60.0
"""Most minutes of a large model (30 to 60): optimum-neuron, docs/source/guides/cache_system.mdx."""

MINUTES_SOURCE = (
    "51 entries of neuronx-distributed-inference contrib/models (2 graphs: 0.7 to 22 minutes, median 5), "
    "optimum-neuron's cache guide (30 to 60 for large models), vllm-neuron tutorials (15 to 20 for 70B in 2)"
)

NATIVE_WORKERS = 8
"""Graphs that the native plugin compiles at a time (NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS)."""

MOST_INSTRUCTIONS = 5_000_000
"""Instructions of a graph at most (aws-neuron-sdk issue 819; NCC_EVRF007, NCC_EBVF030, NCC_EXTP004)."""

FAILED_HOST, FAILED_WEIGHTS = 32 * GIB, 16e9
"""Host memory that Llama-3.1-8B in bf16 with one rank exhausted (aws-neuron/nki-samples issue 87), and the
bytes of weights from which this is assumed."""


@dataclass(frozen=True, slots=True)
class CompileWork:
    """A model to compile: bytes of a rank's weights, parameters, graphs, and graphs at a time."""

    weights: int
    parameters: int
    graphs: int
    workers: int

    @property
    def minutes(self) -> tuple[float, float]:
        """Minutes with an empty cache, the least and the most."""
        rounds = -(-self.graphs // self.workers)
        low, high = rounds * MINUTES_A_GRAPH[0], self.graphs * MINUTES_A_GRAPH[1]
        return low, max(high, LARGE_MINUTES) if self.parameters >= LARGE_PARAMETERS else high


def warnings(
    compiling: CompileWork, instance: Instance, programs: Sequence[Program], steps: Sequence[StepShape]
) -> Iterator[str]:
    """Yields warnings of known failures, and of what cannot be checked."""
    host = instance.host_memory_bytes
    if host is None:
        yield f"how much host memory {instance.name} has is not published"
    elif host <= FAILED_HOST and compiling.weights >= FAILED_WEIGHTS:
        yield (
            f"{host // GIB} GiB of host memory: compiling Llama-3.1-8B for one core ran out of 32 "
            "(exit code -9); compile on a larger host"
        )
    most = max(sum(matmul_instructions(op, step) for op in programs[0].ops) for step in steps)
    if most > MOST_INSTRUCTIONS:
        yield (
            f"a graph has {most:,} matrix instructions, and the compiler takes {MOST_INSTRUCTIONS:,} of all "
            "kinds (NCC_EVRF007): use a higher tensor degree or smaller buckets"
        )
