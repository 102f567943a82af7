"""What of a batch decides its time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from corepipe.neuron.graph import Rows


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a batch decides its time.

    rows: tokens computed; sequences they belong to; kv_tokens: sum of the sequences' context lengths,
    the rows included; attended: sum over rows of the keys that each attends to; logit_rows: rows whose
    logits are wanted; source: tokens of an encoder-decoder's source, where its encoder runs in the step.
    """

    rows: int
    sequences: int
    kv_tokens: int
    attended: int
    logit_rows: int
    source: int = 0

    @classmethod
    def of(cls, chunks: Iterable[tuple[int, int]], logit_rows: int) -> StepShape:
        """The shape of a batch of (start, count) chunks, one a sequence."""
        rows = sequences = kv_tokens = attended = 0
        for start, count in chunks:
            rows += count
            sequences += 1
            kv_tokens += start + count
            attended += count * start + count * (count + 1) // 2
        return cls(rows, sequences, kv_tokens, attended, logit_rows)

    @classmethod
    def decode(cls, sequences: int, context: int) -> StepShape:
        """One token for each of `sequences`, each with `context` tokens, the new one included."""
        return cls(sequences, sequences, sequences * context, sequences * context, sequences)

    @property
    def decodes(self) -> bool:
        """Whether each sequence computes one token."""
        return self.rows == self.sequences

    def count(self, rows: Rows) -> int:
        """How many rows of this kind there are."""
        match rows:
            case Rows.TOKENS:
                return self.rows
            case Rows.LOGITS:
                return self.logit_rows
            case Rows.SOURCE:
                return self.source
