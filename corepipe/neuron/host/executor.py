"""The native executor: binds a replica's Programs and their weights to the kernels, and runs batches.

Each core gets its own activations, its own KV cache and only its own shard of the weights; a shard that is
made of whole panels is a view of the packed matrix, any other is packed anew for the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatchmethod
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from corepipe.kernels import native, packing
from corepipe.kernels.packing import PANEL, DenseKind, Kind
from corepipe.neuron.axes import INT8_GROUP, Axis, AxisShard, cut
from corepipe.neuron.compile.layer_groups import KEY_BLOCK, ONE_GROUP, LayerGroups, places, slots
from corepipe.neuron.compile.program import Program, cores_of_a_stage, of_heads
from corepipe.neuron.formats import DType
from corepipe.neuron.host import packed_int4
from corepipe.neuron.host.adapters import AdapterTable
from corepipe.neuron.host.lowering import (
    FusedAttention,
    FusedLinear,
    PatchedLinear,
    Plain,
    Step,
    assign_buffers,
    lower,
)
from corepipe.neuron.host.weights import PackedTensor
from corepipe.neuron.numerics.arithmetic import F32, quantize_weight, rope_tables
from corepipe.neuron.numerics.attention import Tempering, distance_buckets
from corepipe.neuron.ops import Attention, LayerNorm, Linear, Op, RMSNorm
from corepipe.neuron.step import SamplingBatch, StepInputs, StepOutput
from corepipe.neuron.values import RopeSpec, Value, WeightSpec

if TYPE_CHECKING:  # the compiled module may be missing where nothing is executed
    from corepipe.kernels import _native


class Weights(Protocol):
    """Packed tensors by name."""

    def __getitem__(self, name: str) -> PackedTensor: ...


class NativeCore:
    """One emulated NeuronCore on the host: its shard of weights, its KV cache, its native Program."""

    def __init__(  # noqa: PLR0913 -- the parts of a core
        self,
        program: Program,
        weights: Weights,
        blocks: int,
        block_size: int,
        max_rows: int,
        cores: int,
        layer_groups: LayerGroups = ONE_GROUP,
        *,
        int8_cache: bool = False,
        states: int | None = None,
    ) -> None:
        program.require_computed()
        self.program = program
        self.linears: list[str] = []  # the weights of the native ones, in their order
        self._weights = weights
        self._cores = cores  # per stage
        self._layer_groups = layer_groups
        self._tables: dict[RopeSpec, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]] = {}
        self._tempers: dict[Tempering, F32] = {}
        steps = lower(program.ops, lambda spec: weights[spec.name].kind)
        widths, self._buffers = assign_buffers(steps)
        compute = program.format.compute
        self.native = native().Program(widths, max_rows, compute is DType.BF16)
        self.caches = _caches(program, blocks, block_size, layer_groups, int8=int8_cache)
        self._states = _states(program, blocks if states is None else states, block_size, layer_groups.states)
        for step in steps:
            self._emit(step)

    def buffer(self, value: Value) -> int:
        """Returns the index of the activation buffer that holds `value`."""
        return self._buffers[value.id]

    @singledispatchmethod
    def _emit(self, step: Step) -> None:
        raise TypeError(f"no lowering for {type(step).__name__}")

    @_emit.register
    def _(self, step: FusedLinear) -> None:
        segments = [
            (self._matrix(op.weight), self._bias(op), self.buffer(step.out or op.out)) for op in step.linears
        ]
        norm = step.norm
        self.linears += [op.weight.name for op in step.linears]
        self.native.linear(
            self.buffer(step.x),
            segments,
            norm=(self.vector(norm.gain), norm.eps) if isinstance(norm, RMSNorm) else None,
            layer_norm=norm.bound(self) if isinstance(norm, LayerNorm) else None,
            function=None if step.function is None else step.function.value,
            glu=step.gated,
            factor=step.factor,
            residual=None if step.residual is None else self.buffer(step.residual),
            outer=None if step.outer is None else self.buffer(step.outer),
        )

    @_emit.register
    def _(self, step: FusedAttention) -> None:
        op = step.op
        q_norm, k_norm = (
            (self.vector(n.gain), n.eps) if n is not None else None for n in (step.q_norm, step.k_norm)
        )
        self.native.attention(
            self.buffer(step.q),
            self.buffer(step.k),
            self.buffer(op.v),
            self.buffer(step.out),
            *self.caches.get(op.layer, (None, 0)),
            op.heads.heads,
            op.scale,
            window=op.window,
            rope=self.rope(step.rope) if step.rope else None,
            q_norm=q_norm,
            k_norm=k_norm,
            softcap=op.softcap,
            slopes=None if op.alibi is None else self.of_heads(op.alibi, op.q.axis),
            causal=op.causal,
            biases=None if op.distance_bias is None else self._biases(op, op.distance_bias),
            sinks=None if op.sinks is None else self.vector(op.sinks)[0],
            chunked=op.chunked,
            head_norm=None if op.head_eps is None else (np.ones(op.heads.head_dim, np.float32), op.head_eps),
            tempers=None if op.tempering is None else self._factors(op.tempering),
            table=self._layer_groups[op.layer],
        )

    @_emit.register
    def _(self, step: PatchedLinear) -> None:
        op, patches, out = step.op, self.buffer(step.patches), self.buffer(step.op.out)
        self.native.patches(patches)
        self.linears.append(op.weight.name)
        self.native.linear(patches, [(self._matrix(op.weight), self.vector(op.bias), out)])
        self.native.first_rows(out, self.vector(op.first))

    @_emit.register
    def _(self, step: Plain) -> None:
        step.op.emit(self.native, self)

    def state(self, op: Op) -> tuple[_native.StateCache, int]:
        """Returns the cache and the offset where an Op keeps its part of each sequence's state."""
        return self._states[op.out.id]

    @property
    def group(self) -> range:
        """The cores of the tensor group."""
        return self.program.group(self._cores)

    @property
    def stage(self) -> range:
        """The cores of the stage."""
        return self.program.stage_cores(self._cores)

    def rows(self, spec: WeightSpec) -> npt.NDArray[Any]:
        """Returns a table as it is stored."""
        return self._weights[spec.name].rows()

    def rope(self, rope: RopeSpec) -> tuple[F32, F32]:
        """Returns cos and sin of all positions."""
        if rope not in self._tables:
            self._tables[rope] = rope_tables(rope, self.program.max_positions)
        return self._tables[rope]

    def _factors(self, tempering: Tempering) -> F32:
        """Returns the tempering factors of all positions."""
        if tempering not in self._tempers:
            self._tempers[tempering] = tempering.factors(np.arange(self.program.max_positions))
        return self._tempers[tempering]

    def of_heads(self, numbers: Sequence[float], axis: Axis) -> F32:
        """Selects the numbers of the core's heads from one number per head of the model."""
        return of_heads(numbers, axis, self.program)

    def _biases(self, op: Attention, spec: WeightSpec) -> F32:
        """Returns the biases of each head [heads * (2 reach + 1)], by how far a key is ahead, from -reach on.

        reach is the largest difference of positions plus a block of keys.
        """
        reach = self.program.max_positions - 1 + KEY_BLOCK
        table = self.vector(spec)
        if not spec.axes[1].is_cut:
            table = np.stack([self.of_heads(row.tolist(), op.q.axis) for row in table])
        buckets = distance_buckets(np.arange(-reach, reach + 1), len(table))
        return np.ascontiguousarray(table[buckets].T).reshape(-1)

    def _bias(self, op: Linear) -> npt.NDArray[np.float32] | None:
        return self.vector(op.bias) if op.bias else None

    def vector(self, spec: WeightSpec) -> npt.NDArray[np.float32]:
        """Returns the core's part of a vector."""
        rows = np.asarray(self._weights[spec.name].rows(), np.float32)
        return np.ascontiguousarray(cut(rows, self.program.shards[spec.name].axes))

    def matrices(self, spec: WeightSpec) -> list[_native.Matrix]:
        """Returns the core's part of each of its matrices of a stack."""
        own, *axes = self.program.shards[spec.name].axes
        (first, count), *_ = own.ranges
        matrices = islice(self._weights[spec.name].matrices(), first, first + count)
        return [bind_matrix(tensor, *axes) for tensor in matrices]

    def latents(self, op: Op) -> tuple[_native.KVCache, int, int]:
        """Returns the cache of an Op's layer, the layer's number in it, and the number of its block table."""
        return *self.caches[op.layer], self._layer_groups[op.layer]

    def of_each_head(self, spec: WeightSpec, heads: int, *, turned: bool) -> list[_native.Matrix]:
        """Returns the core's part of a matrix [heads * n, k] as one matrix per head, in the compute format:
        [n, k], or [k, n] if `turned`."""
        kind: DenseKind = "bf16" if self.program.format.compute is DType.BF16 else "fp32"
        whole = cut(dense(self._weights[spec.name]), self.program.shards[spec.name].axes)
        parts = (part.T if turned else part for part in np.split(whole, heads))
        return [
            native().Matrix(kind, packing.pack(kind, np.ascontiguousarray(part)), None, *part.shape)
            for part in parts
        ]

    def _matrix(self, spec: WeightSpec) -> _native.Matrix:
        return bind_matrix(self._weights[spec.name], *self.program.shards[spec.name].axes)


