"""Every kind of Op that a Graph or a Program is made of; `graph` has what they are made of.

The twin and the native executor compute those of dense decoders (`numerics.COMPUTED`); the others are
timed only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from corepipe.neuron.graph import HeadLayout, InputKind, Op, RopeSpec, StateKind, StateSpec, Value, WeightSpec


class Function(StrEnum):
    """Functions of one element."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"  # GELU's approximation with tanh (Hendrycks & Gimpel 2016)
    RELU = "relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"


class RowIndex(StrEnum):
    """By what a row of a table is found."""

    POSITION = "position"
    TYPE = "type"  # BERT's first or second text of a pair


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out[r] = table[token[r]]."""

    table: WeightSpec

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return (self.table,)

    @property
    def reads(self) -> InputKind:
        return InputKind.TOKENS


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
class LayerNorm(Op):
    """(x - mean) / sqrt(variance + eps) over all of x, times the gain, plus the bias, where there are any."""

    x: Value
    gain: WeightSpec | None
    bias: WeightSpec | None
    eps: float

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return tuple(spec for spec in (self.gain, self.bias) if spec is not None)


@dataclass(frozen=True, slots=True)
class AddEmbedding(Op):
    """out = x + table[index of the row + offset]: learned positions, token types."""

    x: Value
    table: WeightSpec
    by: RowIndex = RowIndex.POSITION
    offset: int = 0

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return (self.table,)

    @property
    def reads(self) -> InputKind | None:
        return InputKind.TYPES if self.by is RowIndex.TYPE else None


@dataclass(frozen=True, slots=True)
class PatchEmbed(Op):
    """out = patch @ weight.T + bias for each patch of an image; row 0 of a sequence is `first` instead.

    weight is [hidden, channels x height x width of a patch]; `first` are the rows of learned vectors that
    precede the patches (ViT's class token, DeiT's distillation token), [count, hidden].
    """

    weight: WeightSpec
    bias: WeightSpec
    first: WeightSpec

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return (self.weight, self.bias, self.first)

    @property
    def reads(self) -> InputKind:
        return InputKind.PATCHES


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
    Not `causal`: each row attends to all rows of its sequence, and nothing is kept.  `softcap` c: scaled
    scores become c tanh(score / c).  `alibi`: then they fall linearly with distance, by the slope of each of
    the model's heads (Press et al. 2022), of which a core takes those of its own heads.  `distance_bias` is
    added to scores by distance, a row a bucket and a column a head of the model (Raffel et al. 2020); `sinks`
    [1, heads] take part in the softmax alone (gpt-oss).
    """

    q: Value
    k: Value
    v: Value
    heads: HeadLayout
    scale: float
    window: int | None = None
    causal: bool = True
    alibi: tuple[float, ...] | None = None
    softcap: float | None = None
    distance_bias: WeightSpec | None = None
    sinks: WeightSpec | None = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.q, self.k, self.v)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return tuple(spec for spec in (self.distance_bias, self.sinks) if spec is not None)

    @property
    def state(self) -> StateSpec | None:
        if not self.causal:
            return None
        return StateSpec(StateKind.TOKENS, 2 * self.heads.kv_heads * self.heads.head_dim, self.window)

    @property
    def head_layout(self) -> HeadLayout:
        return self.heads


@dataclass(frozen=True, slots=True)
class CrossAttention(Op):
    """A decoder's attention to the encoder's rows: k and v are made once a sequence, and kept."""

    q: Value
    k: Value
    v: Value
    heads: HeadLayout
    scale: float

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.q, self.k, self.v)

    @property
    def state(self) -> StateSpec:
        return StateSpec(StateKind.SOURCE, 2 * self.heads.kv_heads * self.heads.head_dim)

    @property
    def head_layout(self) -> HeadLayout:
        return self.heads


@dataclass(frozen=True, slots=True)
class LatentAttention(Op):
    """Causal attention that keeps one latent a token for all heads (DeepSeek-V2, 2024, section 2.1).

    q: [rows, heads x head_dim]; latent: [rows, rank]; key_rope: [rows, rotary width], rotated, the part of
    the keys that the heads share.  A head's key is its part of key_up @ latent and key_rope; its value is its
    part of value_up @ latent.  key_up is [heads x (head_dim - rotary width), rank], value_up is
    [heads x value size, rank], out is [rows, heads x value size].  A device may instead multiply q by key_up
    and the result by value_up, and attend to the latents themselves.
    """

    q: Value
    latent: Value
    key_rope: Value
    key_up: WeightSpec
    value_up: WeightSpec
    heads: HeadLayout
    scale: float

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.q, self.latent, self.key_rope)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return (self.key_up, self.value_up)

    @property
    def state(self) -> StateSpec:
        return StateSpec(StateKind.TOKENS, self.latent.width + self.key_rope.width)

    @property
    def head_layout(self) -> HeadLayout:
        return self.heads


@dataclass(frozen=True, slots=True)
class GatedActivation(Op):
    """out = function(gate) * up."""

    gate: Value
    up: Value
    function: Function = Function.SILU

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.gate, self.up)


@dataclass(frozen=True, slots=True)
class Activation(Op):
    """out = function(x)."""

    x: Value
    function: Function

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)


@dataclass(frozen=True, slots=True)
class Scale(Op):
    """out = x times a constant, and times the row's own factor `by` (of width 1), where there is one."""

    x: Value
    factor: float = 1.0
    by: Value | None = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,) if self.by is None else (self.x, self.by)


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """A mixture of experts: each row goes to the `top_k` experts that its routing scores are highest for.

    out = sum over those experts of weight x down(function(gate(x)) * up(x)).  routing: [rows, experts], a
    Linear's result.  gate and up are [experts, ffn, hidden], down is [experts, hidden, ffn]; `biases`, if
    any, are those of the three, [experts, ffn] twice and [experts, hidden].  `ffn` is the part of an
    expert's middle that the core has.
    """

    x: Value
    routing: Value
    gate: WeightSpec
    up: WeightSpec
    down: WeightSpec
    top_k: int
    ffn: int
    function: Function = Function.SILU
    biases: tuple[WeightSpec, ...] = ()

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x, self.routing)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        return (self.gate, self.up, self.down, *self.biases)

    @property
    def experts(self) -> int:
        return self.gate.shape[0]


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
