"""Fits the cost model's constants to measured rows: robust least squares on the log of predicted / measured.

Constants are fitted as logs, each generation of cores on the rows of its own instances.  A row's error is
weighted by its configuration's repeats, so that the many rows of one chart do not outvote the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log

import numpy as np
import numpy.typing as npt

from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.constants import FEW_ROWS, Constants, fitted, shipped
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.physics import consistent
from corepipe.planning.calibration.predict import Predictor, RequestedFigure
from corepipe.planning.calibration.rows import Raw, campaign, family, text
from corepipe.planning.calibration.score import log_error, pair, resolution

F64 = npt.NDArray[np.float64]

SOFT = 0.1
"""Share from which on errors count less and less (soft l1)."""

FAR = 5.0
"""Factor from which on a row is considered mistaken about what was measured (a core's weights, a
deployment's cores), and is not fitted to."""

STEP = 1e-3
"""Step of a logarithm, for slopes."""

ENOUGH = 1e-4
"""Relative gain below which the search ends."""

GIVE_UP = 1e6

FAR_OFF = 0.03
"""Distance of a logarithm within which slopes are good enough."""

Known = dict[Constants, dict[RequestedFigure, float]]
"""Predictions of rows by constants."""

BOUNDS: Mapping[str, tuple[float, float]] = {
    "memory_efficiency": (0.3, 1.0),
    "descriptor_bytes": (1.0, 2000.0),
    "engine_efficiency": (0.05, 1.0),
    "collective_seconds": (1e-6, 5e-4),
    "collective_bytes_per_second": (1e9, 1e12),
    "core_bytes_per_second": (1e9, 1e12),
}
"""Limits of each constant."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted constants of each generation that had rows, and the number of rows."""

    constants: Mapping[str, Constants]
    rows: Mapping[str, int]


def version(row: Raw) -> str:
    """Returns the generation of cores of a row's instance."""
    return find_instance(text(row, "instance")).chip.core.version


def usable(rows: Sequence[Raw], cases: Cases) -> list[Raw]:
    """Returns the rows that can be predicted, were measured alone and as means or medians: no serving under
    load, no tails; and that state all that a prediction needs.

    Rows of convolutional networks are excluded: on inf1 the host feeds them 0.6 GB of images per second, for
    which there is no constant; elsewhere they test constants that have not seen any.
    """
    predictor = Predictor(cases=cases)
    middle = [row for row in consistent(rows, cases) if _middle(row)]
    found = [predictor.predict(row) for row in middle]
    scored = pair(middle, [replace(one, value=None) if one.assumed else one for one in found])
    return [one.row for one in scored if abs(log(one.predicted / one.value)) < log(FAR)]


def _middle(row: Raw) -> bool:
    alone = not text(row, "arrival") and not text(row, "task").startswith("serving")
    return (
        (alone or _single_user(row))
        and text(row, "task").lower() != "cnn"
        and text(row, "percentile") in {"", "mean", "p50"}
    )


def _single_user(row: Raw) -> bool:
    """Tells whether a server answered one request after the other, on cores of which few runs are measured
    alone: its time to a first token and between tokens are those of a batch alone."""
    few = version(row) in FEW_ROWS
    return few and text(row, "arrival") == "synchronous" and text(row, "metric") in {"ttft", "itl"}


def fit(
    rows: Sequence[Raw],
    cases: Cases,
    start: Mapping[str, Constants] | None = None,
    pull: float = 0.0,
    known: Known | None = None,
) -> Fit:
    """Returns the constants that suit `rows` best, generation by generation.

    start: initial constants, and with `pull` > 0 those towards which constants are drawn: as strongly as by
    so many rows that are off by a tenth for each tenth that a constant differs.  known: a cache of
    predictions shared between fits.
    """
    begin = dict(start or shipped())
    by_version: dict[str, list[Raw]] = {}
    for row in rows:
        by_version.setdefault(version(row), []).append(row)
    answers: Known = {} if known is None else known
    found = {v: _fit_one(v, group, cases, begin, pull, answers) for v, group in by_version.items()}
    return Fit(found, {v: len(group) for v, group in by_version.items()})


def _fit_one(
    generation: str,
    rows: Sequence[Raw],
    cases: Cases,
    start: Mapping[str, Constants],
    pull: float,
    known: Known,
) -> Constants:
    weights = _weights(rows)
    asked = [Predictor(cases=cases).ask(row) for row in rows]
    measured = [(float(text(row, "value")), resolution(row) / 2) for row in rows]
    base = start[generation]
    names = fitted(base)
    origin = np.log([max(getattr(base, name), BOUNDS[name][0]) for name in names])
    low, high = (np.log([BOUNDS[name][i] for name in names]) for i in (0, 1))
    origin = np.clip(origin, low + 1e-6, high - 1e-6)

    def residuals(x: F64) -> F64:
        constants = constants_from(base, x)
        answers = known.setdefault(constants, {})
        predictor = Predictor(constants={generation: constants}, cases=cases)
        answers.update((one, predictor.answer(one)) for one in set(asked) - answers.keys())
        errors = [log_error(answers[one], *value) for one, value in zip(asked, measured, strict=True)]
        return np.concatenate([np.array(errors) * weights, np.sqrt(pull) * (x - origin)])

    return constants_from(base, least_squares(residuals, origin, low, high))


def least_squares(
    residuals: Callable[[F64], F64], x: F64, low: F64, high: F64, enough: float = ENOUGH
) -> F64:
    """Returns the x within [low, high] with the least soft-l1 loss of its residuals, or one from which a step
    gains less than the share `enough`.

    Levenberg and Marquardt's steps, each residual weighted by the slope of its loss (Triggs et al. 2000).
    Slopes are computed anew where x has gone FAR_OFF from the last ones.
    """
    found, damping = residuals(x), 1e-3
    taken_at = np.full_like(x, inf)
    while damping < GIVE_UP:
        if max(abs(x - taken_at)) > FAR_OFF:
            taken_at, slopes = x, _slopes(residuals, x, found)
        weights = 1 / np.sqrt(1 + (found / SOFT) ** 2)
        normal = slopes.T @ (slopes * weights[:, None])
        pull = slopes.T @ (weights * found)
        free = np.flatnonzero(~(((x <= low) & (pull > 0)) | ((x >= high) & (pull < 0))))
        while damping < GIVE_UP:
            there = x.copy()
            damped = normal[np.ix_(free, free)] + damping * np.eye(len(free))
            there[free] -= np.linalg.solve(damped, pull[free])
            there = np.clip(there, low, high)
            new = residuals(there)
            gain = 1 - _loss(new) / _loss(found)
            damping *= 0.2 if gain > 0 else 5
            if gain > 0:
                x, found = there, new
                break
        if gain < enough:
            break
    return x


def _slopes(residuals: Callable[[F64], F64], x: F64, found: F64) -> F64:
    """Returns [residuals, numbers]: how the residuals, which are `found` at x, change with each number."""
    return np.stack([(residuals(_moved(x, i)) - found) / STEP for i in range(len(x))], axis=1)


def _moved(x: F64, i: int) -> F64:
    there = x.copy()
    there[i] += STEP
    return there


def _loss(residuals: F64) -> float:
    return float((np.sqrt(1 + (residuals / SOFT) ** 2) - 1).sum()) + 1e-12


def constants_from(base: Constants, x: F64) -> Constants:
    """Returns constants with the fitted ones from their logarithms; the others unchanged."""
    return replace(base, **{name: float(np.exp(value)) for name, value in zip(fitted(base), x, strict=True)})


def _weights(rows: Sequence[Raw]) -> F64:
    """Returns 1 / sqrt(repeats): rows that measure one configuration again count as one."""
    keys = [tuple(text(row, c) for c in _CONFIGURATION) for row in rows]
    repeats = Counter(keys)
    return np.array([repeats[key] ** -0.5 for key in keys])


_CONFIGURATION = ("task", "instance", "model", "dtype", "parallelism", "batch_size", "metric", "seq_len")


def leave_one_out(
    rows: Sequence[Raw], cases: Cases, fitted: Callable[[Sequence[Raw], Cases], Fit]
) -> dict[str, Fit]:
    """Returns, for each family of models and for each campaign, the fit to the others' rows."""
    folds: dict[str, Fit] = {}
    for name_of in (family, campaign):
        for name in sorted({name_of(row) for row in rows}):
            folds[name] = fitted([row for row in rows if name_of(row) != name], cases)
    return folds
