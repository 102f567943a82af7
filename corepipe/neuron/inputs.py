"""Inputs and outputs of a step: what a batch feeds to the cores of a replica, and what they give back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt


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


class ChainingExecutor(Protocol):
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
