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


class GraphInput(NamedTuple):
    """What is given, and for which rows.

    shape: of what is given for each row, () for a number; of a patch [channels, height, width].  after: the
    first rows of each sequence, for which nothing is given.
    """

    kind: InputKind
    rows: RowSet
    shape: tuple[int, ...] = ()
    after: int = 0


def image_shape(given: GraphInput, rows: int) -> tuple[int, int, int]:
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


class GraphOutput(NamedTuple):
    """What a forward pass gives."""

    value: Value
    kind: OutputKind
