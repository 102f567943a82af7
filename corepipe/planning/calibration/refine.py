"""Few rows of one model, on top of all that is known: the constants hardly move, its own scales do.

The most probable constants and scales (maximum a posteriori), on their logarithms.  Priors: the shipped
constants, as they are the device's and rows of all families agree on them; and for the model's own steps with
prompts, and its others, no difference from what is predicted, with the spread that families show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from corepipe.neuron.constants import Constants, fitted, shipped
from corepipe.neuron.uncertainty import Residual, shipped_uncertainty
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.fit import (
    BOUNDS,
    F64,
    SOFT,
    constants_from,
    least_squares,
    log_error,
    version,
)
from corepipe.planning.calibration.predict import Predictor
from corepipe.planning.calibration.residuals import PredictorOf, is_rate, measured, run
from corepipe.planning.calibration.rows import Raw, text
from corepipe.planning.calibration.score import resolution

CONSTANT_SPREAD = 0.05
"""Standard deviation of a constant's logarithm: as from fold to fold."""

SCALE_SPREAD = 0.3
"""Of a model's own scales: families are off by as much where they are off."""

MOST_SCALE = 3.0

ENOUGH = 0.01
"""A step that gains less than this share ends the search: the next one would cost as many simulations."""

PULL = (SOFT / CONSTANT_SPREAD) ** 2
SCALE_PULL = (SOFT / SCALE_SPREAD) ** 2
"""A row that is off by SOFT weighs as a standard deviation."""


@dataclass(frozen=True, slots=True)
class Refined:
    """Constants by generation, scales of steps with prompts and of others, and rows of each generation."""

    constants: Mapping[str, Constants]
    scales: tuple[float, float]
    rows: Mapping[str, int]

    def predictor(self, cases: Cases) -> Predictor:
        return Predictor(self.constants, cases, self.scales)


def refine(rows: Sequence[Raw], cases: Cases, start: Mapping[str, Constants] | None = None) -> Refined:
    """What suits the rows and the priors best; `start`: the prior's constants, else the shipped ones.

    Of generations that were measured under load alone the constants stay: such rows tell no two apart.
    """
    begin = dict(start or shipped())
    counted = Counter(version(row) for row in rows)
    asked = [Predictor(begin, cases).ask(row) for row in rows]
    alone = {version(row) for row, one in zip(rows, asked, strict=True) if one.load is None}
    names = [(generation, name) for generation in sorted(alone) for name in fitted(begin[generation])]
    values = [(float(text(row, "value")), resolution(row) / 2) for row in rows]
    weights = np.array([1 / np.sqrt(n) for n in _shared(rows)])
    origin, low, high = _space(begin, names)
    pulls = np.sqrt(np.array([PULL] * len(names) + [SCALE_PULL] * 2))

    def residuals(x: F64) -> F64:
        refined = _refined(begin, names, x, counted)
        predictor = refined.predictor(cases)
        known = {one: predictor.answer(one) for one in set(asked)}
        errors = [log_error(known[one], *value) for one, value in zip(asked, values, strict=True)]
        return np.concatenate([np.array(errors) * weights, pulls * (x - origin)])

    return _refined(begin, names, least_squares(residuals, origin, low, high, ENOUGH), counted)


def _shared(rows: Sequence[Raw]) -> list[int]:
    """Of each row, how many of its run are of the same side: times and rates say the same again."""
    runs = Counter((run(row), is_rate(row)) for row in rows)
    return [runs[run(row), is_rate(row)] for row in rows]


def _space(begin: Mapping[str, Constants], names: Sequence[tuple[str, str]]) -> tuple[F64, F64, F64]:
    """Where the search begins and what its parameters can be at all: constants, then the two scales."""
    limits = np.log([BOUNDS[name] for _, name in names] + [(1 / MOST_SCALE, MOST_SCALE)] * 2)
    low, high = limits.T
    values = [max(getattr(begin[generation], name), BOUNDS[name][0]) for generation, name in names]
    origin = np.log([*values, 1.0, 1.0])
    return np.clip(origin, low + 1e-6, high - 1e-6), low, high


def _refined(
    begin: Mapping[str, Constants], names: Sequence[tuple[str, str]], x: F64, rows: Mapping[str, int]
) -> Refined:
    constants = dict(begin)
    for generation in dict.fromkeys(generation for generation, _ in names):
        own = np.array([value for (g, _), value in zip(names, x, strict=False) if g == generation])
        constants[generation] = constants_from(begin[generation], own)
    prompt, decode = np.exp(x[-2:]).tolist()
    return Refined(constants, (prompt, decode), dict(rows))


def family_share(residuals: Sequence[Residual], kind: str) -> float:
    """Of the variance of a kind's errors, how much is a family's own on one stack: what its rows tell."""
    groups: dict[tuple[str, str], list[float]] = {}
    for one in residuals:
        if one.point.kind == kind and not one.point.tail:
            groups.setdefault((one.family, one.point.profile), []).append(one.error)
    errors = np.concatenate([np.array(group) for group in groups.values()]) if groups else np.zeros(0)
    whole = float(np.mean(errors**2)) if len(errors) else 0.0
    if len(errors) <= len(groups) or not whole:
        return 0.0
    within = sum(float(((np.array(group) - np.mean(group)) ** 2).sum()) for group in groups.values())
    return max(0.0, 1 - within / (len(errors) - len(groups)) / whole)


def narrowing(share: float, runs: int) -> float:
    """The share of an interval's width that is left after so many runs of the model itself.

    Of errors with variance 1 of which `share` is the model's own, that many runs leave 1 - share of noise,
    and of the model's own the share that they do not tell.
    """
    noise = 1 - share
    own = share * noise / (noise + runs * share) if share else 0.0
    return float(np.sqrt(noise + own))


def narrowed(rows: Sequence[Raw], refined: Refined, cases: Cases) -> tuple[tuple[str, float], ...]:
    """By kind of figure, the share of an interval that the rows leave; not where they are still off by more
    than that."""
    known = shipped_uncertainty()
    predictor_of: PredictorOf = lambda _: refined.predictor(cases)  # noqa: E731 -- one use
    kinds: dict[str, list[float]] = {}
    runs: dict[str, set[str]] = {}
    for one in measured(rows, predictor_of):
        kinds.setdefault(one.point.kind, []).append(abs(one.error) / np.log(known.interval(one.point).high))
        runs.setdefault(one.point.kind, set()).add(run(one.row))
    shares = {kind: narrowing(family_share(known.residuals, kind), len(runs[kind])) for kind in kinds}
    return tuple((kind, min(1.0, max(shares[kind], float(np.mean(kinds[kind]))))) for kind in sorted(kinds))
