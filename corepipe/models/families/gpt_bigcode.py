"""StarCoder and SantaCoder: GPT-2 with one key/value head for all queries."""

from __future__ import annotations

from corepipe.models.config import Fields, ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.gpt2 import build

__all__ = ["build", "configure"]


def configure(fields: Fields) -> ModelConfig:
    """`multi_query: false` gives every query head its own key/value head."""
    if fields.flag("multi_query", default=True):
        fields = fields.replace("num_key_value_heads", 1)
    return classic.configure(fields, classic.GPT2_KEYS, "gelu_pytorch_tanh")
