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

    @property
    def multiplied(self) -> DType:
        """What TensorE multiplies: int8 weights alone are converted to the activations' format first."""
        return self.weights if self.weights is self.activations else self.activations


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
    K_LATENT_HEADS = "k_latent_heads"  # query heads x the part of a key that comes from the latent
    V_LATENT_HEADS = "v_latent_heads"  # query heads x the size of a value that comes from the latent
    HEAD = "head"  # one head's elements (weights of a per-head norm)
    FFN = "ffn"
    EXPERT_FFN = "expert_ffn"  # of one routed expert
    SHARED_FFN = "shared_ffn"  # of the experts that every token takes
    VOCAB = "vocab"  # rows of the output head
    TOKENS = "tokens"  # rows of an embedding table, never split
    LATENT = "latent"  # a narrow middle between two matrices, never split
    EXPERTS = "experts"  # one a routed expert, never split
    PIXELS = "pixels"  # channels x height x width of an image's patch


HEAD_AXES = frozenset({Axis.Q_HEADS, Axis.KV_HEADS, Axis.K_LATENT_HEADS, Axis.V_LATENT_HEADS})
SPLIT_AXES = HEAD_AXES | {Axis.FFN, Axis.EXPERT_FFN, Axis.SHARED_FFN, Axis.VOCAB}


class Rows(StrEnum):
    """How many rows a Value has in a step.

    One per token, or one per token whose logits are wanted; in the encoder of an encoder-decoder one per
    token of the source, and none in the steps that decode.
    """

    TOKENS = "tokens"
    LOGITS = "logits"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Value:
    """An activation of shape [rows, width]."""

    id: int
    axis: Axis
    width: int
    rows: Rows = Rows.TOKENS


class WeightRole(StrEnum):
    """How a weight is stored: matrices take the format's `weights` dtype, the others do not."""

    MATRIX = "matrix"  # [N, K], multiplied by a Linear; [experts, N, K] in a mixture of experts
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

    @property
    def kv_width(self) -> int:
        """Elements that the op keeps for each token of a sequence, for the steps to come."""
        return 0


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole forward pass: token ids in, logits [rows wanted, vocab] out.

    An encoder (`causal` False) reads its input in one step and keeps nothing; it gives a vector a
    sequence, or logits a token.  An encoder-decoder is causal: its encoder's values have `Rows.SOURCE`.
    """

    name: str
    format: Format
    ops: tuple[Op, ...]
    heads: HeadLayout
    num_layers: int
    vocab_size: int
    max_positions: int
    tied: dict[str, str] = field(default_factory=dict)
    """Weight name -> the checkpoint's tensor it is read from (a tied head reads the embedding)."""
    causal: bool = True

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
