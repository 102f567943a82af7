"""Comparison of a kernel's outputs with the values of the Op that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corepipe.nki.ops.contract import Array


@dataclass(frozen=True, slots=True)
class Compared:
    """The largest difference of an output, as a share of the output's largest value, and where it is."""

    output: int
    index: tuple[int, ...]
    got: float
    wanted: float
    largest: float

    @property
    def share(self) -> float:
        """The difference as a share of the largest value; not a number where the kernel's value is none."""
        return abs(self.got - self.wanted) / self.largest

    def __str__(self) -> str:
        where = ", ".join(map(str, self.index))
        return f"[{where}] of output {self.output} is {self.got:.6g}, and not {self.wanted:.6g}"

    def passes(self, bound: float) -> bool:
        return self.share <= bound


def compared(got: Sequence[Array], wanted: Sequence[Array]) -> Compared:
    """Returns the worst of all elements.  Raises ValueError for other shapes, or another number of
    outputs."""
    shapes = [tuple(np.shape(one)) for one in got], [one.shape for one in wanted]
    if shapes[0] != shapes[1]:
        raise ValueError(f"returns {_spelled(shapes[0])}, and not {_spelled(shapes[1])}")
    worst = [_worst(number, g, w) for number, (g, w) in enumerate(zip(got, wanted, strict=True))]
    return max(worst, key=lambda one: one.share if one.share == one.share else np.inf)


def _worst(number: int, got: Array, wanted: Array) -> Compared:
    have, want = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    away = np.abs(have - want)
    at = np.unravel_index(int(np.argmax(np.where(np.isnan(away), np.inf, away))), want.shape)
    largest = float(np.abs(want).max()) or 1.0
    return Compared(number, tuple(int(i) for i in at), float(have[at]), float(want[at]), largest)


def _spelled(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes) or "nothing"
