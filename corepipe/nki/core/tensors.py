"""Views: the parts of buffers that instructions read and write.

A view is an affine map from positions in it to positions in its buffer.  Slices, index tiles, broadcasts and
access patterns are all such maps, so one class serves both dialects; numpy sees it as strides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.nki.core.buffers import Array, Box, Buffer, Region, Space
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.indexing import AxisMap, indexed


@dataclass(eq=False, slots=True)
class View:
    """Part of a buffer: for each axis of the buffer an affine function of the position in the view."""

    buffer: Buffer
    shape: tuple[int, ...]
    maps: tuple[AxisMap, ...]
    _region: Region | None = field(default=None, repr=False)
    _steps: tuple[int, ...] | None = field(default=None, repr=False)

    __array_ufunc__ = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.buffer.dtype

    @property
    def space(self) -> Space:
        return self.buffer.space

    @property
    def offset(self) -> int:
        """Element of the flat buffer at the origin."""
        return sum(base * s for (base, _), s in zip(self.maps, self.buffer.strides, strict=True))

    @property
    def steps(self) -> tuple[int, ...]:
        """Elements of the flat buffer from one position to the next, for each axis."""
        if self._steps is None:
            found = [0] * len(self.shape)
            for (_, steps), stride in zip(self.maps, self.buffer.strides, strict=True):
                for axis, step in enumerate(steps):
                    if step:
                        found[axis] += step * stride
            self._steps = tuple(found)
        return self._steps

    @property
    def partitions(self) -> int:
        """Length of the partition axis, which is the first of a view on chip."""
        return self.shape[0] if self.shape else 1

    @property
    def free(self) -> int:
        """Elements of a partition."""
        return prod(self.shape[1:])

    def bounds(self) -> Box:
        """Returns the box that encloses the view, in indices of its own buffer."""
        found = []
        for base, steps in self.maps:
            low = high = base
            for step, n in zip(steps, self.shape, strict=True):
                if step > 0:
                    high += step * (n - 1)
                elif step:
                    low += step * (n - 1)
            found.append((low, high + 1))
        return tuple(found)

    def outside(self) -> tuple[int, int, int] | None:
        """Returns the axis of the buffer, the index and the axis's length where the view leaves its
        buffer."""
        for axis, ((low, high), n) in enumerate(zip(self.bounds(), self.buffer.shape, strict=True)):
            if (low < 0 or high > n) and self.size:
                return axis, low if low < 0 else high - 1, n
        return None

    def region(self) -> Region:
        """Returns the region for dependences, in indices of the root buffer."""
        if self._region is None:
            root = self.buffer.root
            box = self.bounds()
            if root is not self.buffer:
                shape, size = self.buffer.shape, self.buffer.dtype.itemsize
                if size != root.dtype.itemsize:
                    shape, box = _in_elements(shape, box, size, root.dtype.itemsize)
                box = _box_in(root.shape, shape, box)
            size = self.size * self.buffer.dtype.itemsize // root.dtype.itemsize
            self._region = Region(root, box, gaps=size < prod([b - a for a, b in box]))
        return self._region

    def array(self) -> Array:
        """Returns the elements as a numpy view that shares the buffer's memory."""
        data, dtype = self.buffer.root.data, self.buffer.dtype
        return self._strided(data if data is None or data.dtype == dtype else data.view(dtype))

    def written(self) -> npt.NDArray[np.bool_] | None:
        """Returns which elements were written, sharing the buffer's memory (None: all hold values)."""
        flags = self.buffer.root.written
        return None if flags is None else self._strided(flags)

    def _strided(self, flat: Array | None) -> Array:
        if flat is None:
            raise ValueError("no values are computed")
        size = flat.itemsize
        if not self.size:
            return np.empty(self.shape, flat.dtype)
        # Not as_strided: numpy's name of ml_dtypes' float8_e5m2 is one that it does not know itself.
        memory = flat.view(np.uint8)
        steps = tuple(s * size for s in self.steps)
        return np.ndarray(self.shape, flat.dtype, memory, self.offset * size, steps)

    def __getitem__(self, key: Any) -> View:
        return self.at(*indexed(key, self.shape))

    def at(self, shape: tuple[int, ...], inner: tuple[AxisMap, ...]) -> View:
        """Returns a view of `shape` within this one; `inner` maps it to this view's positions."""
        if self.maps is _identity(len(self.buffer.shape)):
            return View(self.buffer, shape, inner)
        maps = []
        for base, steps in self.maps:
            first, along = base, [0] * len(shape)
            for step, (start, within) in zip(steps, inner, strict=True):
                if step:
                    first += step * start
                    for axis, by in enumerate(within):
                        along[axis] += step * by
            maps.append((first, tuple(along)))
        return View(self.buffer, shape, tuple(maps))

    def cropped(self, box: tuple[slice, ...]) -> View:
        """Returns the part within a box of this view's positions."""
        return self[box]

    def repeated(self, shape: tuple[int, ...]) -> View:
        """Broadcasts as numpy does, with steps of 0."""
        missing = len(shape) - self.ndim
        try:
            np.broadcast_shapes(self.shape, shape)
        except ValueError:
            raise KernelError(f"a tile of shape {self.shape} does not broadcast to {shape}") from None
        maps = tuple(
            (base, (0,) * missing + tuple(0 if n == 1 else s for s, n in zip(steps, self.shape, strict=True)))
            for base, steps in self.maps
        )
        return View(self.buffer, shape, maps)

    def fitted(self, shape: tuple[int, ...]) -> View:
        """Returns the view in a shape that differs in axes of length 1 alone."""
        if shape == self.shape:
            return self
        kept = [a for a, n in enumerate(self.shape) if n != 1]
        if [self.shape[a] for a in kept] != [n for n in shape if n != 1]:
            raise KernelError(f"a tile of shape {shape} does not fit a place of shape {self.shape}")
        taken = iter(kept)
        sources = [None if n == 1 else next(taken) for n in shape]
        maps = tuple(
            (base, tuple(0 if a is None else steps[a] for a in sources)) for base, steps in self.maps
        )
        return View(self.buffer, shape, maps)

    def transposed(self, axes: tuple[int, ...]) -> View:
        """Returns the view with its axes in another order."""
        return View(
            self.buffer,
            tuple(self.shape[a] for a in axes),
            tuple((base, tuple(steps[a] for a in axes)) for base, steps in self.maps),
        )

    def reshaped(self, shape: tuple[int, ...]) -> View:
        """Returns the same elements in another shape.  Raises KernelError if strides cannot express it."""
        if prod(shape) != self.size:
            raise KernelError(f"a tile of shape {self.shape} cannot be reshaped to {shape}")
        if (kept := _regrouped(self.shape, shape, self.steps)) is None:
            raise KernelError(f"a strided view of shape {self.shape} cannot be reshaped to {shape}")
        return strided(self.buffer.root, shape, kept, self.offset)


