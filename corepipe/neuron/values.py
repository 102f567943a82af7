"""Values, weights, states, inputs and outputs of a graph, with their shapes and sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isqrt, prod
from typing import NamedTuple

from corepipe.neuron.axes import Axis, AxisKind
from corepipe.neuron.formats import DType, Format


class RowSet(NamedTuple):
    """A set of rows of a step, such as one row per token.

    number: index of the set in `StepShape.counts`, which counts tokens, sequences or images.
    each: rows for each that is counted, for example the pixels of an image.
    """

    number: int
    name: str
    each: int = 1


TOKENS = RowSet(0, "tokens")
"""One row per token."""


WANTED = RowSet(1, "logits")
"""One row per token whose logits or result are requested."""


SOURCE = RowSet(2, "source")
"""One row per token of an encoder-decoder's source text; none in the steps that decode."""


def pixels(height: int, width: int) -> RowSet:
    """Returns a row set with one row per pixel of an image or of a map of that size; a step then counts
    images, not tokens."""
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
    """The role of a weight, which decides its format: matrices are stored as the format's `weights` dtype,
    the others are not."""

    MATRIX = "matrix"  # [N, K], multiplied by a Linear; [experts, N, K] in a mixture of experts
    EMBEDDING = "embedding"  # [tokens, hidden], looked up; kept in the compute dtype
    VECTOR = "vector"  # norm gains and biases; kept in fp32


_MATRIX_AXES = 2


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A named weight.  `name` is the checkpoint's (Hugging Face) tensor name; each axis is one dimension."""

    name: str
    axes: tuple[Axis, ...]
    role: WeightRole

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple([axis.width for axis in self.axes])

    @property
    def is_stack(self) -> bool:
        """True for several matrices of one shape, one per expert."""
        return self.role is WeightRole.MATRIX and len(self.axes) > _MATRIX_AXES

    @property
    def is_head(self) -> bool:
        """True for the matrix that makes logits."""
        return self.role is WeightRole.MATRIX and self.axes[0].kind is AxisKind.VOCABULARY


def stored_bytes(shape: Sequence[int], role: WeightRole, fmt: Format) -> dict[DType, int]:
    """Returns the bytes of a weight in a core's memory, by number format; an int8 matrix has an fp32 scale
    per row."""
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
    """Returns the bytes of a weight in a core's memory."""
    return sum(stored_bytes(shape, role, fmt).values())


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding, rotate-half layout (Su et al. 2021, as in Hugging Face transformers).

    `inv_freq` has `rotary_dim / 2` fp32 values with the scaling (linear, llama3, yarn, ...) already applied;
    cos and sin are multiplied by `attention_factor`.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


class StateKind(StrEnum):
    """The unit for which an Op keeps data from one step to the next."""

    TOKENS = "tokens"  # per token of a sequence, in KV blocks
    SOURCE = "source"  # per token of the source, made once
    SEQUENCE = "sequence"  # per sequence, however long it is


class StateSpec(NamedTuple):
    """The data that an Op keeps from one step to the next.

    per_token: elements per token, in the compute format, or as int8 with a scale for each of the `vectors`
    that they make.
    window: only the latest so many tokens are kept (None: all).
    per_sequence: fp32 elements per sequence, for a recurrent Op, instead of `per_token`.
    shared: the first so many elements of a key are also its value (0: values are kept beside keys).
    """

    kind: StateKind
    per_token: int = 0
    window: int | None = None
    vectors: int = 1
    per_sequence: int = 0
    shared: int = 0

    @property
    def keys(self) -> tuple[int, int]:
        """The number of keys per token, and the elements of each."""
        return self.vectors if self.shared else self.vectors // 2, self.per_token // self.vectors

    def nbytes(self, dtype: DType) -> int:
        """Returns the bytes per token when kept as `dtype`; an int8 vector has an fp32 scale."""
        scales = self.vectors * DType.FP32.bytes if dtype is DType.INT8 else 0
        return self.per_token * dtype.bytes + scales


class InputKind(StrEnum):
    """The kinds of input that a forward pass receives for each row of a set; positions come with every
    kind."""

    TOKENS = "tokens"  # ids in the vocabulary
    TYPES = "types"  # BERT's first or second text of a pair
    PATCHES = "patches"  # parts of an image, all channels
    PIXELS = "pixels"  # pixels of an image, all channels


class GraphInput(NamedTuple):
    """An input of a graph and the rows that it is given for.

    shape: of the input of one row: () for a number, [channels, height, width] for a patch.
    after: the first rows of each sequence, which receive no input.
    """

    kind: InputKind
    rows: RowSet
    shape: tuple[int, ...] = ()
    after: int = 0


def image_shape(given: GraphInput, rows: int) -> tuple[int, int, int]:
    """Returns [channels, height, width] of the square image whose patches fill so many rows, learned rows
    included."""
    channels, side, _ = given.shape
    whole = side * isqrt(rows - given.after)
    return channels, whole, whole


class OutputKind(StrEnum):
    """The kinds of output that a forward pass returns for each row of the value."""

    LOGITS = "logits"  # over the vocabulary
    VECTOR = "vector"  # one per sequence or image
    HIDDEN = "hidden"  # the last hidden state
    SCORES = "scores"  # one per class
    MAP = "map"  # one per pixel


class GraphOutput(NamedTuple):
    """An output of a graph: its value and its kind."""

    value: Value
    kind: OutputKind
