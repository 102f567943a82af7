"""Prediction intervals: how far a measurement may be from a predicted figure, at 90 %, from the errors of
earlier ones.

`residuals.json` has the errors of published measurements, each family of models predicted with constants that
were fitted to the other families (benchmarks/residuals.py writes it).  An interval is the spread of the
errors of figures of its kind.  It grows with each step by which a case lies outside of the measured cases:
another instance, generation, software stack or kind of model; each doubling beyond the longest sequence and
the most tensor ranks.

Errors are logarithms of measured / predicted *time*: above 0 the device was slower.  For a rate it is the
other way round.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import exp, log, log2
from pathlib import Path
from typing import Any

from corepipe.errors import UserError
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.profiles import RuntimeProfile
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import SOURCE, InputKind

FILE = Path(__file__).with_name("residuals.json")

LEVEL = 0.9
"""Default probability of an interval."""

LEAST_SCALE = 0.02
"""Smallest size of an error: repeated measurements differ by as much."""

FAR = log(5.0)
"""Largest size of an error; larger ones count as this, since such a row measured something else than was
predicted."""

SEEN = 3
"""Runs from which on an instance, a stack or a kind of model counts as measured."""

GUESSED = ", guessed"
"""Suffix of the profile of a case of which not everything is known."""


@dataclass(frozen=True, slots=True)
class Widths:
    """The parameters of intervals, chosen by interval score (docs/decisions/2026-11-22-intervals.md).

    growth: factor of a width (on a logarithm) for each step away from the measured cases.
    own_families: a stack's own errors count as much as all stacks' together when they are of so many families
    of models.
    others: how many of a kind's own errors the shape of all kinds' errors counts as, for a kind (its tails
    apart) with few.
    """

    growth: float
    own_families: float
    others: float


class Figure(StrEnum):
    """The quantity of a figure: the time between tokens, the time to the first token, a whole answer or
    answers a second, an encoder's batch."""

    DECODE = "decode"
    FIRST_TOKEN = "first token"  # noqa: S105
    THROUGHPUT = "throughput"
    BATCH = "encoder"


class ModelKind(StrEnum):
    """Kinds of models whose errors are alike."""

    DECODER = "decoder"
    MIXTURE = "mixture of experts"
    RECURRENT = "recurrent"
    ENCODER = "encoder"
    VISION = "vision transformer"
    ENCODER_DECODER = "encoder-decoder"
    CONVOLUTION = "convolutional network"


APART = frozenset({ModelKind.ENCODER_DECODER, ModelKind.CONVOLUTION})
"""Kinds of models whose figures, whatever their quantity, are a kind of their own."""

UNDER_LOAD = ", under load"


def architecture_of(graph: Graph) -> ModelKind:
    """Returns the kind of model of a graph, from its declared inputs, rows, states and weights."""
    read = {given.kind for given in graph.inputs}
    if InputKind.PIXELS in read:
        return ModelKind.CONVOLUTION
    if SOURCE in graph.rows:
        return ModelKind.ENCODER_DECODER
    if InputKind.PATCHES in read:
        return ModelKind.VISION
    if not graph.causal:
        return ModelKind.ENCODER
    if graph.is_recurrent:
        return ModelKind.RECURRENT
    return ModelKind.MIXTURE if graph.experts else ModelKind.DECODER


def kind_of(figure: Figure, architecture: ModelKind, *, load: bool = False) -> str:
    """Returns the kind of a figure; each kind has its own errors."""
    return str(architecture) if architecture in APART else figure + (UNDER_LOAD if load else "")


@dataclass(frozen=True, slots=True)
class Point:
    """The case of a figure.

    tail: a percentile above the median; tokens: of a whole sequence; divided: cores divide the experts of a
    mixture.
    """

    kind: str
    instance: str
    profile: str
    architecture: str
    tensor: int
    tokens: int
    tail: bool = False
    divided: bool = False

    @property
    def shape(self) -> tuple[str, bool]:
        """The group whose errors have one distribution, relative to their size: more tails are far off than
        medians."""
        return self.kind, self.tail

    @property
    def generation(self) -> str:
        """The generation of its cores; empty for an instance that is not in the catalogue."""
        return _generation(self.instance)


@cache
def _generation(instance: str) -> str:
    try:
        return find_instance(instance).chip.core.version
    except UserError:
        return ""