def whole(buffer: Buffer) -> View:
    """Returns a view of a whole buffer."""
    return View(buffer, buffer.shape, _identity(len(buffer.shape)))


@cache
def _identity(rank: int) -> tuple[AxisMap, ...]:
    """Returns the maps of a view of a whole buffer."""
    return tuple((0, tuple(int(a == d) for a in range(rank))) for d in range(rank))


def strided(root: Buffer, shape: tuple[int, ...], steps: tuple[int, ...], offset: int = 0) -> View:
    """Returns a view of a buffer by the places of its elements: `steps` from one position to the next.

    Where it can, it keeps the axes of the buffer, or at least its partitions: then regions are exact.
    """
    maps = _axis_maps(root.shape, shape, steps, offset)
    if maps is not None:
        return View(root, shape, maps)
    if root.space is not Space.HBM and not root.blocks:
        flat = alias(root, (root.shape[0], prod(root.shape[1:])))
        if (maps := _axis_maps(flat.shape, shape, steps, offset)) is not None:
            return View(flat, shape, maps)
    return View(alias(root, (prod(root.shape),)), shape, ((offset, steps),))


def alias(root: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None) -> Buffer:
    """Returns a buffer of another shape, perhaps of another type, that shares the memory of a root.

    Under another size of elements nothing tells any more which of the root's were written.
    """
    if dtype is not None and dtype.itemsize != root.dtype.itemsize:
        root.written = None
    kind = root.dtype if dtype is None else dtype
    return Buffer(root.name, root.space, shape, kind, root.site, alias_of=root, given=root.given)


