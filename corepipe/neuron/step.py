"""The properties of a batch that decide its time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class StepShape(NamedTuple):
    """The properties of a batch that decide its time.  A tuple, since simulations hash it at every step.

    counts: rows of each of the graph's row sets, at the set's number; sets that are left out have none.
    sequences: number of sequences; kv_tokens: sum of their context lengths, with the tokens of this batch;
    attended: sum over tokens of the keys that each attends to.
    longest: rows of the longest sequence where sequences are computed whole; 0 where sequences grow, and it
    does not matter.
    each: rows per sequence where the last of them are drafts: the largest number in the batch, since a graph
    has as many rows for every sequence; 1: no drafts.
    """

    counts: tuple[int, ...]
    sequences: int
    kv_tokens: int
    attended: int
    longest: int = 0
    each: int = 1

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
