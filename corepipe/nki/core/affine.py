"""Index tiles: affine functions of the positions in a tile, as `arange` and `mgrid` make them, and masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.nki.core.errors import KernelError


@dataclass(frozen=True, slots=True, eq=False)
class IndexTile:
    """`base` + the sum of coefficient x position over the axes of a tile of `shape`.

    An axis of length 1 has coefficient 0, so that tiles broadcast as numpy's arrays do.
    """

    shape: tuple[int, ...]
    base: int
    steps: tuple[int, ...]

    __array_ufunc__ = None

    @classmethod
    def arange(cls, start: int, stop: int, step: int = 1) -> IndexTile:
        count = max(0, -((start - stop) // step))
        return cls((count,), start, (step if count != 1 else 0,))

    def __getitem__(self, key: Any) -> IndexTile:
        """Inserts axes (`None`) and keeps axes (`:`); nothing else is an index tile."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            kept = len(self.shape) - sum(k is not None for k in keys) + 1
            keys[at : at + 1] = [slice(None)] * kept
        shape, steps, axis = [], [], 0
        for k in keys:
            if k is None:
                shape.append(1)
                steps.append(0)
            elif k == slice(None) and axis < len(self.shape):
                shape.append(self.shape[axis])
                steps.append(self.steps[axis])
                axis += 1
            else:
                raise KernelError(f"an index tile takes None and : as indices, not {k!r}")
        return IndexTile((*shape, *self.shape[axis:]), self.base, (*steps, *self.steps[axis:]))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def broadcast_to(self, shape: tuple[int, ...]) -> IndexTile:
        """Returns the tile with more axes in front, and with axes of length 1 repeated."""
        missing = len(shape) - len(self.shape)
        return IndexTile(shape, self.base, (0,) * missing + self.steps)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, IndexTile):
            shape = np.broadcast_shapes(self.shape, other.shape)
            a, b = self.broadcast_to(shape), other.broadcast_to(shape)
            return IndexTile(
                shape, a.base + b.base, tuple(x + y for x, y in zip(a.steps, b.steps, strict=True))
            )
        if isinstance(other, int | np.integer):
            return IndexTile(self.shape, self.base + int(other), self.steps)
        return self.values() + other if isinstance(other, np.ndarray) else NotImplemented

    __radd__ = __add__

    def __neg__(self) -> IndexTile:
        return IndexTile(self.shape, -self.base, tuple(-s for s in self.steps))

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, int | np.integer):
            factor = int(other)
            return IndexTile(self.shape, self.base * factor, tuple(s * factor for s in self.steps))
        return self.values() * (other.values() if isinstance(other, IndexTile) else other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self.values() // other
        return found

    def __mod__(self, other: Any) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self.values() % other
        return found

    def values(self) -> npt.NDArray[np.int64]:
        """Returns all indices."""
        found = np.full(self.shape, self.base, np.int64)
        for axis, step in enumerate(self.steps):
            if step:
                along = [1] * len(self.shape)
                along[axis] = self.shape[axis]
                found += step * np.arange(self.shape[axis]).reshape(along)
        return found

    def _compared(self, other: Any, op: Any) -> npt.NDArray[np.bool_]:
        result: npt.NDArray[np.bool_] = op(
            self.values(), other.values() if isinstance(other, IndexTile) else other
        )
        return result

    def __lt__(self, other: Any) -> npt.NDArray[np.bool_]:
        return self._compared(other, np.less)

    def __le__(self, other: Any) -> npt.NDArray[np.bool_]:
        return self._compared(other, np.less_equal)

    def __gt__(self, other: Any) -> npt.NDArray[np.bool_]:
        return self._compared(other, np.greater)

    def __ge__(self, other: Any) -> npt.NDArray[np.bool_]:
        return self._compared(other, np.greater_equal)

    def __eq__(self, other: object) -> Any:
        return self._compared(other, np.equal)

    def __ne__(self, other: object) -> Any:
        return self._compared(other, np.not_equal)

    __hash__ = None  # type: ignore[assignment]


def box_of(mask: npt.NDArray[np.bool_]) -> tuple[slice, ...] | None:
    """Returns the slices that a mask leaves of a tile, or None if what it leaves is no box."""
    slices = []
    for axis in range(mask.ndim):
        along = np.flatnonzero(mask.any(axis=tuple(a for a in range(mask.ndim) if a != axis)))
        if not along.size:
            return (slice(0, 0),) * mask.ndim
        slices.append(slice(int(along[0]), int(along[-1]) + 1))
    found = tuple(slices)
    return found if mask[found].all() else None
