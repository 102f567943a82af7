"""Impossible rows: nothing is faster than the hardware, and a run's figures agree with one another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from corepipe.errors import UserError
from corepipe.neuron.chips.constants import IDEAL, shipped
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel
from corepipe.planning.calibration.cases import Case, Cases
from corepipe.planning.calibration.predict import Predictor, RequestedFigure, whole_batch
from corepipe.planning.calibration.rows import UNITS, Raw, Unpredictable, is_rate, text
from corepipe.planning.calibration.score import run

SLACK = 0.97
"""Tolerance of a bound: data sheets are rounded."""

DISAGREE = 1.25
"""Factor by which a run's throughput and latency may disagree: means, medians and ramps differ."""

WORKERS = 2
"""Batches that a benchmark may keep in flight on each core: NeuronPerf's workers_per_model."""

TOO_MANY = 1.15
"""Factor of the users of a closed loop that may seem to be in flight."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row, by its number in the file (from 1 under the header), and the reason to reject it."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"row {self.number}: {self.reason}"


def refused(rows: Sequence[Raw], cases: Cases) -> list[RefusedRow]:
    """Returns the rows that contradict physics or one another, in their order."""
    found = {number: reason for number, row in enumerate(rows, 1) if (reason := _impossible(row, cases))}
    left = {number: row for number, row in enumerate(rows, 1) if number not in found}
    found |= _contradictions(left, cases)
    return [RefusedRow(number, found[number]) for number in sorted(found)]


def consistent(rows: Sequence[Raw], cases: Cases) -> list[Raw]:
    """Returns the rows that contradict neither physics nor one another."""
    bad = {one.number for one in refused(rows, cases)}
    return [row for number, row in enumerate(rows, 1) if number not in bad]


def _impossible(row: Raw, cases: Cases) -> str | None:
    """Returns the reason why a row alone is impossible; None where it is possible, or has no value."""
    cell, unit = text(row, "value"), text(row, "unit")
    if not cell:
        return None
    if not unit:
        return f"has no unit; there are {', '.join(UNITS)}"
    if unit not in UNITS:
        return f"unit {unit!r:.40} is not known; there are {', '.join(UNITS)}"
    try:
        value = float(cell)
    except ValueError:
        return f"value {cell!r:.40} is no number"
    if not isfinite(value) or value <= 0:
        return f"{text(row, 'metric')} of {cell:.40} {unit}: must be above 0"
    return _too_fast(row, value * UNITS[unit], cases)


def _too_fast(row: Raw, value: float, cases: Cases) -> str | None:
    """Returns a reason where a row is faster than weights can be read or products be computed."""
    try:
        asked = Predictor(cases=cases).ask(row)
        bound = _bound(asked, cases)
    except (Unpredictable, UserError, OSError, ValueError):
        return None
    if bound is None:
        return None
    least, what = bound
    if is_rate(row):
        if value * least * SLACK > 1:
            return f"{value:.4g} a second: {what} allows {1 / least:.4g} at the data sheet's speed"
    elif value < least * SLACK:
        return f"{value * 1e3:.4g} ms: {what} takes {least * 1e3:.4g} ms at the data sheet's speed"
    return None


def _bound(asked: RequestedFigure, cases: Cases) -> tuple[float, str] | None:
    """Returns the seconds that the figure takes at least (for a rate: that one unit of it does), and why."""
    case = asked.case
    cost = cases.cost(_plain(case), dict.fromkeys(shipped(), IDEAL))
    replicas = case.batch * case.degrees.data
    if case.encodes or not case.outputs:
        stages = _stages(cost, whole_batch(case))
        return (max(stages) / replicas if asked.metric in _RATES else sum(stages)), "a batch"
    prompt = sum(_stages(cost, StepShape.of([(0, case.inputs)], 1)))
    alone = 1 if asked.load is not None else case.batch
    token = sum(_stages(cost, StepShape.decode(alone, case.inputs)))
    each = max(_stages(cost, StepShape.decode(case.batch, case.inputs))) / replicas
    answer = max(1, case.outputs // 2)  # some answers are shorter than requested
    bounds = {
        **dict.fromkeys(("ttft", "ttft_whole_batch"), (prompt, "a prompt")),
        **dict.fromkeys(("tpot", "itl"), (token, "a step")),
        **dict.fromkeys(_LATENCIES, (prompt + token * answer, "an answer")),
        **dict.fromkeys(_RATES, (each * answer, "a step for each token")),
        "output_throughput": (each, "a step for each token"),
    }
    return bounds.get(asked.metric)


def _plain(case: Case) -> Case:
    """Returns the case without what its software adds."""
    values = {name: getattr(case, name) for name in Case.__slots__}
    return Case(**{**values, "profile": PROFILES["ideal"]})


def _stages(cost: CostModel, shape: StepShape) -> list[float]:
    """Returns each stage's longer time of reading its weights and of its products; all else is free."""
    return [max(engines.dma, engines.tensor) for _, engines in cost.lone.stage_totals(shape)]


