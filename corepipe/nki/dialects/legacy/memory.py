"""Tensors in the memories, and transfers between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from math import prod
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.instructions import LoopKind
from corepipe.nki.core.recorder import Recorder, current
from corepipe.nki.core.tensors import View, whole
from corepipe.nki.dialects.legacy.elementwise import in_sbuf
from corepipe.nki.dialects.legacy.hints import take_hints
from corepipe.nki.dialects.legacy.results import Mask, fresh
from corepipe.nki.dialects.legacy.tiles import Rows, Tile, operand, pend
from corepipe.nki.isa import transfers, vector
from corepipe.nki.rules.memory import check_address

Place = Callable[[tuple[int, ...], int, int], tuple[int, int]]
"""Returns the first partition and the byte of a block, by its index, its partitions and bytes of each."""


@dataclass(frozen=True)
class Memory:
    """A kind of memory that `buffer=` names, perhaps with the addresses of its blocks.

    shared: all programs of the grid see the same tensor.  place: where each block lies.
    """

    space: Space
    shared: bool = False
    place: Place | None = None
    blocks: tuple[int, ...] = ()
    """Physical blocks that logical ones rotate through, along each block axis; empty: not given."""


SBUF, PSUM = Memory(Space.SBUF), Memory(Space.PSUM)
HBM, SHARED_HBM = Memory(Space.HBM, shared=True), Memory(Space.HBM, shared=True)
PRIVATE_HBM = Memory(Space.HBM)


class Partitions(int):
    """`par_dim(128)`: the length of the partition axis; axes before it are block axes."""


def ndarray(shape: Sequence[int], dtype: Any, *, buffer: Any = None, name: str = "", **hints: Any) -> Tile:
    """Returns a new tensor."""
    take_hints("ndarray", hints)
    return Tile(whole(_allocated(shape, dtype, _memory(buffer), name)))


def _memory(buffer: Any) -> Memory:
    if buffer is None:
        return SBUF
    if isinstance(buffer, Memory):
        return buffer
    raise current().refuse("operand", f"buffer={buffer!r} is no memory")


def _allocated(shape: Sequence[int], dtype: Any, memory: Memory, name: str) -> Buffer:
    recorder = current()
    recorder.flush()
    lengths = [int(n) for n in (shape if isinstance(shape, Sequence) else (shape,))]
    blocks = next((i for i, n in enumerate(shape) if isinstance(n, Partitions)), 0)
    if memory.space is Space.HBM:
        return _in_hbm(recorder, lengths, dtype, memory, name)
    buffer = recorder.allocate(memory.space, lengths, dtype, name=name, blocks=blocks)
    if memory.place is not None:
        first = (0,) * blocks
        buffer.address = memory.place(first, lengths[blocks], buffer.partition_bytes)[1]
        last = memory.place(tuple(n - 1 for n in lengths[:blocks]), lengths[blocks], buffer.partition_bytes)
        check_address(recorder, buffer, max(buffer.address, last[1]))
        buffer.existing = prod(memory.blocks) if memory.blocks else 0
    return buffer


def _in_hbm(recorder: Recorder, shape: list[int], dtype: Any, memory: Memory, name: str) -> Buffer:
    """Returns a tensor in HBM: the programs of a grid share the one that the first of them made."""
    if not memory.shared or not recorder.program or recorder.loops:
        return recorder.allocate(Space.HBM, shape, dtype, name=name)
    key = ("hbm", recorder.site(), tuple(shape))
    if key not in recorder.constants:
        recorder.constants[key] = recorder.allocate(Space.HBM, shape, dtype, name=name)
    shared: Buffer = recorder.constants[key]
    return shared


def full(
    shape: Sequence[int], fill_value: Any, dtype: Any, *, buffer: Any = None, name: str = "", **hints: Any
) -> Tile:
    """Returns a tensor filled with a number: by memset in SBUF; a product that accumulates starts in PSUM."""
    take_hints("full", hints)
    memory = _memory(buffer)
    view = whole(_allocated(shape, dtype, memory, name))
    if memory.space is Space.SBUF:
        _set_blocks(view, fill_value)
    else:
        view.buffer.zeroed = True
        if current().values:
            view.array()[...] = fill_value
            view.buffer.written = None
    return Tile(view)


def _set_blocks(view: View, value: Any) -> None:
    """Records a memset for each block."""
    lengths = view.shape[: view.buffer.blocks]
    if not lengths:
        vector.memset(view, value)
        return
    blocks = list(combinations(*(range(n) for n in lengths)))
    for number in current().loop(LoopKind.AFFINE, range(len(blocks))):
        vector.memset(view[blocks[number]], value)


def zeros(shape: Sequence[int], dtype: Any, **options: Any) -> Tile:
    """Returns a tensor of zeros."""
    return full(shape, 0, dtype, **options)


def ones(shape: Sequence[int], dtype: Any, **options: Any) -> Tile:
    """Returns a tensor of ones."""
    return full(shape, 1, dtype, **options)


def empty_like(a: Tile, dtype: Any = None, **options: Any) -> Tile:
    """Returns a new tensor of another's shape."""
    return ndarray(a.shape, dtype if dtype is not None else a.dtype, **options)


