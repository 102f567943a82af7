"""The one description of a model's forward pass, read by the executor and by the cost model.

A `Graph` is a list of `Op`s over `Value`s (activations) and `WeightSpec`s, and says what it is: what it
reads, the sets of rows that it has, what it gives.  Every width is an *axis*, which says how tensor
parallelism may cut it: the compiler cuts axes, never knowing an architecture.  A Graph holds weight specs
only; binding weights is a separate step, so that a 70B model can be planned for without its weights.

Rounding: every Op computes in fp32 from its stored inputs and rounds each result to the format's
`compute` dtype when it stores it.  A Linear first converts its input to the format's `activations`
dtype.  `corepipe.neuron.numerics` is the executable definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isqrt, prod
from typing import TYPE_CHECKING, NamedTuple

from corepipe.neuron.axes import Axis, AxisKind

if TYPE_CHECKING:  # an Op is made of what is here
    from corepipe.neuron.ops.base import Op


class DType(StrEnum):
    """Number formats of a NeuronCore; the value is the name used in flags and reports."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"
    INT4 = "int4"
    MXFP8 = "mxfp8"
    MXFP4 = "mxfp4"

    @property
    def bytes(self) -> int:
        """Storage size of one element, in bytes.  Raises KeyError for int4 and microscaling formats."""
        return _ELEMENT_BYTES[self.value]

    def stored(self, elements: int) -> int:
        """Bytes of so many elements; a microscaling format has a scale of 8 bits for each MX_GROUP."""
        if self not in _MX_BITS:
            return elements * self.bytes
        return -(-elements * _MX_BITS[self] // 8) + -(-elements // MX_GROUP)


_ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}
_MX_BITS = {DType.MXFP8: 8, DType.MXFP4: 4}

MX_GROUP = 32
"""Elements that share a scale (nki/guides/architecture/trainium3_arch.rst; OCP Microscaling Formats 1.0)."""


@dataclass(frozen=True, slots=True)
class Format:
    """What a Linear stores, what its input is converted to, and what everything else is kept in."""

    name: str
    weights: DType
    activations: DType
    compute: DType

    @property
    def held(self) -> DType:
        """What a core's memory has of a matrix: integers of four bits, of which no Neuron software knows, are
        widened when a model is loaded."""
        return self.compute if self.weights is DType.INT4 else self.weights

    @property
    def multiplied(self) -> DType:
        """What TensorE multiplies: int8 weights alone are converted to the activations' format first."""
        if self.weights is DType.INT4:
            return self.compute
        return self.weights if self.weights is self.activations else self.activations


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("fp32", DType.FP32, DType.FP32, DType.FP32),
        Format("bf16", DType.BF16, DType.BF16, DType.BF16),
        Format("int8", DType.INT8, DType.INT8, DType.BF16),
        Format("int8-weights", DType.INT8, DType.BF16, DType.BF16),
        Format("int4-weights", DType.INT4, DType.INT8, DType.BF16),
    )
}
"""Formats that executors compute."""

TIMED_FORMATS: dict[str, Format] = FORMATS | {
    f.name: f
    for f in (
        Format("fp8", DType.FP8_E4M3, DType.FP8_E4M3, DType.BF16),
        Format("mxfp8", DType.MXFP8, DType.MXFP8, DType.BF16),
        Format("mxfp4", DType.MXFP4, DType.MXFP8, DType.BF16),  # widened to MXFP8: fewer bytes, no more FLOPs
    )
}
"""Formats that the cost model times: those, and what only devices compute."""


class Function(StrEnum):
    """Functions of one element.

    clamped_swish: x sigmoid(1.702 x) of what is no more than `SWISH_LIMIT`; what it gates is held within that
    on both sides, and 1 more (gpt-oss).
    """

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"  # GELU's approximation with tanh (Hendrycks & Gimpel 2016)
    RELU = "relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    CLAMPED_SWISH = "clamped_swish"


SWISH_LIMIT, SWISH_GAIN = 7.0, 1.702
"""Of `clamped_swish`."""


class RowSet(NamedTuple):
    """A set of rows of a step; `StepShape.counts` says at its number how many there are, `each` times.

    each: rows for one that is counted: an image has so many pixels.
    """

    number: int
    name: str
    each: int = 1


