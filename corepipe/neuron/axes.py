"""How wide values are, and how tensor parallelism may cut them."""

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
    """What tensor parallelism may do to a dimension."""

    HIDDEN = "hidden"  # the residual stream: whole on every rank
    HEADS = "heads"  # query heads, or what there is one of for each: cut between heads
    KV_HEADS = "kv_heads"  # key/value heads: they go, or are copied, where their query heads go
    COLUMNS = "columns"  # a middle between two matrices: cut into even parts
    EXPERTS = "experts"  # matrices of a mixture: divided between the cores of a stage
    VOCABULARY = "vocabulary"  # rows of the output head: cut, and gathered
    FIXED = "fixed"  # whole on every rank


_WHOLE = (AxisKind.HIDDEN, AxisKind.FIXED, AxisKind.EXPERTS)
"""What tensor parallelism leaves as it is."""


class Axis(NamedTuple):
    """What a dimension counts, its width, and how it may be cut.

    unit: elements that stay together, such as a head's.  group: query heads that share a key/value head.
    In a Program the axes of Values are as wide as the core's part.
    """

    name: str
    kind: AxisKind
    width: int
    unit: int = 1
    group: int = 1

    @property
    def is_cut(self) -> bool:
        """Whether the ranks of a tensor group each have a part."""
        return self.kind not in _WHOLE


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Query heads, key/value heads and the elements of each; `heads` is a multiple of `kv_heads`.

    copied: of one core, whose key/value heads other cores have too.
    """

    heads: int
    kv_heads: int
    head_dim: int
    copied: bool = False

    def queries(self, name: str = "q_heads", unit: int | None = None) -> Axis:
        """The axis of something that has `unit` elements a query head (None: a head's size)."""
        each = self.head_dim if unit is None else unit
        return Axis(name, AxisKind.HEADS, self.heads * each, each, self.heads // self.kv_heads)

    def keys(self) -> Axis:
        """The axis of keys and of values."""
        width, group = self.kv_heads * self.head_dim, self.heads // self.kv_heads
        return Axis("kv_heads", AxisKind.KV_HEADS, width, self.head_dim, group)


VOCABULARY_PANEL = 32
"""The output head is cut at multiples of this, so that a rank's part is made of whole packed panels."""


def hidden(width: int) -> Axis:
    """The residual stream, and what is as wide."""
    return Axis("hidden", AxisKind.HIDDEN, width)


def columns(name: str, width: int) -> Axis:
    """A middle between two matrices; a group of int8 activations stays in one part."""
    return Axis(name, AxisKind.COLUMNS, width, INT8_GROUP)


def experts(count: int) -> Axis:
    """The matrices that a mixture has of a kind."""
    return Axis("experts", AxisKind.EXPERTS, count)


def vocabulary(width: int) -> Axis:
    """Rows of the output head."""
    return Axis("vocab", AxisKind.VOCABULARY, width, VOCABULARY_PANEL)


def fixed(name: str, width: int) -> Axis:
    """What every rank has the whole of: rows of a table, a head's elements, a narrow latent."""
    return Axis(name, AxisKind.FIXED, width)


PAD = -1
"""Start of a range that stands for zero padding (padded heads under tensor parallelism)."""


@dataclass(frozen=True, slots=True)
class AxisShard:
    """The part of an axis that one tensor rank holds, as ranges (start, length) in elements.

    A range that starts at PAD is zeros.  `whole` means that nothing is cut.
    """

    ranges: tuple[tuple[int, int], ...]

    @property
    def width(self) -> int:
        return sum(length for _, length in self.ranges)

    @property
    def contiguous(self) -> bool:
        return len(self.ranges) == 1 and self.ranges[0][0] != PAD

    def indices(self, size: int) -> npt.NDArray[np.intp]:
        """Of `size` elements those that it holds; -1 for padding."""
        return np.asarray(cut(np.arange(1, size + 1), (self,)) - 1, np.intp)


def cut(array: npt.NDArray[Any], axes: Sequence[AxisShard]) -> npt.NDArray[Any]:
    """The part of `array` that the shards of its dimensions name, a copy; padding is zero."""
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
