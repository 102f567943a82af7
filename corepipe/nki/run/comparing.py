"""Comparisons of a kernel's outputs with a reference's, or with another kernel's."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import msgspec
import numpy as np

from corepipe.nki.core.buffers import Array


class Difference(msgspec.Struct, frozen=True):
    """The distance between outputs.

    max_abs_error: the largest difference of two elements.  max_rel_error: the same as a share of the
    largest absolute element of the reference's output.  Both are None where the outputs cannot be
    subtracted: `problem` says why.
    """

    max_abs_error: float | None = None
    max_rel_error: float | None = None
    problem: str | None = None

    def within(self, tolerance: float) -> bool:
        """Tells whether the relative error is at most `tolerance`."""
        return self.max_rel_error is not None and self.max_rel_error <= tolerance


def as_outputs(returned: Any) -> list[Array]:
    """Returns what a function returned as a list of arrays: one, or those of a tuple or list."""
    parts = returned if isinstance(returned, tuple | list) else (returned,)
    return [np.asarray(part) for part in parts]


def difference(outputs: Sequence[Array], expected: Sequence[Array]) -> Difference:
    """Returns the largest errors over all outputs.

    An output may have its elements in another shape, such as a matrix in tiles, but in the same order.
    """
    if len(outputs) != len(expected):
        return Difference(problem=f"{len(outputs)} outputs, where the reference has {len(expected)}")
    absolute = relative = 0.0
    for number, (one, other) in enumerate(zip(outputs, expected, strict=True)):
        if one.size != other.size:
            return Difference(
                problem=f"output {number} has the shape {list(one.shape)}, not {list(other.shape)}"
            )
        error, largest = _errors(one, other)
        if not np.isfinite(error):
            return Difference(problem=f"output {number} has NaN or infinity where the reference has none")
        absolute = max(absolute, error)
        relative = max(relative, error / largest if largest else (inf if error else 0.0))
    return Difference(absolute, relative if np.isfinite(relative) else None)


def _errors(one: Array, other: Array) -> tuple[float, float]:
    """Returns the largest difference of two arrays' elements, and the second's largest absolute element.

    NaN equals NaN and infinity equals infinity, as in a masked part that nothing has written.
    """
    left, right = (array.reshape(-1).astype(np.float64) for array in (one, other))
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right)
    apart[(left == right) | (np.isnan(left) & np.isnan(right))] = 0
    apart[np.isnan(apart)] = inf
    finite = np.abs(right[np.isfinite(right)])
    return float(apart.max(initial=0)), float(finite.max(initial=0))
