"""Small encoders of every computed family with each of its heads, compared with transformers'.

Heads of 24 and 80 elements, feed-forwards that are no multiple of 64, narrow embeddings; texts of one token
up to the longest that the model reads, alone and in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.parity import formula
from tests.parity.encode import Text

VOCAB = 131
POSITIONS = 320
LABELS = 5
PAD = 1
"""Occurs in no text: RoBERTa counts no positions where it stands."""
LENGTHS = (1, 2, 17, 65, 130, POSITIONS)
PAIRS = ((1, 1), (30, 12), (100, 129))
"""Tokens of the first and of the second text."""

BASE, SEQUENCE, TOKEN, MASKED = "Model", "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"
HEADS = {"base": BASE, "classes": SEQUENCE, "tokens": TOKEN, "masked": MASKED}


@dataclass(frozen=True)
class EncoderCase:
    """A config in transformers' words, and the class that computes it; `types` of tokens (1: all alike)."""

    name: str
    prefix: str
    head: str
    options: dict[str, object] = field(default_factory=dict)
    types: int = 1

    @property
    def config_class(self) -> str:
        return f"{self.prefix}Config"

    @property
    def model_class(self) -> str:
        return f"{self.prefix}{self.head}"

    def texts(self) -> list[Text]:
        """Of all lengths; the second texts of pairs have types of their own where there are any."""
        lone = [Text(self._ids(length)) for length in LENGTHS]
        seconds = [a if self.types > 1 else 0 for a, _ in PAIRS]
        pairs = [Text(self._ids(a + b), second) for (a, b), second in zip(PAIRS, seconds, strict=True)]
        return lone + pairs

    def _ids(self, length: int) -> list[int]:
        return [at + (at == PAD) for at in formula.prompt(f"{self.name} {length}", length, VOCAB)]


def bert_like(hidden: int, heads: int, **changes: object) -> dict[str, object]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": 104,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": PAD,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "num_labels": LABELS,
        **changes,
    }


OFFSET = {"max_position_embeddings": POSITIONS + PAD + 1}
NARROW = {"embedding_size": 72}
DISTIL = {
    "vocab_size": VOCAB,
    "dim": 96,
    "hidden_dim": 104,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": PAD,
    "num_labels": LABELS,
}
SHAPES: tuple[tuple[str, str, dict[str, object], int], ...] = (
    ("bert", "Bert", bert_like(160, 2), 2),
    ("distilbert", "DistilBert", DISTIL, 1),
    ("roberta", "Roberta", bert_like(96, 4, **OFFSET, type_vocab_size=1), 1),
    ("xlm-roberta", "XLMRoberta", bert_like(160, 2, **OFFSET, type_vocab_size=1), 1),
    ("camembert", "Camembert", bert_like(96, 3, **OFFSET, type_vocab_size=2), 2),
    ("electra", "Electra", bert_like(96, 4, **NARROW), 2),
    ("albert", "Albert", bert_like(96, 4, **NARROW, num_hidden_groups=1), 2),
)


def cases() -> Iterator[EncoderCase]:
    for family, prefix, options, types in SHAPES:
        for head, ending in HEADS.items():
            yield EncoderCase(f"{family}-{head}", prefix, ending, options, types)


CASES = tuple(cases())


def serving_config(case: EncoderCase, saved: dict[str, object]) -> dict[str, object]:
    """A saved config as corepipe reads it: a key of its own asks for masked tokens."""
    return {**saved, "head": "masked-lm"} if case.head == MASKED else saved
