"""Random encoders, weights and batches for the tests of both executors: whole sequences, nothing kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corepipe.neuron.axes import Axis, HeadLayout, columns, fixed, hidden
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.inputs import StepInputs
from corepipe.neuron.ops import (
    Add,
    AddEmbedding,
    Attention,
    ElementwiseActivation,
    Function,
    L2Norm,
    LayerNorm,
    Linear,
    Op,
    PoolingMode,
    Rope,
    RowIndex,
    SelectRows,
    SequencePooling,
    TokenEmbedding,
)
from corepipe.neuron.values import (
    TOKENS,
    WANTED,
    GraphInput,
    GraphOutput,
    InputKind,
    OutputKind,
    RopeSpec,
    RowSet,
    Value,
    WeightRole,
    WeightSpec,
)

VOCAB, MAX_POSITIONS = 60, 560


@dataclass(frozen=True)
class Encoder:
    """The features of one random encoder; `pooling` None: a row of scores per token."""

    heads: HeadLayout
    layers: int = 2
    hidden: int = 64
    ffn: int = 128
    pooling: PoolingMode | None = PoolingMode.MEAN
    normalized: bool = False
    embedding: int | None = None
    """Width of the tables, where it is not the hidden size."""
    offset: int = 0
    types: int = 2
    window: int | None = None
    rotary: bool = False
    buckets: int = 0
    """Learned biases by distance."""
    norm_first: bool = False
    early: bool = False
    """Only the first row of each sequence is computed after the last attention."""
    function: Function = Function.GELU


class _Builder:
    def __init__(self) -> None:
        self.layer = -1
        self.ops: list[Op] = []

    def add(self, op: Op) -> Value:
        self.ops.append(op)
        return op.out

    def like(self, x: Value, rows: RowSet | None = None) -> Value:
        return Value(len(self.ops), x.axis, rows or x.rows)

    def table(self, x: Value, name: str, count: int, by: RowIndex, offset: int = 0) -> Value:
        spec = WeightSpec(name, (fixed("tokens", count), x.axis), WeightRole.EMBEDDING)
        return self.add(AddEmbedding(self.layer, self.like(x), x, spec, by, offset))

    def norm(self, x: Value, name: str) -> Value:
        gain, bias = (
            WeightSpec(f"{name}.{part}", (x.axis,), WeightRole.VECTOR) for part in ("weight", "bias")
        )
        return self.add(LayerNorm(self.layer, self.like(x), x, gain, bias, 1e-12))

    def linear(self, x: Value, name: str, axis: Axis) -> Value:
        weight = WeightSpec(f"{name}.weight", (axis, x.axis), WeightRole.MATRIX)
        bias = WeightSpec(f"{name}.bias", (axis,), WeightRole.VECTOR)
        return self.add(Linear(self.layer, Value(len(self.ops), axis, x.rows), x, weight, bias))

    def sum(self, a: Value, b: Value) -> Value:
        return self.add(Add(self.layer, self.like(a), a, b))

    def select(self, x: Value) -> Value:
        return self.add(SelectRows(self.layer, self.like(x, WANTED), x))

    def rotated(self, x: Value, heads: HeadLayout) -> Value:
        inv_freq = tuple(100.0 ** -(i / (heads.head_dim // 2)) for i in range(heads.head_dim // 2))
        return self.add(Rope(self.layer, self.like(x), x, heads.head_dim, RopeSpec(inv_freq)))


def _block(b: _Builder, e: Encoder, x: Value, layer: int) -> Value:
    """Appends one layer, with its norms before or after."""
    b.layer, name, heads, stream = layer, f"layers.{layer}", e.heads, x.axis
    read = b.norm(x, f"{name}.norm1") if e.norm_first else x
    q = b.linear(read, f"{name}.q", heads.queries())
    k, v = (b.linear(read, f"{name}.{part}", heads.keys()) for part in "kv")
    if e.rotary:
        q, k = b.rotated(q, heads), b.rotated(k, heads)
    scale = heads.head_dim**-0.5
    bias = WeightSpec(
        "bias.weight", (fixed("tokens", e.buckets), fixed("head", heads.heads)), WeightRole.VECTOR
    )
    more = {"distance_bias": bias} if e.buckets else {}
    out = b.add(Attention(layer, b.like(q), q, k, v, heads, scale, e.window, causal=False, **more))
    if e.early and layer + 1 == e.layers:
        out, x = b.select(out), b.select(x)
    x = b.sum(x, b.linear(out, f"{name}.o", stream))
    x = x if e.norm_first else b.norm(x, f"{name}.norm1")
    read = b.norm(x, f"{name}.norm2") if e.norm_first else x
    up = b.linear(read, f"{name}.up", columns("ffn", e.ffn))
    up = b.add(ElementwiseActivation(layer, b.like(up), up, e.function))
    x = b.sum(x, b.linear(up, f"{name}.down", stream))
    return x if e.norm_first else b.norm(x, f"{name}.norm2")


def build(e: Encoder, fmt: str) -> Graph:
    """Returns the Graph of an encoder with these features."""
    b = _Builder()
    width = hidden(e.embedding or e.hidden)
    table = WeightSpec("embed.weight", (fixed("tokens", VOCAB), width), WeightRole.EMBEDDING)
    x = b.add(TokenEmbedding(-1, Value(0, width), table))
    if e.types:
        x = b.table(x, "types.weight", e.types, RowIndex.TYPE)
    x = b.norm(b.table(x, "places.weight", MAX_POSITIONS + e.offset, RowIndex.POSITION, e.offset), "norm0")
    if e.embedding:
        x = b.linear(x, "project", hidden(e.hidden))
    for layer in range(e.layers):
        x = _block(b, e, x, layer)
    b.layer = e.layers
    if e.pooling is not None and not e.early:
        x = b.add(SequencePooling(b.layer, b.like(x, WANTED), x, e.pooling))
    if e.normalized:
        x = b.add(L2Norm(b.layer, b.like(x), x))
    if e.pooling is None:
        x = b.linear(x, "scores", fixed("labels", 5))
    texts = (InputKind.TOKENS, InputKind.TYPES) if e.types else (InputKind.TOKENS,)
    return Graph(
        name="encoder",
        format=FORMATS[fmt],
        ops=tuple(b.ops),
        inputs=tuple(GraphInput(kind, TOKENS) for kind in texts),
        outputs=(GraphOutput(x, OutputKind.VECTOR),),
        num_layers=e.layers,
        vocab_size=VOCAB,
        max_positions=MAX_POSITIONS,
        causal=False,
    )


@dataclass(frozen=True)
class Text:
    """A sequence of `length` random tokens of its own, the second part of another type."""

    seed: int
    length: int

    def tokens(self) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(0, VOCAB, self.length).astype(np.int32)

    def types(self) -> np.ndarray:
        return (np.arange(self.length) >= self.length // 2).astype(np.int32)


def step_inputs(graph: Graph, texts: Sequence[Text]) -> StepInputs:
    """Returns the batch of all texts, with the first row of each requested; types only where the graph reads
    any."""
    lengths = [text.length for text in texts]
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    typed = any(given.kind is InputKind.TYPES for given in graph.inputs)
    return StepInputs(
        tokens=np.concatenate([text.tokens() for text in texts]),
        positions=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        sequence_starts=starts,
        block_tables=np.empty((len(texts), 0), np.int32),
        logit_rows=starts[:-1].copy(),
        types=np.concatenate([text.types() for text in texts]) if typed else np.empty(0, np.int32),
    )
