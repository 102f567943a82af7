"""What the compiler makes for one NeuronCore, and what a step feeds to the cores of a replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from corepipe.neuron.graph import Axis, Format, HeadLayout, Op, Output, Value, WeightSpec

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

    `core` is the index within the replica: stage * tensor + rank.  `layers` are the decoder layers whose
    KV cache this core holds.  `shards` maps a weight's name to the part held, `axes` an axis of the graph.
    `outputs` are those of the graph that this core has, of a tensor group every core.
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

    @property
    def head_layouts(self) -> tuple[HeadLayout, ...]:
        """The kinds of attention heads that the core has, each once; padding is counted."""
        found = (op.head_layout for op in self.ops)
        return tuple(dict.fromkeys(layout for layout in found if layout is not None))


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One batch for all cores of a replica; int32 arrays.

    Rows of one sequence are adjacent and at consecutive positions.
    tokens [M], positions [M]: ids and positions of the M rows.
    sequence_starts [S + 1]: sequence s owns rows sequence_starts[s] .. sequence_starts[s + 1].
    block_tables [S, B]: KV blocks of each sequence (unused entries 0); block b holds positions
    b * block_size ...
    logit_rows [R]: rows whose logits are wanted, ascending.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    sequence_starts: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]
    logit_rows: npt.NDArray[np.int32]


class Executor(Protocol):
    """Runs the Programs of one replica.  Batches complete in the order in which they were submitted."""

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        """Starts a batch and returns its ticket; does not wait."""

    def wait(self, ticket: int) -> StepOutput:
        """Waits for a batch.  Each ticket is redeemed once."""

    def close(self) -> None:
        """Stops and frees."""


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


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Result of a batch.  With sampling None, `logits` is set and the others are empty; and vice versa.

    tokens [R] i32; logprobs [R] f32 of the chosen token (NaN where not asked for);
    top_ids / top_logprobs [R, T], T the largest asked for, best first, unused entries -1 / NaN.
    seconds: host time the batch took, all cores.
    overflowed: the rows whose logits, as the model gave them, are not all numbers; mostly none.
    """

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float32] | None
    seconds: float
    overflowed: Sequence[int] = ()
