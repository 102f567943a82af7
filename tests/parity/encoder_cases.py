"""Small encoders of every computed family with each of its heads, compared with transformers'.

Heads of 24 and 80 elements, feed-forwards that are no multiple of 64, narrow embeddings; texts of one token
up to the longest that the model reads, alone and in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from tests.parity import formula
from tests.parity.encode import Picture, Text

VOCAB = 131
POSITIONS = 320
LABELS = 5
PAD = 1
"""A token that occurs in no text: RoBERTa counts no positions where it stands."""
LENGTHS = (1, 2, 17, 65, 130, POSITIONS)
PAIRS = ((1, 1), (30, 12), (100, 129))
"""Tokens of the first and of the second text."""

IMAGES = 3
BASE, SEQUENCE, TOKEN, MASKED = "Model", "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"
IMAGE, TAUGHT = "ForImageClassification", "ForImageClassificationWithTeacher"
HEADS = {"base": BASE, "classes": SEQUENCE, "tokens": TOKEN, "masked": MASKED}


@dataclass(frozen=True)
class EncoderCase:
    """A config in transformers' fields, and the class that computes it; `types` of tokens (1: all alike).
    resized: the pixels a side of images for which positions are interpolated (None: they fit)."""

    name: str
    prefix: str
    head: str
    options: dict[str, object] = field(default_factory=dict)
    types: int = 1
    resized: int | None = None

    @property
    def config_class(self) -> str:
        return f"{self.prefix}Config"

    @property
    def model_class(self) -> str:
        return f"{self.prefix}{self.head}"

    def inputs(self) -> Sequence[Text | Picture]:
        return self.pictures() or self.texts()

    def texts(self) -> list[Text]:
        """Texts of all lengths; the second texts of pairs have types of their own where there are any."""
        lone = [Text(self._ids(length)) for length in LENGTHS]
        seconds = [a if self.types > 1 else 0 for a, _ in PAIRS]
        pairs = [Text(self._ids(a + b), second) for (a, b), second in zip(PAIRS, seconds, strict=True)]
        return lone + pairs

    def pictures(self) -> list[Picture]:
        """Images of the config's size; none where the model reads texts."""
        if self.head not in (IMAGE, TAUGHT):
            return []
        side, patch = (int(str(self.options[key])) for key in ("image_size", "patch_size"))
        side = self.resized or side
        shape = (int(str(self.options.get("num_channels", 3))), side, side)
        rows = (side // patch) ** 2 + 1 + (self.prefix == "DeiT")
        return [
            Picture(formula.uniform(f"{self.name} {n}", prod(shape)).reshape(shape), rows)
            for n in range(IMAGES)
        ]

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
MODERN = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 104,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "local_attention": 40,
    "pad_token_id": PAD,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "cls_token_id": 0,
    "sep_token_id": 2,
    "num_labels": LABELS,
}
OTHER_MODERN = {
    "hidden_size": 160,
    "num_attention_heads": 2,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "classifier_pooling": "mean",
    "classifier_activation": "silu",
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True),
    "decoder_bias": False,
    "tie_word_embeddings": False,
}
"""Values of ModernBERT's config that differ from its defaults."""
SHAPES: tuple[tuple[str, str, dict[str, object], int], ...] = (
    ("bert", "Bert", bert_like(160, 2), 2),
    ("distilbert", "DistilBert", DISTIL, 1),
    ("roberta", "Roberta", bert_like(96, 4, **OFFSET, type_vocab_size=1), 1),
    ("xlm-roberta", "XLMRoberta", bert_like(160, 2, **OFFSET, type_vocab_size=1), 1),
    ("camembert", "Camembert", bert_like(96, 3, **OFFSET, type_vocab_size=2), 2),
    ("electra", "Electra", bert_like(96, 4, **NARROW), 2),
    ("albert", "Albert", bert_like(96, 4, **NARROW, num_hidden_groups=1), 2),
    ("mpnet", "MPNet", bert_like(96, 4, **OFFSET), 1),
    ("modernbert", "ModernBert", MODERN, 1),
    ("modernbert-other", "ModernBert", {**MODERN, **OTHER_MODERN}, 1),
)


def vit_like(hidden: int, heads: int, image: int, patch: int, **changes: object) -> dict[str, object]:
    return {
        "hidden_size": hidden,
        "intermediate_size": 104,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "image_size": image,
        "patch_size": patch,
        "num_labels": LABELS,
        **changes,
    }


PICTURED = (
    EncoderCase("vit-image", "ViT", IMAGE, vit_like(160, 2, 56, 8)),
    EncoderCase("vit-odd", "ViT", IMAGE, vit_like(96, 4, 70, 14, num_channels=1, qkv_bias=False)),
    EncoderCase("deit-image", "DeiT", IMAGE, vit_like(96, 3, 64, 16)),
    EncoderCase("vit-larger", "ViT", IMAGE, vit_like(96, 3, 32, 8), resized=56),
    EncoderCase("deit-taught", "DeiT", TAUGHT, vit_like(96, 4, 48, 16, hidden_act="gelu_new")),
)
"""Patches of 192, 196 and 768 numbers, and heads of 80, 24 and 32."""


def cases() -> Iterator[EncoderCase]:
    for family, prefix, options, types in SHAPES:
        for head, ending in HEADS.items():
            yield EncoderCase(f"{family}-{head}", prefix, ending, options, types)
    yield from PICTURED


CASES = tuple(cases())


def serving_config(case: EncoderCase, saved: dict[str, object]) -> dict[str, object]:
    """Returns a saved config as corepipe reads it: with its own key for masked tokens, or another size of
    images."""
    if case.resized is not None:
        return {**saved, "image_size": case.resized}
    return {**saved, "head": "masked-lm"} if case.head == MASKED else saved
