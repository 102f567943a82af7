"""The cores of the reference executor.

Every core has only its own shard of the weights, its own KV cache and its own activations; values reach
another core through `Links` alone.  A matrix is quantised whole and then cut, so that a shard has the
integers and scales of the unsplit matrix.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.neuron.axes import Axis, cut
from corepipe.neuron.compile.program import Program, WeightShard, of_heads
from corepipe.neuron.formats import Format
from corepipe.neuron.numerics.arithmetic import F32, I32, quantize_weight, rope_tables
from corepipe.neuron.numerics.int4 import Int4, Int8, Stored, as_stored, matrices_of
from corepipe.neuron.numerics.low_rank import LowRank
from corepipe.neuron.ops import Op
from corepipe.neuron.step import StepInputs
from corepipe.neuron.values import RopeSpec, Value, WeightRole, WeightSpec
from tests.reference.arithmetic import round_to
from tests.reference.attention import HeadVectors

ReadTensor = Callable[[str], Stored]
"""Reads the whole weight of a WeightSpec's name; `read_tied` finds those that share a tensor."""


def bind_weight(shard: WeightShard, fmt: Format, weight: Stored) -> Stored:
    """Returns a core's part of one weight, in its number format; four bits become eight where the cut goes
    through a group."""
    spec = shard.spec
    weight = as_stored(spec, fmt, weight)
    shape = weight.shape if isinstance(weight, np.ndarray) else weight.values.shape
    if shape != spec.shape:
        raise ValueError(f"{spec.name} has shape {shape}, not {spec.shape}")
    if isinstance(weight, Int4):
        rows, columns = (axis.indices(size) for axis, size in zip(shard.axes, spec.shape, strict=True))
        part = weight.part(rows, columns)
        return Int8(*quantize_weight(_cut(weight.dense(), shard))) if part is None else part
    if isinstance(weight, Int8):
        return Int8(cut(weight.values, shard.axes), np.asarray(cut(weight.scale, shard.axes[:1]), np.float32))
    if spec.role is WeightRole.VECTOR:
        return _cut(weight, shard)
    return round_to(_cut(weight, shard), fmt.weights if spec.role is WeightRole.MATRIX else fmt.compute)


def bind_stack(shard: WeightShard, fmt: Format, weight: Stored) -> list[Stored]:
    """Returns a core's part of each of its matrices of a stack."""
    spec = shard.spec
    one = WeightShard(replace(spec, axes=spec.axes[1:]), shard.axes[1:])
    whole = as_stored(spec, fmt, weight)
    (first, count), *_ = shard.axes[0].ranges
    own = islice(matrices_of(whole, spec.shape[0]), first, first + count)
    return [bind_weight(one, fmt, part) for part in own]


def _cut(weight: F32, shard: WeightShard) -> F32:
    return np.asarray(cut(weight, shard.axes), np.float32)


class Links:
    """Values on their way between the cores of one replica during one batch."""

    def __init__(self) -> None:
        self.channels: defaultdict[tuple[int, int], deque[F32]] = defaultdict(deque)
        self.exchanges: defaultdict[tuple[range, int], dict[int, F32]] = defaultdict(dict)


@dataclass(slots=True)
class Run:
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

    def __getitem__(self, value: Value) -> F32:
        return self.values[value.id]

    def weight(self, spec: WeightSpec) -> F32:
        return np.asarray(self.core.weights[spec.name], np.float32)

    def optional(self, spec: WeightSpec | None) -> F32 | None:
        return None if spec is None else self.weight(spec)

    def matrix(self, spec: WeightSpec) -> Stored:
        return self.core.weights[spec.name]

    def matrices(self, spec: WeightSpec) -> Sequence[Stored]:
        return self.core.stacks[spec.name]

    def rotation(self, rope: RopeSpec) -> tuple[F32, F32]:
        cos, sin = self.core.tables(rope)
        return cos[self.inputs.positions], sin[self.inputs.positions]

    def of_heads(self, numbers: Sequence[float], axis: Axis) -> F32:
        return of_heads(numbers, axis, self.core.program)

    def cache(self, layer: int) -> tuple[HeadVectors, HeadVectors]:
        return self.core.keys[layer], self.core.values[layer]

    def slots(self, table: I32, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the slots of the cache for these positions of a sequence with that block table."""
        size = self.core.block_size
        return np.asarray(table[positions // size] * size + positions % size)

    def state(self, op: Op, shape: tuple[int, ...]) -> F32:
        core = self.core
        return core.states.setdefault(op.out.id, np.zeros((core.blocks, *shape), np.float32))

    def turns(self) -> Iterator[tuple[slice, int | None, int]]:
        """Yields the rows of each sequence, and the blocks of its state before them (None: it begins here)
        and after them."""
        inputs, size = self.inputs, self.core.block_size
        for table, (begin, end) in zip(inputs.block_tables, pairwise(inputs.sequence_starts), strict=True):
            first, last = inputs.positions[begin], inputs.positions[end - 1]
            before = None if first == 0 else int(table[(first - 1) // size])
            yield slice(int(begin), int(end)), before, int(table[last // size])

    def exchange(self, x: Value, *, stage: bool = False) -> list[F32] | None:
        """Returns x of every rank of the tensor group, or of the stage, in rank order; None while one of them
        has not reached this Op."""
        program, cores = self.core.program, self.core.cores
        group = program.stage_cores(cores) if stage else program.group(cores)
        parts = self.links.exchanges[group, self.collectives]
        parts[program.core] = self[x]
        if len(parts) < len(group):
            return None
        self.collectives += 1
        return [parts[core] for core in group]

    def send(self, peer: int, x: F32) -> None:
        self.links.channels[self.core.program.core, peer].append(x)

    def receive(self, peer: int) -> F32 | None:
        channel = self.links.channels[peer, self.core.program.core]
        return channel.popleft() if channel else None


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
        self.adapters: dict[int, dict[str, LowRank]] = {}  # the core's parts, by slot
        positions = blocks * block_size
        self.keys, self.values = (_caches(program, positions, int8=int8_cache) for _ in range(2))
        self._rope: dict[RopeSpec, tuple[F32, F32]] = {}

    def load(self, slot: int, layers: Mapping[str, LowRank]) -> None:
        """Puts the core's part of an adapter into a slot."""
        shards = self.program.shards
        self.adapters[slot] = {n: each.part(*shards[n].axes) for n, each in layers.items() if n in shards}

    def tables(self, rope: RopeSpec) -> tuple[F32, F32]:
        """Returns cos and sin of all positions."""
        if rope not in self._rope:
            self._rope[rope] = rope_tables(rope, self.program.max_positions)
        return self._rope[rope]


def _caches(program: Program, positions: int, *, int8: bool) -> dict[int, HeadVectors]:
    """Returns a cache of zeros for each layer with attention."""
    kept = ((op.layer, op.state) for op in program.ops if op.state is not None and op.state.per_token)
    return {layer: HeadVectors.zeros(positions, *state.keys, int8=int8) for layer, state in kept}
