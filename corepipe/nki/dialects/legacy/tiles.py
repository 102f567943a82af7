"""Tiles of the legacy dialect: tensors and parts of them, with operators, assignment and fresh results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View, whole


class Tile:
    """A tensor or a part of one.

    A result of an instruction is a tile of its own until it is assigned to a part of a tensor: then the
    instruction writes there instead, and nothing is copied.
    """

    __slots__ = ("producer", "view")
    __array_ufunc__ = None

    def __init__(self, view: View, producer: Instruction | None = None) -> None:
        self.view, self.producer = view, producer

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.view.dtype

    @property
    def ndim(self) -> int:
        return self.view.ndim

    def __getitem__(self, key: Any) -> Tile:
        return Tile(self.view[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assigns to a part: the instruction that made `value` writes there instead, or it is copied."""
        target = self.view[key]
        if isinstance(value, Tile):
            if value.view.region() == target.region() and value.view.shape == target.shape:
                return  # x[i] += y: the sum is there
            if moved(value, target):
                return
        raise NotImplementedError

    def __iadd__(self, other: Any) -> Tile:
        """Adds in place: a product in PSUM accumulates, anything else is a sum on VectorE."""
        raise NotImplementedError


def fresh(shape: Sequence[int], dtype: Any, space: Space = Space.SBUF) -> View:
    """Returns a view of a new buffer, for the result of an instruction."""
    return whole(current().allocate(space, shape, dtype))


def moved(value: Tile, target: View) -> bool:
    """Makes the instruction that produced `value` write to `target`; False where it cannot."""
    if value.producer is None or value.view.size != target.size:
        return False
    raise NotImplementedError
