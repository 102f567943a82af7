"""Phi-1, 1.5 and 2: parallel blocks after one norm, rotary positions on part of each head, biases."""

from __future__ import annotations

from dataclasses import replace

from corepipe.models.config import ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.blocks import Projected
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import Value


def configure(fields: Fields) -> ModelConfig:
    """Reads the config; `partial_rotary_factor` of a head is rotated, `qk_layernorm` norms q and k."""
    keys = {"rms_norm_eps": "layer_norm_eps"}
    config = classic.configure(fields, keys, "gelu_new", tied=False, rotary_share=0.5)
    return replace(config, head_norms=fields.flag("qk_layernorm"))


def _names(layer: int) -> classic.Names:
    block = f"model.layers.{layer}"
    return classic.Names(
        norms=(f"{block}.input_layernorm",),
        attention=f"{block}.self_attn",
        qkv=("q_proj", "k_proj", "v_proj"),
        out=f"{block}.self_attn.dense",
        up=f"{block}.mlp.fc1",
        down=f"{block}.mlp.fc2",
    )


def build(config: ModelConfig, fmt: Format, max_positions: int, name: str) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        x = classic.parallel(b, x, _names(layer), _attention)
    b.head(b.norm(x, "model.final_layernorm"), bias=True)
    return b.finish(name, fmt, max_positions)


def _attention(b: GraphBuilder, qkv: Projected) -> Value:
    q, k, v = qkv
    if b.config.head_norms:
        prefix = f"model.layers.{b.layer}.self_attn"
        q = b.head_layer_norm(q, f"{prefix}.q_layernorm", bias=True)
        k = b.head_layer_norm(k, f"{prefix}.k_layernorm", bias=True)
    return classic.rotary(b, (q, k, v))
