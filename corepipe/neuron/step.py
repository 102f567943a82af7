"""The inputs of a step: its shape, on which its cost depends, and the rows that the cores compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class AdapterKind(NamedTuple):
    """The properties of an adapter that decide its time.

    targets: ends of the names of the modules that it changes, such as q_proj; none: it changes all Linears.
    """

    rank: int
    targets: tuple[str, ...] = ()

    def changes(self, weight: str) -> bool:
        """Returns True if the adapter changes the Linear with this weight."""
        module = weight.removesuffix(".weight")
        return not self.targets or any(module == t or module.endswith(f".{t}") for t in self.targets)


class AdapterRows(NamedTuple):
    """The rows of a step that have one adapter; `counts` as in StepShape."""

    kind: AdapterKind
    counts: tuple[int, ...]


class StepShape(NamedTuple):
    """The properties of a batch that decide its time.  A tuple, since simulations hash it at every step.

    counts: rows of each of the graph's row sets, at the set's number; sets that are left out have none.
    sequences: number of sequences; kv_tokens: sum of their context lengths, with the tokens of this batch;
    attended: sum over tokens of the keys that each attends to.
    longest: rows of the longest sequence where sequences are computed whole; 0 where sequences grow, and it
    does not matter.
    each: rows per sequence where the last of them are drafts: the largest number in the batch, since a graph
    has as many rows for every sequence; 1: no drafts.
    adapters: the rows of each adapter in the batch.
    """

    counts: tuple[int, ...]
    sequences: int
    kv_tokens: int
    attended: int
    longest: int = 0
    each: int = 1
    adapters: tuple[AdapterRows, ...] = ()

    @classmethod
    def whole(cls, lengths: Sequence[int], results: int) -> StepShape:
        """Returns the shape for sequences of these lengths, each computed whole in this one step."""
        attended = sum([length * (length + 1) // 2 for length in lengths])
        return cls((sum(lengths), results), len(lengths), sum(lengths), attended, max(lengths))

    @classmethod
    def of(cls, chunks: Iterable[tuple[int, int]], logit_rows: int, each: int = 1) -> StepShape:
        """Returns the shape of a batch of (start, count) chunks, one per sequence."""
        rows = sequences = kv_tokens = attended = 0
        for start, count in chunks:
            rows += count
            sequences += 1
            kv_tokens += start + count
            attended += count * start + count * (count + 1) // 2
        return cls((rows, logit_rows), sequences, kv_tokens, attended, each=each)

    @classmethod
    def decode(cls, sequences: int, context: int) -> StepShape:
        """Returns the shape of one token for each of `sequences`, each with `context` tokens, the new one
        included."""
        return cls.decoding(sequences, sequences * context)

    @classmethod
    def decoding(cls, sequences: int, kv_tokens: int) -> StepShape:
        """Returns the same as `decode`, from the total of the context tokens."""
        return cls((sequences, sequences), sequences, kv_tokens, kv_tokens)

    @property
    def rows(self) -> int:
        """Tokens that are computed."""
        return self.counts[0]

    @property
    def logit_rows(self) -> int:
        """Tokens whose logits are requested."""
        return self.counts[1]

    @property
    def decodes(self) -> bool:
        """True if each sequence computes one token, and perhaps drafts of the tokens that follow."""
        return self.counts[0] == self.sequences or self.each > 1

    def rows_of(self, number: int) -> int:
        """Returns the rows of the set with this number."""
        return self.counts[number] if number < len(self.counts) else 0


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One batch for all cores of a replica; int32 arrays.

    The rows of one sequence are adjacent and at consecutive positions.  Where a graph keeps no state, all
    rows of a sequence are present.
    tokens [M], positions [M]: ids and positions of the M rows.
    sequence_starts [S + 1]: sequence s owns rows sequence_starts[s] .. sequence_starts[s + 1].
    block_tables [S, B]: KV blocks of each sequence (unused entries 0); block b holds positions b * block_size
    ...; [S, 0] where the graph keeps no state.  Where layers are in G groups, [G * S, B]: the tables of all
    sequences for the first group, then those for the next.
    logit_rows [R]: rows whose logits are requested, ascending; where rows are pooled, one per sequence.
    types [M]: the text of a pair (0 or 1) that each row belongs to; empty where the graph reads no types.
    patches [M, width]: the part of an image that a row is made of, channel by channel, fp32; zeros for rows
    of learned vectors; [0, 0] where the graph reads no patches.
    adapters [M]: the slot of each row's adapter, -1 for none; empty where no row has one.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    sequence_starts: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]
    logit_rows: npt.NDArray[np.int32]
    types: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    patches: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    adapters: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))


def mask_words(vocab: int) -> int:
    """Returns the int32 words of a row's mask: bit i & 31 of word i >> 5 says whether token i is allowed."""
    return (vocab + 31) // 32


