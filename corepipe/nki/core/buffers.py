"""Memory of a kernel: buffers in HBM, SBUF and PSUM, and the regions of them that operands cover."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.nki.core.errors import Site

Array = npt.NDArray[Any]

Box = tuple[tuple[int, int], ...]
"""The first index and the one after the last, for each axis of a buffer."""


class Space(StrEnum):
    """A memory of the device."""

    HBM = "hbm"
    SBUF = "sbuf"
    PSUM = "psum"


@dataclass(eq=False, slots=True)
class Buffer:
    """An allocation.

    shape: block axes, then (on chip) the partition axis, then free axes.  blocks: number of block axes, which
    are logical: the compiler decides how many blocks exist at a time.
    data: elements, flat; None if no values are computed.  written: which elements were written, flat; None
    for inputs, constants, and where no values are computed.
    alias_of: the buffer of which this is another shape; regions are those of the root.
    address: byte in each partition, where the kernel gives one.  existing: blocks that exist at a time, where
    the kernel says so.
    """

    name: str
    space: Space
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    site: Site
    blocks: int = 0
    data: Array | None = None
    written: npt.NDArray[np.bool_] | None = None
    alias_of: Buffer | None = None
    address: int | None = None
    existing: int = 0
    given: bool = False
    """An input or a constant: it holds values before the kernel begins."""
    writers: dict[Box, str] = field(default_factory=dict, repr=False)
    """In PSUM: the op that wrote each part, the last one last, since products add to what products left."""
    zeroed: bool = False
    """In PSUM: products add to zeros, which were there before the first of them."""
    born: int = 0
    """Events that the stream had when it was allocated, which tells in which loops that was."""

    _strides: tuple[int, ...] | None = field(default=None, repr=False)

    @property
    def root(self) -> Buffer:
        return self.alias_of or self

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next, for each axis."""
        if self._strides is None:
            steps, step = [], 1
            for n in reversed(self.shape):
                steps.append(step)
                step *= n
            self._strides = tuple(reversed(steps))
        return self._strides

    @property
    def partition_bytes(self) -> int:
        """Bytes of a block in one partition."""
        return prod(self.shape[self.blocks + 1 :]) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Region:
    """The part of a buffer that an operand covers: a box that encloses all its elements.

    gaps: it has fewer elements than the box, as where it has strides.
    """

    buffer: Buffer
    box: Box
    gaps: bool = False

    def overlaps(self, other: Region) -> bool:
        """Tells whether the two may share an element."""
        return self.buffer is other.buffer and all(
            a < d and c < b for (a, b), (c, d) in zip(self.box, other.box, strict=True)
        )
