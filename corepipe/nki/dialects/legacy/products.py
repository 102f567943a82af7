"""Products and transposes on TensorE."""

from __future__ import annotations

from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.dialects.legacy.elementwise import in_sbuf
from corepipe.nki.dialects.legacy.results import Mask, fresh
from corepipe.nki.dialects.legacy.tiles import Tile, operand, pend
from corepipe.nki.isa import tensor, vector


def product(
    stationary: View, moving: View, *, mask: Any = None, double_row: bool = False, **options: Any
) -> Tile:
    """Returns stationary [K, M], transposed, times moving [K, N], in PSUM."""
    rows = 2 if double_row else 1
    shape = (stationary.free // rows, moving.free // rows)
    part = Mask.of(mask, shape)
    if part is not None and part.exact is None:
        left, right = part.box
        stationary, moving = _flat(stationary)[:, left], _flat(moving)[:, right]

    def run(dst: View, accumulate: bool | None = False) -> None:
        tensor.nc_matmul(dst, stationary, moving, accumulate=accumulate, double_row=double_row, **options)

    return pend(
        shape,
        np.float32,
        run,
        mask=part,
        space=Space.PSUM,
        accumulate=lambda dst: run(dst, dst.buffer.root.zeroed or None),
    )


def _flat(view: View) -> View:
    return view if view.ndim == 2 else view.reshaped((view.partitions, view.free))


def matmul(x: Any, y: Any, *, transpose_x: bool = False, mask: Any = None) -> Tile:
    """Returns x @ y, or x.T @ y where x is given transposed; otherwise TensorE transposes it first."""
    left, right = (_readable(operand(t)) for t in (x, y))
    if not transpose_x:
        turned = fresh((left.free, left.partitions), left.dtype, Space.PSUM)
        tensor.nc_transpose(turned, left)
        left = in_sbuf(turned)
    return product(left, right, mask=mask)


def _readable(view: View) -> View:
    """Returns a tile in SBUF, where TensorE reads."""
    if view.space is not Space.PSUM:
        return view
    current().flush()
    return in_sbuf(view)


def nc_transpose(data: Any, *, mask: Any = None, dtype: Any = None, engine: Engine | None = None) -> Tile:
    """Transposes a tile: on VectorE up to 32 x 32 if the kernel asks for it, else on TensorE into PSUM."""
    view = operand(data)
    shape = (view.free, view.partitions)
    part = Mask.of(mask, view.shape)
    source = view if part is None else part.crop(view)
    turned = None
    if part is not None:
        free = part.box[1] if view.ndim == 2 else slice(None)
        turned = Mask((free, part.box[0]), None if part.exact is None else part.exact.T)
    space = Space.SBUF if engine is Engine.VECTOR else Space.PSUM
    if space is Space.PSUM:
        source = _readable(source)
    kind = np.dtype(dtype) if dtype is not None else view.dtype
    if space is Space.PSUM and kind != view.dtype:
        held = fresh((source.free, source.partitions), view.dtype, space)
        tensor.nc_transpose(held, source)
        return pend(shape, kind, lambda dst: vector.tensor_copy(dst, held), mask=turned)
    return pend(shape, kind, lambda dst: _transpose(dst, source, engine), mask=turned, space=space)


def _transpose(dst: View, source: View, engine: Engine | None) -> None:
    """Transposes into PSUM, and copies where the kernel puts the result into SBUF."""
    if engine is Engine.VECTOR or dst.space is Space.PSUM:
        tensor.nc_transpose(dst, source, engine=engine)
        return
    held = fresh((source.free, source.partitions), source.dtype, Space.PSUM)
    tensor.nc_transpose(held, source)
    vector.tensor_copy(dst, held)


def transpose(x: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Transposes a tile of two axes."""
    return nc_transpose(x, mask=mask, dtype=dtype)
