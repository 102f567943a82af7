"""Indices of tensors as affine maps: integers, slices, `None`, `...` and index tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from corepipe.nki.core.affine import IndexTile
from corepipe.nki.core.errors import KernelError

AxisMap = tuple[int, tuple[int, ...]]
"""For one axis of a tensor: the index at a view's origin, and its step along each axis of the view."""


def indexed(key: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[AxisMap, ...]]:
    """Reads an index as numpy would, index tiles included.

    Returns the shape of the result, and for each axis of `shape` its affine map.  An integer removes an
    axis, `None` inserts one, slices keep one; index tiles broadcast together, and their axes stand where the
    first of them stands.  Raises KernelError for anything else.
    """
    keys = _completed(key, shape)
    lengths, first = _tile_shape(keys)
    out: list[int] = []
    plan: list[tuple[int, int, tuple[int, ...]]] = []  # base, first axis of the result, steps from there
    axis = 0
    for k in keys:
        if k is None:
            out.append(1)
            continue
        if isinstance(k, IndexTile):
            if axis == first:
                placed = len(out)
                out.extend(lengths)
            missing = len(lengths) - len(k.shape)
            plan.append((k.base, -1 - missing, k.steps))
        elif isinstance(k, slice):
            start, count, step = _slice(k, shape[axis])
            plan.append((start, len(out), (step,)))
            out.append(count)
        elif isinstance(k, int | np.integer):
            plan.append((int(k) if k >= 0 else int(k) + shape[axis], 0, ()))
        else:
            raise KernelError(f"{type(k).__name__} is no index")
        axis += 1
    rank = len(out)
    maps = []
    for base, at, steps in plan:
        start = at if at >= 0 else placed - 1 - at
        maps.append((base, (0,) * start + steps + (0,) * (rank - start - len(steps))))
    return tuple(out), tuple(maps)


def _tile_shape(keys: list[Any]) -> tuple[tuple[int, ...], int]:
    """Returns the shape to which the index tiles broadcast, and the axis of the first one."""
    found: tuple[int, ...] = ()
    first, axis = -1, 0
    for k in keys:
        if isinstance(k, IndexTile):
            if first < 0:
                first, found = axis, k.shape
            elif k.shape != found:
                found = np.broadcast_shapes(found, k.shape)
        axis += k is not None
    return found, first


def _completed(key: Any, shape: tuple[int, ...]) -> list[Any]:
    """Returns one key for each axis; missing ones and `...` are whole axes."""
    keys = list(key) if isinstance(key, tuple) else [key]
    given, at = 0, -1
    for place, k in enumerate(keys):
        if k is Ellipsis:
            at = place
        elif k is not None:
            given += 1
    if given > len(shape):
        raise KernelError(f"{given} indices for a tensor of shape {shape}")
    whole = [slice(None)] * (len(shape) - given)
    return keys + whole if at < 0 else keys[:at] + whole + keys[at + 1 :]


def _slice(key: slice, n: int) -> tuple[int, int, int]:
    """Returns start, count and step.  Unlike numpy's, a slice is not clipped: what leaves the tensor is an
    error, unless a mask excludes it."""
    start = 0 if key.start is None else int(key.start)
    stop = n if key.stop is None else int(key.stop)
    step = 1 if key.step is None else int(key.step)
    if start < 0:
        start += n
    if stop < 0:
        stop += n
    return start, max(0, -((start - stop) // step)), step
