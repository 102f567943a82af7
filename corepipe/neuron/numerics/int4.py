"""Weights of four bits: the numbers that they stand for, and their quantisation.

A group of 32 or 64 consecutive elements of K has a scale s and maybe an offset o, both fp16; each of its
numbers q, 0 to 15, stands for

    (q - 8) s        nothing        GGUF's Q4_0, symmetric GPTQ
    (q + o) s        zeros          GPTQ and AWQ: o is the zero point, negated
    q s + o          minima         GGUF's Q4_1, Q4_K

all of which are exact in fp32 but for the sum with a minimum, which is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError
from corepipe.neuron.formats import DType, Format
from corepipe.neuron.numerics.arithmetic import (
    F32,
    I8,
    quantize_weight,
)
from corepipe.neuron.values import WeightRole, WeightSpec

if TYPE_CHECKING:  # the compiled module may be missing where nothing is executed
    from corepipe.kernels.packing import Offsets

U8 = npt.NDArray[np.uint8]
F16 = npt.NDArray[np.float16]

ALL = slice(None)
"""Every row of a weight."""
GROUPS = (32, 64)
"""Possible numbers of elements of K that share a scale."""
QUANTIZED_GROUP = 32
"""Group of the weights that are quantised here."""
LEAST = np.array([-8.5, -8.0, -7.5, -7.0, -6.5], np.float32)
"""Candidates for the quantised value of a group's largest element, less 8, when a scale is searched."""
PIECE = 1 << 18
"""Weights that are quantised at once: they and the intermediate arrays fit in a core's L2 cache."""
SCALE_MAX = float(np.finfo(np.float16).max)


class Int8(NamedTuple):
    """Integers [N, K], with a scale [N] per row."""

    values: I8
    scale: F32


