"""OLMoE: a mixture of experts in every layer, and one norm each over all queries and all keys."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import qkv_clip
from corepipe.models.families import moe, olmo2
from corepipe.models.families.blocks import output
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.moe import MoeConfig, weights
from corepipe.models.families.olmo2 import normed_attention
from corepipe.models.fields import Fields
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph

__all__ = ["build", "configure", "weights"]


def configure(fields: Fields) -> MoeConfig:
    """Reads the config; `intermediate_size` is an expert's."""
    config = replace(olmo2.configure(fields), mlp_bias=False, qkv_clip=qkv_clip(fields))
    return MoeConfig(
        **config.values(),
        **moe.expert_counts(fields, "num_experts", "num_experts_per_tok"),
        expert_ffn=config.ffn_size,
        sparse=(True,) * config.num_layers,
        scoring=moe.normalised(fields),
    )


def build(config: MoeConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        block = f"model.layers.{layer}"
        attended, x = b.only_wanted(normed_attention(b, b.norm(x, f"{block}.input_layernorm")), x)
        x = b.add(x, output(b, attended, f"{block}.self_attn.o_proj"))
        normed = b.norm(x, f"{block}.post_attention_layernorm")
        x = b.add(x, moe.block(b, normed, f"{block}.mlp", config))
    b.head(b.norm(x, "model.norm"))
    return b.finish(name, fmt, max_positions)
