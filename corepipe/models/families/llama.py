"""Llama 2 and 3.x, SmolLM2, TinyLlama; the families that build on this one differ in options only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from corepipe.models.config import ModelConfig, common
from corepipe.models.families.blocks import clipped, gated_mlp, output, project
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.fields import Fields
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import Value

FeedForward = Callable[[GraphBuilder, Value], Value]
"""A function that appends a layer's feed-forward block, without norm and residual."""
Attend = Callable[[GraphBuilder, Value], Value]
"""A function that appends a layer's attention, before its output projection."""


def configure(fields: Fields) -> ModelConfig:
    """Reads the config: `attention_bias` is for all four attention linears, `mlp_bias` for the others."""
    bias = fields.flag("attention_bias")
    return replace(common(fields), qkv_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias"))


def dense(b: GraphBuilder, x: Value) -> Value:
    """Appends Llama's own feed-forward block."""
    return gated_mlp(b, x, f"model.layers.{b.layer}.mlp")


def build(
    config: ModelConfig,
    fmt: Format,
    max_positions: int,
    name: str,
    feed_forward: FeedForward = dense,
    attend: Attend | None = None,
) -> Graph:
    """Builds the forward pass: token ids to logits [rows wanted, vocab]. attend: `attention`, or another."""
    b = GraphBuilder(config)
    decoder(b, b.embed(), feed_forward, attend)
    return b.finish(name, fmt, max_positions)


def decoder(
    b: GraphBuilder,
    x: Value,
    feed_forward: FeedForward = dense,
    attend: Attend | None = None,
    head_bias: bool = False,
) -> None:
    """Appends all layers to the embedded x, then the last norm and the head."""
    for layer in b.layers():
        attended = (attend or attention)(b, b.norm(x, f"model.layers.{layer}.input_layernorm"))
        attended, x = b.only_wanted(attended, x)
        x = b.add(x, output(b, attended, f"model.layers.{layer}.self_attn.o_proj"))
        x = b.add(x, feed_forward(b, b.norm(x, f"model.layers.{layer}.post_attention_layernorm")))
    b.head(b.norm(x, "model.norm"), bias=head_bias)


def side_by_side(b: GraphBuilder, x: Value, attend: Attend) -> Value:
    """Appends x plus attention and feed-forward, both of one norm of it."""
    block = f"model.layers.{b.layer}"
    normed = b.norm(x, f"{block}.input_layernorm")
    attended, normed, x = b.only_wanted(attend(b, normed), normed, x)
    attended = output(b, attended, f"{block}.self_attn.o_proj")
    return b.add(x, b.add(attended, dense(b, normed)))


def attention(b: GraphBuilder, x: Value) -> Value:
    """Appends rotary attention, before its output projection."""
    config = b.config
    prefix = f"model.layers.{b.layer}.self_attn"
    q, k, v = clipped(b, *project(b, x, prefix))
    if config.head_norms:
        q, k = b.head_norm(q, f"{prefix}.q_norm"), b.head_norm(k, f"{prefix}.k_norm")
    return b.attention(b.rope(q), b.rope(k), v)
