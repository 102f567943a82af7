"""Computes a Graph over one whole sequence in fp32, without cache, blocks or cores: the plainest executor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import (
    Add,
    Attention,
    GatedActivation,
    Linear,
    Op,
    RMSNorm,
    Rope,
    SelectRows,
    TokenEmbedding,
)

Array = np.ndarray


def logits(graph: Graph, read: Callable[[str], Array], tokens: list[int]) -> Array:
    """Returns the logits [len(tokens), vocab] of every position."""
    weights = {w.name: read(graph.tied.get(w.name, w.name)) for w in graph.weights()}
    values: dict[int, Array] = {}
    for op in graph.ops:
        values[op.out.id] = compute(op, [values[v.id] for v in op.inputs], weights, np.array(tokens))
        assert values[op.out.id].shape == (len(tokens), op.out.width)
    return values[graph.logits.id]


def compute(op: Op, inputs: list[Array], weights: dict[str, Array], tokens: Array) -> Array:
    match op:
        case TokenEmbedding():
            return weights[op.table.name][tokens]
        case RMSNorm():
            gain = weights[op.gain.name]
            x = inputs[0].reshape(len(tokens), -1, len(gain))
            scaled = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(op.eps)) * gain
            return scaled.reshape(inputs[0].shape)
        case Linear():
            y = inputs[0] @ weights[op.weight.name].T
            return y if op.bias is None else y + weights[op.bias.name]
        case Rope():
            return rotate(op, inputs[0])
        case Attention():
            return attend(op, *inputs)
        case GatedActivation():
            return inputs[0] / (1 + np.exp(-inputs[0])) * inputs[1]
        case Add():
            return inputs[0] + inputs[1]
        case SelectRows():
            return inputs[0]
    raise TypeError(op)


def rotate(op: Rope, x: Array) -> Array:
    heads = x.reshape(len(x), -1, op.head_dim)
    angle = np.arange(len(x), dtype=np.float32)[:, None] * np.array(op.rope.inv_freq, np.float32)
    cos, sin = (
        np.cos(angle)[:, None] * op.rope.attention_factor,
        np.sin(angle)[:, None] * op.rope.attention_factor,
    )
    a, b = np.split(heads, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape).astype(np.float32)


def attend(op: Attention, q: Array, k: Array, v: Array) -> Array:
    heads, rows = op.heads, len(q)
    group = heads.heads // heads.kv_heads
    q = q.reshape(rows, heads.heads, heads.head_dim)
    k, v = (np.repeat(a.reshape(rows, heads.kv_heads, heads.head_dim), group, 1) for a in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) * np.float32(op.scale)
    distance = np.arange(rows)[:, None] - np.arange(rows)
    hidden = (distance < 0) | (distance >= (op.window or rows))
    scores = np.where(hidden, -np.inf, scores)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(rows, -1)
