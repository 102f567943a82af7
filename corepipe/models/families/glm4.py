"""GLM-4: Llama with additional norms after each block, and rotary positions on half of each head."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig, common
from corepipe.models.families.blocks import gated_mlp, output
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.llama import attention
from corepipe.models.families.phi3 import gate_up
from corepipe.models.fields import Fields
from corepipe.models.weight_map import WeightMap, rotated_pairs
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph


def configure(fields: Fields) -> ModelConfig:
    """Reads the config; `attention_bias` puts biases on q, k and v."""
    fields = fields.defaulting("head_dim", 128).defaulting("rms_norm_eps", 1.5625e-7)
    config = common(fields, rotary_share=0.5)
    return replace(config, qkv_bias=fields.flag("attention_bias", default=True))


def weights(config: ModelConfig) -> WeightMap:
    return WeightMap(parts=rotated_pairs(config.heads, config.rotary_dim) | gate_up(config))


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        block = f"model.layers.{layer}"
        attended, x = b.only_wanted(attention(b, b.norm(x, f"{block}.input_layernorm")), x)
        attended = output(b, attended, f"{block}.self_attn.o_proj")
        x = b.add(x, b.norm(attended, f"{block}.post_self_attn_layernorm"))
        fed = gated_mlp(b, b.norm(x, f"{block}.post_attention_layernorm"), f"{block}.mlp")
        x = b.add(x, b.norm(fed, f"{block}.post_mlp_layernorm"))
    b.head(b.norm(x, "model.norm"))
    return b.finish(name, fmt, max_positions)
