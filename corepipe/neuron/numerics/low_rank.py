"""The change that an adapter (LoRA) makes to a matrix: the product of two narrow ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corepipe.neuron.axes import AxisShard, cut
from corepipe.neuron.numerics.arithmetic import F32


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """Adds (scale * x @ a.T) @ b.T to x @ w.T, w [n, k], for the rows that have the adapter.

    a [rank, k], b [n, rank], as they were read.
    """

    a: F32
    b: F32
    scale: float

    @property
    def rank(self) -> int:
        return len(self.a)

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    def part(self, n_axis: AxisShard, k_axis: AxisShard) -> LowRank:
        """Returns the part of a core that has these parts of w's axes."""
        return LowRank(
            _contiguous(cut(self.a.T, (k_axis,)).T), _contiguous(cut(self.b, (n_axis,))), self.scale
        )

    def merged(self) -> F32:
        """Returns what is added to w [n, k] where the adapter is merged into it."""
        return np.float32(self.scale) * (self.b @ self.a)


def _contiguous(values: F32) -> F32:
    return np.ascontiguousarray(values, np.float32)