TOKENS = RowSet(0, "tokens")
"""One row a token."""
WANTED = RowSet(1, "logits")
"""One row a token whose result is wanted."""
SOURCE = RowSet(2, "source")
"""One row a token of an encoder-decoder's source; none in the steps that decode."""


def pixels(height: int, width: int) -> RowSet:
    """One row a pixel of an image, or of a map as large: a step counts images where others count tokens."""
    return RowSet(TOKENS.number, f"{height}x{width}", height * width)


class Value(NamedTuple):
    """An activation of shape [rows, width]."""

    id: int
    axis: Axis
    rows: RowSet = TOKENS

    @property
    def width(self) -> int:
        return self.axis.width


class WeightRole(StrEnum):
    """How a weight is stored: matrices take the format's `weights` dtype, the others do not."""

    MATRIX = "matrix"  # [N, K], multiplied by a Linear; [experts, N, K] in a mixture of experts
    EMBEDDING = "embedding"  # [tokens, hidden], looked up; kept in the compute dtype
    VECTOR = "vector"  # norm gains and biases; kept in fp32


_MATRIX_AXES = 2


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A named weight.  `name` is the checkpoint's (Hugging Face) tensor name, one axis is one dimension."""

    name: str
    axes: tuple[Axis, ...]
    role: WeightRole

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple([axis.width for axis in self.axes])

    @property
    def is_stack(self) -> bool:
        """Whether it is several matrices of one shape, one for each expert."""
        return self.role is WeightRole.MATRIX and len(self.axes) > _MATRIX_AXES

    @property
    def is_head(self) -> bool:
        """Whether it makes logits."""
        return self.role is WeightRole.MATRIX and self.axes[0].kind is AxisKind.VOCABULARY


def stored_bytes(shape: Sequence[int], role: WeightRole, fmt: Format) -> dict[DType, int]:
    """Bytes of a weight as a core keeps it, by number format; an int8 matrix has an fp32 scale a row."""
    elements = prod(shape)
    match role:
        case WeightRole.MATRIX:
            kept = {fmt.held: fmt.held.stored(elements)}
            if fmt.held is DType.INT8:
                kept[DType.FP32] = elements // shape[-1] * DType.FP32.bytes
            return kept
        case WeightRole.EMBEDDING:
            return {fmt.compute: elements * fmt.compute.bytes}
        case WeightRole.VECTOR:
            return {DType.FP32: elements * DType.FP32.bytes}


def weight_bytes(shape: Sequence[int], role: WeightRole, fmt: Format) -> int:
    """Bytes of a weight as a core keeps it."""
    return sum(stored_bytes(shape, role, fmt).values())


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding, rotate-half layout (Su et al. 2021, as in Hugging Face transformers).

    `inv_freq` has `rotary_dim / 2` fp32 values, scaling (linear, llama3, yarn, ...) already applied;
    cos and sin are multiplied by `attention_factor`.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


class StateKind(StrEnum):
    """For what an Op keeps something from one step to the next."""

    TOKENS = "tokens"  # for each token of a sequence, in KV blocks
    SOURCE = "source"  # for each token of the source, made once
    SEQUENCE = "sequence"  # for a sequence, however long it is


class StateSpec(NamedTuple):
    """What an Op keeps for each token: `per_token` elements of the compute format, or as int8 with a scale
    for each of the `vectors` that they make; `window`: for the latest so many tokens.  Of a recurrent Op
    `per_sequence` elements in fp32 instead.  `shared`: of a key the first so many are its value, too (0:
    values are kept beside keys)."""

    kind: StateKind
    per_token: int = 0
    window: int | None = None
    vectors: int = 1
    per_sequence: int = 0
    shared: int = 0

    @property
    def keys(self) -> tuple[int, int]:
        """Keys of a token, and the elements of each."""
        return self.vectors if self.shared else self.vectors // 2, self.per_token // self.vectors

    def nbytes(self, dtype: DType) -> int:
        """Of a token, kept as `dtype`; an int8 vector has an fp32 scale."""
        scales = self.vectors * DType.FP32.bytes if dtype is DType.INT8 else 0
        return self.per_token * dtype.bytes + scales


class InputKind(StrEnum):
    """What a forward pass is given for each row of a set; positions are given with all of them."""

    TOKENS = "tokens"  # ids in the vocabulary
    TYPES = "types"  # BERT's first or second text of a pair
    PATCHES = "patches"  # parts of an image, all channels
    PIXELS = "pixels"  # of an image, all channels


