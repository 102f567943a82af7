"""Functions of `nki.language` that take several instructions and return a new tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corepipe.nki.core.recorder import current
from corepipe.nki.dialects.current import instructions as nisa
from corepipe.nki.dialects.current.memory import ndarray, ones
from corepipe.nki.dialects.current.tensor import NkiTensor
from corepipe.nki.dialects.current.types import MemoryRegion, TileSize

BANK = TileSize.psum_fmax
"""Columns of a product, which fill a bank of PSUM."""


def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """Returns a tile of a shape in which axes of length 1 are repeated: over partitions by a product with
    ones, over free axes by a copy."""
    lengths = tuple(int(n) for n in shape)
    if lengths == x.shape and dtype in (None, x.dtype):
        return x
    source = _over_partitions(x, lengths[0]) if x.shape[0] == 1 < lengths[0] else x
    made = ndarray(lengths, x.dtype if dtype is None else dtype)
    for axis in range(1, x.ndim):
        if source.shape[axis] == 1 < lengths[axis]:
            source = source.broadcast(axis, lengths[axis])
    nisa.tensor_copy(made, source)
    return made


def _over_partitions(x: NkiTensor, count: int) -> NkiTensor:
    row, made = x.reshape((1, x.size)), ndarray((count, x.size), x.dtype)
    column = ones((1, count), x.dtype)
    for start in range(0, x.size, BANK):
        part = slice(start, min(start + BANK, x.size))
        product = ndarray((count, part.stop - part.start), "float32", MemoryRegion.psum)
        nisa.nc_matmul(product, column, row[:, part], is_stationary_onezero=True)
        nisa.tensor_copy(made[:, part], product)
    return made.reshape((count, *x.shape[1:]))


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Returns a transposed tile in PSUM."""
    made = ndarray((x.shape[1], x.shape[0]), x.dtype if dtype is None else dtype, MemoryRegion.psum)
    nisa.nc_transpose(made, x)
    return made


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """Returns x @ y in PSUM; x is transposed first unless it is already."""
    stationary = x
    if not transpose_x:
        stationary = ndarray((x.shape[1], x.shape[0]), x.dtype)
        nisa.tensor_copy(stationary, transpose(x))
    made = ndarray((stationary.shape[1], y.shape[1]), "float32", MemoryRegion.psum)
    nisa.nc_matmul(made, stationary, y, accumulate=False)
    return made


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Returns a matrix of HBM, transposed, in SBUF."""
    made = ndarray((src.shape[1], src.shape[0]), src.dtype if dtype is None else dtype)
    nisa.dma_transpose(made, src)
    return made


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    return x.expand_dim(axis % (x.ndim + 1))


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Returns x where the condition is not 0, and y elsewhere."""
    tile = x if isinstance(x, NkiTensor) else y
    if not isinstance(tile, NkiTensor):
        raise current().refuse("operand", "nl.where takes a tensor as x or as y")
    made, mask = (
        ndarray(tile.shape, tile.dtype if dtype is None else dtype),
        ndarray(condition.shape, "uint8"),
    )
    nisa.tensor_scalar(mask, condition, "not_equal", 0.0)
    if isinstance(y, NkiTensor):
        nisa.tensor_copy(made, y)
    else:
        nisa.memset(made, y)
    nisa.tensor_copy_predicated(made, x, mask)
    return made


FUNCTIONS = (broadcast_to, transpose, matmul, load_transpose2d, expand_dims, where)
