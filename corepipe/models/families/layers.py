"""The shared builder: its methods append Ops to a Graph and return the Values they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict, Unpack

from corepipe.models.config import ModelConfig, Norm
from corepipe.models.rope import RopeConfig
from corepipe.neuron.axes import Axis, fixed, hidden, vocabulary
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.numerics.attention import Tempering
from corepipe.neuron.ops import (
    Add,
    AddEmbedding,
    Attention,
    Clamp,
    ElementwiseActivation,
    Function,
    GatedActivation,
    LayerNorm,
    Linear,
    Op,
    RMSNorm,
    Rope,
    RowIndex,
    ScaleRows,
    SelectRows,
    TokenEmbedding,
)
from corepipe.neuron.values import (
    TOKENS,
    WANTED,
    GraphOutput,
    OutputKind,
    RopeSpec,
    RowSet,
    Value,
    WeightRole,
    WeightSpec,
)

EMBEDDING = "model.embed_tokens.weight"


class ScoreOptions(TypedDict, total=False):
    """Further options of an attention's scores, which `Attention` describes."""

    alibi: tuple[float, ...]
    softcap: float | None
    distance_bias: WeightSpec
    sinks: WeightSpec
    chunked: bool
    head_eps: float | None
    tempering: Tempering | None


class GraphBuilder:
    """Collects the Ops of one forward pass, for up to `max_positions` positions.

    `layer` labels the next Ops, `rows` is the row set of the embedded inputs, `outputs` are those of the
    graph (none: the last Op makes the logits). Weights have the checkpoint's names; where a checkpoint keeps
    several matrices as one, the part's own name follows. `ops`: Ops to begin with. `every_row`: an encoder,
    whose rows are all wanted.
    """

    def __init__(
        self, config: ModelConfig, max_positions: int, ops: Sequence[Op] = (), every_row: bool = False
    ) -> None:
        self.config = config
        self.max_positions = max_positions
        self.layer = -1
        self.rows = TOKENS
        self.outputs: list[GraphOutput] = []
        self._every_row = every_row
        self._rope_specs: dict[RopeConfig, RopeSpec] = {}
        self._ops: list[Op] = list(ops)
        self._embedding = self._head = ""

    def finish(self, name: str, fmt: Format) -> Graph:
        """Returns the Graph of all Ops so far; a tied head reads the last embedding."""
        tied = self.config.tied and self._head
        return Graph(
            name=name,
            format=fmt,
            ops=tuple(self._ops),
            inputs=tuple(dict.fromkeys(op.input for op in self._ops if op.input is not None)),
            outputs=tuple(self.outputs) or (GraphOutput(self._ops[-1].out, OutputKind.LOGITS),),
            num_layers=self.num_layers,
            vocab_size=self.config.vocab_size,
            max_positions=self.max_positions,
            tied={self._head: self._embedding} if tied else {},
            causal=self.causal,
            rows=self.row_sets,
        )

    @property
    def causal(self) -> bool:
        return not self._every_row

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    @property
    def row_sets(self) -> tuple[RowSet, ...]:
        """The sets of rows of all values."""
        return tuple(sorted({TOKENS, WANTED, *(op.out.rows for op in self._ops)}))

    def give(self, x: Value, kind: OutputKind) -> None:
        """Makes x an output of the graph, the first one where there is none yet."""
        self.outputs.append(GraphOutput(x, kind))

    def layers(self, first: int = 0, stop: int | None = None) -> Iterator[int]:
        """Yields numbers of layers; labels the Ops of each, and then those after the last of all."""
        end = self.config.num_layers if stop is None else stop
        for layer in range(first, end):
            self.layer = layer
            yield layer
        if stop is None:
            self.layer = end

    def append(self, op: Op) -> Value:
        self._ops.append(op)
        return op.out

    def value(self, axis: Axis, rows: RowSet | None = None) -> Value:
        """Returns the value that the next op makes."""
        return Value(len(self._ops), axis, self.rows if rows is None else rows)

    def like(self, x: Value) -> Value:
        """Returns the value that the next op makes, with the shape of x."""
        return Value(len(self._ops), x.axis, x.rows)

    def embed(self, name: str = EMBEDDING, width: int | None = None) -> Value:
        """Appends the embedding rows of the tokens."""
        axis = hidden(width or self.config.hidden_size)
        self._embedding = name
        table = WeightSpec(name, (fixed("tokens", self.config.vocab_size), axis), WeightRole.EMBEDDING)
        return self.append(TokenEmbedding(self.layer, self.value(axis), table))

    def add_embedding(
        self, x: Value, name: str, count: int, by: RowIndex = RowIndex.POSITION, offset: int = 0
    ) -> Value:
        """Appends x plus the row's own vector of a table with `count` of them."""
        spec = WeightSpec(name, (fixed("tokens", count), x.axis), WeightRole.EMBEDDING)
        return self.append(AddEmbedding(self.layer, self.like(x), x, spec, by, offset))

    def norm(self, x: Value, name: str) -> Value:
        """Appends the config's kind of norm over all of x."""
        kind, eps = self.config.norm, self.config.eps
        gain = vector(f"{name}.weight", x.axis)
        if kind is Norm.RMS:
            return self.append(RMSNorm(self.layer, self.like(x), x, gain, eps))
        shift = vector(f"{name}.bias", x.axis) if kind is Norm.LAYER else None
        scale = None if kind is Norm.LAYER_PLAIN else gain
        return self.append(LayerNorm(self.layer, self.like(x), x, scale, shift, eps))

    def head_norm(self, x: Value, name: str) -> Value:
        """Appends a root-mean-square norm over each head of x."""
        gain = vector(f"{name}.weight", fixed("head", self.config.heads.head_dim))
        return self.append(RMSNorm(self.layer, self.like(x), x, gain, self.config.eps))

    def head_layer_norm(self, x: Value, name: str, bias: bool = False) -> Value:
        """Appends a LayerNorm over each head of x, with one gain and, with `bias`, one bias for all heads."""
        axis = fixed("head", self.config.heads.head_dim)
        gain, shift = vector(f"{name}.weight", axis), vector(f"{name}.bias", axis) if bias else None
        return self.append(LayerNorm(self.layer, self.like(x), x, gain, shift, self.config.eps))

    def heads_layer_norm(self, x: Value, name: str) -> Value:
        """Appends a LayerNorm over each head of x, each of which has its own gain."""
        gain, heads = vector(f"{name}.weight", x.axis), x.width // self.config.heads.head_dim
        return self.append(LayerNorm(self.layer, self.like(x), x, gain, None, self.config.eps, heads))

    def linear(self, x: Value, name: str, axis: Axis, bias: bool = False) -> Value:
        """Appends x times a matrix [axis, x.axis], plus a bias."""
        weight = WeightSpec(f"{name}.weight", (axis, x.axis), WeightRole.MATRIX)
        shift = vector(f"{name}.bias", axis) if bias else None
        return self.append(Linear(self.layer, self.value(axis, x.rows), x, weight, shift))

    def rope(self, x: Value, head_dim: int | None = None) -> Value:
        """Appends x with each head rotated by its position; returns x itself in a layer without positions."""
        config, size = self.config, head_dim or self.config.heads.head_dim
        rope = config.rope_of(self.layer)
        if rope is None:
            return x
        if rope not in self._rope_specs:
            self._rope_specs[rope] = rope.spec(config.rotary_dim or config.heads.head_dim)
        return self.append(Rope(self.layer, self.like(x), x, size, self._rope_specs[rope]))

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        scale: float | None = None,
        causal: bool = True,
        **scores: Unpack[ScoreOptions],
    ) -> Value:
        """Appends attention over the layer's window; by default causal and scaled by 1 / sqrt(head size)."""
        window = self.config.windows[self.layer]
        heads = self.config.heads
        by = heads.head_dim**-0.5 if scale is None else scale
        out = self.value(q.axis, q.rows)
        return self.append(Attention(self.layer, out, q, k, v, heads, by, window, causal, **scores))

    def gated(self, gate: Value, up: Value, function: Function | None = None) -> Value:
        """Appends the config's function of gate, times up."""
        chosen = function or self.config.function
        return self.append(GatedActivation(self.layer, self.like(gate), gate, up, chosen))

    def activation(self, x: Value, function: Function | None = None) -> Value:
        """Appends the config's function of x, or another."""
        return self.append(
            ElementwiseActivation(self.layer, self.like(x), x, function or self.config.function)
        )

    def clamp(self, x: Value, limit: float) -> Value:
        """Appends x clamped to [-limit, limit]."""
        return self.append(Clamp(self.layer, self.like(x), x, limit))

    def scale(self, x: Value, factor: float = 1.0, by: Value | None = None) -> Value:
        """Appends x times a factor, and times each row's own."""
        return self.append(ScaleRows(self.layer, self.like(x), x, factor, by))

    def add(self, a: Value, b: Value) -> Value:
        return self.append(Add(self.layer, self.like(a), a, b))

    def select_rows(self, x: Value) -> Value:
        return self.append(SelectRows(self.layer, self.value(x.axis, WANTED), x))

    def only_wanted(self, *values: Value) -> Sequence[Value]:
        """Appends, in the last layer, the rows whose logits are wanted: no other row matters after it."""
        if self._every_row or self.layer + 1 < self.config.num_layers:
            return values
        return [self.select_rows(value) for value in values]

    def head(self, x: Value, name: str = "lm_head", bias: bool = False) -> Value:
        """Appends the logits of x's rows."""
        self._head = f"{name}.weight"
        return self.linear(x, name, vocabulary(self.config.vocab_size), bias)


def vector(name: str, axis: Axis) -> WeightSpec:
    """Returns the spec of a norm's gain, or of a bias."""
    return WeightSpec(name, (axis,), WeightRole.VECTOR)


def by_head(name: str, rows: int, heads: Axis) -> WeightSpec:
    """Returns the spec of a table with a number for each of `heads` in each row."""
    return WeightSpec(name, (fixed("tokens", rows), heads), WeightRole.VECTOR)
