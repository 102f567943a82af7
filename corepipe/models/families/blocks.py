"""Attention and feed-forward blocks that several families share."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.models.families.layers import GraphBuilder
from corepipe.neuron.graph import Axis, Value

Projected = tuple[Value, Value, Value]


def project(
    b: GraphBuilder,
    x: Value,
    prefix: str,
    names: Sequence[str] = ("q_proj", "k_proj", "v_proj"),
    bias: Sequence[bool] | None = None,
) -> Projected:
    """Queries, keys and values of x; `bias` for each of the three, or all as the config says."""
    heads, (q, k, v) = b.config.heads, names
    biased = bias or [b.config.qkv_bias] * 3
    return (
        b.linear(x, f"{prefix}.{q}", Axis.Q_HEADS, heads.heads * heads.head_dim, biased[0]),
        b.linear(x, f"{prefix}.{k}", Axis.KV_HEADS, heads.kv_heads * heads.head_dim, biased[1]),
        b.linear(x, f"{prefix}.{v}", Axis.KV_HEADS, heads.kv_heads * heads.head_dim, biased[2]),
    )


def fused(name: str) -> tuple[str, str, str]:
    """Names of the parts of a matrix that makes queries, keys and values at once."""
    return f"{name}.q", f"{name}.k", f"{name}.v"


def output(b: GraphBuilder, attended: Value, name: str) -> Value:
    """The heads' results, back to the residual stream."""
    return b.linear(attended, name, Axis.HIDDEN, b.config.hidden_size, b.config.out_bias)


def mlp(b: GraphBuilder, x: Value, up: str, down: str) -> Value:
    """down(function(up(x)))."""
    config = b.config
    middle = b.activation(b.linear(x, up, Axis.FFN, config.ffn_size, config.mlp_bias))
    return b.linear(middle, down, Axis.HIDDEN, config.hidden_size, config.mlp_bias)


def gated_mlp(
    b: GraphBuilder,
    x: Value,
    prefix: str,
    names: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
    axis: Axis = Axis.FFN,
    width: int | None = None,
) -> Value:
    """down(function(gate(x)) * up(x)); `width` of the middle, or the config's."""
    config, (gate, up, down) = b.config, (f"{prefix}.{name}" for name in names)
    middle = width or config.ffn_size
    gates = b.linear(x, gate, axis, middle, config.mlp_bias)
    ups = b.linear(x, up, axis, middle, config.mlp_bias)
    return b.linear(b.gated(gates, ups), down, Axis.HIDDEN, config.hidden_size, config.mlp_bias)
