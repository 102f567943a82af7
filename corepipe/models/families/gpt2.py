"""GPT-2: learned positions, LayerNorm before each block, biases everywhere, a tied head."""

from __future__ import annotations

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.blocks import fused
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap, heads_in_turn
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph

EMBEDDING = "transformer.wte.weight"


def configure(fields: Fields) -> ModelConfig:
    fields.refuse("scale_attn_by_inverse_layer_idx", "add_cross_attention")
    classic.scaled_attention(fields)
    return classic.configure(fields, classic.GPT2_KEYS, "gelu_new")


def weights(config: ModelConfig) -> WeightMap:
    """Maps matrices, which are [in, out]."""
    parts = heads_in_turn("c_attn", fused("c_attn"), config.heads)
    return WeightMap("transformer.", parts=parts, transposed=("c_attn", "c_proj", "c_fc"))


def names(layer: int) -> classic.Names:
    """Returns the names of a layer's weights; `c_attn` makes queries, keys and values at once."""
    block = f"transformer.h.{layer}"
    return classic.Names(
        norms=(f"{block}.ln_1", f"{block}.ln_2"),
        attention=f"{block}.attn",
        qkv=fused("c_attn"),
        out=f"{block}.attn.c_proj",
        up=f"{block}.mlp.c_fc",
        down=f"{block}.mlp.c_proj",
    )


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.add_embedding(b.embed(EMBEDDING), "transformer.wpe.weight", config.max_positions)
    for layer in b.layers():
        x = classic.sequential(b, x, names(layer), classic.plain)
    b.head(b.norm(x, "transformer.ln_f"))
    return b.finish(name, fmt, max_positions, tied=("lm_head.weight", EMBEDDING))
