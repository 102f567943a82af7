"""Random Graphs, weights and batches for the tests of the reference executor and of the kernels.

`graphs()` draws small Llama-like models and unusual relatives of them; `read_weights` gives them weights that
keep activations near 1; `step_inputs` lays sequences out in a paged cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from corepipe.neuron.axes import Axis, HeadLayout, columns, fixed, hidden, vocabulary
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.numerics.attention import alibi_slopes
from corepipe.neuron.ops import (
    Add,
    AddEmbedding,
    Attention,
    ElementwiseActivation,
    Function,
    GatedActivation,
    LayerNorm,
    Linear,
    Op,
    RMSNorm,
    Rope,
    ScaleRows,
    SelectRows,
    TokenEmbedding,
)
from corepipe.neuron.step import StepInputs
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

F32 = npt.NDArray[np.float32]
BLOCK_SIZE = 16
MAX_POSITIONS = 64


SMALL_HEADS = HeadLayout(4, 2, 16)


@dataclass(frozen=True)
class Features:
    """The features of one random model."""

    layers: int = 2
    hidden: int = 32
    heads: HeadLayout = SMALL_HEADS
    ffn: int = 64
    vocab: int = 100
    qkv_bias: bool = False
    out_bias: bool = False
    head_norm: bool = False
    rotary: float | None = 1.0
    """The rotated part of a head; None: no positions at all."""
    window: int | None = None
    tied: bool = False
    parallel: bool = False
    """Attention and feed-forward read the same norm, as in GPT-J."""
    skip: bool = False
    """The embedding is added again before the final norm: a value that crosses all stages."""
    mixer: bool = False
    """A square Linear on the residual stream, which no tensor rank splits."""
    shared: bool = False
    """All layers use the first layer's feed-forward weights, as in ALBERT."""
    layer_heads: tuple[HeadLayout, ...] = ()
    """The heads of each layer, where they differ."""
    norms: str = "rms"
    """The other values are "layer", "layer without bias" and "layer without gain"."""
    function: Function = Function.SILU
    gated: bool = True
    offset: int | None = None
    """Learned positions that start at this row of their table."""
    alibi: bool = False
    softcap: float | None = None
    side_by_side: bool = False
    """`parallel`, and the two sums are added to one another first, as in Falcon."""
    two_norms: bool = False
    """`parallel`, each with a norm of its own, as in GPT-NeoX."""
    norm_after: bool = False
    """The sums have norms of their own before they are added, as in Gemma 2."""
    wide_norm: bool = False
    """One norm over the queries of all heads, and one over the keys, as in OLMo 2; ranks can't cut it."""
    scales: tuple[float, float, float] | None = None
    """Factors of the embedding, of the terms added to the residual stream, and of the logits."""
    logit_cap: float | None = None
    early: bool = False
    """Only the requested rows are computed after the last layer's attention, as in all families."""

    def heads_of(self, layer: int) -> HeadLayout:
        return self.layer_heads[layer] if self.layer_heads else self.heads


