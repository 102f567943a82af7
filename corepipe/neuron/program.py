"""What the compiler makes for one NeuronCore, and what a step feeds to the cores of a replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError
from corepipe.neuron.axes import Axis, HeadLayout
from corepipe.neuron.graph import Format, Output, Value, WeightSpec, first_refusal

if TYPE_CHECKING:  # an Op takes a core's part of what is here
    from corepipe.neuron.ops.base import Op

_T = TypeVar("_T")

PAD = -1
"""Start of a range that stands for zero padding (padded heads under tensor parallelism)."""


@dataclass(frozen=True, slots=True)
class AxisShard:
    """The part of an axis that one tensor rank holds, as ranges (start, length) in elements.

    A range that starts at PAD is zeros.  `whole` means that nothing is cut.
    """

    ranges: tuple[tuple[int, int], ...]

    @property
    def width(self) -> int:
        return sum(length for _, length in self.ranges)

    @property
    def contiguous(self) -> bool:
        return len(self.ranges) == 1 and self.ranges[0][0] != PAD

    def indices(self, size: int) -> npt.NDArray[np.intp]:
        """Of `size` elements those that it holds; -1 for padding."""
        return np.asarray(cut(np.arange(1, size + 1), (self,)) - 1, np.intp)


def cut(array: npt.NDArray[Any], axes: Sequence[AxisShard]) -> npt.NDArray[Any]:
    """The part of `array` that the shards of its dimensions name, a copy; padding is zero."""
    for dim, axis in enumerate(axes):
        parts = [_range(array, dim, start, length) for start, length in axis.ranges]
        array = np.concatenate(parts, axis=dim)
    return array


def _range(array: npt.NDArray[Any], dim: int, start: int, length: int) -> npt.NDArray[Any]:
    if start == PAD:
        return np.zeros((*array.shape[:dim], length, *array.shape[dim + 1 :]), array.dtype)
    if start + length > array.shape[dim]:
        raise ValueError(f"a shard ends at {start + length} of {array.shape[dim]}")
    return np.take(array, range(start, start + length), axis=dim)


@dataclass(frozen=True, slots=True)
class WeightShard:
    """The part of `spec` that a core holds: one AxisShard for each dimension."""

    spec: WeightSpec
    axes: tuple[AxisShard, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.width for a in self.axes)


@dataclass(frozen=True, slots=True)
class Program:
    """One core's part of a Graph.  Ops have local shapes; collectives stand where values cross cores.

    `core` is the index within the replica: stage * cores of a stage + rank.  `layers` are the decoder
    layers whose KV cache this core holds.  `shards` maps a weight's name to the part held, `axes` an axis
    of the graph.  `outputs` are those of the graph that this core has, of a tensor group every core.
    `tensor`: how many neighbours share heads and columns (None: all of a stage); in a stage with more
    cores, among which experts are divided, each such group has them all.
    """

    core: int
    stage: int
    rank: int
    format: Format
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    shards: dict[str, WeightShard]
    axes: dict[Axis, AxisShard]
    layers: range
    max_positions: int
    outputs: tuple[Output, ...] = ()
    tensor: int | None = None

    def group(self, cores: int) -> range:
        """The cores of the core's tensor group, of a stage of so many."""
        size = self.tensor or cores
        first = self.core - self.rank % size
        return range(first, first + size)

    def stage_cores(self, cores: int) -> range:
        """Those of its stage, of so many."""
        return range(self.core - self.rank, self.core - self.rank + cores)

    @property
    def head_layouts(self) -> tuple[HeadLayout, ...]:
        """The kinds of attention heads that the core has, each once; padding is counted."""
        found = (op.head_layout for op in self.ops)
        return tuple(dict.fromkeys(layout for layout in found if layout is not None))

    def require_computed(self) -> None:
        """Raises UserError, by name, for the first Op that the executors do not compute."""
        if (why := first_refusal(self.ops, self.format)) is not None:
            raise UserError(f"timed, not computed yet: {why}", "model")


def cores_of_a_stage(programs: Sequence[Program]) -> int:
    """Of one replica's Programs."""
    return max(program.rank for program in programs) + 1


def of_heads(numbers: Sequence[float], axis: Axis, program: Program) -> npt.NDArray[np.float32]:
    """Of one number for each head of the model those of a core's heads, 0 for a head that is padding.

    axis: that of the core's queries.
    """
    each = np.repeat(np.asarray(numbers, np.float32), axis.unit)
    own = program.axes[axis._replace(width=len(each))]
    return np.asarray(cut(each, [own])[:: axis.unit], np.float32)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One batch for all cores of a replica; int32 arrays.

    Rows of one sequence are adjacent and at consecutive positions; all of them, where a graph keeps nothing.
    tokens [M], positions [M]: ids and positions of the M rows.
    sequence_starts [S + 1]: sequence s owns rows sequence_starts[s] .. sequence_starts[s + 1].
    block_tables [S, B]: KV blocks of each sequence (unused entries 0); block b holds positions
    b * block_size ...; [S, 0] where the graph keeps nothing.  Where layers are in G groups, [G * S, B]: the
    tables of all sequences for the first group, then those for the next.
    logit_rows [R]: rows whose logits are wanted, ascending; where rows are pooled one of each sequence.
    types [M]: which text of a pair the rows are of; empty where the graph reads no types.
    patches [M, width]: the part of an image that a row is made of, channel by channel, fp32; zeros for rows
    of learned vectors; [0, 0] where the graph reads no patches.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    sequence_starts: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]
    logit_rows: npt.NDArray[np.int32]
    types: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    patches: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))


