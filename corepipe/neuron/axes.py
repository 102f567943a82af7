"""Widths of values and weights, and the ways in which tensor parallelism may cut them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

INT8_GROUP = 64
"""Elements of K that share one int8 activation scale; equals the commonest head size, so that a
row-parallel shard of whole heads keeps the scales of the unsplit matrix."""


class AxisKind(StrEnum):
    """The ways in which tensor parallelism may cut a dimension."""

    HIDDEN = "hidden"  # the residual stream: whole on every rank
    HEADS = "heads"  # query heads, or values with one part per query head: cut between heads
    KV_HEADS = "kv_heads"  # key/value heads: moved or copied to the ranks of their query heads
    COLUMNS = "columns"  # the width between two matrices: cut into even parts
    EXPERTS = "experts"  # matrices of a mixture: divided among the cores of a stage
    VOCABULARY = "vocabulary"  # rows of the output head: cut, and gathered
    FIXED = "fixed"  # whole on every rank


_WHOLE = (AxisKind.HIDDEN, AxisKind.FIXED, AxisKind.EXPERTS)
"""Kinds of axes that tensor parallelism leaves whole."""


class Axis(NamedTuple):
    """A dimension: its name, how it may be cut, and its width in elements.

    unit: elements that stay together, such as those of a head.  group: query heads that share a key/value
    head.
    In a Program the axes of Values are as wide as the core's part.
    """

    name: str
    kind: AxisKind
    width: int
    unit: int = 1
    group: int = 1

    @property
    def is_cut(self) -> bool:
        """True if each rank of a tensor group has a part of the axis."""
        return self.kind not in _WHOLE


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Query heads, key/value heads and the elements of each; `heads` is a multiple of `kv_heads`.

    copied: for one core's layout, other cores hold copies of its key/value heads.
    """

    heads: int
    kv_heads: int
    head_dim: int
    copied: bool = False

    def queries(self, name: str = "q_heads", unit: int | None = None) -> Axis:
        """Returns the axis of a value with `unit` elements per query head (None: a head's size)."""
        each = self.head_dim if unit is None else unit
        return Axis(name, AxisKind.HEADS, self.heads * each, each, self.heads // self.kv_heads)

    def keys(self) -> Axis:
        """Returns the axis of keys and of values."""
        width, group = self.kv_heads * self.head_dim, self.heads // self.kv_heads
        return Axis("kv_heads", AxisKind.KV_HEADS, width, self.head_dim, group)


VOCABULARY_PANEL = 32
"""The output head is cut at multiples of this, so that a rank's part is made of whole packed panels."""


def hidden(width: int) -> Axis:
    """Returns the axis of the residual stream, and of values as wide as it."""
    return Axis("hidden", AxisKind.HIDDEN, width)


def columns(name: str, width: int) -> Axis:
    """Returns an axis between two matrices; a group of int8 activations stays in one part."""
    return Axis(name, AxisKind.COLUMNS, width, INT8_GROUP)


def experts(count: int) -> Axis:
    """Returns the axis that counts the experts of a mixture."""
    return Axis("experts", AxisKind.EXPERTS, count)


def vocabulary(width: int) -> Axis:
    """Returns the axis of the rows of the output head."""
    return Axis("vocab", AxisKind.VOCABULARY, width, VOCABULARY_PANEL)


def fixed(name: str, width: int) -> Axis:
    """Returns an axis that every rank holds whole: rows of a table, elements of a head, a narrow latent."""
    return Axis(name, AxisKind.FIXED, width)


PAD = -1
"""Start of a range that stands for zero padding (padded heads under tensor parallelism)."""


@dataclass(frozen=True, slots=True)
class AxisShard:
    """The part of an axis that one tensor rank holds, as ranges (start, length) in elements.

    A range that starts at PAD is zeros.
    """

    ranges: tuple[tuple[int, int], ...]

    @property
    def width(self) -> int:
        return sum(length for _, length in self.ranges)

    @property
    def contiguous(self) -> bool:
        return len(self.ranges) == 1 and self.ranges[0][0] != PAD

    def indices(self, size: int) -> npt.NDArray[np.intp]:
        """Returns the indices of the elements in the shard, of an axis of `size` elements; -1 for padding."""
        return np.asarray(cut(np.arange(1, size + 1), (self,)) - 1, np.intp)


def cut(array: npt.NDArray[Any], axes: Sequence[AxisShard]) -> npt.NDArray[Any]:
    """Returns a copy of the part of `array` that the shards of its dimensions describe; padding is zero."""
    for dim, axis in enumerate(axes):
        parts = [_range(array, dim, start, length) for start, length in axis.ranges]
        array = np.concatenate(parts, axis=dim)
    return array


def _range(array: npt.NDArray[Any], dim: int, start: int, length: int) -> npt.NDArray[Any]:
    if start == PAD:
        return np.zeros((*array.shape[:dim], length, *array.shape[dim + 1 :]), array.dtype)
    if start + length > array.shape[dim]:
        raise ValueError(f"a shard ends at {start + length} of {array.shape[dim]}")
    return np.take(array, range(start, start + length), axis=dim)
