"""GPT-J: rotary positions on part of each head; parallel attention and feed-forward after one norm."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_HEAD_DIM, Fields
from corepipe.models.weight_map import WeightMap, rotated_pairs
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph


def configure(fields: Fields) -> ModelConfig:
    """Reads the config: `rotary_dim` elements of each head are rotated; attention has no biases."""
    config = classic.configure(fields, classic.GPT2_KEYS, "gelu_new", tied=False)
    rotary = fields.integer("rotary_dim", MAX_HEAD_DIM, default=64)
    return replace(config, qkv_bias=False, out_bias=False, rotary_dim=rotary)


def weights(config: ModelConfig) -> WeightMap:
    return WeightMap("transformer.", parts=rotated_pairs(config.heads, config.rotary_dim))


def _names(layer: int) -> classic.Names:
    block = f"transformer.h.{layer}"
    return classic.Names(
        norms=(f"{block}.ln_1",),
        attention=f"{block}.attn",
        qkv=("q_proj", "k_proj", "v_proj"),
        out=f"{block}.attn.out_proj",
        up=f"{block}.mlp.fc_in",
        down=f"{block}.mlp.fc_out",
    )


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed("transformer.wte.weight")
    for layer in b.layers():
        x = classic.parallel(b, x, _names(layer), classic.rotary)
    b.head(b.norm(x, "transformer.ln_f"), bias=True)
    return b.finish(name, fmt, max_positions)
