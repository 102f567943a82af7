"""Predictions of the cost model for rows: the figure that the row's metric names, in the row's unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import log

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError
from corepipe.neuron.chips.constants import Constants
from corepipe.neuron.chips.scales import Scales
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.uncertainty import Figure, kind_of
from corepipe.planning.calibration import assumed
from corepipe.planning.calibration.cases import Case, Cases
from corepipe.planning.calibration.load import RowLoad, ServedRequests, load, serve
from corepipe.planning.calibration.load import figure as load_figure
from corepipe.planning.calibration.rows import RATES, UNITS, Raw, Unpredictable, text

F64 = npt.NDArray[np.float64]

NOT_VALIDATED = "not validated"

_FIGURES = {
    "tpot": Figure.DECODE,
    "itl": Figure.DECODE,
    "ttft": Figure.FIRST_TOKEN,
    "ttft_whole_batch": Figure.FIRST_TOKEN,
}
"""The kind of figure of each metric of a model that generates; other metrics are of whole answers, and
count as throughputs."""


@dataclass(frozen=True, slots=True)
class RowPrediction:
    """A figure in the row's unit, or None with the reason; `reason` may also qualify a figure.

    other: the figure with the profile that holds otherwise, where the chosen one rests on something that no
    document states; None: there is none.
    profile: the runtime profile that was used; empty where none was chosen yet.  assumed: whether an
    assumption replaces a value that the row does not state.  column: where there is no figure since a cell is
    missing or cannot be read, its column.
    """

    value: float | None
    reason: str
    profile: str = ""
    assumed: bool = False
    column: str = ""
    other: float | None = None

    @property
    def values(self) -> tuple[float, ...]:
        """The figure, and the other one where there are two."""
        return tuple(value for value in (self.value, self.other) if value is not None)


@dataclass(frozen=True, slots=True)
class RequestedFigure:
    """The figure that a row requests for a case; quantile None: the mean; load None: a batch alone."""

    case: Case
    metric: str
    unit: str
    quantile: float | None
    load: RowLoad | None

    @property
    def kind(self) -> str:
        """The kind of figure, whose errors its interval is made of."""
        alone = self.case.encodes or (self.case.outputs == 0 and self.load is None)
        figure = Figure.BATCH if alone else _FIGURES.get(self.metric, Figure.THROUGHPUT)
        return kind_of(figure, self.case.architecture, load=self.load is not None)


@dataclass(frozen=True, slots=True)
class BatchGeneration:
    """A generated batch: seconds to its first tokens, and of each step that follows; sequences in all
    replicas; tokens of each."""

    first: float
    steps: F64
    sequences: int
    inputs: int
    outputs: int

    @property
    def total(self) -> float:
        return self.first + float(self.steps.sum())


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """An encoder's batch: seconds, and batches per second of all cores."""

    seconds: float
    batches_per_second: float
    batch: int


