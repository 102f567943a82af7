"""StarCoder2: grouped queries, rotary positions, LayerNorm and biases, a feed-forward of two matrices."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import MAX_POSITIONS, Fields
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph


def configure(fields: Fields) -> ModelConfig:
    """Reads the config: `use_bias` is for all linears; `sliding_window` holds for all layers."""
    config = classic.configure(fields, {"rms_norm_eps": "norm_epsilon"}, "gelu_pytorch_tanh")
    bias = fields.flag("use_bias", default=True)
    window = fields.integer("sliding_window", MAX_POSITIONS) if fields.has("sliding_window") else None
    windows = (window,) * config.num_layers
    return replace(config, qkv_bias=bias, out_bias=bias, mlp_bias=bias, windows=windows)


def _names(layer: int) -> classic.Names:
    block = f"model.layers.{layer}"
    return classic.Names(
        norms=(f"{block}.input_layernorm", f"{block}.post_attention_layernorm"),
        attention=f"{block}.self_attn",
        qkv=("q_proj", "k_proj", "v_proj"),
        out=f"{block}.self_attn.o_proj",
        up=f"{block}.mlp.c_fc",
        down=f"{block}.mlp.c_proj",
    )


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        x = classic.sequential(b, x, _names(layer), classic.rotary)
    b.head(b.norm(x, "model.norm"))
    return b.finish(name, fmt, max_positions)