def mask_words(vocab: int) -> int:
    """int32 words of a row's mask: bit i & 31 of word i >> 5 says whether token i is allowed."""
    return (vocab + 31) // 32


class Executor(Protocol):
    """Runs the Programs of one replica.  Batches complete in the order in which they were submitted."""

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        """Starts a batch and returns its ticket; does not wait."""

    def give_masks(self, ticket: int, masks: npt.NDArray[np.int32]) -> None:
        """What may be drawn of the masked rows [K, mask_words(vocab)] of a batch, once, before anybody waits
        for it: what comes before the draw is computed meanwhile."""

    def wait(self, ticket: int) -> StepOutput:
        """Waits for a batch.  Each ticket is redeemed once."""

    def close(self) -> None:
        """Stops and frees."""


class GoingOn(Protocol):
    """An executor that goes from one batch to the next by itself."""

    def go_on(self, ticket: int, ends: npt.NDArray[np.int32]) -> int:
        """Queues the batch that follows one that was submitted, and returns its ticket: one more row of each
        of its sequences, of the token that is drawn behind the last one, drawn from alike.

        It starts when that one has ended, unless one of `ends` was drawn there, a row had no numbers, or
        something that is heeded can be read: then it is dropped.  A sequence's table has a block for its row.
        Raises ValueError where a sequence draws no such token, or where draws hang on more than logits.
        """

    def adopt(self, ticket: int) -> bool:
        """Whether such a batch runs, or did, so that it can be waited for; if not, it was dropped."""

    def drop(self, ticket: int) -> None:
        """Nobody wants such a batch; one that runs already ends before the next one."""

    def heed(self, files: Sequence[int]) -> None:
        """File descriptors: where one can be read, no batch starts that goes on from another."""


def of_each(programs: Sequence[Program], make: Callable[[Program], _T]) -> list[_T]:
    """`make` of each Program, called once for all ranks whose parts are as wide: these share their Ops.

    So `make` must read no rank, and of weights and axes no more than their widths.
    """
    made: dict[int, _T] = {}
    for program in programs:
        if id(program.ops) not in made:
            made[id(program.ops)] = make(program)
    return [made[id(program.ops)] for program in programs]


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of the R logit rows, structure of arrays, so that sampling stays native.

    temperature [R] f32 (below 1e-30: greedy), top_k [R] i32 (0 = all), top_p [R] f32, min_p [R] f32,
    repetition / presence / frequency [R] f32, seed [R] u64, position [R] i64 (index of the drawn token).
    top_logprobs [R] i32: how many alternatives to report (-1 = no logprobs, 0 = of the chosen one only).
    Ragged lists, flattened with offsets [R + 1] i32:
    bias_ids i32 / bias_values f32: added to the logits (-inf bans a token).
    seen_ids i32 / seen_counts i32: distinct tokens of prompt and output with the number of times each
    occurs in the output (0: prompt only), for the penalties; empty where no penalty is set.
    chosen [R] i32: -1 = draw; otherwise do not draw but report this token's logprob (prompt logprobs).
    masked [R] i32: -1 = every token may be drawn; the other rows count from 0 and have a mask each, which
    `Executor.give_masks` brings.
    """

    temperature: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    repetition: npt.NDArray[np.float32]
    presence: npt.NDArray[np.float32]
    frequency: npt.NDArray[np.float32]
    seed: npt.NDArray[np.uint64]
    position: npt.NDArray[np.int64]
    top_logprobs: npt.NDArray[np.int32]
    bias_offsets: npt.NDArray[np.int32]
    bias_ids: npt.NDArray[np.int32]
    bias_values: npt.NDArray[np.float32]
    seen_offsets: npt.NDArray[np.int32]
    seen_ids: npt.NDArray[np.int32]
    seen_counts: npt.NDArray[np.int32]
    chosen: npt.NDArray[np.int32]
    masked: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Result of a batch.  With sampling None, `values` is set and the others are empty; and vice versa.

    values: of the graph's first output, [R, width] where it has a row for each that is wanted, [M, width]
    where it has one for each token.
    tokens [R] i32; logprobs [R] f32 of the chosen token (NaN where not asked for);
    ranks [R] i32 of what is `chosen`: how many tokens are as likely at least (0 in rows that draw);
    top_ids / top_logprobs [R, T], T the largest asked for, best first, unused entries -1 / NaN.
    seconds: host time the batch took, all cores.
    overflowed: the rows whose logits, as the model gave them, are not all numbers; mostly none.
    weight_bytes: of packed weights that products took, all cores, of a mixture those of the experts that rows
    go to (0: nobody counted).
    """

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    values: npt.NDArray[np.float32] | None
    seconds: float
    overflowed: Sequence[int] = ()
    ranks: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    weight_bytes: int = 0
