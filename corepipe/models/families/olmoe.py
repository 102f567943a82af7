"""OLMoE: a mixture of experts in every layer, and one norm each over all queries and all keys."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import qkv_clip
from corepipe.models.families import llama, moe, olmo2
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig, weights
from corepipe.models.families.olmo2 import normed_attention
from corepipe.models.fields import Fields

__all__ = ["build", "configure", "weights"]


def configure(fields: Fields) -> MoeConfig:
    """Reads the config; `intermediate_size` is an expert's."""
    config = replace(olmo2.configure(fields), mlp_bias=False, qkv_clip=qkv_clip(fields))
    return moe.in_every_layer(fields, config, moe.normalised(fields), "num_experts")


def build(b: GraphBuilder, config: MoeConfig) -> None:
    llama.build(b, config, moe.in_layers(config), normed_attention)