def _contradictions(rows: Mapping[int, Raw], cases: Cases) -> dict[int, str]:
    """Returns the rows of a run whose throughput and latency contradict each other."""
    runs: defaultdict[str, dict[int, Raw]] = defaultdict(dict)
    for number, row in rows.items():
        if text(row, "value") and text(row, "percentile").lower() in {"", "mean", "avg", "median", "p50"}:
            runs[run(row)][number] = row
    found: dict[int, str] = {}
    for group in runs.values():
        found |= _disagreement(group, cases)
    return found


def _disagreement(group: Mapping[int, Raw], cases: Cases) -> dict[int, str]:
    figures = {text(row, "metric").lower(): (number, row) for number, row in group.items()}
    seconds = {
        name: float(text(row, "value")) * UNITS[text(row, "unit")] for name, (_, row) in figures.items()
    }
    try:
        asked = {name: Predictor(cases=cases).ask(row) for name, (_, row) in figures.items()}
    except (Unpredictable, UserError, OSError, ValueError):
        return {}
    found: dict[int, str] = {}
    rate, latency = _named(figures, _RATES), _named(figures, _LATENCIES)
    if figures.keys() >= _TOKENS:
        rate, latency = "total_throughput", "per_token_latency"
    if rate and latency and (reason := _little(asked[rate], seconds[rate], seconds[latency])):
        found |= {figures[name][0]: reason for name in (rate, latency)}
    if figures.keys() >= _BATCH and (reason := _batch(asked["output_throughput"], seconds)):
        found |= {figures[name][0]: reason for name in _BATCH}
    return found


_RATES, _LATENCIES = ("request_rate", "throughput"), ("request_latency", "latency")


def _named(figures: Mapping[str, object], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in figures), None)


_BATCH = {"ttft", "tpot", "output_throughput"}
_TOKENS = {"total_throughput", "per_token_latency"}


def _batch(asked: RequestedFigure, seconds: Mapping[str, float]) -> str | None:
    """Returns why the times of a batch alone contradict its tokens per second; None: they agree."""
    case = asked.case
    if asked.load is not None or case.outputs < 1:
        return None
    tokens = case.batch * case.degrees.data * case.outputs
    expected = tokens / (seconds["ttft"] + (case.outputs - 1) * seconds["tpot"])
    if 1 / DISAGREE <= seconds["output_throughput"] / expected <= DISAGREE:
        return None
    return (
        f"{seconds['output_throughput']:.4g} tokens/s, and by its times to a first and to each other token a "
        f"batch makes {expected:.4g}"
    )


def _little(asked: RequestedFigure, rate: float, latency: float) -> str | None:
    """Returns why a rate and a latency contradict Little's law (too many in flight); None: they agree."""
    case, flight = asked.case, rate * latency
    if asked.load is not None:
        users = asked.load.users
        if users is None or flight <= TOO_MANY * users:
            return None
        return f"{rate:.4g} a second of {latency:.4g} s each are {flight:.3g} in flight, of {users} users"
    seats = case.batch * case.degrees.data * case.degrees.pipeline
    fewest = case.batch * case.degrees.data / DISAGREE
    if fewest <= flight <= DISAGREE * seats * max(WORKERS, case.profile.workers):
        return None
    return (
        f"{rate:.4g} a second of {latency:.4g} s each are {flight:.3g} in flight, and there are {seats} seats"
    )
