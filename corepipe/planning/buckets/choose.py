"""The buckets that pad the least: exact dynamic programming over a distribution of lengths.

A length is padded to the smallest bucket that holds it.  For a number of buckets, the largest of which is
given, the rest is a choice among candidates: best[k][j] = min over i of best[k - 1][i] + the tokens padded to
j of lengths above i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LengthCounts:
    """Lengths in ascending order, each once, and how often it occurs."""

    lengths: I64
    weights: F64

    @classmethod
    def of(cls, lengths: npt.ArrayLike) -> LengthCounts:
        """Counts the lengths of a sample, of which there is at least one."""
        found, counts = np.unique(np.asarray(lengths, np.int64), return_counts=True)
        return cls(found, counts.astype(np.float64))

    @property
    def tokens(self) -> float:
        """The sum of all lengths."""
        return float(self.lengths @ self.weights)

    @property
    def count(self) -> float:
        return float(self.weights.sum())

    @property
    def longest(self) -> int:
        return int(self.lengths[-1])

    def largest_of(self, several: int) -> LengthCounts:
        """Returns the distribution of the largest of `several` independent lengths, with the same weight."""
        share = np.cumsum(self.weights) / self.count
        grown = np.diff(share**several, prepend=0.0) * self.count
        return LengthCounts(self.lengths, grown)

    def padded(self, buckets: npt.ArrayLike) -> F64:
        """Returns the weight of the lengths that each of `buckets`, in ascending order, holds."""
        sizes = np.asarray(buckets, np.int64)
        which = np.searchsorted(sizes, self.lengths)
        return np.bincount(which, self.weights, len(sizes))[: len(sizes)].astype(np.float64)


def candidates(distribution: LengthCounts, longest: int, step: int) -> I64:
    """Returns the lengths that buckets may have: those of the distribution, each up to a multiple of
    `step`, and the longest; no other is ever better."""
    sizes = np.unique(-(-distribution.lengths // step) * step)
    return np.append(sizes[sizes < longest], longest)


def choices(distribution: LengthCounts, sizes: I64, most: int) -> list[tuple[int, ...]]:
    """Returns, for 1, 2 ... `most` buckets: at most so many of `sizes`, the largest among them, to which the
    fewest tokens are padded.

    Raises ValueError for lengths above the largest.
    """
    if distribution.longest > sizes[-1]:
        raise ValueError(f"a length of {distribution.longest} fits no bucket of up to {sizes[-1]}")
    held = np.cumsum(distribution.padded(sizes))
    price = (held[None, :] - held[:, None]) * sizes[None, :]
    price[np.tril_indices(len(sizes))] = np.inf
    best: F64 = held * sizes
    before: list[I64] = []
    found = [_traced(sizes, before)]
    for _ in range(most - 1):
        totals = best[:, None] + price
        chosen = np.argmin(totals, axis=0)
        better = totals[chosen, np.arange(len(sizes))]
        before.append(np.where(better < best, chosen, -1))
        best = np.minimum(best, better)
        found.append(_traced(sizes, before))
    return found


def _traced(sizes: I64, before: list[I64]) -> tuple[int, ...]:
    """Returns the sizes on the best path to the largest; -1 in `before`: no bucket helped there."""
    at, way = len(sizes) - 1, [len(sizes) - 1]
    for step in reversed(before):
        if step[at] >= 0:
            at = int(step[at])
            way.append(at)
    return tuple(int(sizes[i]) for i in reversed(way))
