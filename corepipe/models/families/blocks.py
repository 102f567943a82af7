"""Attention and feed-forward blocks that several families share."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.models.families.layers import GraphBuilder
from corepipe.neuron.axes import Axis, columns, hidden
from corepipe.neuron.values import Value

Projected = tuple[Value, Value, Value]


def project(
    b: GraphBuilder,
    x: Value,
    prefix: str,
    names: Sequence[str] = ("q_proj", "k_proj", "v_proj"),
    bias: Sequence[bool] | None = None,
) -> Projected:
    """Appends queries, keys and values of x; `bias` for each of the three (None: the config's flag)."""
    heads, (q, k, v) = b.config.heads, names
    biased = bias or [b.config.qkv_bias] * 3
    return (
        b.linear(x, f"{prefix}.{q}", heads.queries(), biased[0]),
        b.linear(x, f"{prefix}.{k}", heads.keys(), biased[1]),
        b.linear(x, f"{prefix}.{v}", heads.keys(), biased[2]),
    )


def clipped(b: GraphBuilder, q: Value, k: Value, v: Value) -> Projected:
    """Appends clamps of queries, keys and values where the config has a bound for them."""
    limit = b.config.qkv_clip
    if limit is None:
        return q, k, v
    return b.clamp(q, limit), b.clamp(k, limit), b.clamp(v, limit)


def fused(name: str) -> tuple[str, str, str]:
    """Returns names for the parts of a matrix that makes queries, keys and values at once."""
    return f"{name}.q", f"{name}.k", f"{name}.v"


def output(b: GraphBuilder, attended: Value, name: str) -> Value:
    """Appends the output projection: the heads' results back to the residual stream."""
    return b.linear(attended, name, hidden(b.config.hidden_size), b.config.out_bias)


def mlp(b: GraphBuilder, x: Value, up: str, down: str) -> Value:
    """Appends down(function(up(x)))."""
    config = b.config
    middle = b.activation(b.linear(x, up, columns("ffn", config.ffn_size), config.mlp_bias))
    return b.linear(middle, down, hidden(config.hidden_size), config.mlp_bias)


def gated_mlp(
    b: GraphBuilder,
    x: Value,
    prefix: str,
    names: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
    axis: Axis | None = None,
) -> Value:
    """Appends down(function(gate(x)) * up(x)); `axis` is that of the middle (None: the config's)."""
    config, (gate, up, down) = b.config, (f"{prefix}.{name}" for name in names)
    middle = axis or columns("ffn", config.ffn_size)
    gates = b.linear(x, gate, middle, config.mlp_bias)
    ups = b.linear(x, up, middle, config.mlp_bias)
    return b.linear(b.gated(gates, ups), down, hidden(config.hidden_size), config.mlp_bias)