def _axis_maps(
    root: tuple[int, ...], shape: tuple[int, ...], steps: tuple[int, ...], offset: int
) -> tuple[AxisMap, ...] | None:
    """Returns the affine map of each axis of a buffer of shape `root`, or None where a step of the view moves
    along two of them."""
    lengths = [prod(root[axis + 1 :]) for axis in range(len(root))]
    bases, rest = [], offset
    for length in lengths:
        base, rest = divmod(rest, length) if length else (0, rest)
        bases.append(base)
    last = list(bases)
    along = [[0] * len(shape) for _ in root]
    for at, (n, step) in enumerate(zip(shape, steps, strict=True)):
        if n == 1 or not step:
            continue
        axis = next((a for a, length in enumerate(lengths) if root[a] > 1 and 0 < length <= step), None)
        if axis is None or step % lengths[axis]:
            return None
        along[axis][at] = step // lengths[axis]
        last[axis] += (n - 1) * along[axis][at]
    if any(end >= n for end, n in zip(last, root, strict=True)):
        return None
    return tuple((base, tuple(found)) for base, found in zip(bases, along, strict=True))


def _regrouped(old: tuple[int, ...], new: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the steps of the new axes, or None where old axes cannot be joined."""
    axes = [(n, s) for n, s in zip(old, steps, strict=True) if n != 1]
    found: list[int] = []
    rest = list(reversed(axes))
    count, step = rest.pop(0) if rest else (1, 1)
    for n in reversed(new):
        if n == 1:
            found.append(0)
            continue
        if count == 1 and rest:
            count, step = rest.pop(0)
        while count % n and rest:  # join with the axis before
            outer, outer_step = rest.pop(0)
            if outer_step != step * count:
                return None
            count *= outer
        if count % n:
            return None
        found.append(step)
        count, step = count // n, step * n
    return tuple(reversed(found))


def _box_in(shape: tuple[int, ...], alias: tuple[int, ...], box: Box) -> Box:
    """Returns a box of the root's shape that encloses a box of an alias: exact in the partitions of an alias
    that keeps these, and in the first axis that differs."""
    if len(alias) == 2 and len(shape) > 1 and alias[0] == shape[0]:
        return (box[0], *_box_in(shape[1:], alias[1:], box[1:]))
    strides = [prod(alias[axis + 1 :]) for axis in range(len(alias))]
    low = sum(a * s for (a, _), s in zip(box, strides, strict=True))
    high = sum((b - 1) * s for (_, b), s in zip(box, strides, strict=True))
    found: list[tuple[int, int]] = []
    for axis, index in enumerate(np.unravel_index([low, high], shape, "C")):
        a, b = int(index[0]), int(index[1])
        found.append((a, b + 1))
        if a != b:
            found.extend((0, n) for n in shape[axis + 1 :])
            break
    return tuple(found)


def _in_elements(shape: tuple[int, ...], box: Box, size: int, other: int) -> tuple[tuple[int, ...], Box]:
    """Returns a shape and a box of elements of `size` bytes as those of elements of `other` bytes."""
    low, high = box[-1]
    return (*shape[:-1], shape[-1] * size // other), (
        *box[:-1],
        (low * size // other, -(-high * size // other)),
    )
