"""Chooses what intervals are made with: on some families of models, so that others can judge it.

Of the combinations in GRID the one whose intervals have the best interval score (Winkler 1972; Gneiting and
Raftery 2007): half their width, and what lies outside of them by ten times as much.  It cannot be had by
intervals that are merely wide, nor by ones that merely hold nine of ten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product

from corepipe.neuron.timing.uncertainty import FAR, LEVEL, Residual, Sizes, Spread, Widths, exceeded

GRID = tuple(Widths(*one) for one in product((1.2, 1.45, 1.75, 2.1), (1.0, 2.0, 4.0), (40.0, 80.0, 160.0)))
"""Growth, own families and others that are tried."""


def choose(residuals: Sequence[Residual], level: float = LEVEL) -> Widths:
    """What suits all families best, each judged by the others."""
    return _Families(residuals).best(frozenset(), level)


def choose_nested(residuals: Sequence[Residual], level: float = LEVEL) -> dict[str, Widths]:
    """By family, what suits all others best: neither its errors nor its score is known."""
    families = _Families(residuals)
    return {name: families.best(frozenset([name]), level) for name in families.names}


class _Families:
    """The errors of families, and how large those of any are by others'."""

    def __init__(self, residuals: Sequence[Residual]) -> None:
        self._residuals = residuals
        self._own: defaultdict[str, list[Residual]] = defaultdict(list)
        for one in residuals:
            self._own[one.family].append(one)
        self.names = tuple(self._own)
        self._spread = cache(self._find_spread)
        self._sizes = cache(self._find_sizes)

    def best(self, without: frozenset[str], level: float) -> Widths:
        """What suits the families that are not left out."""
        return min(GRID, key=lambda widths: self._loss(without, widths, level))

    def _loss(self, without: frozenset[str], widths: Widths, level: float) -> float:
        """Mean interval score, as a share of the mean error of its kind, so that kinds count alike."""
        scores: defaultdict[str, list[float]] = defaultdict(list)
        errors: defaultdict[str, list[float]] = defaultdict(list)
        for family in self._rest(without):
            for one, reach in zip(
                self._own[family], self._reaches(family, without, widths, level), strict=True
            ):
                error = min(FAR, abs(one.error))
                errors[one.point.kind].append(error)
                scores[one.point.kind].append(reach + max(0.0, error - reach) / (1 - level))
        total = sum(sum(found) / max(1e-9, _mean(errors[kind])) for kind, found in scores.items())
        return total / max(1, sum(map(len, scores.values())))

    def _reaches(self, family: str, without: frozenset[str], widths: Widths, level: float) -> list[float]:
        """Of each of a family's errors, how large it may be by the others that are not left out."""
        hidden = without | {family}
        scores = sorted(
            (
                (abs(one.error) / sizes.with_widths(widths), one.point.shape)
                for other in self._rest(hidden)
                for one, sizes in zip(self._own[other], self._sizes(other, hidden | {other}), strict=True)
            ),
            reverse=True,
        )
        values = [score for score, _ in scores]
        shapes = {one.point.shape for one in self._own[family]}
        most = {
            shape: exceeded(values, [found == shape for _, found in scores], widths.others, level)
            for shape in shapes
        }
        sizes = self._sizes(family, hidden)
        return [
            size.with_widths(widths) * most[one.point.shape]
            for one, size in zip(self._own[family], sizes, strict=True)
        ]

    def _rest(self, without: frozenset[str]) -> Iterable[str]:
        return (name for name in self.names if name not in without)

    def _find_spread(self, without: frozenset[str]) -> Spread:
        return Spread([one for one in self._residuals if one.family not in without])

    def _find_sizes(self, family: str, without: frozenset[str]) -> tuple[Sizes, ...]:
        """Of a family's errors, by the families that are not left out."""
        spread = self._spread(without)
        return tuple(spread.at(one.point) for one in self._own[family])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