class _Builder:
    def __init__(self, features: Features) -> None:
        self.features = features
        self.layer = -1
        self.ops: list[Op] = []

    @property
    def heads(self) -> HeadLayout:
        return self.features.heads_of(self.layer)

    def add(self, op: Op) -> Value:
        self.ops.append(op)
        return op.out

    def like(self, x: Value, rows: RowSet | None = None) -> Value:
        return Value(len(self.ops), x.axis, rows or x.rows)

    def norm(self, x: Value, name: str, head: bool = False, wide: bool = False) -> Value:
        axis, kind = fixed("head", self.heads.head_dim) if head else x.axis, self.features.norms
        gain = WeightSpec(f"{name}.weight", (axis,), WeightRole.VECTOR)
        if kind == "rms" or head or wide:
            return self.add(RMSNorm(self.layer, self.like(x), x, gain, 1e-5))
        bias = WeightSpec(f"{name}.bias", (axis,), WeightRole.VECTOR) if kind == "layer" else None
        scale = None if kind == "layer without gain" else gain
        return self.add(LayerNorm(self.layer, self.like(x), x, scale, bias, 1e-5))

    def scale(self, x: Value, factor: float) -> Value:
        return self.add(ScaleRows(self.layer, self.like(x), x, factor))

    def wanted(self, x: Value) -> Value:
        """Returns the rows of x that are computed after the layer's attention."""
        if not self.features.early or self.layer + 1 < self.features.layers:
            return x
        return self.select(x)

    def select(self, x: Value) -> Value:
        return self.add(SelectRows(self.layer, self.like(x, WANTED), x))

    def linear(self, x: Value, name: str, axis: Axis, bias: bool = False) -> Value:
        weight = WeightSpec(f"{name}.weight", (axis, x.axis), WeightRole.MATRIX)
        vector = WeightSpec(f"{name}.bias", (axis,), WeightRole.VECTOR) if bias else None
        return self.add(Linear(self.layer, Value(len(self.ops), axis, x.rows), x, weight, vector))

    def positions(self, x: Value) -> Value:
        f = self.features
        if f.rotary is None:
            return x
        half = max(1, int(self.heads.head_dim * f.rotary) // 2)
        inv_freq = tuple(float(v) for v in np.float32(100.0) ** -(np.arange(half, dtype=np.float32) / half))
        return self.add(Rope(self.layer, self.like(x), x, self.heads.head_dim, RopeSpec(inv_freq)))

    def attention(self, x: Value, prefix: str) -> Value:
        f, heads = self.features, self.heads
        q = self.linear(x, f"{prefix}.q", heads.queries(), f.qkv_bias)
        k = self.linear(x, f"{prefix}.k", heads.keys(), f.qkv_bias)
        v = self.linear(x, f"{prefix}.v", heads.keys(), f.qkv_bias)
        if f.head_norm:
            q, k = self.norm(q, f"{prefix}.q_norm", head=True), self.norm(k, f"{prefix}.k_norm", head=True)
        if f.wide_norm:
            q, k = self.norm(q, f"{prefix}.q_wide", wide=True), self.norm(k, f"{prefix}.k_wide", wide=True)
        q, k = self.positions(q), self.positions(k)
        scale = heads.head_dim**-0.5
        slopes = alibi_slopes(heads.heads) if f.alibi else None
        out = self.add(
            Attention(
                *(self.layer, self.like(q), q, k, v, heads, scale, f.window),
                alibi=slopes,
                softcap=f.softcap,
            )
        )
        return self.linear(self.wanted(out), f"{prefix}.o", hidden(f.hidden), f.out_bias)

    def feed_forward(self, x: Value, prefix: str) -> Value:
        f, middle = self.features, columns("ffn", self.features.ffn)
        up = self.linear(x, f"{prefix}.up", middle, f.out_bias and not f.gated)
        if f.gated:
            gate = self.linear(x, f"{prefix}.gate", middle)
            out = self.add(GatedActivation(self.layer, self.like(gate), gate, up, f.function))
        else:
            out = self.add(ElementwiseActivation(self.layer, self.like(up), up, f.function))
        return self.linear(out, f"{prefix}.down", hidden(f.hidden), f.out_bias)

    def finished(self, x: Value, name: str) -> Value:
        """Returns the term that a block's result adds to the residual stream."""
        if self.features.norm_after:
            x = self.norm(x, name)
        return self.scale(x, self.features.scales[1]) if self.features.scales else x

    def sum(self, a: Value, b: Value) -> Value:
        return self.add(Add(self.layer, self.like(a), a, b))

    def decoder_layer(self, x: Value, layer: int) -> Value:
        f = self.features
        self.layer = layer
        mlp = "layers.0" if f.shared else f"layers.{layer}"
        normed = self.norm(x, f"layers.{layer}.norm1")
        second = self.norm(x, f"layers.{layer}.norm2") if f.two_norms else normed
        attended = self.finished(self.attention(normed, f"layers.{layer}"), f"layers.{layer}.after1")
        x = self.wanted(x)
        if f.parallel or f.two_norms or f.side_by_side:
            second = self.wanted(second)
        if f.side_by_side:
            fed = self.finished(self.feed_forward(second, mlp), f"layers.{layer}.after2")
            x = self.sum(x, self.sum(attended, fed))
        else:
            x = self.sum(x, attended)
            if not (f.parallel or f.two_norms):
                second = self.norm(x, f"layers.{layer}.norm2")
            x = self.sum(self.finished(self.feed_forward(second, mlp), f"layers.{layer}.after2"), x)
        if f.mixer:
            x = self.sum(x, self.linear(x, f"layers.{layer}.mixer", hidden(f.hidden)))
        return x


def build(features: Features, fmt: str = "bf16") -> Graph:
    """Returns the Graph of a model with these features."""
    f, b = features, _Builder(features)
    stream = hidden(f.hidden)
    table = WeightSpec("embed.weight", (fixed("tokens", f.vocab), stream), WeightRole.EMBEDDING)
    x = b.add(TokenEmbedding(-1, Value(0, stream), table))
    if f.offset is not None:
        rows = fixed("tokens", MAX_POSITIONS + f.offset)
        places = WeightSpec("places.weight", (rows, stream), WeightRole.EMBEDDING)
        x = b.add(AddEmbedding(-1, b.like(x), x, places, offset=f.offset))
    if f.scales:
        x = b.scale(x, f.scales[0])
    embedded = x
    for layer in range(f.layers):
        x = b.decoder_layer(x, layer)
    b.layer = f.layers
    if f.skip:
        x = b.sum(x, b.select(embedded) if f.early else embedded)
    x = x if f.early else b.select(x)
    logits = b.linear(b.norm(x, "norm"), "head", vocabulary(f.vocab))
    if f.scales:
        logits = b.scale(logits, f.scales[2])
    if f.logit_cap:
        logits = b.scale(logits, 1 / f.logit_cap)
        logits = b.scale(
            b.add(ElementwiseActivation(b.layer, b.like(logits), logits, Function.TANH)), f.logit_cap
        )
    return Graph(
        name="random",
        format=FORMATS[fmt],
        ops=tuple(b.ops),
        inputs=(GraphInput(InputKind.TOKENS, TOKENS),),
        outputs=(GraphOutput(logits, OutputKind.LOGITS),),
        num_layers=f.layers,
        vocab_size=f.vocab,
        max_positions=MAX_POSITIONS,
        tied={"head.weight": "embed.weight"} if f.tied else {},
    )


def heads() -> st.SearchStrategy[HeadLayout]:
    return st.builds(
        lambda kv, group, dim: HeadLayout(kv * group, kv, dim),
        st.integers(1, 4),
        st.integers(1, 4),
        st.sampled_from([8, 16, 24, 32, 64, 80]),
    )


def features(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[Features]:
    return st.builds(
        Features,
        layers=st.integers(1, 4),
        hidden=st.sampled_from([16, 32, 48, 64, 96, 136]),
        heads=heads(),
        ffn=st.sampled_from([16, 40, 64, 128, 200]),
        vocab=st.sampled_from([33, 64, 100, 160]),
        qkv_bias=st.booleans(),
        out_bias=st.booleans(),
        head_norm=st.booleans(),
        rotary=st.sampled_from([1.0, 0.5, None]),
        window=st.sampled_from([None, 1, 3, 20]),
        tied=st.booleans(),
        parallel=st.booleans(),
        skip=st.booleans(),
        mixer=st.booleans(),
        shared=st.booleans(),
        **more,
    )


def graphs(formats: Sequence[str] = tuple(FORMATS)) -> st.SearchStrategy[Graph]:
    """Draws random valid Graphs in one of the formats."""
    return st.builds(build, features(), st.sampled_from(list(formats)))


def decoders(formats: Sequence[str] = tuple(FORMATS), cuttable: bool = True) -> st.SearchStrategy[Graph]:
    """Draws as `graphs`, with all features of dense decoders; `cuttable`: tensor ranks can share them."""
    more = features(
        norms=st.sampled_from(["rms", "layer", "layer without bias", "layer without gain"]),
        function=st.sampled_from(Function),
        gated=st.booleans(),
        offset=st.sampled_from([None, 0, 2]),
        alibi=st.booleans(),
        softcap=st.sampled_from([None, 1.0, 50.0]),
        side_by_side=st.booleans(),
        two_norms=st.booleans(),
        norm_after=st.booleans(),
        wide_norm=st.just(value=False) if cuttable else st.booleans(),
        scales=st.sampled_from([None, (4.0, 0.5, 1 / 3)]),
        logit_cap=st.sampled_from([None, 30.0]),
        early=st.booleans(),
    )
    return st.builds(build, more, st.sampled_from(list(formats)))


def read_weights(graph: Graph, seed: int = 0) -> Callable[[str], F32]:
    """Returns random weights by the names of `graph`, tied ones equal; the same seed gives the same."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, F32] = {}
    for spec in graph.weights():
        noise = rng.standard_normal(spec.shape).astype(np.float32)
        if spec.role is WeightRole.MATRIX:
            noise /= np.float32(spec.shape[1] ** 0.5)
        elif spec.role is WeightRole.VECTOR:
            noise = noise * np.float32(0.2) + np.float32(spec.name.endswith("weight"))
        tensors[spec.name] = noise
    return lambda name: tensors[graph.tied.get(name, name)]


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, start + count) of a sequence."""

    sequence: int
    start: int
    count: int


def step_inputs(graph: Graph, chunks: Sequence[Chunk], seed: int = 0) -> StepInputs:
    """Returns a batch of chunks that requests every row's logits.

    Sequence s has random tokens of its own and the cache blocks s, s + 8, ... in descending order.
    """
    starts = np.cumsum([0, *(c.count for c in chunks)])
    positions = [np.arange(c.start, c.start + c.count) for c in chunks]
    tokens = [sequence_tokens(graph, c.sequence, seed)[p] for c, p in zip(chunks, positions, strict=True)]
    per_sequence = MAX_POSITIONS // BLOCK_SIZE
    tables = [[c.sequence + 8 * b for b in reversed(range(per_sequence))] for c in chunks]
    return StepInputs(
        tokens=np.concatenate(tokens).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        sequence_starts=starts.astype(np.int32),
        block_tables=np.asarray(tables, np.int32),
        logit_rows=np.arange(starts[-1], dtype=np.int32),
    )


BLOCKS = 8 * (MAX_POSITIONS // BLOCK_SIZE)
"""Cache blocks that `step_inputs` needs: eight sequences of MAX_POSITIONS."""


def sequence_tokens(graph: Graph, sequence: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Returns the MAX_POSITIONS tokens of a sequence."""
    return np.random.default_rng([seed, sequence]).integers(0, graph.vocab_size, MAX_POSITIONS)
