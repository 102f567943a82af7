"""The reference executor: runs the Programs of one replica with `numerics`, slowly and plainly.

Every core has only its own shard of the weights, its own KV cache and its own activations; values reach
another core through `collectives.Links` alone.  A matrix is quantised whole and then cut, so that a shard
has the integers and scales of the unsplit matrix.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod

import numpy as np
import numpy.typing as npt

from corepipe.neuron import numerics
from corepipe.neuron.collectives import Links, all_gather, all_reduce
from corepipe.neuron.graph import DType, Format, Graph, Op, RopeSpec, Value, WeightRole, WeightSpec
from corepipe.neuron.numerics import F32, Matrix, Scores, own_slopes
from corepipe.neuron.ops import (
    Activation,
    Add,
    AddEmbedding,
    AllGather,
    AllReduce,
    Attention,
    Embed,
    GatedActivation,
    LayerNorm,
    Linear,
    Receive,
    RMSNorm,
    Rope,
    Scale,
    SelectRows,
    Send,
)
from corepipe.neuron.program import Program, SamplingBatch, StepInputs, StepOutput, WeightShard

ReadTensor = Callable[[str], F32]
"""The whole weight of a WeightSpec's name, fp32; `read_tied` finds those that share a tensor."""

Sample = Callable[[F32, SamplingBatch], StepOutput]
"""Draws tokens from logits [R, V]; its `seconds` are replaced."""


def read_tied(graph: Graph, read: ReadTensor) -> ReadTensor:
    """`read` of a checkpoint's tensors, for names of the graph's weights."""
    return lambda name: read(graph.tied.get(name, name))


def bind_weight(shard: WeightShard, fmt: Format, weight: F32) -> Matrix:
    """What a core stores of one weight, in its number format."""
    spec = shard.spec
    if weight.shape != spec.shape:
        raise ValueError(f"{spec.name} has shape {weight.shape}, not {spec.shape}")
    if spec.role is WeightRole.MATRIX and fmt.weights is DType.INT8:
        quantized, scale = numerics.quantize_weight(weight)
        own = _cut(quantized.astype(np.float32), shard)
        return Matrix(own, np.asarray(numerics.cut(scale, shard.axes[:1]), np.float32))
    if spec.role is WeightRole.VECTOR:
        return Matrix(_cut(weight, shard))
    dtype = fmt.weights if spec.role is WeightRole.MATRIX else fmt.compute
    return Matrix(numerics.round_to(_cut(weight, shard), dtype))


def _cut(weight: F32, shard: WeightShard) -> F32:
    return np.asarray(numerics.cut(weight, shard.axes), np.float32)


@dataclass(slots=True)
class _Step:
    """One core's progress through a batch: the next Op, the values made, collectives so far."""

    inputs: StepInputs
    links: Links
    next: int = 0
    collectives: int = 0
    values: dict[int, F32] = field(default_factory=dict)

    def __getitem__(self, value: Value) -> F32:
        return self.values[value.id]


