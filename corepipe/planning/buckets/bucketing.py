"""Graphs to compile for a workload: the stack's default beside the graphs that pad the least.

Prompts come one at a time.  A decode step runs a full batch at the bucket of its longest sequence, as if the
batch's contexts were drawn independently of all contexts that requests go through.

Nobody has published a formula for the cost of compiling.  The figures are what documents and recipes report,
each with its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from corepipe.models.registry import Architecture
from corepipe.neuron.chips.hardware import GIB, Instance
from corepipe.neuron.chips.native_plugin import (
    CHUNKS,
    DEFAULT_CHUNK,
    LONGEST_SINGLE_SHOT,
    batch_buckets,
    is_chunked,
    prefill_buckets,
)
from corepipe.neuron.chips.runtime_profile import Buckets, RuntimeProfile
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.memory import Footprint
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import Format
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.planning.buckets.choose import I64, LengthCounts, candidates, choices
from corepipe.planning.planner.vllm_nxdi import buckets as nxdi_buckets
from corepipe.planning.profiling.instructions import matmul_instructions
from corepipe.planning.profiling.profile import unpadded

STEP = 128
"""Unit of buckets: the native plugin's rule for contexts, and NxD Inference's first bucket."""

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
class Graphs:
    """The graphs that are compiled: tokens of prefill graphs, contexts of decode graphs, and sequences
    where there are graphs for several (else empty).  chunk: tokens of the pieces in which prompts are
    computed (None: whole)."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    sequences: tuple[int, ...] = ()
    chunk: int | None = None

    @property
    def number(self) -> int:
        """Number of graphs: NxD Inference has one per bucket, the native plugin one per pair in decode."""
        return len(self.prefill) + len(self.decode) * max(1, len(self.sequences))


@dataclass(frozen=True, slots=True)
class Padding:
    """The cost of padding for a workload: tokens of prompts and of decode steps' contexts, which are as
    long as the longest of their batch whatever the buckets, and the padding of each; seconds in all, and
    those that padding takes."""

    prompt_tokens: float
    prompt_waste: float
    decode_tokens: float
    decode_waste: float
    seconds: float
    wasted_seconds: float

    @property
    def waste(self) -> float:
        """Tokens of padding."""
        return self.prompt_waste + self.decode_waste


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


