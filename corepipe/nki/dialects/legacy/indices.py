"""Loops, programs of a grid, and index tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from corepipe.nki.core.affine import IndexTile
from corepipe.nki.core.instructions import LoopKind
from corepipe.nki.core.recorder import current
from corepipe.nki.dialects.legacy.hints import take_hints


class LoopIndex(int):
    """The index of a loop's turn, which knows whether it is the first."""

    first: bool


def _turns(kind: LoopKind, arguments: tuple[Any, ...]) -> Iterator[LoopIndex]:
    indices = range(*(int(a) for a in arguments))
    for index in current().loop(kind, indices):
        turn = LoopIndex(index)
        turn.first = index == indices[0]
        yield turn


def affine_range(*arguments: Any, **hints: Any) -> Iterator[LoopIndex]:
    """Loops over turns that do not need one another."""
    take_hints("affine_range", hints)
    return _turns(LoopKind.AFFINE, arguments)


def sequential_range(*arguments: Any, **hints: Any) -> Iterator[LoopIndex]:
    """Loops over turns in order."""
    take_hints("sequential_range", hints)
    return _turns(LoopKind.SEQUENTIAL, arguments)


def static_range(*arguments: Any, **hints: Any) -> Iterator[LoopIndex]:
    """Loops over turns that are unrolled."""
    take_hints("static_range", hints)
    return _turns(LoopKind.STATIC, arguments)


def is_first(index: Any) -> bool:
    """Tells whether a loop is in its first turn; of a plain number, whether it is 0."""
    return index.first if isinstance(index, LoopIndex) else index == 0


def arange(*arguments: Any) -> IndexTile:
    """Returns an index tile over one axis."""
    start, stop, step = (0, arguments[0], 1) if len(arguments) == 1 else (*arguments, 1)[:3]
    return IndexTile.arange(int(start), int(stop), int(step))


class Grid(tuple[IndexTile, ...]):
    """Index tiles of a grid, with names for the partition axis and up to four free ones."""

    __slots__ = ()

    @property
    def p(self) -> IndexTile:
        return self[0]

    @property
    def x(self) -> IndexTile:
        return self[1]

    @property
    def y(self) -> IndexTile:
        return self[2]

    @property
    def z(self) -> IndexTile:
        return self[3]

    @property
    def w(self) -> IndexTile:
        return self[4]


class MGrid:
    """`mgrid[0:128, 0:512]`: an index tile for each axis."""

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Grid:
        axes = key if isinstance(key, tuple) else (key,)
        tiles = []
        for place, axis in enumerate(axes):
            along = IndexTile.arange(int(axis.start or 0), int(axis.stop), int(axis.step or 1))
            tiles.append(along[tuple(slice(None) if a == place else None for a in range(len(axes)))])
        return Grid(tiles)


def ds(start: Any, size: Any) -> slice:
    """Returns the slice of `size` indices from `start`."""
    return slice(int(start), int(start) + int(size))


def program_id(axis: int) -> int:
    """Returns the index of this program in the grid."""
    programs = current().program
    if not -len(programs) <= axis < len(programs):
        raise current().refuse("grid", f"program_id({axis}): the grid has {len(programs)} axes")
    return programs[axis]


def num_programs(axes: Any = None) -> Any:
    """Returns the number of programs along axes of the grid."""
    grid = current().grid
    if axes is None:
        return int(np.prod(grid, dtype=np.int64))
    if isinstance(axes, int):
        return grid[axes]
    return tuple(grid[a] for a in axes)


def program_ndim() -> int:
    """Returns the number of axes of the grid."""
    return len(current().grid)


class Cores(int):
    """`nc(2)`: an axis of the grid over NeuronCores.  Here its programs run one after the other."""


def spmd_dim(*parts: Any) -> int:
    """Returns the length of an axis of the grid that is split over NeuronCores."""
    return int(np.prod([int(p) for p in parts], dtype=np.int64))