def zeros_like(a: Tile, dtype: Any = None, **options: Any) -> Tile:
    """Returns zeros of another tensor's shape."""
    return zeros(a.shape, dtype if dtype is not None else a.dtype, **options)


def shared_constant(constant: Any, dtype: Any = None, **hints: Any) -> Tile:
    """Returns a numpy array as a tensor in HBM."""
    take_hints("shared_constant", hints)
    values = np.asarray(constant)
    return Tile(whole(current().give("", values if dtype is None else values.astype(np.dtype(dtype)))))


def shared_identity_matrix(n: int, dtype: Any = np.uint8, **hints: Any) -> Tile:
    """Returns an identity matrix in HBM."""
    take_hints("shared_identity_matrix", hints)
    return shared_constant(np.identity(int(n), np.dtype(dtype)))


def load(src: Any, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """Loads a tile from HBM."""
    take_hints("load", hints)
    if isinstance(src, Rows):
        return gathered(src, dtype)
    view = _elements(src)
    part = Mask.of(mask, view.shape)
    source = view if part is None else part.crop(view)
    kind = dtype if dtype is not None else view.dtype
    return pend(view.shape, kind, lambda dst: transfers.dma_copy(dst, source), mask=part)


def gathered(src: Rows, dtype: Any = None) -> Tile:
    """Loads the rows that a tile names."""
    kind = dtype if dtype is not None else src.dtype
    rows, index = src.part, src.index
    return pend(src.shape, kind, lambda dst: transfers.dma_gather(dst, rows, index))


def scattered(dst: Rows, source: View, *, skip: bool = False, add: bool = False) -> None:
    """Stores to the rows that a tile names."""
    current().flush()
    transfers.dma_scatter(dst.part, _on_chip(source), dst.index, skip=skip, add=add)


def _elements(value: Any) -> View:
    if not isinstance(value, Tile):
        raise current().refuse("operand", f"{type(value).__name__} is no tensor")
    return value.part


def store(dst: Any, value: Any, *, mask: Any = None, **hints: Any) -> None:
    """Stores a tile to HBM; one in PSUM is copied to SBUF first."""
    take_hints("store", hints)
    if isinstance(dst, Rows):
        scattered(dst, operand(value))
        return
    target = _elements(dst)
    source = _stored(value, target)
    current().flush()
    part = Mask.of(mask, source.shape)
    target = target.fitted(source.shape)
    if part is None:
        transfers.dma_copy(target, _on_chip(source))
        return
    cropped = _on_chip(part.crop(source))
    part.apply(lambda place: transfers.dma_copy(place, cropped), target)


def _stored(value: Any, target: View) -> View:
    """Returns the elements to store, in a shape of the target's but for axes of length 1."""
    if not isinstance(value, Tile):
        filled = fresh(target.shape if target.ndim > 1 else (1, *target.shape), target.dtype)
        vector.memset(filled, value)
        return filled
    view = value.part
    if [n for n in view.shape if n != 1] == [n for n in target.shape if n != 1]:
        return view
    return view.reshaped(target.shape)


def _on_chip(view: View) -> View:
    if view.space is not Space.PSUM:
        return view
    return in_sbuf(view if view.ndim > 1 else view.fitted((*view.shape, 1)))


def load_transpose2d(src: Any, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """Loads a matrix from HBM and transposes it."""
    take_hints("load_transpose2d", hints)
    view = _elements(src)
    part = Mask.of(mask, view.shape)
    source = view if part is None else part.crop(view)
    turned = None
    if part is not None:
        turned = Mask((part.box[1], part.box[0]), None if part.exact is None else part.exact.T)
    kind = dtype if dtype is not None else view.dtype
    shape = (view.shape[1], view.shape[0])
    return pend(shape, kind, lambda dst: transfers.dma_transpose(dst, source), mask=turned)
