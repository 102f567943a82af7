"""The reference executor: runs the Programs of one replica with `arithmetic`, slowly and plainly.

Every core has only its own shard of the weights, its own KV cache and its own activations; values reach
another core through `collectives.Links` alone.  A matrix is quantised whole and then cut, so that a shard has
the integers and scales of the unsplit matrix.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.neuron.axes import Axis, cut
from corepipe.neuron.compile.program import Program, WeightShard, cores_of_a_stage, of_heads
from corepipe.neuron.formats import DType, Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.inputs import SamplingBatch, StepInputs, StepOutput, mask_words
from corepipe.neuron.numerics import arithmetic
from corepipe.neuron.numerics.arithmetic import F32, I32, Matrix
from corepipe.neuron.numerics.attention import HeadVectors
from corepipe.neuron.numerics.collectives import Links
from corepipe.neuron.numerics.int4 import Int4, Int8, Stored, as_stored, matrices_of
from corepipe.neuron.ops import AllReduce, Op, SelectiveScan
from corepipe.neuron.ops.base import SequenceRows
from corepipe.neuron.values import RopeSpec, Value, WeightRole, WeightSpec

ReadTensor = Callable[[str], Stored]
"""Reads the whole weight of a WeightSpec's name; `read_tied` finds those that share a tensor."""

Sample = Callable[[F32, SamplingBatch, I32 | None], StepOutput]
"""Samples tokens from logits [R, V], for masked rows with their masks; its `seconds` are replaced."""


def read_tied(graph: Graph, read: ReadTensor) -> ReadTensor:
    """Adapts `read`, which takes names of a checkpoint's tensors, to names of the graph's weights."""
    return lambda name: read(graph.tied.get(name, name))


def bind_weight(shard: WeightShard, fmt: Format, weight: Stored) -> Matrix | Int4:
    """Returns a core's part of one weight, in its number format."""
    spec = shard.spec
    weight = as_stored(spec, fmt, weight)
    shape = weight.shape if isinstance(weight, np.ndarray) else weight.values.shape
    if shape != spec.shape:
        raise ValueError(f"{spec.name} has shape {shape}, not {spec.shape}")
    if isinstance(weight, Int4):
        return _four_bits(shard, weight)
    if isinstance(weight, Int8):
        own = _cut(weight.values.astype(np.float32), shard)
        return Matrix(own, np.asarray(cut(weight.scale, shard.axes[:1]), np.float32))
    if spec.role is WeightRole.VECTOR:
        return Matrix(_cut(weight, shard))
    dtype = fmt.weights if spec.role is WeightRole.MATRIX else fmt.compute
    return Matrix(arithmetic.round_to(_cut(weight, shard), dtype))


def bind_stack(shard: WeightShard, fmt: Format, weight: Stored) -> list[Matrix | Int4]:
    """Returns a core's part of each of its matrices of a stack."""
    spec = shard.spec
    one = WeightShard(replace(spec, axes=spec.axes[1:]), shard.axes[1:])
    whole = as_stored(spec, fmt, weight)
    (first, count), *_ = shard.axes[0].ranges
    own = islice(matrices_of(whole, spec.shape[0]), first, first + count)
    return [bind_weight(one, fmt, part) for part in own]


def _four_bits(shard: WeightShard, weight: Int4) -> Matrix | Int4:
    """Returns a part of a four-bit weight; in int8 where the cut goes through a group."""
    rows, columns = (axis.indices(size) for axis, size in zip(shard.axes, shard.spec.shape, strict=True))
    part = weight.part(rows, columns)
    if part is not None:
        return part
    values, scale = arithmetic.quantize_weight(_cut(weight.dense(), shard))
    return Matrix(values.astype(np.float32), scale)


def _cut(weight: F32, shard: WeightShard) -> F32:
    return np.asarray(cut(weight, shard.axes), np.float32)


