"""Phi-3.5-MoE: Mixtral with LayerNorm, biases in attention, and a bias on the head."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import Fields, Norm, without_rope
from corepipe.models.families import mixtral, moe
from corepipe.models.families.blocks import output
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.llama import attention
from corepipe.models.families.moe import MoeConfig
from corepipe.neuron.graph import Format, Graph


def configure(fields: Fields) -> MoeConfig:
    """`attention_bias` puts a bias on all four attention linears."""
    bias = fields.flag("attention_bias")
    config = replace(mixtral.described(without_rope(fields)), scoring=None)
    return replace(config, qkv_bias=bias, out_bias=bias, norm=Norm.LAYER)


def build(config: MoeConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        block = f"model.layers.{layer}"
        attended, x = b.only_wanted(attention(b, b.norm(x, f"{block}.input_layernorm")), x)
        x = b.add(x, output(b, attended, f"{block}.self_attn.o_proj"))
        normed = b.norm(x, f"{block}.post_attention_layernorm")
        x = b.add(x, moe.block(b, normed, f"{block}.block_sparse_moe", config))
    b.head(b.norm(x, "model.norm"), bias=True)
    return b.finish(name, fmt, max_positions)