def _caches(
    program: Program, blocks: int, block_size: int, groups: LayerGroups, *, int8: bool
) -> dict[int, tuple[_native.KVCache, int]]:
    """Returns for each layer with attention the cache of its heads, and the layer's number in it.

    Layers whose key/value heads or latents are alike share a cache; each of several groups has its blocks in
    it.
    """
    compute = program.format.compute.value
    found: dict[int, tuple[_native.KVCache, int]] = {}
    for heads, layers in places(program, groups).items():
        count, size, shared = heads
        cache = native().KVCache(slots(layers), blocks, block_size, count, size, compute, int8, shared)
        found.update((layer, (cache, place.slot)) for layer, place in layers.items())
    return found


def _states(
    program: Program, blocks: int, block_size: int, table: int
) -> dict[int, tuple[_native.StateCache, int]]:
    """Returns for each recurrent Op, by the id of its result: a cache, and the offset of its part in a
    block."""
    kept = {op.out.id: op.state.per_sequence for op in program.ops if op.state is not None}
    recurrent = {made: size for made, size in kept.items() if size}
    if not recurrent:
        return {}
    *starts, total = accumulate(recurrent.values(), initial=0)
    cache = native().StateCache(blocks, block_size, total, table)
    return {made: (cache, start) for made, start in zip(recurrent, starts, strict=True)}


