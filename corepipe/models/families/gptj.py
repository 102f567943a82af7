"""GPT-J: rotary positions on part of each head; parallel attention and feed-forward after one norm."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_HEAD_DIM, Fields
from corepipe.models.weight_map import WeightMap, rotated_pairs

NAMES = classic.Names(
    "transformer.h.{}",
    norms=("ln_1",),
    attention="attn",
    out="attn.out_proj",
    up="mlp.fc_in",
    down="mlp.fc_out",
)


def configure(fields: Fields) -> ModelConfig:
    """Reads the config: `rotary_dim` elements of each head are rotated; attention has no biases."""
    config = classic.configure(fields, classic.GPT2_KEYS, "gelu_new", tied=False)
    rotary = fields.integer("rotary_dim", MAX_HEAD_DIM, default=64)
    return replace(config, qkv_bias=False, out_bias=False, rotary_dim=rotary)


def weights(config: ModelConfig) -> WeightMap:
    return WeightMap("transformer.", parts=rotated_pairs(config.heads, config.rotary_dim))


def build(b: GraphBuilder, _config: ModelConfig) -> None:
    x = b.embed("transformer.wte.weight")
    classic.decoder(b, x, NAMES, classic.rotary, "transformer.ln_f", classic.parallel, bias=True)
