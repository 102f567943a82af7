"""Refines the shipped constants by few rows of one model: the constants hardly move, the scales of its own
steps do.

The result is the expected constants and scales given the rows, on their logarithms, with errors from
Student's t distribution: a few rows may be mistaken, and the others then count.  Priors: the shipped
constants, as they are the device's and rows of all families agree on them; and for the model's own steps no
difference from the prediction, with the spread and the likeness of neuron/chips/scales.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from corepipe.neuron.chips.constants import Constants, fitted, shipped
from corepipe.neuron.chips.scales import UNSCALED, Scales, Site
from corepipe.neuron.timing.uncertainty import Residual, shipped_uncertainty
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.fit import BOUNDS, F64, version
from corepipe.planning.calibration.predict import Predictor, RequestedFigure, typical_steps
from corepipe.planning.calibration.residuals import PredictorOf, measured
from corepipe.planning.calibration.rows import Raw, is_rate, text
from corepipe.planning.calibration.score import log_error, resolution, run

CONSTANT_SPREAD = 0.05
"""Standard deviation of a constant's logarithm: as from fold to fold."""

NOISE = 0.03
"""Relative difference between repeats of a measurement."""

TAILS = 2.5
"""Degrees of freedom of the rows' errors."""

ROUNDS, WEIGHINGS = 2, 8
"""Times that slopes are computed, and for each, that rows are weighted by their remaining errors."""

MOVED = 1e-3
"""Step of a logarithm, for slopes."""

Name = tuple[str, str]
"""A generation of cores and one of its constants."""


@dataclass(frozen=True, slots=True)
class Refined:
    """Constants by generation, scales of the model's steps, and rows of each generation."""

    constants: Mapping[str, Constants]
    scales: Scales
    rows: Mapping[str, int]

    def predictor(self, cases: Cases) -> Predictor:
        return Predictor(self.constants, cases, self.scales)


@dataclass(frozen=True, slots=True)
class _FittedRow:
    """A row that is fitted to: its figure, the source's rounding, and its steps with prompts and others."""

    asked: RequestedFigure
    value: float
    slack: float
    rate: bool
    sites: tuple[Site, ...]

    def error(self, time: float) -> float:
        """Returns log(measured / predicted), with `time` = log(predicted); 0 within the source's rounding."""
        error = log_error(float(np.exp(-time if self.rate else time)), self.value, self.slack)
        return error if self.rate else -error


def refine(rows: Sequence[Raw], cases: Cases, start: Mapping[str, Constants] | None = None) -> Refined:
    """Returns the most likely constants and scales given the rows and the priors; `start`: the prior's
    constants, else the shipped ones.

    The constants of generations that were measured under load alone do not change: such rows cannot
    distinguish them.
    """
    begin = dict(start or shipped())
    known = [_row(row, cases, Predictor(begin, cases)) for row in rows]
    alone = {version(row) for row, one in zip(rows, known, strict=True) if one.asked.load is None}
    names = [(generation, name) for generation in sorted(alone) for name in fitted(begin[generation])]
    found = Refined(begin, UNSCALED, dict(Counter(version(row) for row in rows)))
    for _ in range(ROUNDS):
        found = _step(begin, found, names, known, cases)
    return found


def _row(row: Raw, cases: Cases, predictor: Predictor) -> _FittedRow:
    asked = predictor.ask(row)
    cost = cases.cost(asked.case)
    sites = tuple(cost.site(shape) for shape in typical_steps(asked.case))
    return _FittedRow(asked, float(text(row, "value")), resolution(row) / 2, is_rate(row), sites)


def _step(
    begin: Mapping[str, Constants],
    now: Refined,
    names: Sequence[Name],
    rows: Sequence[_FittedRow],
    cases: Cases,
) -> Refined:
    """Takes one step of Gauss and Newton: rows' errors are nearly linear in constants and scales close to
    the current ones."""
    times = _times(rows, now.predictor(cases))
    slopes = [(_times(rows, _moved(now, name).predictor(cases)) - times) / MOVED for name in names]
    lifted = (replace(now, scales=_lifted(now.scales, decodes)) for decodes in (False, True))
    sides = [(_times(rows, one.predictor(cases)) - times) / MOVED for one in lifted]
    told = [(row, site) for row in range(len(rows)) for site in rows[row].sites]
    steps = np.zeros((len(told), len(rows)))
    for at, (row, site) in enumerate(told):
        steps[at, row] = sides[site.decodes][row]
    like = np.array([[one.likeness(other) for _, other in told] for _, one in told])
    by_constants = np.array(slopes).reshape(len(names), len(rows))
    spread = CONSTANT_SPREAD**2 * by_constants.T @ by_constants + steps.T @ like @ steps
    moved = np.array([_gone(begin, now, name) for name in names]) @ by_constants
    scaled = steps.T @ np.log([now.scales.of(site) for _, site in told])
    errors = np.array([row.error(time) for row, time in zip(rows, times, strict=True)])
    weights = _weights(spread, errors + moved + scaled)
    moves = CONSTANT_SPREAD**2 * by_constants @ weights
    scales = Scales(learnt=_merged([site for _, site in told], steps @ weights))
    return replace(now, constants=_constants(begin, names, moves), scales=scales)