class Input(NamedTuple):
    """What is given, and for which rows.

    shape: of what is given for each row, () for a number; of a patch [channels, height, width].  after: the
    first rows of each sequence, for which nothing is given.
    """

    kind: InputKind
    rows: RowSet
    shape: tuple[int, ...] = ()
    after: int = 0


def image_shape(given: Input, rows: int) -> tuple[int, int, int]:
    """[channels, height, width] of the square image that gives so many rows, those of learned vectors too."""
    channels, side, _ = given.shape
    whole = side * isqrt(rows - given.after)
    return channels, whole, whole


class OutputKind(StrEnum):
    """What a forward pass gives for each row of the value."""

    LOGITS = "logits"  # over the vocabulary
    VECTOR = "vector"  # one a sequence or an image
    HIDDEN = "hidden"  # the last hidden state
    SCORES = "scores"  # one a class
    MAP = "map"  # one a pixel


class Output(NamedTuple):
    """What a forward pass gives."""

    value: Value
    kind: OutputKind


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole forward pass, from its `inputs` to its `outputs`.

    outputs: the first is what a run returns unless it is asked for another; all are made in the last layer
    or after it.  rows: the sets of rows that the Ops' values have.
    causal: it generates token after token; otherwise it reads its input in one step and keeps nothing.
    """

    name: str
    format: Format
    ops: tuple[Op, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    num_layers: int
    vocab_size: int
    max_positions: int
    tied: dict[str, str] = field(default_factory=dict)
    """Weight name -> the checkpoint's tensor it is read from (a tied head reads the embedding)."""
    causal: bool = True
    rows: tuple[RowSet, ...] = (TOKENS, WANTED)

    @property
    def logits(self) -> Value:
        """What tokens are drawn from.  Raises ValueError where there is no such output."""
        for output in self.outputs:
            if output.kind is OutputKind.LOGITS:
                return output.value
        raise ValueError(f"{self.name}: gives no logits")

    @property
    def attention_heads(self) -> int:
        """Query heads of the Op that has fewest: tensor parallelism has no more ranks."""
        layouts = (op.head_layout for op in self.ops)
        return min((layout.heads for layout in layouts if layout is not None), default=1)

    @property
    def experts(self) -> int:
        """Experts of the mixture that has fewest: `--expert` divides them among no more cores (0: none)."""
        axes = (spec.axes[0] for op in self.ops for spec in op.weights)
        return min((axis.width for axis in axes if axis.kind is AxisKind.EXPERTS), default=0)

    @property
    def is_decoder(self) -> bool:
        """Whether it generates token after token from tokens alone, as what is served does."""
        return self.causal and self.inputs == (Input(InputKind.TOKENS, TOKENS),)

    @property
    def generates(self) -> bool:
        """Whether it gives the logits of the next token."""
        return self.causal and self.outputs[0].kind is OutputKind.LOGITS

    @property
    def is_recurrent(self) -> bool:
        """Whether it keeps a state for each sequence."""
        return any(state.kind is StateKind.SEQUENCE for state in self.states())

    @property
    def is_hybrid(self) -> bool:
        """Whether it keeps a state for each sequence, and keys and values for each token, too."""
        return self.is_recurrent and any(state.kind is StateKind.TOKENS for state in self.states())

    def refusal(self) -> str | None:
        """The first Op that the executors do not compute in the graph's format, and why (None: all are)."""
        return first_refusal(self.ops, self.format)

    def states(self) -> Iterator[StateSpec]:
        """What the Ops keep of a sequence."""
        for op in self.ops:
            if (state := op.state) is not None:
                yield state

    def weights(self) -> Iterator[WeightSpec]:
        """Each weight once, in order of first use."""
        seen: set[str] = set()
        for op in self.ops:
            for spec in op.weights:
                if spec.name not in seen:
                    seen.add(spec.name)
                    yield spec


def first_refusal(ops: Iterable[Op], fmt: Format) -> str | None:
    """The first Op that the executors do not compute in a format, and why (None: they compute all)."""
    for op in ops:
        if (reason := op.refuses(fmt)) is not None:
            return f"{type(op).__name__} of layer {op.layer} {reason}"
    return None
