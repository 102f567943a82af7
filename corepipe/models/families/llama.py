"""Llama 2 and 3.x, SmolLM2, TinyLlama; the families that build on this one differ in options only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Unpack

from corepipe.models.config import ModelConfig, common
from corepipe.models.families.blocks import clipped, gated_mlp, output, project
from corepipe.models.families.layers import GraphBuilder, ScoreOptions
from corepipe.models.fields import Fields
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
    b: GraphBuilder, _config: ModelConfig, feed_forward: FeedForward = dense, attend: Attend | None = None
) -> None:
    """Appends the forward pass. attend: `attention`, or another."""
    b.head(decoder(b, b.embed(), feed_forward, attend))


class Norms(NamedTuple):
    """The norms of a layer, by their names in it: those of what attention and the feed-forward read, and of
    what they return (None: there is none); and the name of the last norm."""

    attention: str | None = "input_layernorm"
    attended: str | None = None
    feed_forward: str | None = "post_attention_layernorm"
    fed: str | None = None
    last: str = "model.norm"


USUAL = Norms()


def decoder(
    b: GraphBuilder,
    x: Value,
    feed_forward: FeedForward = dense,
    attend: Attend | None = None,
    norms: Norms = USUAL,
    factor: float | None = None,
    project: Attend | None = None,
) -> Value:
    """Appends all layers to the embedded x, then the last norm.

    factor: of what a block adds to the residual stream. project: what follows the attention (None: Llama's
    output projection).
    """
    for _ in b.layers():
        attended, x = b.only_wanted((attend or attention)(b, _normed(b, x, norms.attention)), x)
        x = _added(b, x, (project or projected)(b, attended), norms.attended, factor)
        x = _added(b, x, feed_forward(b, _normed(b, x, norms.feed_forward)), norms.fed, factor)
    return b.norm(x, norms.last)


def _normed(b: GraphBuilder, x: Value, norm: str | None) -> Value:
    return x if norm is None else b.norm(x, f"model.layers.{b.layer}.{norm}")


def _added(b: GraphBuilder, x: Value, made: Value, norm: str | None, factor: float | None) -> Value:
    """Appends x plus the result of a block."""
    made = _normed(b, made, norm)
    return b.add(x, made if factor is None else b.scale(made, factor))


def projected(b: GraphBuilder, attended: Value) -> Value:
    """Appends Llama's output projection."""
    return output(b, attended, f"model.layers.{b.layer}.self_attn.o_proj")


def side_by_side(b: GraphBuilder, x: Value, attend: Attend) -> Value:
    """Appends all layers to the embedded x, with attention and feed-forward of one norm, and the last
    norm."""
    for _ in b.layers():
        normed = _normed(b, x, USUAL.attention)
        attended, normed, x = b.only_wanted(attend(b, normed), normed, x)
        x = b.add(x, b.add(projected(b, attended), dense(b, normed)))
    return b.norm(x, USUAL.last)


def attention(
    b: GraphBuilder,
    x: Value,
    norm: Callable[[GraphBuilder, Value, str], Value] = GraphBuilder.head_norm,
    named: str = "norm",
    scale: float | None = None,
    **scores: Unpack[ScoreOptions],
) -> Value:
    """Appends rotary attention, before its output projection.

    norm: of queries and keys, where the config has one; named: the end of its name.
    """
    prefix = f"model.layers.{b.layer}.self_attn"
    q, k, v = clipped(b, *project(b, x, prefix))
    if b.config.head_norms:
        q, k = norm(b, q, f"{prefix}.q_{named}"), norm(b, k, f"{prefix}.k_{named}")
    return b.attention(b.rope(q), b.rope(k), v, scale, **scores)
