"""StarCoder2: grouped queries, rotary positions, LayerNorm and biases, a feed-forward of two matrices."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_POSITIONS, Fields

NAMES = classic.Names(
    "model.layers.{}",
    norms=("input_layernorm", "post_attention_layernorm"),
    attention="self_attn",
    out="self_attn.o_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
)


def configure(fields: Fields) -> ModelConfig:
    """Reads the config: `use_bias` is for all linears; `sliding_window` holds for all layers."""
    config = classic.configure(fields, {"rms_norm_eps": "norm_epsilon"}, "gelu_pytorch_tanh")
    bias = fields.flag("use_bias", default=True)
    window = fields.integer("sliding_window", MAX_POSITIONS) if fields.has("sliding_window") else None
    windows = (window,) * config.num_layers
    return replace(config, qkv_bias=bias, out_bias=bias, mlp_bias=bias, windows=windows)


def build(b: GraphBuilder, _config: ModelConfig) -> None:
    classic.decoder(b, b.embed(), NAMES, classic.rotary, "model.norm")
