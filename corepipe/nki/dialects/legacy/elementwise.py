"""Functions on each element: arithmetic, comparisons, activations and copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.dialects.legacy.broadcasts import Broadcast, broadcast_to, spread
from corepipe.nki.dialects.legacy.results import Mask, fresh
from corepipe.nki.dialects.legacy.tiles import Functions, Tile, operand, pend, scalar_or_operand
from corepipe.nki.dialects.legacy.types import wider, with_number
from corepipe.nki.isa import scalar, select, vector
from corepipe.nki.isa.operations import COMPARISONS

LOGICAL = {*COMPARISONS, "logical_and", "logical_or", "logical_xor", "logical_not"}
"""Functions whose results are booleans."""

BOOL: np.dtype[Any] = np.dtype(np.bool_)


def binary(op: str, x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Applies an operation to two tiles, or to a tile and a number.

    One element a partition against a tile is one `tensor_scalar`; two tiles are a `tensor_tensor`.
    """
    if isinstance(x, Tile) and isinstance(y, Tile):
        return _of_tiles(op, x, y, dtype, mask)
    if isinstance(x, Tile):
        return with_scalar(op, x, y, False, dtype, mask)
    if isinstance(y, Tile):
        return with_scalar(op, y, x, True, dtype, mask)
    raise current().refuse("operand", f"{op} takes a tile, not {type(x).__name__} and {type(y).__name__}")


def _result_type(op: str, dtype: Any, *types: np.dtype[Any]) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(dtype) if dtype is not None else BOOL if op in LOGICAL else wider(*types)
    return found


def with_scalar(op: str, data: Tile, other: Any, reverse: bool, dtype: Any, mask: Any) -> Tile:
    """Applies an operation to a tile and a number, or one number a partition."""
    view = operand(data)
    kind = with_number(view.dtype, other) if not isinstance(other, Tile) else wider(view.dtype, other.dtype)
    part = Mask.of(mask, view.shape)
    source, value = (view if part is None else part.crop(view)), scalar_or_operand(other, part)
    return pend(
        view.shape,
        _result_type(op, dtype, kind),
        lambda dst: vector.tensor_scalar(dst, source, op, value, reverse0=reverse),
        mask=part,
    )


def _of_tiles(op: str, x: Tile, y: Tile, dtype: Any, mask: Any) -> Tile:
    for tile, other, reverse in ((x, y, False), (y, x, True)):
        if not isinstance(other, Broadcast) and _is_column(other, tile):
            return with_scalar(op, tile, other, reverse, dtype, mask)
    shape = np.broadcast_shapes(_tile_shape(x), _tile_shape(y))
    a, b = spread(x, shape), spread(y, shape)
    return two_tiles(op, a, b, dtype, mask)


def _tile_shape(tile: Tile) -> tuple[int, ...]:
    return (*tile.shape, 1) if tile.ndim == 1 else tile.shape


def _is_column(column: Tile, tile: Tile) -> bool:
    """Tells whether a tile has one element for each partition of another, which has more."""
    shape, other = _tile_shape(column), _tile_shape(tile)
    return shape[0] == other[0] and np.prod(shape[1:]) == 1 != np.prod(other[1:])


def two_tiles(op: Any, x: Tile, y: Tile, dtype: Any, mask: Any, engine: Any = None) -> Tile:
    """Applies an operation to two tiles of one shape.

    A row that is broadcast over partitions is read from PSUM, bank by bank.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", str(op))
    kind = _result_type(name, dtype, x.dtype, y.dtype)
    if mask is None and (
        (isinstance(x, Broadcast) and x.streams) or (isinstance(y, Broadcast) and y.streams)
    ):
        return _by_bank(op, x, y, kind, engine)
    a, b = operand(x), operand(y)
    part = Mask.of(mask, a.shape)
    if part is not None:
        a, b = part.crop(a), part.crop(b)
    if a.space is b.space is Space.PSUM:
        b = in_sbuf(b)
    shape = a.shape if part is None else operand(x).shape
    return pend(shape, kind, lambda dst: vector.tensor_tensor(dst, a, b, op, engine=engine), mask=part)


def _by_bank(op: Any, x: Tile, y: Tile, kind: np.dtype[Any], engine: Any) -> Tile:
    streamed, other, swapped = (y, x, False) if isinstance(y, Broadcast) and y.streams else (x, y, True)
    assert isinstance(streamed, Broadcast)
    data = operand(other)
    flat = data if data.ndim == 2 else data.reshaped((data.partitions, data.free))

    def run(dst: View) -> None:
        out = dst if dst.ndim == 2 else dst.reshaped((dst.partitions, dst.free))
        for part, product in streamed.chunks():
            a, b = (product, flat[part]) if swapped else (flat[part], product)
            vector.tensor_tensor(out[part], a, b, op, engine=engine)

    return pend(data.shape, kind, run)


def in_sbuf(view: View) -> View:
    """Returns a copy of a tile in SBUF, for instructions that do not read PSUM."""
    copied = fresh(view.shape, view.dtype)
    vector.tensor_copy(copied, view)
    return copied


def unary(op: str, x: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Applies an activation function on ScalarE."""
    view = operand(x)
    part = Mask.of(mask, view.shape)
    data = view if part is None else part.crop(view)
    kind = np.dtype(dtype) if dtype is not None else view.dtype
    if dtype is None and op in LOGICAL:
        kind = np.dtype(np.bool_)
    return pend(view.shape, kind, lambda dst: scalar.activation(dst, op, data), mask=part)


def copy(src: Any, *, mask: Any = None, dtype: Any = None, engine: Any = None) -> Tile:
    """Copies a tile, in another type if one is given."""
    view = operand(src)
    part = Mask.of(mask, view.shape)
    data = view if part is None else part.crop(view)
    return pend(
        view.shape,
        dtype if dtype is not None else view.dtype,
        lambda dst: vector.tensor_copy(dst, data, engine=engine),
        mask=part,
    )


def reciprocal(x: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Returns 1 / x, on VectorE."""
    view = operand(x)
    part = Mask.of(mask, view.shape)
    data = view if part is None else part.crop(view)
    kind = dtype if dtype is not None else view.dtype
    return pend(view.shape, kind, lambda dst: vector.reciprocal(dst, data), mask=part)


def invert(x: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Inverts all bits."""
    return with_scalar("bitwise_xor", x, -1, False, dtype, mask)


def where(condition: Any, x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Selects elements: a copy of y, on which x is copied where the condition holds."""
    shape = operand(condition).shape
    tiles = [t for t in (x, y) if isinstance(t, Tile)]
    kind = np.dtype(dtype) if dtype is not None else wider(*(t.dtype for t in tiles))
    chosen, otherwise = (_as_view(v, shape, kind) for v in (x, y))
    predicate = operand(condition)
    part = Mask.of(mask, shape)
    if part is not None:
        chosen, otherwise, predicate = part.crop(chosen), part.crop(otherwise), part.crop(predicate)

    def run(dst: View) -> None:
        vector.tensor_copy(dst, otherwise)
        select.tensor_copy_predicated(dst, chosen, predicate)

    return pend(shape, kind, run, mask=part)


def _as_view(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> View:
    """Returns a tile, or a number as a tile."""
    if isinstance(value, Tile):
        return operand(spread(value, shape))
    filled = fresh(shape, dtype)
    vector.memset(filled, value)
    return filled


Tile.functions = Functions(binary, unary, copy, invert, broadcast_to)