class Predictor:
    """Predicts rows with one set of constants.

    constants: by generation of cores, instead of the profiles'.  cases may be shared between predictors,
    which then compile everything once.  scales: of a model's own steps, likewise.
    """

    def __init__(
        self,
        constants: Mapping[str, Constants] | None = None,
        cases: Cases | None = None,
        scales: Scales | None = None,
    ) -> None:
        self._scales = scales
        self._cases = cases or Cases()
        self._constants = constants
        self._generation = cache(self._generate)
        self._pass = cache(self._encode)
        self._served = cache(self._serve)

    def predict(self, row: Raw) -> RowPrediction:
        """Returns the row's figure; never raises for the content of a row."""
        profile = ""
        try:
            asked = self.ask(row)
            profile = asked.case.profile.name
            guesses = [guess for guess in (asked.case.assumed, text(row, assumed.COLUMN)) if guess]
            doubt = asked.case.instance.hypothetical
            notes = (f"hypothetical: {doubt}" if doubt else "", _caveat(row, asked.case), *guesses)
            reason = "; ".join(filter(None, notes))
            value, other = self.answers(asked)
            return RowPrediction(value, reason, profile, bool(guesses), other=other)
        except Unpredictable as error:
            return RowPrediction(None, str(error), profile, column=error.column)
        except UserError as error:
            return RowPrediction(None, str(error).splitlines()[0], profile, column=error.param or "")
        except OSError as error:  # a name that no file can have, or a file that cannot be read
            return RowPrediction(None, f"model or profile: {error.strerror}", profile)

    def ask(self, row: Raw) -> RequestedFigure:
        """Returns the figure that a row requests.  Raises Unpredictable, or UserError."""
        case = self._cases.read(row)
        metric, unit = text(row, "metric").lower(), text(row, "unit")
        if unit not in UNITS:
            given = f"unit {unit!r:.40} is not known" if unit else "unit is missing"
            raise Unpredictable(f"{given}; there are {', '.join(UNITS)}", "unit")
        if (unit in RATES) != metric.endswith(("throughput", "rate")):
            raise Unpredictable(f"{metric} is not measured in {unit}", "unit")
        offered = load(row, case.vocabulary) if _under_load(row) else None
        return RequestedFigure(case, metric, unit, _quantile(row), offered)

    def answers(self, asked: RequestedFigure) -> tuple[float, float | None]:
        """Returns the figure's value, and that with the profile that holds otherwise where it differs: None
        where there is no such profile.  Raises Unpredictable."""
        value, otherwise = self.answer(asked), asked.case.profile.otherwise
        if not otherwise:
            return value, None
        profile = self._cases.rules.profiles[otherwise]
        other = self.answer(replace(asked, case=replace(asked.case, profile=profile)))
        return value, None if other == value else other

    def answer(self, asked: RequestedFigure) -> float:
        """Returns the figure's value, in the row's unit.  Raises Unpredictable."""
        case = asked.case
        if asked.load is not None:
            served = self._served(case, asked.load)
            return load_figure(asked.metric, served, asked.quantile) / UNITS[asked.unit]
        if case.encodes or case.outputs == 0:
            value = _of_pass(asked.metric, self._pass(case))
        else:
            value = _of_generation(asked.metric, self._generation(case), asked.quantile)
        return (value + _tail(asked, value, self._cases.rules.tails)) / UNITS[asked.unit]

    def _cost(self, case: Case) -> CostModel:
        cost = self._cases.cost(case, self._constants)
        return cost if self._scales is None else cost.with_scales(self._scales)

    def _generate(self, case: Case) -> BatchGeneration:
        """Times a whole batch from its prompts to its last tokens, as benchmarks of static batches run it."""
        cost = self._cost(case)
        first = _encoder(cost, case) if case.translates else _prefill(cost, case)
        steps = _decode_steps(cost, case)
        return BatchGeneration(
            first, steps, case.batch * case.degrees.data, case.inputs, max(1, case.outputs)
        )

    def _serve(self, case: Case, offered: RowLoad) -> ServedRequests:
        if case.encodes or not case.outputs:
            raise Unpredictable("only models that generate are predicted under load")
        return serve(case, self._cost(case), offered)

    def _encode(self, case: Case) -> EncoderBatch:
        """Times batches on each replica: one after the other, or with several in flight each in its turn.

        While the cores work on one batch, the host copies images and results of another, if there is another.
        """
        cost = self._cost(case)
        shape = whole_batch(case)
        host = case.profile.host_seconds + cost.input_seconds(shape) + cost.output_seconds(shape)
        alone = host + cost.latency(shape)
        workers = case.profile.workers
        if cost.stages == 1 and workers == 1:
            return EncoderBatch(alone, case.degrees.data / alone, case.batch)
        step = max(host, *cost.stage_seconds(shape))
        return EncoderBatch(max(alone, workers * step), case.degrees.data / step, case.batch)


def _tail(asked: RequestedFigure, value: float, tails: Mapping[str, tuple[float, float]]) -> float:
    """Returns the seconds by which a tail percentile of a batch alone is above its median."""
    if asked.quantile is None or asked.quantile <= 0.5 or asked.unit in RATES:
        return 0.0
    share, fixed = tails.get(asked.kind, (0.0, 0.0))
    return (share * value + fixed) * log(0.5 / max(1 - asked.quantile, 1e-4)) / log(50)


def whole_batch(case: Case) -> StepShape:
    """Returns a step of whole inputs; a decoder used as an encoder gives a vector for every token."""
    every = case.encodes and case.causal
    return StepShape.of([(0, case.inputs)] * case.batch, case.batch * (case.inputs if every else 1))


def typical_steps(case: Case) -> tuple[StepShape, ...]:
    """Returns the steps that a case's figures depend on: a whole batch of a model that runs once; else its
    prompts, and a step of its whole batch that follows."""
    if case.encodes or not case.outputs:
        return (whole_batch(case),)
    if case.translates:
        return _sources(case), StepShape.decode(case.batch, 1)
    together, chunk = _prompts(case)
    return StepShape.of([(0, chunk)] * together, together), StepShape.decode(case.batch, case.inputs)


