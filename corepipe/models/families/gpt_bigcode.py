"""StarCoder and SantaCoder: GPT-2 with one key/value head for all queries."""

from __future__ import annotations

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.blocks import fused
from corepipe.models.families.gpt2 import build
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap, heads_by_group

__all__ = ["build", "configure", "weights"]


def configure(fields: Fields) -> ModelConfig:
    """Reads the config; `multi_query: false` gives every query head its own key/value head."""
    fields.refuse("add_cross_attention")
    classic.scaled_attention(fields)
    fields = fields.replace("num_key_value_heads", 1 if fields.flag("multi_query", default=True) else None)
    return classic.configure(fields, classic.GPT2_KEYS, "gelu_pytorch_tanh")


def weights(config: ModelConfig) -> WeightMap:
    """Maps each key/value head's queries, its key and its value, which are neighbours in one matrix."""
    return WeightMap("transformer.", parts=heads_by_group("c_attn", fused("c_attn"), config.heads))