def bind_matrix(tensor: PackedTensor, n_axis: AxisShard, k_axis: AxisShard) -> _native.Matrix:
    """Returns a core's part of a packed matrix [n, k]: a view where panels allow it, else a packed copy."""
    n, k = tensor.shape
    if _aligned(n_axis, n, PANEL) and _aligned(k_axis, k, INT8_GROUP):
        matrix: _native.Matrix = native().Matrix(tensor.kind, tensor.data, tensor.scale, n, k)
        whole = (n_axis.width, k_axis.width) == (n, k)
        return matrix if whole else matrix.view(*n_axis.ranges[0], *k_axis.ranges[0])
    kind, data, scale = _cut_copy(tensor, n_axis, k_axis)
    part: _native.Matrix = native().Matrix(kind, data, scale, n_axis.width, k_axis.width)
    return part


def dense(tensor: PackedTensor) -> F32:
    """Returns the numbers that a packed matrix [n, k] stands for."""
    for kind in packing.INT4_KINDS:
        if kind == tensor.kind:
            return packed_int4.unpack(kind, tensor.data, *tensor.shape).dense()
    values = packing.unpack(tensor.kind, tensor.data, *tensor.shape).astype(np.float32)
    return values if tensor.scale is None else values * tensor.scale[:, None]