class ReferenceCore:
    """One NeuronCore: its Program, its weights and its KV cache of `blocks` blocks."""

    def __init__(self, program: Program, read: ReadTensor, blocks: int, block_size: int, tensor: int) -> None:
        numerics.require_computed(program)
        self.program = program
        self._tensor = tensor
        self._compute = program.format.compute
        self.weights = {
            name: bind_weight(shard, program.format, read(name)) for name, shard in program.shards.items()
        }
        self._block_size = block_size
        self.keys, self.values = (_caches(program, blocks * block_size) for _ in range(2))
        self._rope: dict[RopeSpec, tuple[F32, F32]] = {}

    def advance(self, step: _Step) -> bool:
        """Runs Ops until one must wait for another core; True when any ran."""
        start = step.next
        while step.next < len(self.program.ops):
            op = self.program.ops[step.next]
            out = self._run(op, step)
            if out is None:
                break
            step.values[op.out.id] = out
            step.next += 1
        return step.next > start

    @singledispatchmethod
    def _run(self, op: Op, _step: _Step) -> F32 | None:
        """The Op's result [rows, width], or None while it must wait."""
        raise TypeError(f"the reference twin has no {type(op).__name__}")

    @_run.register
    def _(self, op: Embed, step: _Step) -> F32 | None:
        return self._weight(op.table)[step.inputs.tokens]

    @_run.register
    def _(self, op: AddEmbedding, step: _Step) -> F32 | None:
        rows = self._weight(op.table)[step.inputs.positions + op.offset]
        return numerics.add(step[op.x], rows, self._compute)

    @_run.register
    def _(self, op: LayerNorm, step: _Step) -> F32 | None:
        gain, bias = (self._weight(spec) if spec else None for spec in (op.gain, op.bias))
        return numerics.layer_norm(step[op.x], gain, bias, op.eps, self._compute)

    @_run.register
    def _(self, op: RMSNorm, step: _Step) -> F32 | None:
        return numerics.rms_norm(step[op.x], self._weight(op.gain), op.eps, self._compute)

    @_run.register
    def _(self, op: Linear, step: _Step) -> F32 | None:
        bias = self._weight(op.bias) if op.bias else None
        return numerics.linear(step[op.x], self.weights[op.weight.name], bias, self.program.format)

    @_run.register
    def _(self, op: Rope, step: _Step) -> F32 | None:
        cos, sin = (table[step.inputs.positions] for table in self._tables(op.rope))
        return numerics.rotate(step[op.x], op.head_dim, cos, sin, self._compute)

    @_run.register
    def _(self, op: Attention, step: _Step) -> F32 | None:
        heads, inputs = op.heads, step.inputs
        keys, values = self.keys[op.layer], self.values[op.layer]
        q = step[op.q].reshape(-1, heads.heads, heads.head_dim)
        new_keys, new_values = (step[x].reshape(-1, *keys.shape[1:]) for x in (op.k, op.v))
        kind = Scores(op.scale, op.window, op.softcap, own_slopes(op, self.program))
        out = np.empty_like(step[op.q])
        for s, table in enumerate(inputs.block_tables):
            rows = slice(inputs.sequence_starts[s], inputs.sequence_starts[s + 1])
            positions = inputs.positions[rows]
            own = self._slots(table, positions)
            keys[own], values[own] = new_keys[rows], new_values[rows]
            seen = self._slots(table, np.arange(positions.max(initial=-1) + 1))
            out[rows] = numerics.attend(q[rows], keys[seen], values[seen], positions, kind, self._compute)
        return out

    @_run.register
    def _(self, op: GatedActivation, step: _Step) -> F32 | None:
        return numerics.gated(step[op.gate], step[op.up], op.function, self._compute)

    @_run.register
    def _(self, op: Activation, step: _Step) -> F32 | None:
        return numerics.activation(step[op.x], op.function, self._compute)

    @_run.register
    def _(self, op: Scale, step: _Step) -> F32 | None:
        return numerics.scale(step[op.x], op.factor, self._compute)

    @_run.register
    def _(self, op: Add, step: _Step) -> F32 | None:
        return numerics.add(step[op.a], step[op.b], self._compute)

    @_run.register
    def _(self, op: SelectRows, step: _Step) -> F32 | None:
        return step[op.x][step.inputs.logit_rows]

    @_run.register
    def _(self, op: AllReduce, step: _Step) -> F32 | None:
        parts = self._exchange(op.x, step)
        return None if parts is None else all_reduce(parts, self._compute)

    @_run.register
    def _(self, op: AllGather, step: _Step) -> F32 | None:
        parts = self._exchange(op.x, step)
        return None if parts is None else all_gather(parts, op.widths)

    @_run.register
    def _(self, op: Send, step: _Step) -> F32 | None:
        step.links.send(self.program.core, op.peer, step[op.x])
        return step[op.x]

    @_run.register
    def _(self, op: Receive, step: _Step) -> F32 | None:
        return step.links.receive(op.peer, self.program.core)

    def _exchange(self, x: Value, step: _Step) -> list[F32] | None:
        program = self.program
        parts = step.links.exchange(program.stage, step.collectives, program.rank, step[x], self._tensor)
        step.collectives += parts is not None
        return parts

    def _weight(self, spec: WeightSpec) -> F32:
        return self.weights[spec.name].values

    def _tables(self, rope: RopeSpec) -> tuple[F32, F32]:
        if rope not in self._rope:
            self._rope[rope] = numerics.rope_tables(rope, self.program.max_positions)
        return self._rope[rope]

    def _slots(
        self, table: npt.NDArray[np.int32], positions: npt.NDArray[np.integer]
    ) -> npt.NDArray[np.integer]:
        """Where the cache keeps these positions of a sequence."""
        blocks: npt.NDArray[np.integer] = table[positions // self._block_size]
        return blocks * self._block_size + positions % self._block_size


def _caches(program: Program, slots: int) -> dict[int, F32]:
    """Zeros [slots, key/value heads, head size] for each layer with attention."""
    layouts = ((op.layer, op.head_layout) for op in program.ops if op.state is not None)
    return {
        layer: np.zeros((slots, layout.kv_heads, layout.head_dim), np.float32)
        for layer, layout in layouts
        if layout is not None
    }


class ReferenceExecutor:
    """Implements `program.Executor` for one replica; a batch runs when it is submitted.

    programs: the compiler's, index stage * tensor + rank.  read: the whole weight of a name in the
    Programs (see `read_tied`).  Each core's cache has `blocks` blocks of `block_size` positions.
    sample: needed for batches with sampling only (ValueError without it).
    """

    def __init__(
        self,
        programs: Sequence[Program],
        read: ReadTensor,
        blocks: int,
        block_size: int,
        sample: Sample | None = None,
    ) -> None:
        tensor = max(program.rank for program in programs) + 1
        self.cores = [ReferenceCore(p, read, blocks, block_size, tensor) for p in programs]
        self._sample = sample
        self._outputs: dict[int, StepOutput] = {}
        self._next = 0

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        start = time.perf_counter()
        logits = self.logits(inputs)
        output = _unsampled(logits) if sampling is None else self._draw(logits, sampling)
        ticket, self._next = self._next, self._next + 1
        self._outputs[ticket] = replace(output, seconds=time.perf_counter() - start)
        return ticket

    def wait(self, ticket: int) -> StepOutput:
        """The batch's result.  Raises KeyError for a ticket that is unknown or was redeemed."""
        return self._outputs.pop(ticket)

    def close(self) -> None:
        self._outputs.clear()

    def logits(self, inputs: StepInputs) -> F32:
        """Runs a batch on all cores; logits [R, vocab] of the last core.

        Raises RuntimeError where every unfinished core waits for another.
        """
        links = Links()
        steps = [_Step(inputs, links) for _ in self.cores]
        while any(core.advance(step) for core, step in zip(self.cores, steps, strict=True)):
            pass
        if any(s.next < len(core.program.ops) for core, s in zip(self.cores, steps, strict=True)):
            raise RuntimeError("the Programs wait for each other")
        return steps[-1][self.cores[-1].program.outputs[0].value]

    def _draw(self, logits: F32, sampling: SamplingBatch) -> StepOutput:
        if self._sample is None:
            raise ValueError("this executor was made without a sampler")
        return self._sample(logits, sampling)


def _unsampled(logits: F32) -> StepOutput:
    rows = np.empty(0, np.float32)
    empty = np.empty((0, 0), np.float32)
    return StepOutput(rows.astype(np.int32), rows, empty.astype(np.int32), empty, logits, 0.0)