@dataclass(frozen=True, slots=True)
class Int4:
    """Numbers [N, K] from 0 to 15; scales and offsets [N, ceil(K / group)], no offsets where they are `none`.

    Raises ValueError for a group or shapes that no kernel supports, and for scales or offsets that are not
    finite.
    """

    values: U8
    scale: F16
    group: int = QUANTIZED_GROUP
    offsets: Offsets = "none"
    offset: F16 | None = None

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ValueError(f"groups of {self.group}: four-bit weights have groups of 32 or 64")
        if (self.offset is None) != (self.offsets == "none"):
            raise ValueError(f"offsets are {self.offsets}")
        shape = (self.values.shape[0], -(-self.values.shape[1] // self.group))
        for numbers in (self.scale, *self._offset):
            if numbers.shape != shape:
                raise ValueError(f"scales are {numbers.shape}, not {shape}")
            if not np.isfinite(numbers).all():
                raise ValueError("scales are not finite")

    @property
    def _offset(self) -> tuple[F16, ...]:
        return () if self.offset is None else (self.offset,)

    def part(self, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]) -> Int4 | None:
        """Returns some rows and columns, zeros for -1.  None where a group would be cut or cannot hold
        zeros."""
        width = len(columns)
        padded = np.full(-(-width // self.group) * self.group, -1)
        padded[:width] = columns
        chunks = padded.reshape(-1, self.group)
        groups = chunks.max(axis=1, initial=-1) // self.group
        starts = np.where(groups < 0, -1, groups * self.group)[:, None]
        if not np.all((chunks < 0) | (chunks == starts + np.arange(self.group))):
            return None
        part = self._taken(rows, groups, columns)
        missing = columns < 0
        if np.any(missing & (np.repeat(groups, self.group)[:width] >= 0)):
            return part._without(missing)
        return part

    def _without(self, columns: npt.NDArray[np.bool_]) -> Int4 | None:
        """Returns the weight with zeros in these columns.  None where no number of a group stands for 0."""
        if self.offsets == "minima":
            return None
        zero = np.float16(8) if self.offset is None else -self.offset
        if np.any((zero != np.rint(zero)) | (zero < 0) | (zero > 15)):
            return None
        each = np.broadcast_to(zero, self.scale.shape).astype(np.uint8)
        spread = np.repeat(each, self.group, axis=1)[:, : self.values.shape[1]]
        return replace(self, values=np.where(columns, spread, self.values))

    def _taken(
        self, rows: npt.NDArray[np.intp], groups: npt.NDArray[np.intp] | slice, columns: npt.NDArray[np.intp]
    ) -> Int4:
        kept, there = rows >= 0, columns >= 0

        def numbers(array: F16) -> F16:
            taken = np.where(kept[:, None], array[rows][:, groups], np.float16(0))
            return taken if isinstance(groups, slice) else np.where(groups >= 0, taken, np.float16(0))

        values = np.where(kept[:, None] & there, self.values[rows][:, columns], np.uint8(0))
        offset = None if self.offset is None else numbers(self.offset)
        return replace(self, values=values, scale=numbers(self.scale), offset=offset)

    def added(self) -> F32:
        """Returns the number that is added to q s, [N, groups] fp32: exact."""
        scale = self.scale.astype(np.float32)
        if self.offset is None:
            return np.float32(-8) * scale
        offset = self.offset.astype(np.float32)
        return offset * scale if self.offsets == "zeros" else offset

    def dense(self) -> F32:
        """Returns the weights [N, K] that the numbers stand for."""
        width = self.values.shape[1]
        scale, added = self.scale.astype(np.float32), self.added()
        dense = self.values.astype(np.float32)
        dense *= np.repeat(scale, self.group, axis=1)[:, :width]
        dense += np.repeat(added, self.group, axis=1)[:, :width]
        return dense


Stored = F32 | Int8 | Int4
"""A weight as a checkpoint stores it: floats, or a matrix of integers with scales."""


W = TypeVar("W", bound=Stored)


def taken(weight: W, rows: slice | npt.NDArray[np.intp]) -> W:
    """Returns some rows of a weight, in this order."""
    some: Stored
    if isinstance(weight, np.ndarray):
        some = weight[rows]
    elif isinstance(weight, Int8):
        some = Int8(weight.values[rows], weight.scale[rows])
    else:
        offset = None if weight.offset is None else weight.offset[rows]
        some = replace(weight, values=weight.values[rows], scale=weight.scale[rows], offset=offset)
    return cast("W", some)


def quantize(weight: F32) -> Int4:
    """Quantises weights [N, K] in groups of 32 without offsets.

    A group's largest element becomes -8 or near it; of five such scales the one with the least sum of squared
    errors is chosen, after it has been fitted to its integers and rounded to fp16.
    Raises ValueError for weights that are too large for such scales.
    """
    if np.abs(weight).max(initial=0.0) > -LEAST[-1] * SCALE_MAX:
        raise ValueError("weights are too large for fp16 scales")
    rows = max(1, PIECE // max(1, weight.shape[1]))
    parts = [_quantized(weight[start : start + rows]) for start in range(0, len(weight), rows)]
    return Int4(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))


def _quantized(weight: F32) -> tuple[U8, F16]:
    """Returns the numbers and scales of some rows."""
    n, k = weight.shape
    groups = -(-k // QUANTIZED_GROUP)
    blocks = np.zeros((n, groups * QUANTIZED_GROUP), np.float32)
    blocks[:, :k] = weight
    blocks = blocks.reshape(n, groups, QUANTIZED_GROUP)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[:, :, None], axis=2)
    scale = np.zeros((n, groups, 1), np.float16)
    error = np.full((n, groups, 1), np.inf, np.float32)
    for least in LEAST:
        tried = _fitted(blocks, largest / least)
        left = blocks - _nearest(blocks, tried) * tried.astype(np.float32)
        squares = np.einsum("ngk,ngk->ng", left, left)[:, :, None]
        better = squares < error
        scale, error = np.where(better, tried, scale), np.where(better, squares, error)
    values = (_nearest(blocks, scale) + 8).astype(np.uint8).reshape(n, -1)[:, :k]
    return values, scale[:, :, 0]


def _nearest(blocks: F32, scale: F16) -> F32:
    """Returns the nearest integers under a scale [N, groups, 1], 0 where it is 0."""
    wide = scale.astype(np.float32)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)
    return np.clip(np.rint(blocks * inverse), -8, 7)


def _fitted(blocks: F32, scale: F32) -> F16:
    """Returns the scale that best fits the integers that a first scale gives."""
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    integers = np.clip(np.rint(blocks * inverse), -8, 7)
    along = np.einsum("ngk,ngk->ng", blocks, integers)[:, :, None]
    squares = np.einsum("ngk,ngk->ng", integers, integers)[:, :, None]
    fitted = np.divide(along, squares, out=np.zeros_like(along), where=squares != 0)
    return np.asarray(np.clip(fitted, -SCALE_MAX, SCALE_MAX), np.float16)


def in_groups(values: U8, scale: F32, zero: F32 | None, size: int) -> Int4 | None:
    """Converts numbers [N, K] in groups of `size` of K to the kernels' groups.

    Each group has a scale and maybe a zero point, [N, ceil(K / size)]: (q - zero) s, or (q - 8) s without.
    None where the kernels' groups cannot represent them: scales become fp16 only where that is nearer than
    2^-10 of them.
    """
    size = min(size, values.shape[1])
    group = next((group for group in reversed(GROUPS) if size % group == 0), 0)
    if not group and size < values.shape[1]:
        return None
    group, groups = group or GROUPS[-1], -(-values.shape[1] // (group or GROUPS[-1]))
    each = -(-size // group)
    spread = np.repeat(scale, each, axis=1)[:, :groups]
    with np.errstate(over="ignore"):
        half = spread.astype(np.float16)
    if not np.allclose(half, spread, rtol=2**-10, atol=0):
        return None
    if zero is None or np.all(zero == 8):
        return Int4(values, half, group)
    offset = -np.repeat(zero, each, axis=1)[:, :groups].astype(np.float16)
    return Int4(values, half, group, "zeros", offset)


def as_stored(spec: WeightSpec, fmt: Format, weight: Stored) -> Stored:
    """Converts a weight to the integers of a format, if it stores integers: a matrix of floats is quantised.

    A matrix that makes logits has eight bits where the others have four.  The integers of a stack are those
    of its matrices, one below the other.  Raises UserError for weights that four bits cannot scale.
    """
    if spec.role is not WeightRole.MATRIX or not isinstance(weight, np.ndarray):
        return weight
    if fmt.weights in (DType.INT8, DType.INT4):
        weight = weight.reshape(-1, weight.shape[-1])
    if fmt.weights is DType.INT8 or (fmt.weights is DType.INT4 and spec.is_head):
        return Int8(*quantize_weight(weight))
    if fmt.weights is not DType.INT4:
        return weight
    try:
        return quantize(weight)
    except ValueError as error:
        raise UserError(f"{spec.name}: {error}: use --dtype int8") from error


def matrices_of(weight: Stored, count: int) -> Iterator[Stored]:
    """Yields each matrix of a stack: of integers, one below the other, or of floats [count, N, K]."""
    if isinstance(weight, np.ndarray):
        yield from weight
        return
    rows = len(weight.values) // count
    yield from (taken(weight, slice(start, start + rows)) for start in range(0, count * rows, rows))


def stacked(parts: Sequence[Stored]) -> Stored:
    """Joins matrices into a stack: in four bits where all have one kind of groups, else in int8 where any are
    integers."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.stack([part for part in parts if isinstance(part, np.ndarray)])
    fours = [part for part in parts if isinstance(part, Int4)]
    if len(fours) == len(parts) and len({(part.group, part.offsets) for part in fours}) == 1:
        offset = None if fours[0].offset is None else np.concatenate([np.asarray(p.offset) for p in fours])
        values, scale = (np.concatenate([getattr(p, name) for p in fours]) for name in ("values", "scale"))
        return replace(fours[0], values=values, scale=scale, offset=offset)
    eights = [_eight_bits(part) for part in parts]
    return Int8(
        np.concatenate([part.values for part in eights]), np.concatenate([part.scale for part in eights])
    )


def _eight_bits(weight: Stored) -> Int8:
    if isinstance(weight, Int8):
        return weight
    return Int8(*quantize_weight(weight.dense() if isinstance(weight, Int4) else weight))