class Executor(Protocol):
    """Runs the Programs of one replica.  Batches complete in the order in which they were submitted."""

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        """Starts a batch and returns its ticket; does not wait."""

    def give_masks(self, ticket: int, masks: npt.NDArray[np.int32]) -> None:
        """Passes the masks [K, mask_words(vocab)] of the masked rows of a batch, once, before `wait`: the
        steps before sampling run meanwhile."""

    def wait(self, ticket: int) -> StepOutput:
        """Waits for a batch and returns its result.  Each ticket is redeemed once."""

    def close(self) -> None:
        """Stops the executor and frees its memory."""


class ChainingExecutor(Protocol):
    """An executor that starts the next batch by itself, from the tokens that it has just sampled."""

    def go_on(self, ticket: int, ends: npt.NDArray[np.int32]) -> int:
        """Queues the batch that follows a submitted batch, and returns its ticket.

        It has one more row per sequence: the token that is sampled after the sequence's last row, with the
        same sampling parameters.  Each sequence's block table already has a block for that row.
        It starts when the first batch has ended.  It is dropped instead if one of `ends` was sampled there, a
        row had logits that are not numbers, or a file of `heed` can be read.
        Raises ValueError where a sequence samples no such token, or where sampling depends on more than
        logits.
        """

    def adopt(self, ticket: int) -> bool:
        """Returns True if such a batch runs or has run, so that it can be waited for; False if it was
        dropped."""

    def drop(self, ticket: int) -> None:
        """Cancels such a batch; one that already runs ends before the next batch starts."""

    def heed(self, files: Sequence[int]) -> None:
        """Sets file descriptors to watch: while one can be read, no batch starts that follows another by
        itself."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of the R logit rows, as a structure of arrays, so that sampling stays native.

    temperature [R] f32 (below 1e-30: greedy), top_k [R] i32 (0 = all), top_p [R] f32, min_p [R] f32,
    repetition / presence / frequency [R] f32, seed [R] u64, position [R] i64 (index of the sampled token).
    top_logprobs [R] i32: how many alternatives to report (-1 = no logprobs, 0 = only that of the chosen
    token).
    Ragged lists, flattened with offsets [R + 1] i32:
    bias_ids i32 / bias_values f32: added to the logits (-inf forbids a token).
    seen_ids i32 / seen_counts i32: distinct tokens of prompt and output with the number of times each occurs
    in the output (0: prompt only), for the penalties; empty where no penalty is set.
    chosen [R] i32: -1 = sample; otherwise report the logprob of this token and do not sample (prompt
    logprobs).
    masked [R] i32: -1 = every token is allowed; the other rows count from 0 and have a mask each, which
    `Executor.give_masks` passes.
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
    """Result of a batch.  Without sampling `values` is set and the other arrays are empty; with sampling it
    is the other way round.

    values: of the graph's first output, [R, width] where it has a row for each requested token, [M, width]
    where it has one for each token.
    tokens [R] i32; logprobs [R] f32 of the chosen token (NaN where not requested);
    ranks [R] i32 of the `chosen` token: how many tokens are at least as likely (0 in rows that sample);
    top_ids / top_logprobs [R, T], T the largest number requested, best first, unused entries -1 / NaN.
    seconds: host time of the batch, all cores.
    overflowed: the rows whose logits, as the model made them, are not all numbers; mostly none.
    weight_bytes: bytes of packed weights that the products read, on all cores; for a mixture those of the
    experts in use (0: not counted).
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
