"""Phi-1, 1.5 and 2: blocks side by side after one norm, rotary positions on part of each head, biases."""

from __future__ import annotations

from corepipe.models.config import Fields, ModelConfig
from corepipe.models.families import classic
from corepipe.models.families.layers import GraphBuilder
from corepipe.neuron.graph import Format, Graph


def configure(fields: Fields) -> ModelConfig:
    """`partial_rotary_factor` of each head is rotated."""
    fields.refuse("qk_layernorm")
    keys = {"rms_norm_eps": "layer_norm_eps"}
    return classic.configure(fields, keys, "gelu_new", tied=False, rotary_share=0.5)


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
    """The forward pass: token ids to logits [rows wanted, vocab]."""
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        x = classic.parallel(b, x, _names(layer), classic.rotary)
    b.head(b.norm(x, "model.final_layernorm"), bias=True)
    return b.finish(name, fmt, max_positions)