@dataclass(slots=True)
class _Run:
    """One core during a batch: the next Op, the values made, collectives so far."""

    core: ReferenceCore
    inputs: StepInputs
    links: Links
    next: int = 0
    collectives: int = 0
    values: dict[int, F32] = field(default_factory=dict)

    @property
    def format(self) -> Format:
        return self.core.program.format

    @property
    def done(self) -> bool:
        return self.next == len(self.core.program.ops)

    def advance(self) -> bool:
        """Runs Ops until one must wait for another core; returns True if any ran."""
        start, ops = self.next, self.core.program.ops
        while self.next < len(ops):
            out = ops[self.next].reference(self)
            if out is None:
                break
            self.values[ops[self.next].out.id] = out
            self.next += 1
        return self.next > start

    def __getitem__(self, value: Value) -> F32:
        return self.values[value.id]

    def weight(self, spec: WeightSpec) -> F32:
        return np.asarray(self.core.weights[spec.name].values, np.float32)

    def matrix(self, spec: WeightSpec) -> Matrix | Int4:
        return self.core.weights[spec.name]

    def matrices(self, spec: WeightSpec) -> Sequence[Matrix | Int4]:
        return self.core.stacks[spec.name]

    def rotation(self, rope: RopeSpec) -> tuple[F32, F32]:
        cos, sin = self.core.tables(rope)
        return cos[self.inputs.positions], sin[self.inputs.positions]

    def of_heads(self, numbers: Sequence[float], axis: Axis) -> F32:
        return of_heads(numbers, axis, self.core.program)

    def cache(self, layer: int) -> tuple[HeadVectors, HeadVectors]:
        return self.core.keys[layer], self.core.values[layer]

    def slots(self, table: I32, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        size = self.core.block_size
        blocks: npt.NDArray[np.integer] = table[positions // size]
        found: npt.NDArray[np.integer] = blocks * size + positions % size
        return found

    def state(self, op: Op, shape: tuple[int, ...]) -> F32:
        core = self.core
        return core.states.setdefault(op.out.id, np.zeros((core.blocks, *shape), np.float32))

    def turns(self) -> Iterator[SequenceRows]:
        inputs, size = self.inputs, self.core.block_size
        for table, begin, end in zip(
            inputs.block_tables, inputs.sequence_starts[:-1], inputs.sequence_starts[1:], strict=True
        ):
            first, last = inputs.positions[begin], inputs.positions[end - 1]
            before = None if first == 0 else int(table[(first - 1) // size])
            yield SequenceRows(slice(int(begin), int(end)), before, int(table[last // size]))

    def exchange(self, x: Value, *, stage: bool = False) -> list[F32] | None:
        program, cores = self.core.program, self.core.cores
        group = program.stage_cores(cores) if stage else program.group(cores)
        parts = self.links.exchange(group, self.collectives, program.core, self[x])
        self.collectives += parts is not None
        return parts

    def send(self, peer: int, x: F32) -> None:
        self.links.send(self.core.program.core, peer, x)

    def receive(self, peer: int) -> F32 | None:
        return self.links.receive(peer, self.core.program.core)


class ReferenceCore:
    """One NeuronCore: its Program, its weights and its KV cache of `blocks` blocks.

    Raises UserError, by name, for the first Op that is not computed.
    """

    def __init__(
        self,
        program: Program,
        read: ReadTensor,
        blocks: int,
        block_size: int,
        cores: int,
        *,
        int8_cache: bool = False,
    ) -> None:
        program.require_computed()
        self.program = program
        self.cores = cores  # per stage
        fmt, shards = program.format, program.shards.items()
        self.weights = {
            name: bind_weight(shard, fmt, read(name)) for name, shard in shards if not shard.spec.is_stack
        }
        self.stacks = {
            name: bind_stack(shard, fmt, read(name)) for name, shard in shards if shard.spec.is_stack
        }
        self.block_size = block_size
        self.blocks = blocks
        self.states: dict[int, F32] = {}  # by the id of the Op's result
        positions = blocks * block_size
        self.keys, self.values = (_caches(program, positions, int8=int8_cache) for _ in range(2))
        self._rope: dict[RopeSpec, tuple[F32, F32]] = {}

    def tables(self, rope: RopeSpec) -> tuple[F32, F32]:
        """Returns cos and sin of all positions."""
        if rope not in self._rope:
            self._rope[rope] = arithmetic.rope_tables(rope, self.program.max_positions)
        return self._rope[rope]


def _caches(program: Program, positions: int, *, int8: bool) -> dict[int, HeadVectors]:
    """Returns a cache of zeros for each layer with attention."""
    kept = ((op.layer, op.state) for op in program.ops if op.state is not None and op.state.per_token)
    return {layer: HeadVectors.zeros(positions, *state.keys, int8=int8) for layer, state in kept}


class ReferenceExecutor:
    """Implements `inputs.Executor` for one replica; a batch runs when it is submitted, and masked batches are
    sampled when their masks arrive.

    programs: the compiler's, index stage * cores of a stage + rank.  read: reads the whole weight of a name
    in the Programs (see `read_tied`).  Each core's cache has `blocks` blocks of `block_size` positions, in
    the compute format or, with `int8_cache`, in int8.
    sample: needed for batches with sampling only (ValueError without it).
    """

    def __init__(
        self,
        programs: Sequence[Program],
        read: ReadTensor,
        blocks: int,
        block_size: int,
        sample: Sample | None = None,
        *,
        int8_cache: bool = False,
    ) -> None:
        cores = cores_of_a_stage(programs)
        self.cores = [
            ReferenceCore(p, read, blocks, block_size, cores, int8_cache=int8_cache) for p in programs
        ]
        self._sample = sample
        self._undrawn: dict[int, tuple[F32, SamplingBatch, float]] = {}
        self._outputs: dict[int, StepOutput] = {}
        self._next = 0

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        start = time.perf_counter()
        values = self.values(inputs)
        ticket, self._next = self._next, self._next + 1
        if sampling is not None and sampling.masked.max(initial=-1) >= 0:
            self._undrawn[ticket] = (values, sampling, time.perf_counter() - start)
            return ticket
        output = _unsampled(values) if sampling is None else self._draw(values, sampling)
        self._outputs[ticket] = replace(output, seconds=time.perf_counter() - start)
        return ticket

    def give_masks(self, ticket: int, masks: I32) -> None:
        """Samples a masked batch (see `inputs.Executor`).  Raises KeyError for a batch that needs no masks or
        has them, and ValueError for another shape."""
        logits, sampling, seconds = self._undrawn.pop(ticket)
        wanted = (int(sampling.masked.max()) + 1, mask_words(logits.shape[1]))
        if masks.shape != wanted:
            raise ValueError(f"masks must be {wanted}, not {masks.shape}")
        self._outputs[ticket] = replace(self._draw(logits, sampling, masks), seconds=seconds)

    def wait(self, ticket: int) -> StepOutput:
        """Returns the batch's result.  Raises KeyError for a ticket that is unknown, was redeemed, or lacks
        masks."""
        return self._outputs.pop(ticket)

    def close(self) -> None:
        self._undrawn.clear()
        self._outputs.clear()

    def values(self, inputs: StepInputs) -> F32:
        """Runs a batch on all cores; returns the last core's first output [R or M, width].

        Raises RuntimeError where every unfinished core waits for another.
        """
        links = Links()
        runs = [_Run(core, inputs, links) for core in self.cores]
        while any(run.advance() for run in runs):
            pass
        if not all(run.done for run in runs):
            raise RuntimeError("the Programs wait for each other")
        return runs[-1][self.cores[-1].program.outputs[0].value]

    def _draw(self, logits: F32, sampling: SamplingBatch, masks: I32 | None = None) -> StepOutput:
        if self._sample is None:
            raise ValueError("this executor was made without a sampler")
        return self._sample(logits, sampling, masks)


def _unsampled(values: F32) -> StepOutput:
    rows = np.empty(0, np.float32)
    empty = np.empty((0, 0), np.float32)
    return StepOutput(rows.astype(np.int32), rows, empty.astype(np.int32), empty, values, 0.0)


TENSOR_PARALLEL_UNITS = 4.0
"""Units, relative to the largest logit, that one AllReduce may move the logits by.

Fitted: over 2,000 random models of 1 to 8 layers the largest move was 0.8 of the bound, the median 0.1 (0.2
in W8A8), and neither grew with the number of layers.
"""

RECURRENT_UNITS = 16.0
"""The same for a model with scans.

A scan's result is a sum over states that may cancel; the gate makes it smaller still, and the next norm
scales the remainder to the size of all rows, with its errors.  Fitted: over 900 prompts of 60 tokens through
Mamba-2 and Bamba in five formats the largest move was 0.7 of the bound, the median row's 0.07 (fp32, W8A8).
"""


def tensor_parallel_bound(programs: Sequence[Program], logits: F32) -> float:
    """Returns how far a tensor-parallel run's logits may be from the unsplit run's `logits`, absolutely.

    `programs` are those of the split run.  Every AllReduce disturbs the residual stream by about one unit,
    and the head and the final rounding count as one more; disturbances are independent, so they grow with the
    square root of their number.  The unit is that of the compute format's last place (two for fp32, where the
    order of a sum counts as much as its rounding).  In W8A8 a disturbed activation may be rounded to the next
    of 127 steps, and shards that cut through a group of 64 have other scales: there the unit is 1 / 127.  0
    without a split.
    """
    ops = [op for p in programs if p.rank == 0 for op in p.ops]
    reduces = sum(isinstance(op, AllReduce) for op in ops)
    if not reduces:
        return 0.0
    units = RECURRENT_UNITS if any(isinstance(op, SelectiveScan) for op in ops) else TENSOR_PARALLEL_UNITS
    return units * _unit(programs[0].format) * sqrt(reduces + 1) * float(np.abs(logits).max(initial=0.0))


def _unit(fmt: Format) -> float:
    unit = arithmetic.unit(fmt.compute)
    if fmt.compute is DType.FP32:
        unit *= 2
    return max(unit, 1 / arithmetic.INT8_MAX) if fmt.activations is DType.INT8 else unit