@dataclass(frozen=True, slots=True)
class Residual:
    """The error of a run's figures of one kind: of the one that was predicted worst.

    predicted, unit: that figure, in seconds or a second.  score: the error relative to the spread that the
    other families' errors give.
    """

    point: Point
    family: str
    run: str
    error: float
    predicted: float
    unit: str
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Interval:
    """The factors of the predicted *time* within which a measurement is expected.

    steps: distance from the measured cases; measured: number of runs that it is known from.
    """

    low: float
    high: float
    steps: float
    measured: int
    level: float = LEVEL

    def around(self, value: float, *, rate: bool = False) -> tuple[float, float]:
        """Returns the smallest and the largest expected value of a figure."""
        return (value / self.high, value / self.low) if rate else (value * self.low, value * self.high)

    @property
    def basis(self) -> str:
        """The runs that the interval is known from, in words."""
        away = f", {self.steps:.2g} steps from them" if self.steps else ""
        return f"{self.measured} measured runs{away}"

    def as_json(self) -> dict[str, object]:
        return {
            "level": self.level,
            "time_factor_low": self.low,
            "time_factor_high": self.high,
            "measured_runs": self.measured,
            "steps_away": self.steps,
        }


class _KindErrors:
    """The measured cases of one kind of figure, and the size of its errors."""

    def __init__(self, residuals: Sequence[Residual]) -> None:
        points = [one.point for one in residuals]
        self.runs = len(residuals)
        self.instances = _seen(point.instance for point in points)
        self.generations = _seen(point.generation for point in points)
        self.profiles = _seen((point.profile, point.tail) for point in points)
        self.architectures = _seen(point.architecture for point in points)
        self.divided = any(point.divided for point in points)
        self.tensor = max(point.tensor for point in points)
        self.tokens = max(point.tokens for point in points)
        self.scale = _size(residuals)[0]
        own: defaultdict[tuple[str, bool], list[Residual]] = defaultdict(list)
        for one in residuals:
            own[one.point.profile, one.point.tail].append(one)
        self._own = {key: _size(group) for key, group in own.items()}

    def own(self, point: Point) -> tuple[float, int]:
        """Returns the mean size of the errors of a point's stack, and the number of families they are of."""
        return self._own.get((point.profile, point.tail), (0.0, 0))

    def steps(self, point: Point) -> float:
        """Returns how far a point lies outside of the measured cases."""
        unseen = (
            point.instance not in self.instances,
            point.generation not in self.generations,
            (point.profile, point.tail) not in self.profiles,
            point.architecture not in self.architectures,
            point.divided and not self.divided,
        )
        beyond = (point.tokens / self.tokens, point.tensor / self.tensor)
        return sum(unseen) + sum(log2(ratio) for ratio in beyond if ratio > 1)


def _seen(values: Iterable[Hashable]) -> set[Hashable]:
    """Returns the values that enough runs had."""
    return {value for value, runs in Counter(values).items() if runs >= SEEN}


