"""What of a batch decides its time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class StepShape(NamedTuple):
    """What of a batch decides its time: a tuple, since simulations hash it at every step.

    counts: rows of each of the graph's row sets, at the set's number; those that are not told have none.
    sequences: those that the tokens belong to; kv_tokens: sum of their context lengths, the tokens included;
    attended: sum over tokens of the keys that each attends to.
    longest: rows of the longest sequence, where all are computed whole; 0: they grow, and nobody asks.
    each: rows of a sequence, where the last of them are guesses of how it goes on: those of the one with the
    most, since a graph has as many for all; 1: there are no guesses.
    """

    counts: tuple[int, ...]
    sequences: int
    kv_tokens: int
    attended: int
    longest: int = 0
    each: int = 1

    @classmethod
    def whole(cls, lengths: Sequence[int], results: int) -> StepShape:
        """Of sequences of these lengths, each computed in this step alone."""
        attended = sum([length * (length + 1) // 2 for length in lengths])
        return cls((sum(lengths), results), len(lengths), sum(lengths), attended, max(lengths))

    @classmethod
    def of(cls, chunks: Iterable[tuple[int, int]], logit_rows: int, each: int = 1) -> StepShape:
        """The shape of a batch of (start, count) chunks, one a sequence."""
        rows = sequences = kv_tokens = attended = 0
        for start, count in chunks:
            rows += count
            sequences += 1
            kv_tokens += start + count
            attended += count * start + count * (count + 1) // 2
        return cls((rows, logit_rows), sequences, kv_tokens, attended, each=each)

    @classmethod
    def decode(cls, sequences: int, context: int) -> StepShape:
        """One token for each of `sequences`, each with `context` tokens, the new one included."""
        return cls.decoding(sequences, sequences * context)

    @classmethod
    def decoding(cls, sequences: int, kv_tokens: int) -> StepShape:
        """As `decode`, with the tokens of all contexts together."""
        return cls((sequences, sequences), sequences, kv_tokens, kv_tokens)

    @property
    def rows(self) -> int:
        """Tokens that are computed."""
        return self.counts[0]

    @property
    def logit_rows(self) -> int:
        """Tokens whose logits are wanted."""
        return self.counts[1]

    @property
    def decodes(self) -> bool:
        """Whether each sequence computes one token, and perhaps guesses of those that follow."""
        return self.counts[0] == self.sequences or self.each > 1

    def rows_of(self, number: int) -> int:
        """Rows of the set with this number."""
        return self.counts[number] if number < len(self.counts) else 0
