"""The one description of a model's forward pass, read by the executor and by the cost model.

A `Graph` is a list of `Op`s over `Value`s (activations) and `WeightSpec`s.  Every width carries the
name of its *axis* ("hidden", "q_heads", "ffn", ...): the compiler cuts a Graph for tensor parallelism
by splitting axes, never by knowing an architecture.  A Graph holds weight specs only; binding weights
is a separate step, so that a 70B model can be planned for without its weights.

Rounding: every Op computes in fp32 from its stored inputs and rounds each result to the format's
`compute` dtype when it stores it.  A Linear first converts its input to the format's `activations`
dtype.  `corepipe.neuron.numerics` is the executable definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class DType(StrEnum):
    """Number formats of a NeuronCore; the value is the name used in flags and reports."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"

    @property
    def bytes(self) -> int:
        """Storage size of one element, in bytes."""
        return {"fp32": 4, "bf16": 2, "fp16": 2}.get(self.value, 1)


INT8_GROUP = 64
"""Elements of K that share one int8 activation scale; equals the commonest head size, so that a
row-parallel shard of whole heads keeps the scales of the unsplit matrix."""


@dataclass(frozen=True, slots=True)
class Format:
    """What a Linear stores, what its input is converted to, and what everything else is kept in."""

    name: str
    weights: DType
    activations: DType
    compute: DType


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("fp32", DType.FP32, DType.FP32, DType.FP32),
        Format("bf16", DType.BF16, DType.BF16, DType.BF16),
        Format("int8", DType.INT8, DType.INT8, DType.BF16),
        Format("int8-weights", DType.INT8, DType.BF16, DType.BF16),
    )
}


class Axis(StrEnum):
    """What a dimension counts.  Tensor parallelism splits the axes in `SPLIT_AXES`."""

    HIDDEN = "hidden"
    Q_HEADS = "q_heads"  # query heads x head size
    KV_HEADS = "kv_heads"  # key/value heads x head size
    HEAD = "head"  # one head's elements (weights of a per-head norm)
    FFN = "ffn"
    VOCAB = "vocab"  # rows of the output head
    TOKENS = "tokens"  # rows of the embedding table, never split


SPLIT_AXES = frozenset({Axis.Q_HEADS, Axis.KV_HEADS, Axis.FFN, Axis.VOCAB})


class Rows(StrEnum):
    """How many rows a Value has in a step: one per token, or one per token whose logits are wanted."""

    TOKENS = "tokens"
    LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Value:
    """An activation of shape [rows, width]."""

    id: int
    axis: Axis
    width: int
    rows: Rows = Rows.TOKENS


class WeightRole(StrEnum):
    """How a weight is stored: matrices take the format's `weights` dtype, the others do not."""

    MATRIX = "matrix"  # [N, K], multiplied by a Linear
    EMBEDDING = "embedding"  # [tokens, hidden], looked up; kept in the compute dtype
    VECTOR = "vector"  # norm gains and biases; kept in fp32


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A named weight.  `name` is the checkpoint's (Hugging Face) tensor name, `axes` label `shape`."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    role: WeightRole


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Query heads, key/value heads and the elements of each; `heads` is a multiple of `kv_heads`."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding, rotate-half layout (Su et al. 2021, as in Hugging Face transformers).

    `inv_freq` has `rotary_dim / 2` fp32 values, scaling (linear, llama3, yarn, ...) already applied;
    cos and sin are multiplied by `attention_factor`.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Op:
    """Base of all operations.  `layer` is -1 before the first decoder layer, `num_layers` after the last."""

    layer: int
    out: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        return ()

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out[r] = table[token[r]]."""

    table: WeightSpec

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return (self.table,)


@dataclass(frozen=True, slots=True)
class RMSNorm(Op):
    """Root-mean-square norm over each group of `len(gain)` consecutive elements, times the gain.

    With a gain as wide as x this is the layer's norm; with one head's width it is Qwen3's q/k norm.
    """

    x: Value
    gain: WeightSpec
    eps: float

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return (self.gain,)


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """out = x @ weight.T (+ bias); weight is [out.width, x.width]."""

    x: Value
    weight: WeightSpec
    bias: WeightSpec | None = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotates each head of x by the row's position; elements past the rotary width pass through."""

    x: Value
    head_dim: int
    rope: RopeSpec

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """Writes k and v to the layer's paged cache, then causal softmax attention over the cache.

    Scores are q.k * scale.  `window` is the number of latest positions seen (None: all of them).
    The cache holds the compute dtype; probabilities are rounded to it before they meet v.
    """

    q: Value
    k: Value
    v: Value
    heads: HeadLayout
    scale: float
    window: int | None = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.q, self.k, self.v)


@dataclass(frozen=True, slots=True)
class GatedActivation(Op):
    """out = silu(gate) * up."""

    gate: Value
    up: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.gate, self.up)


@dataclass(frozen=True, slots=True)
class Add(Op):
    """out = a + b."""

    a: Value
    b: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.a, self.b)


@dataclass(frozen=True, slots=True)
class SelectRows(Op):
    """Keeps the rows whose logits are wanted."""

    x: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)


@dataclass(frozen=True, slots=True)
class AllReduce(Op):
    """Sum over the tensor group, added in rank order in fp32, rounded once.  Inserted by the compiler."""

    x: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)


@dataclass(frozen=True, slots=True)
class AllGather(Op):
    """Concatenation over the tensor group in rank order; `out` is as wide as the unsplit axis.

    Ranks may contribute different widths, and padding at the end of `x` is dropped.
    """

    x: Value
    widths: tuple[int, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)


@dataclass(frozen=True, slots=True)
class Send(Op):
    """Hands x to core `peer` (an index into the replica's Programs); `out` is x itself."""

    x: Value
    peer: int

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)


@dataclass(frozen=True, slots=True)
class Receive(Op):
    """Takes the next value that core `peer` sends."""

    peer: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole forward pass: token ids in, logits [rows wanted, vocab] out."""

    name: str
    format: Format
    ops: tuple[Op, ...]
    heads: HeadLayout
    num_layers: int
    vocab_size: int
    max_positions: int
    tied: dict[str, str] = field(default_factory=dict)
    """Weight name -> the checkpoint's tensor it is read from (a tied head reads the embedding)."""

    @property
    def logits(self) -> Value:
        return self.ops[-1].out

    def weights(self) -> Iterator[WeightSpec]:
        """Each weight once, in order of first use."""
        seen: set[str] = set()
        for op in self.ops:
            for spec in op.weights:
                if spec.name not in seen:
                    seen.add(spec.name)
                    yield spec