def _size(residuals: Sequence[Residual]) -> tuple[float, int]:
    """Returns the mean size of the errors, and the number of families they are of."""
    errors = [min(FAR, abs(one.error)) for one in residuals]
    return max(LEAST_SCALE, sum(errors) / len(errors)), len({one.family for one in residuals})


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of errors at a point: on its stack, with the number of families; of all of its kind; and the
    steps from the measured cases to the point."""

    own: float
    families: int
    kind: float
    steps: float

    def with_widths(self, widths: Widths) -> float:
        """Returns the size of an error at the point."""
        families, drawn = self.families, widths.own_families
        near = (families * self.own + drawn * self.kind) / (families + drawn)
        return near * float(widths.growth**self.steps)


class Spread:
    """The size of errors at any point, from those of some families.  Raises ValueError for none."""

    def __init__(self, residuals: Sequence[Residual]) -> None:
        kinds: defaultdict[str, list[Residual]] = defaultdict(list)
        for one in residuals:
            kinds[one.point.kind].append(one)
        self._kinds = {kind: _KindErrors(group) for kind, group in kinds.items()}
        self._all = _KindErrors(residuals)

    def at(self, point: Point) -> Sizes:
        """Returns the sizes of errors at a point."""
        known = self._kinds.get(point.kind)
        if known is None:  # no figure of its kind was ever measured
            return Sizes(0.0, 0, self._all.scale, 1 + self._all.steps(point))
        return Sizes(*known.own(point), known.scale, known.steps(point))

    def runs(self, kind: str) -> int:
        """Returns the number of measured runs of a kind."""
        return self._kinds[kind].runs if kind in self._kinds else 0


def scored(residuals: Sequence[Residual], widths: Widths) -> list[Residual]:
    """Returns the residuals with their scores: each error relative to the spread of the other families'
    errors."""
    found = []
    for family in dict.fromkeys(one.family for one in residuals):
        others = [one for one in residuals if one.family != family]
        if not others:
            continue
        spread = Spread(others)
        found += [
            Residual(
                one.point, one.family, one.run, one.error, one.predicted, one.unit,
                one.error / spread.at(one.point).with_widths(widths),
            )
            for one in residuals
            if one.family == family
        ]  # fmt: skip
    return found


class Uncertainty:
    """Intervals from residuals that have their scores.  Raises ValueError for none."""

    def __init__(self, residuals: Sequence[Residual], widths: Widths) -> None:
        self.residuals, self.widths = residuals, widths
        self._spread = Spread(residuals)
        self._scores = sorted(((abs(one.score), one.point.shape) for one in residuals), reverse=True)
        self._quantile = cache(self._find_quantile)

    def interval(self, point: Point, level: float = LEVEL, narrowed: float = 1.0) -> Interval:
        """Returns the interval that holds a measured figure with a probability of `level`: as much above as
        below, on a logarithm, since the side on which one family lies says little about the next.

        narrowed: the share of its width that is left where such figures of this very model were measured.
        """
        sizes = self._spread.at(point)
        reach = sizes.with_widths(self.widths) * self._quantile(point.shape, level) * narrowed
        return Interval(exp(-reach), exp(reach), sizes.steps, self._spread.runs(point.kind), level)

    def _find_quantile(self, shape: tuple[str, bool], level: float) -> float:
        own = [found == shape for _, found in self._scores]
        return exceeded([score for score, _ in self._scores], own, self.widths.others, level)


def exceeded(scores: Sequence[float], own: Sequence[bool], others: float, level: float) -> float:
    """Returns the size of scores that is exceeded by no larger share of a kind than the level allows.

    scores: of all kinds, the largest first; own: which are the kind's; others: how many of these all the
    others count as.
    """
    borrowed = len(scores) - sum(own)
    other = others / max(1, borrowed)
    room = (1 - level) * (1 + sum(own) + min(others, borrowed))
    reached = scores[0]
    for score, mine in zip(scores, own, strict=True):
        room -= 1.0 if mine else other
        if room < 0:
            break
        reached = score
    return reached


def interval(point: Point, profile: RuntimeProfile, level: float = LEVEL) -> Interval:
    """Returns the interval of a figure that is predicted with a profile: narrower where that was fitted to
    such figures."""
    return shipped_uncertainty().interval(point, level, dict(profile.narrowed).get(point.kind, 1.0))


COLUMNS = (
    "kind", "instance", "profile", "architecture", "tensor", "tokens", "tail", "family", "run", "error",
    "predicted", "unit", "score",
)  # fmt: skip


def as_rows(residuals: Iterable[Residual]) -> list[list[object]]:
    """Returns the residuals for a file, in the order of COLUMNS."""
    return [
        [*(getattr(one.point, name) for name in COLUMNS[:7]), one.family, one.run, round(one.error, 5),
         float(f"{one.predicted:.5g}"), one.unit, round(one.score, 4)]
        for one in residuals
    ]  # fmt: skip


def from_rows(rows: Iterable[Sequence[Any]]) -> list[Residual]:
    """Reads the result of `as_rows`."""
    return [Residual(Point(*row[:7]), *row[7:]) for row in rows]


@cache
def record() -> dict[str, Any]:
    """Returns the whole file that comes with corepipe."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def fold_widths() -> dict[str, Widths]:
    """Returns by family of models the widths that were chosen from the other families alone."""
    return {family: Widths(*values) for family, values in record()["fold_widths"].items()}


@cache
def shipped_uncertainty() -> Uncertainty:
    """Returns the uncertainty of the constants and rules that come with corepipe."""
    found = record()
    return Uncertainty(from_rows(found["residuals"]), Widths(**found["widths"]))
