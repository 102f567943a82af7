"""Learned positions of a grid of patches, interpolated for a grid of another size."""

from __future__ import annotations

from math import floor, isqrt

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

A = -0.75
"""The parameter of the cubic convolution (Keys 1981), as in torch's bicubic interpolation."""


def is_grid(rows: int, first: int) -> bool:
    """Tells whether `rows` positions are those of a square after `first` others."""
    return rows > first and isqrt(rows - first) ** 2 == rows - first


def interpolated(table: F32, first: int, rows: int) -> F32:
    """Interpolates `rows` positions [rows, width] from a table of another size; the first ones are kept.

    Bicubic, with pixels' centres aligned and the edge repeated: what transformers does for
    `interpolate_pos_encoding` (torch.nn.functional.interpolate, align_corners=False).
    """
    old, new = isqrt(len(table) - first), isqrt(rows - first)
    taps = _taps(old, new)
    grid = table[first:].reshape(old, old, -1)
    larger = np.einsum("ia,jb,abc->ijc", taps, taps, grid, optimize=True)
    return np.concatenate((table[:first], larger.reshape(rows - first, -1).astype(np.float32)))


def _taps(old: int, new: int) -> npt.NDArray[np.float64]:
    """Returns the weight of each old place in each new one [new, old]."""
    taps = np.zeros((new, old))
    for at in range(new):
        place = (at + 0.5) * old / new - 0.5
        for tap in range(floor(place) - 1, floor(place) + 3):
            taps[at, min(max(tap, 0), old - 1)] += _cubic(abs(place - tap))
    return taps


def _cubic(x: float) -> float:
    if x <= 1:
        return ((A + 2) * x - (A + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * A if x < 2 else 0.0
