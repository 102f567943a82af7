"""GPT-2: learned positions, LayerNorm before each block, biases everywhere, a tied head."""

from __future__ import annotations

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.blocks import fused
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap, heads_in_turn

NAMES = classic.Names(
    "transformer.h.{}",
    norms=("ln_1", "ln_2"),
    attention="attn",
    qkv=fused("c_attn"),
    out="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
)


def configure(fields: Fields) -> ModelConfig:
    fields.refuse("scale_attn_by_inverse_layer_idx", "add_cross_attention")
    classic.scaled_attention(fields)
    return classic.configure(fields, classic.GPT2_KEYS, "gelu_new")


def weights(config: ModelConfig) -> WeightMap:
    """Maps matrices, which are [in, out]."""
    parts = heads_in_turn("c_attn", fused("c_attn"), config.heads)
    return WeightMap("transformer.", parts=parts, transposed=("c_attn", "c_proj", "c_fc"))


def build(b: GraphBuilder, config: ModelConfig) -> None:
    x = b.add_embedding(b.embed("transformer.wte.weight"), "transformer.wpe.weight", config.max_positions)
    classic.decoder(b, x, NAMES, classic.plain, "transformer.ln_f")