def _prompts(case: Case) -> tuple[int, int]:
    """Returns the number of prompts in one step, and of their tokens at most."""
    together = case.batch if case.profile.batched_prefill else 1
    return together, min(case.inputs, case.profile.chunk or case.inputs)


def _prefill(cost: CostModel, case: Case) -> float:
    """Returns the seconds until every prompt of the batch has its first token."""
    together, chunk = _prompts(case)
    one = 0.0
    for start in range(0, case.inputs, chunk):
        count = min(chunk, case.inputs - start)
        shape = StepShape.of([(start, count)] * together, together if start + count == case.inputs else 0)
        one += case.profile.host_seconds + cost.latency(shape) + cost.sampling_seconds(shape)
    return one * (case.batch // together)


def _sources(case: Case) -> StepShape:
    """Returns a step with a batch of sources, each padded to the length that graphs are compiled for."""
    longest = case.profile.decode_buckets.pad(case.inputs, case.longest)
    tokens = case.batch * longest
    return StepShape((0, 0, tokens), case.batch, tokens, tokens * longest)


def _encoder(cost: CostModel, case: Case) -> float:
    """Returns the seconds until a batch's sources are read and the first token is made of them."""
    first = StepShape.decode(case.batch, 1)
    steps = (cost.latency(one) + cost.sampling_seconds(one) for one in (_sources(case), first))
    return 2 * case.profile.host_seconds + sum(steps)


def _decode_steps(cost: CostModel, case: Case) -> F64:
    """Returns the seconds of each step after the first token."""
    known = 1 if case.translates else case.inputs + 1
    contexts = np.arange(known, known + case.outputs - 1, dtype=np.int64)
    if not len(contexts):
        contexts = np.array([known], np.int64)
    stages = cost.decode_seconds(case.batch, contexts * case.batch)
    shape = StepShape.decode(case.batch, case.inputs)
    moved = sum(cost.transfer_seconds(stage, shape) for stage in range(cost.stages))
    fixed = case.profile.host_seconds + moved + cost.sampling_seconds(shape)
    total: F64 = stages.sum(axis=0) + fixed
    return total


def _under_load(row: Raw) -> bool:
    return bool(text(row, "arrival")) or text(row, "task").lower().startswith("serving")


def _quantile(row: Raw) -> float | None:
    """Returns the quantile that `percentile` names; None for the mean.  Raises Unpredictable."""
    name = text(row, "percentile").lower()
    if name in {"", "mean", "avg", "average"}:
        return None
    if name == "median":
        return 0.5
    if name.startswith("p") and name[1:].replace(".", "", 1).isdigit() and float(name[1:]) <= 100:
        return float(name[1:]) / 100
    raise Unpredictable(f"percentile {name!r:.20} is not like mean, p50 or p99", "percentile")


def _of_generation(metric: str, run: BatchGeneration, quantile: float | None) -> float:  # noqa: PLR0911 -- one return a kind
    tokens = run.inputs + run.outputs
    match metric:
        case "ttft" | "ttft_whole_batch":
            return run.first
        case "tpot" | "itl":
            return float(run.steps.mean() if quantile is None else np.quantile(run.steps, quantile))
        case "output_throughput":
            return run.sequences * run.outputs / run.total
        case "total_throughput":
            return run.sequences * tokens / run.total
        case "per_token_latency":
            return run.total / tokens
        case "request_latency" | "latency":
            return run.total
        case "request_rate" | "throughput":
            return run.sequences / run.total
        case _:
            raise Unpredictable(f"the metric {metric!r:.40} is not known", "metric")


def _of_pass(metric: str, run: EncoderBatch) -> float:
    match metric:
        case "latency" | "ttft" | "ttft_whole_batch" | "request_latency":
            return run.seconds
        case "throughput" | "request_rate":
            return run.batch * run.batches_per_second
        case _:
            raise Unpredictable(f"the metric {metric!r:.40} is not one of a model that does not generate")


def _caveat(row: Raw, case: Case) -> str:
    """Returns a caveat of a figure; empty where there is none."""
    if text(row, "percentile").lower() in {"p90", "p95", "p99"}:
        return f"{NOT_VALIDATED}: tail percentiles"
    if case.instance.family not in {"inf2", "trn1"}:
        return f"{NOT_VALIDATED}: few measurements of {case.instance.family}"
    return ""
