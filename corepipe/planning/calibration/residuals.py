"""Residuals: the errors of predictions, run by run, that intervals are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from corepipe.errors import UserError
from corepipe.neuron.chips.constants import Constants
from corepipe.neuron.timing.uncertainty import GUESSED, Interval, Point, Residual, interval
from corepipe.planning.calibration import assumed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.predict import Predictor, RequestedFigure
from corepipe.planning.calibration.rows import (
    RATES,
    UNITS,
    Raw,
    Unpredictable,
    campaign,
    family,
    is_rate,
    text,
)
from corepipe.planning.calibration.score import log_error, measured_value, resolution, run

TAIL = 0.75
"""Quantile above which figures are tails: their errors are larger than those of means and medians."""


def point(asked: RequestedFigure, row: Raw) -> Point:
    """Returns the point (kind, instance, stack, model and lengths) of the figure that a row requests."""
    case = asked.case
    guessed = case.assumed or text(row, assumed.COLUMN)
    return Point(
        kind=asked.kind,
        instance=case.place[0],
        profile=case.profile.stack + (GUESSED if guessed else ""),
        architecture=case.architecture,
        tensor=case.degrees.tensor,
        tokens=case.inputs + case.outputs,
        tail=asked.quantile is not None and asked.quantile > TAIL,
    )


def row_interval(asked: RequestedFigure, row: Raw) -> Interval:
    """Returns the interval of the figure that a row requests."""
    return interval(point(asked, row), asked.case.profile)


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row with its prediction.

    predicted: the value that is nearer to the measured one, where there are two.  error: log of measured /
    predicted time; 0 within the source's rounding, and between two values.
    """

    row: Raw
    point: Point
    value: float
    predicted: float
    error: float


PredictorOf = Callable[[Raw], Predictor]


def measured(rows: Sequence[Raw], predictor_of: PredictorOf) -> list[MeasuredRow]:
    """Returns the rows that have a value and a prediction."""
    found = []
    for row in rows:
        predictor, value = predictor_of(row), measured_value(row)
        if value is None:
            continue
        try:
            asked = predictor.ask(row)
            predicted = [one for one in predictor.answers(asked) if one is not None]
        except (Unpredictable, UserError, OSError):
            continue
        nearest = min(predicted, key=lambda one: abs(log_error(one, value, resolution(row) / 2)))
        between = min(predicted) <= value <= max(predicted)
        error = 0.0 if between else -log_error(nearest, value, resolution(row) / 2)
        found.append(MeasuredRow(row, point(asked, row), value, nearest, -error if is_rate(row) else error))
    return found


def residuals(found: Sequence[MeasuredRow]) -> list[Residual]:
    """Returns one residual for each run and kind of figure: that of its worst row."""
    groups: defaultdict[tuple[str, str, bool], list[MeasuredRow]] = defaultdict(list)
    for one in found:
        groups[run(one.row), one.point.kind, one.point.tail].append(one)
    worst = (max(group, key=lambda one: abs(one.error)) for group in groups.values())
    return [_residual(one) for one in worst]


def _residual(one: MeasuredRow) -> Residual:
    unit = text(one.row, "unit")
    seconds = one.predicted * UNITS[unit]
    return Residual(
        point=one.point,
        family=family(one.row),
        campaign=campaign(one.row),
        run=run(one.row),
        error=one.error,
        predicted=seconds,
        unit="1/s" if unit in RATES else "s",
    )


def left_out(
    cases: Cases,
    folds: Mapping[str, Mapping[str, Constants]],
    others: Mapping[str, Constants] | None = None,
    name_of: Callable[[Raw], str] = family,
) -> PredictorOf:
    """Returns a function from a row to the predictor of its family, or its campaign (`name_of`): with
    constants that were fitted without it, or else with `others` (None: the shipped ones)."""
    predictors = {name: Predictor(constants, cases) for name, constants in folds.items()}
    other = Predictor(others, cases)
    return lambda row: predictors.get(name_of(row), other)
