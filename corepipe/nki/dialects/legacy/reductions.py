"""Reductions over free axes, over loops, and what is built of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.dialects.legacy.elementwise import binary, copy, reciprocal, unary
from corepipe.nki.dialects.legacy.indices import is_first
from corepipe.nki.dialects.legacy.results import Mask, fresh
from corepipe.nki.dialects.legacy.tiles import Tile, operand, pend
from corepipe.nki.isa import vector
from corepipe.nki.isa.reductions import tensor_reduce as reduce_free
from corepipe.nki.rules.breaking import broken


def reduced(
    op: Any,
    data: Any,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
) -> Tile:
    """Reduces free axes.  Where all are reduced the result is a column of [P, 1]."""
    view = operand(data)
    axes = _axes(axis, view.ndim)
    part = Mask.of(mask, view.shape)
    if axes[0] == 0:
        raise broken(current(), "reduce_axes", "tensor_reduce", view, found=axes)
    kept = tuple(a for a in range(view.ndim) if a not in axes)
    shape = tuple(view.shape[a] for a in kept)
    wide = tuple(1 if a in axes else n for a, n in enumerate(view.shape))
    source = view if part is None else part.crop(view)
    last = source.transposed((*kept, *sorted(axes))) if axes != _trailing(view.ndim, len(axes)) else source
    trailing = _trailing(view.ndim, len(axes))
    out = wide if keepdims else shape if len(shape) > 1 else (*shape, 1)
    result = None
    if part is not None and part.exact is None and source.shape != view.shape:
        box = [slice(0, 1) if a in axes else s for a, s in enumerate(part.box)]
        box = box if keepdims else [box[a] for a in kept]
        result = Mask(tuple(box) if len(box) == len(out) else (*box, slice(None)), None)
    kind = dtype if dtype is not None else view.dtype
    return pend(out, kind, lambda dst: reduce_free(dst, op, last, trailing, negate=negate), mask=result)


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    given = [axis] if isinstance(axis, int | np.integer) else list(axis)
    return tuple(sorted(int(a) + (rank if a < 0 else 0) for a in given))


def _trailing(rank: int, count: int) -> tuple[int, ...]:
    return tuple(range(rank - count, rank))


def total(x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Tile:
    """Returns the sum over free axes."""
    return reduced("add", x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def mean(x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Tile:
    """Returns the mean over free axes."""
    count = prod(operand(x).shape[a] for a in _axes(axis, operand(x).ndim))
    return binary(
        "multiply",
        total(x, axis, mask=mask, dtype=np.float32, keepdims=keepdims),
        1 / count,
        dtype=dtype if dtype is not None else x.dtype,
    )


def variance(x: Any, axis: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Returns the variance over free axes."""
    centred = binary("subtract", x, mean(x, axis, mask=mask, dtype=np.float32), dtype=np.float32, mask=mask)
    return mean(
        unary("square", centred, mask=mask), axis, mask=mask, dtype=dtype if dtype is not None else x.dtype
    )


def every(x: Any, axis: Any, *, dtype: Any = np.bool_, mask: Any = None) -> Tile:
    """Tells where all elements along free axes are true."""
    return reduced(
        "minimum", binary("not_equal", x, 0, mask=mask, dtype=np.float32), axis, dtype=dtype, mask=mask
    )


def softmax(x: Any, axis: Any, *, dtype: Any = None, compute_dtype: Any = None, mask: Any = None) -> Tile:
    """Returns softmax over the free axes."""
    kind = compute_dtype if compute_dtype is not None else np.float32
    low = reduced("maximum", x, axis, dtype=kind, mask=mask)
    shifted = binary("subtract", x, low, dtype=kind, mask=mask)
    powers = unary("exp", shifted, mask=mask)
    inverse = reciprocal(total(powers, axis, mask=mask))
    return binary("multiply", powers, inverse, dtype=dtype if dtype is not None else x.dtype, mask=mask)


def rms_norm(
    x: Any,
    w: Any,
    axis: Any,
    n: int,
    epsilon: float = 1e-6,
    *,
    dtype: Any = None,
    compute_dtype: Any = None,
    mask: Any = None,
) -> Tile:
    """Returns x divided by the root of its mean square, times w."""
    kind = compute_dtype if compute_dtype is not None else np.float32
    squares = unary("square", x, dtype=kind, mask=mask)
    mean_square = binary("multiply", total(squares, axis, mask=mask), 1 / n)
    root = unary("rsqrt", binary("add", mean_square, epsilon))
    scaled = binary("multiply", x, root, dtype=kind, mask=mask)
    out = dtype if dtype is not None else x.dtype
    return (
        copy(scaled, dtype=out, mask=mask)
        if w is None
        else binary("multiply", scaled, w, dtype=out, mask=mask)
    )


def loop_reduce(x: Any, op: Any, loop_indices: Any, *, dtype: Any = None, mask: Any = None) -> LoopReduction:
    """Returns the reduction of a tile over the turns of loops, so far."""
    indices = loop_indices if isinstance(loop_indices, Sequence) else [loop_indices]
    return LoopReduction(x, op, all(is_first(i) for i in indices), dtype, mask)


class LoopReduction(Tile):
    """A reduction over a loop: it adds itself to where the kernel assigns it, turn by turn."""

    __slots__ = ("_dtype", "_key", "first", "mask", "op", "tile")

    def __init__(self, tile: Tile, op: Any, first: bool, dtype: Any, mask: Any) -> None:
        super().__init__(None)
        self.tile, self.op, self.first, self.mask = tile, op, first, mask
        self._dtype = np.dtype(dtype) if dtype is not None else tile.dtype
        recorder = current()
        recorder.flush()
        recorder.pending = self
        self._key = recorder.site()

    def __call__(self) -> View:
        """Adds this turn to a tile of its own, since the kernel assigns it nowhere."""
        return self.part

    @property
    def part(self) -> View:
        """The tile that holds the reduction where the kernel names no other."""
        if self._view is None:
            held = current().constants
            if self.first or self._key not in held:
                held[self._key] = fresh(self.tile.shape, self._dtype)
            self.put(held[self._key])
        assert self._view is not None
        return self._view

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tile.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def space(self) -> Space:
        return Space.SBUF

    def put(self, target: View) -> None:
        recorder = current()
        if recorder.pending is self:
            recorder.pending = None
        self._view = target
        before, recorder.at = recorder.at, self._key
        try:
            self.reduce_into(target)
        finally:
            recorder.at = before

    def reduce_into(self, target: View) -> None:
        """Records the step of this turn."""
        part = Mask.of(self.mask, self.tile.shape)
        source = operand(self.tile, part)
        dst = target.fitted(operand(self.tile).shape) if part is None else part.part(target)
        if self.first:
            vector.tensor_copy(dst, source)
        else:
            vector.tensor_tensor(dst, dst, source, self.op)