def _cut_copy(
    tensor: PackedTensor, n_axis: AxisShard, k_axis: AxisShard
) -> tuple[Kind, npt.NDArray[np.uint8], npt.NDArray[np.float32] | None]:
    """Packs a part anew: four-bit weights become int8 where the cut goes through a group."""
    n, k = tensor.shape
    for kind in packing.INT4_KINDS:
        if kind == tensor.kind:
            whole = packed_int4.unpack(kind, tensor.data, n, k)
            part = whole.part(n_axis.indices(n), k_axis.indices(k))
            if part is not None:
                return kind, packed_int4.pack(part), None
            values, own = quantize_weight(cut(whole.dense(), (n_axis, k_axis)))
            return "int8", packing.pack("int8", values), own
    dense = packing.unpack(tensor.kind, tensor.data, n, k)
    scale = None if tensor.scale is None else cut(tensor.scale, (n_axis,))
    return tensor.kind, packing.pack(tensor.kind, cut(dense, (n_axis, k_axis))), scale


def _aligned(axis: AxisShard, size: int, step: int) -> bool:
    """Returns True if the shard is one range that starts and ends at multiples of `step` (or at the end)."""
    if not axis.contiguous:
        return False
    start, length = axis.ranges[0]
    return start % step == 0 and (length % step == 0 or start + length == size)


class NativeExecutor:
    """Runs the Programs of one replica on the host's threads; implements `inputs.Executor` and
    `inputs.ChainingExecutor`.

    `blocks` blocks of `block_size` positions, each for the layers of one group, hold the KV cache of each
    core, if Programs keep any, in the compute format or, with `int8_cache`, in int8; a batch has at most
    `max_rows` rows, and a block table for each group.  `states`: blocks of states, for which a sequence has a
    separate block table (None: states are in the other blocks).
    Executors that share a `pool` run their batches one after the other, in the order of submission.
    `same_bits`: results have the same bits on every CPU (docs/kernels.md).  `adapters`: of rows, by slot.
    """

    def __init__(  # noqa: PLR0913 -- the parts of a replica
        self,
        programs: Sequence[Program],
        weights: Weights,
        blocks: int,
        block_size: int,
        max_rows: int,
        pool: _native.Pool,
        *,
        same_bits: bool = False,
        layer_groups: LayerGroups = ONE_GROUP,
        int8_cache: bool = False,
        states: int | None = None,
    ) -> None:
        self._pool = pool
        last = programs[-1]
        cores = cores_of_a_stage(programs)
        self.cores = [
            NativeCore(
                program,
                weights,
                blocks,
                block_size,
                max_rows,
                cores,
                layer_groups,
                int8_cache=int8_cache,
                states=states,
            )
            for program in programs
        ]
        result = last.outputs[0].value
        self._native = native().Executor(
            pool,
            [core.native for core in self.cores],
            self.cores[-1].buffer(result),
            result.width,
            same_bits=same_bits,
        )

        self.adapters = AdapterTable(self._native, self.cores)

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        return int(
            self._native.submit(
                inputs.tokens,
                inputs.positions,
                inputs.sequence_starts,
                inputs.block_tables,
                inputs.logit_rows,
                sampling,
                inputs.types,
                inputs.patches,
                inputs.adapters,
            )
        )

    def give_masks(self, ticket: int, masks: npt.NDArray[np.int32]) -> None:
        self._native.give_masks(ticket, masks)

    def go_on(self, ticket: int, ends: npt.NDArray[np.int32]) -> int:
        return int(self._native.go_on(ticket, ends))

    def adopt(self, ticket: int) -> bool:
        return bool(self._native.adopt(ticket))

    def drop(self, ticket: int) -> None:
        self._native.drop(ticket)

    def heed(self, files: Sequence[int]) -> None:
        self._native.heed(files)

    def wait(self, ticket: int) -> StepOutput:
        result = self._native.wait(ticket)
        return StepOutput(**{name: result[name] for name in StepOutput.__slots__})

    def close(self) -> None:
        """Closes the pool, and with it all executors that share it; memory is freed with the objects."""
        self._pool.close()