@dataclass(frozen=True, slots=True)
class BucketRequest:
    """A model on the cores of an instance, and requests: [n] tokens of prompts and of answers."""

    architecture: Architecture
    format: Format
    instance: Instance
    tensor: int
    profile: RuntimeProfile
    batch: int
    longest: int
    prompts: I64
    answers: I64
    graphs: int | None


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The default graphs and the chosen ones, for as many graphs; and the cost of compiling these."""

    asked: BucketRequest
    default: Graphs
    default_padding: Padding
    chosen: Graphs
    padding: Padding
    compiling: CompileWork
    warnings: tuple[str, ...]


def plan_buckets(asked: BucketRequest) -> BucketPlan:
    """Returns the graphs with which the requests take the least time, for a number of graphs; those of
    each kind are the ones that pad the fewest tokens.  Raises UserError for a model that cannot be divided
    so."""
    bench = _GraphTimes(asked)
    default = bench.default
    number = asked.graphs or default.number
    options = [default, *bench.options(number)]
    found = min(
        (graphs for graphs in options if graphs.number <= number), key=bench.seconds, default=options[-1]
    )
    return BucketPlan(
        asked, default, bench.padding(default), found, bench.padding(found), *bench.compiling(found)
    )


class _GraphTimes:
    """Times and padding of the requests with given graphs."""

    def __init__(self, asked: BucketRequest) -> None:
        self._asked = asked
        self._native = asked.profile.prefill_buckets is Buckets.CHUNKS
        self._prompts = LengthCounts.of(asked.prompts)
        contexts = _contexts(asked)
        self._longest_of_batch = contexts and contexts.largest_of(asked.batch)
        graph = asked.architecture.graph(asked.format, asked.longest)
        self._programs = compile_for_timing(graph, Placement(1, asked.tensor))
        self._cost = CostModel(self._programs, asked.instance, unpadded(asked.profile))

    @property
    def default(self) -> Graphs:
        """The graphs that the stack compiles by default."""
        asked = self._asked
        if not self._native:
            sizes = tuple(nxdi_buckets(asked.longest))
            return Graphs(sizes, sizes)
        chunk = min(DEFAULT_CHUNK, asked.longest)
        return self._native_graphs(prefill_buckets(asked.longest, chunk, asked.tensor), chunk)

    def options(self, number: int) -> Iterator[Graphs]:
        """Yields sets of at most `number` graphs, each kind the best for its number."""
        if self._native:
            yield from self._native_options(number)
            return
        prefill, decode = self._of_prompts(number), self._of_contexts(number)
        for count in range(1, number):
            yield Graphs(prefill[count - 1], decode[number - count - 1])

    def _native_options(self, number: int) -> Iterator[Graphs]:
        asked = self._asked
        chunks = [c for c in CHUNKS if is_chunked(asked.longest, c) and c % asked.tensor == 0]
        ways: list[tuple[tuple[int, ...], int]] = [((chunk,), chunk) for chunk in chunks]
        sequences = len(batch_buckets(asked.batch))
        if asked.longest <= LONGEST_SINGLE_SHOT:
            ways += [(sizes, asked.longest) for sizes in self._of_prompts(max(1, number - sequences))]
        for sizes, chunk in ways:
            contexts = max(1, (number - len(sizes)) // sequences)
            yield self._native_graphs(sizes, chunk, self._of_contexts(contexts)[-1])

    def _native_graphs(self, prefill: tuple[int, ...], chunk: int, decode: tuple[int, ...] = ()) -> Graphs:
        asked = self._asked
        pieces = chunk if is_chunked(asked.longest, chunk) else None
        return Graphs(prefill, decode or (asked.longest,), batch_buckets(asked.batch), pieces)

    def _of_prompts(self, most: int) -> list[tuple[int, ...]]:
        return choices(self._prompts, candidates(self._prompts, self._asked.longest, STEP), most)

    def _of_contexts(self, most: int) -> list[tuple[int, ...]]:
        contexts = self._longest_of_batch
        if contexts is None:
            return [(self._asked.longest,)] * most
        return choices(contexts, candidates(contexts, self._asked.longest, STEP), most)

    def seconds(self, graphs: Graphs) -> float:
        """Returns the seconds of all requests: prompts one after the other, decode steps of full batches."""
        return self._prefill_seconds(graphs) + self._decode_seconds(graphs)

    def padding(self, graphs: Graphs) -> Padding:
        """Returns the cost of padding for the requests."""
        prompts, contexts = self._prompts, self._longest_of_batch
        unit = graphs.chunk
        sizes = np.asarray(graphs.prefill if unit is None else _multiples(unit, prompts.longest))
        computed = float(prompts.padded(sizes) @ sizes)
        read = there = 0.0
        if contexts is not None:
            read = float(contexts.padded(graphs.decode) @ np.asarray(graphs.decode))
            there = contexts.tokens
        seconds = self.seconds(graphs)
        return Padding(
            prompts.tokens,
            computed - prompts.tokens,
            there,
            read - there,
            seconds,
            max(0.0, seconds - self._least_seconds()),
        )

    def compiling(self, graphs: Graphs) -> tuple[CompileWork, tuple[str, ...]]:
        """Returns the work of compiling the graphs, and warnings of known failures."""
        asked = self._asked
        weights = max(Footprint.of(program).weights for program in self._programs)
        workers = NATIVE_WORKERS if self._native else 1
        work = CompileWork(weights, asked.architecture.parameters, graphs.number, workers)
        steps = [self._prompt(0, graphs.prefill[-1]), StepShape.decode(asked.batch, graphs.decode[-1])]
        return work, tuple(_warnings(work, asked.instance, self._programs, steps))

    def _least_seconds(self) -> float:
        """Returns the seconds without padding: each prompt alone, batches at their mean longest context."""
        lengths, weights = self._prompts.lengths, self._prompts.weights
        each = (self._step_seconds(self._prompt(0, int(length))) for length in lengths)
        prompts = sum(weight * seconds for weight, seconds in zip(weights, each, strict=True))
        contexts = self._longest_of_batch
        if contexts is None:
            return float(prompts)
        mean = max(1, round(contexts.tokens / contexts.count))
        steps = contexts.count / self._asked.batch
        return float(prompts) + steps * self._step_seconds(StepShape.decode(self._asked.batch, mean))

    def _prefill_seconds(self, graphs: Graphs) -> float:
        unit = graphs.chunk
        if unit is None:
            each = [self._step_seconds(self._prompt(0, size)) for size in graphs.prefill]
            return float(self._prompts.padded(graphs.prefill) @ np.array(each))
        sizes = _multiples(unit, self._prompts.longest)
        pieces = [self._step_seconds(self._prompt(size - unit, unit)) for size in sizes]
        return float(self._prompts.padded(sizes) @ np.cumsum(pieces))

    def _decode_seconds(self, graphs: Graphs) -> float:
        if self._longest_of_batch is None:
            return 0.0
        batch = self._asked.batch
        each = [self._step_seconds(StepShape.decode(batch, size)) for size in graphs.decode]
        return float(self._longest_of_batch.padded(graphs.decode) @ np.array(each)) / batch

    def _prompt(self, start: int, count: int) -> StepShape:
        return StepShape.of([(start, count)], 1)

    def _step_seconds(self, shape: StepShape) -> float:
        return (
            self._asked.profile.host_seconds + self._cost.latency(shape) + self._cost.sampling_seconds(shape)
        )


def _contexts(asked: BucketRequest) -> LengthCounts | None:
    """Returns the contexts that decode steps read, one per token after the first; None for none."""
    changes = np.zeros(asked.longest + 2, np.int64)
    np.add.at(changes, asked.prompts + 1, 1)
    np.add.at(changes, asked.prompts + asked.answers, -1)
    counts = np.cumsum(changes)
    lengths = np.flatnonzero(counts)
    return LengthCounts(lengths, counts[lengths].astype(np.float64)) if len(lengths) else None


def _multiples(unit: int, longest: int) -> Sequence[int]:
    """Returns the multiples of `unit` up to the first that is at least `longest`."""
    return range(unit, -(-longest // unit) * unit + 1, unit)


def _warnings(
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