def _times(rows: Sequence[_FittedRow], predictor: Predictor) -> F64:
    """Returns the logarithms of the rows' predicted times."""
    found = np.log([predictor.answer(row.asked) for row in rows])
    return np.where([row.rate for row in rows], -found, found)


def _moved(now: Refined, name: Name) -> Refined:
    generation, constant = name
    own = now.constants[generation]
    moved = replace(own, **{constant: getattr(own, constant) * np.exp(MOVED)})
    return replace(now, constants={**now.constants, generation: moved})


def _lifted(scales: Scales, decodes: bool) -> Scales:
    """Returns the scales with all steps that decode, or all others, a little longer."""
    if decodes:
        return replace(scales, decode=float(np.exp(MOVED)))
    return replace(scales, prompt=float(np.exp(MOVED)))


def _gone(begin: Mapping[str, Constants], now: Refined, name: Name) -> float:
    """Returns the distance of a constant from its prior, on a logarithm."""
    generation, constant = name
    return float(np.log(getattr(now.constants[generation], constant) / getattr(begin[generation], constant)))


def _weights(spread: F64, errors: F64) -> F64:
    """Returns the weight of each row: the inverse of the errors' covariance times the errors, where rows
    that stay far off have more noise (Student's t as a mixture: Lange et al. 1989)."""
    noise: F64 = np.full(len(errors), NOISE**2)
    weights: F64 = np.zeros(len(errors))
    for _ in range(WEIGHINGS):
        weights = np.asarray(np.linalg.solve(spread + np.diag(noise), errors), np.float64)
        left: F64 = errors - spread @ weights
        noise = (TAILS * NOISE**2 + left * left) / (TAILS + 1)
    return weights


def _constants(begin: Mapping[str, Constants], names: Sequence[Name], moves: F64) -> Mapping[str, Constants]:
    found = dict(begin)
    for (generation, name), move in zip(names, moves, strict=True):
        low, high = BOUNDS[name]
        value = getattr(begin[generation], name) * float(np.exp(move))
        found[generation] = replace(found[generation], **{name: min(high, max(low, value))})
    return found


def _merged(sites: Sequence[Site], weights: F64) -> tuple[tuple[Site, float], ...]:
    """Returns each site once; a site with a weight of 0 is left out."""
    found: dict[Site, float] = {}
    for site, weight in zip(sites, weights.tolist(), strict=True):
        found[site] = found.get(site, 0.0) + weight
    return tuple((site, weight) for site, weight in found.items() if weight)


def family_share(residuals: Sequence[Residual], kind: str) -> float:
    """Returns the share of the variance of a kind's errors that is common to a family on one stack: its
    rows show that part."""
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
    """Returns the share of an interval's width that remains after so many runs of the model itself.

    Of errors with variance 1 of which `share` is the model's own, that many runs leave 1 - share of noise,
    and of the model's own the share that they do not determine.
    """
    noise = 1 - share
    own = share * noise / (noise + runs * share) if share else 0.0
    return float(np.sqrt(noise + own))


def narrowed(rows: Sequence[Raw], refined: Refined, cases: Cases) -> tuple[tuple[str, float], ...]:
    """Returns, by kind of figure, the share of an interval that remains after the rows; not less than the
    rows are still off by."""
    known = shipped_uncertainty()
    predictor_of: PredictorOf = lambda _: refined.predictor(cases)  # noqa: E731 -- one use
    kinds: dict[str, list[float]] = {}
    runs: dict[str, set[str]] = {}
    for one in measured(rows, predictor_of):
        kinds.setdefault(one.point.kind, []).append(abs(one.error) / np.log(known.interval(one.point).high))
        runs.setdefault(one.point.kind, set()).add(run(one.row))
    shares = {kind: narrowing(family_share(known.residuals, kind), len(runs[kind])) for kind in kinds}
    return tuple((kind, min(1.0, max(shares[kind], float(np.mean(kinds[kind]))))) for kind in sorted(kinds))
