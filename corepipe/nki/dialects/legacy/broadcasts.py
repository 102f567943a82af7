"""Broadcasts: over free axes by steps of 0, over partitions by a product with ones in PSUM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.dialects.legacy.hints import take_hints
from corepipe.nki.dialects.legacy.results import fresh
from corepipe.nki.dialects.legacy.tiles import Tile, operand
from corepipe.nki.isa.tensor import nc_matmul
from corepipe.nki.isa.vector import memset, tensor_copy

BANK = 512
"""fp32 elements of a PSUM bank: a product writes at most one."""


class Broadcast(Tile):
    """One partition repeated over many.

    An operation in the same turn of the loops reads the product in PSUM, bank by bank.  Used elsewhere, it
    is copied to a tile in SBUF first, before the next loop at the latest.
    """

    __slots__ = ("__weakref__", "_shape", "depth", "source", "used")

    def __init__(self, source: View, shape: tuple[int, ...]) -> None:
        super().__init__(None)
        self.source, self._shape = source, shape
        self.depth, self.used = len(current().loops), False
        current().before_loops[id(self)] = self

    def settle(self) -> None:
        """Makes the copy that a loop will read, if nothing has read the products yet."""
        if not self.used:
            _ = self.part

    @property
    def part(self) -> View:
        """The copy in SBUF."""
        if self._view is None:
            current().flush()
            self._view = fresh(self._shape, self.source.dtype)
            for part, product in self.chunks():
                tensor_copy(_flat(self._view)[part], product)
        return self._view

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    @property
    def space(self) -> Space:
        return Space.SBUF

    @property
    def streams(self) -> bool:
        """Tells whether an operation should read the products themselves."""
        return self._view is None and self.depth == len(current().loops)

    def chunks(self) -> Iterator[tuple[tuple[slice, slice], View]]:
        """Yields the parts of the flattened tile, and each part as a product in PSUM."""
        self.used = True
        partitions, source = self._shape[0], _flat(self.source)
        ones = _ones(partitions)
        for start in range(0, source.shape[1], BANK):
            stop = min(start + BANK, source.shape[1])
            product = fresh((partitions, stop - start), np.float32, Space.PSUM)
            nc_matmul(product, ones, source[:, start:stop], onezero=True)
            yield (slice(None), slice(start, stop)), product


def _ones(partitions: int) -> View:
    """Returns a row of ones, which is made once a run."""
    recorder = current()
    if (ones := recorder.constants.get("ones")) is None:
        ones = recorder.constants["ones"] = fresh((1, 128), np.float32)
        memset(ones, 1)
        _moved_to_the_beginning(ones)
    return ones[:, :partitions]


def _moved_to_the_beginning(made: View) -> None:
    """Moves the last instruction, which made a constant, before all others, so that it is in no loop."""
    recorder = current()
    if recorder.muted:
        return
    recorder.stream.insert(0, recorder.stream.pop())
    for buffer in recorder.buffers:
        buffer.born += 1
    made.buffer.born = 0


def _flat(view: View) -> View:
    return view if view.ndim == 2 else view.reshaped((view.partitions, view.free))


def broadcast_to(src: Tile, shape: Sequence[int], **hints: Any) -> Tile:
    """Returns a tile repeated to `shape` as numpy does."""
    take_hints("broadcast_to", hints)
    wanted = tuple(int(n) for n in shape)
    view = operand(src)
    if view.space is Space.HBM or view.partitions == wanted[0]:
        return Tile(view.repeated(wanted))
    if view.ndim > len(wanted) or view.shape[0] != 1:
        raise current().refuse("shape", f"a tile of shape {src.shape} does not broadcast to {wanted}")
    rows = (1, *wanted[1:])
    return Broadcast(view.repeated(rows), wanted)


def spread(tile: Tile, shape: tuple[int, ...]) -> Tile:
    """Returns a tile repeated to `shape`, or the tile itself if it has that shape."""
    return tile if tile.shape == shape else broadcast_to(tile, shape)
