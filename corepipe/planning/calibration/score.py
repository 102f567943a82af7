"""Scores of predictions: their errors by cell of metric x instance x runtime profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import log

import numpy as np

from corepipe.planning.calibration.predict import RowPrediction
from corepipe.planning.calibration.rows import Raw, text

RESOLUTIONS = {
    ("static-batch(optimum-neuron)", "ttft_whole_batch"): 100.0,
    ("static-batch(optimum-neuron)", "tpot"): 1.0,
}
"""Rounding of figures in their source, in ms: charts show whole ms and tenths of a second."""


def resolution(row: Raw) -> float:
    """Returns the rounding of the row's figure in its source, in its unit; 0 where it was not rounded."""
    return RESOLUTIONS.get((text(row, "task"), text(row, "metric")), 0.0)


ASSUMED = ", guessed"
"""Suffix of the profile of a cell whose rows do not state all that a prediction needs."""

SAME = (
    "task", "instance", "model", "dtype", "parallelism", "batch_size", "input_len", "output_len", "seq_len",
    "metric", "arrival", "users",
)  # fmt: skip
"""Columns by which, with `percentile`, two rows are repeats of one measurement."""


def run(row: Raw) -> str:
    """Returns the name of the run that measured a row: a configuration, on one day."""
    return text(row, "config_id") or " ".join(text(row, name) for name in SAME if name != "metric")


def log_error(predicted: float, value: float, slack: float) -> float:
    """Returns log(predicted / measured), 0 within the rounding of the source."""
    if predicted > value + slack:
        return log(predicted / (value + slack))
    return min(0.0, log(predicted / (value - slack)))


@dataclass(frozen=True, slots=True)
class Scored:
    """A measured row and its prediction; `assumed`: an assumption replaces a value missing in the row."""

    row: Raw
    value: float
    predicted: float
    baseline: float | None
    profile: str
    assumed: bool = False

    @property
    def resolution(self) -> float:
        return resolution(self.row)

    def error(self, predicted: float | None = None) -> float:
        """Returns the signed relative error, to the nearest figure that the source rounds to this value."""
        gap = (self.predicted if predicted is None else predicted) - self.value
        slack = self.resolution / 2
        beyond = max(0.0, abs(gap) - slack)
        return float(np.copysign(beyond, gap)) / self.value


@dataclass(frozen=True, slots=True)
class Cell:
    """Errors of a cell, as shares: |error| at the median and at p90, the median signed error; the plain
    roofline's; and the noise floor: the rounding of the source and the spread of its repeats."""

    metric: str
    instance: str
    profile: str
    validated: bool
    n: int
    median: float
    p90: float
    bias: float
    roofline_median: float | None
    roofline_p90: float | None
    noise: float

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def pair(
    rows: Sequence[Raw],
    predictions: Sequence[RowPrediction],
    baselines: Sequence[RowPrediction] | None = None,
) -> list[Scored]:
    """Returns the rows that have both a value and a prediction: the nearer one, where there are two."""
    scored = []
    for i, (row, found) in enumerate(zip(rows, predictions, strict=True)):
        value = measured_value(row)
        if value is not None and found.value is not None:
            baseline = baselines[i].value if baselines else None
            nearest = min(found.values, key=lambda one: abs(log(one / value)))
            scored.append(Scored(row, value, nearest, baseline, found.profile, found.assumed))
    return scored


def measured_value(row: Raw) -> float | None:
    """Returns the row's value where it is a positive number; else None."""
    try:
        value = float(text(row, "value"))
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def cells(scored: Iterable[Scored]) -> list[Cell]:
    """Returns every cell, validated ones first."""
    groups: defaultdict[tuple[bool, str, str, str], list[Scored]] = defaultdict(list)
    for one in scored:
        row = one.row
        metric = text(row, "metric") + ("" if _typical(row) else f" {text(row, 'percentile')}")
        profile = one.profile + (ASSUMED if one.assumed else "")
        groups[not _validated(one), metric, text(row, "instance"), profile].append(one)
    return [_cell(key, groups[key]) for key in sorted(groups)]


def _typical(row: Raw) -> bool:
    return text(row, "percentile").lower() in {"", "mean", "p50", "median"}


def _validated(one: Scored) -> bool:
    return _typical(one.row) and text(one.row, "instance").startswith(("inf2", "trn1")) and not one.assumed


def _cell(key: tuple[bool, str, str, str], group: list[Scored]) -> Cell:
    errors = np.array([one.error() for one in group])
    base = [abs(one.error(one.baseline)) for one in group if one.baseline is not None]
    return Cell(
        metric=key[1],
        instance=key[2],
        profile=key[3],
        validated=not key[0],
        n=len(group),
        median=float(np.median(abs(errors))),
        p90=float(np.quantile(abs(errors), 0.9)),
        bias=float(np.median(errors)),
        roofline_median=float(np.median(base)) if base else None,
        roofline_p90=float(np.quantile(base, 0.9)) if base else None,
        noise=_noise(group),
    )


def _noise(group: Sequence[Scored]) -> float:
    """Returns the median half rounding step plus the median deviation of repeats from their mean."""
    repeats: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for one in group:
        repeats[tuple(text(one.row, c) for c in (*SAME, "percentile"))].append(one.value)
    spread = [abs(v / np.mean(again) - 1) for again in repeats.values() if len(again) > 1 for v in again]
    rounding = float(np.median([one.resolution / 2 / one.value for one in group]))
    return rounding + (float(np.median(spread)) if spread else 0.0)
