"""Prediction intervals: how far a measurement may be from a predicted figure, from the errors of earlier
ones.

`residuals.json` has the errors of published measurements, each predicted with constants and rules that were
chosen without its family of models and without its campaign (benchmarks/residuals.py writes it).  Intervals
are conformal (Vovk et al. 2005, Algorithmic Learning in a Random World) and hierarchical: the unit that is
exchanged is a family of models in a campaign (one benchmark, with one SDK or on one day, on one instance),
since runs of one unit share their error (Dunn, Wasserman, Ramdas 2023).  With K units an interval of 90 % is
known from K >= 9 on; below, an interval reaches to the largest error seen, and says so.  It grows with each
step by which a case lies outside of the measured cases: another instance, generation, software stack or kind
of model; each doubling beyond the longest sequence and the most tensor ranks.

Errors are logarithms of measured / predicted *time*: above 0 the device was slower.  For a rate it is the
other way round.  A prediction with two values is off by the distance to the nearer one, and by 0 between
them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import exp, log, log2
from pathlib import Path
from typing import Any, NamedTuple

from corepipe.errors import UserError
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import SOURCE, InputKind

FILE = Path(__file__).with_name("residuals.json")

LEVEL = 0.9
"""Default probability of an interval."""

LEAST_SIZE = 0.02
"""Smallest expected size of an error: repeated measurements differ by as much."""

LEAST_REACH = 0.05
"""Smallest half width of an interval, as a logarithm: served models vary so from day to day."""

FAR = log(5.0)
"""Largest size of an error that counts: a larger one measured something else than was predicted."""

ENOUGH = 10
"""Families in campaigns from which on an interval claims its level."""

SEEN = 3
"""Runs from which on an instance, a stack or a kind of model counts as measured."""

GUESSED = ", guessed"
"""Suffix of the profile of a case of which not everything is known."""

GROWTH = 1.5
"""Factor of a width (on a logarithm) for each step away from the measured cases, chosen by interval score
(docs/decisions/2026-11-22-intervals.md)."""

OWN_UNITS = 4.0
"""The number of units of a stack whose errors count as much as those of all stacks together."""


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


class Setup(NamedTuple):
    """The deployment that a figure is of."""

    architecture: ModelKind
    instance: str
    profile: RuntimeProfile
    placement: Placement


@dataclass(frozen=True, slots=True)
class Point:
    """The case of a figure.

    tail: a percentile above the median; tokens: of a whole sequence; divided: cores divide its experts.
    """

    kind: str
    instance: str
    profile: str
    architecture: str
    tensor: int
    tokens: int
    tail: bool = False
    divided: bool = False

    @classmethod
    def of(
        cls, figure: Figure, setup: Setup, tokens: int, *, load: bool = False, tail: bool = False
    ) -> Point:
        """Returns the case of a figure of a deployment, for sequences of so many tokens."""
        kind, degrees = kind_of(figure, setup.architecture, load=load), setup.placement
        case = kind, setup.instance, setup.profile.stack, setup.architecture, degrees.tensor
        return cls(*case, tokens, tail, degrees.expert > 1)

    @property
    def group(self) -> tuple[str, bool]:
        """The kind of figure whose errors make its interval; tails are a kind of their own."""
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

    campaign: the benchmark, the SDK or day, and the instance.  predicted, unit: that figure, in seconds or a
    second.
    """

    point: Point
    family: str
    campaign: str
    run: str
    error: float
    predicted: float
    unit: str

    @property
    def owner(self) -> tuple[str, str]:
        """The family in a campaign that measured it."""
        return self.family, self.campaign


@dataclass(frozen=True, slots=True)
class Interval:
    """The factors of the predicted *time* within which a measurement is expected.

    steps: distance from the measured cases; measured, units: number of runs, and of families in campaigns,
    that it is known from.  claimed: the share of measurements that lie within is known to be `level`;
    otherwise the interval reaches to the largest error seen."""

    low: float
    high: float
    steps: float
    measured: int
    units: int
    claimed: bool
    level: float = LEVEL

    def around(self, *values: float, rate: bool = False) -> tuple[float, float]:
        """Returns the smallest and the largest expected value of a figure that is predicted to be one of
        `values`."""
        low, high = min(values), max(values)
        return (low / self.high, high / self.low) if rate else (low * self.low, high * self.high)

    @property
    def basis(self) -> str:
        """The runs that the interval is known from, in words."""
        away = f", {self.steps:.2g} step{'s' * (self.steps != 1)} from them" if self.steps else ""
        known = f"{self.measured} runs of {self.units} families in campaigns{away}"
        if self.claimed:
            return f"{self.level:.0%} of published runs of campaigns that were not seen; from {known}"
        return f"too few campaigns for {self.level:.0%}: the largest error seen; from {known}"

    def as_json(self) -> dict[str, object]:
        return {
            "level": self.level,
            "level_is_known": self.claimed,
            "time_factor_low": self.low,
            "time_factor_high": self.high,
            "measured_runs": self.measured,
            "measured_campaigns": self.units,
            "steps_away": self.steps,
            "basis": self.basis,
        }


class _Group:
    """The measured cases of one kind of figure, and the sizes of its errors."""

    def __init__(self, residuals: Sequence[Residual]) -> None:
        points = [one.point for one in residuals]
        self.instances = _seen(point.instance for point in points)
        self.generations = _seen(point.generation for point in points)
        self.profiles = _seen(point.profile for point in points)
        self.architectures = _seen(point.architecture for point in points)
        self.divided = any(point.divided for point in points)
        self.tensor = max(point.tensor for point in points)
        self.tokens = max(point.tokens for point in points)
        own: defaultdict[str, list[Residual]] = defaultdict(list)
        for one in residuals:
            own[one.point.profile].append(one)
        self._size = _size(residuals)[0]
        self._own = {profile: _size(group) for profile, group in own.items()}

    def steps(self, point: Point) -> float:
        """Returns how far a point lies outside of the measured cases."""
        unseen = (
            point.instance not in self.instances,
            point.generation not in self.generations,
            point.profile not in self.profiles,
            point.architecture not in self.architectures,
            point.divided and not self.divided,
        )
        beyond = (point.tokens / self.tokens, point.tensor / self.tensor)
        return sum(unseen) + sum(log2(ratio) for ratio in beyond if ratio > 1)

    def size(self, point: Point) -> float:
        """Returns the expected size of an error at a point: that of its stack, drawn to that of all stacks;
        larger for each step away."""
        own, units = self._own.get(point.profile, (0.0, 0))
        near = (units * own + OWN_UNITS * self._size) / (units + OWN_UNITS)
        return near * float(GROWTH ** self.steps(point))


def _seen(values: Iterable[Hashable]) -> set[Hashable]:
    """Returns the values that enough runs had."""
    return {value for value, runs in Counter(values).items() if runs >= SEEN}


def _size(residuals: Sequence[Residual]) -> tuple[float, int]:
    """Returns the mean over units of the mean size of their errors, and the number of units."""
    units: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for one in residuals:
        units[one.owner].append(min(FAR, abs(one.error)))
    means = [sum(errors) / len(errors) for errors in units.values()]
    return max(LEAST_SIZE, sum(means) / len(means)), len(units)


class _Conformal:
    """The conformal scores of one kind of figure: each error by the size that the other units let expect.

    unmeasured: 1 where they are of other kinds of figures, since none of this kind was measured.
    """

    def __init__(self, residuals: Sequence[Residual], unmeasured: int = 0) -> None:
        self._unmeasured = unmeasured
        self.runs = len(residuals)
        self._group = _Group(residuals)
        units: defaultdict[tuple[str, str], list[Residual]] = defaultdict(list)
        for one in residuals:
            units[one.owner].append(one)
        self.units = len(units)
        scores = []
        for owner, runs in units.items():
            others = [one for one in residuals if one.owner != owner]
            known = _Group(others) if others else self._group
            weight = 1 / (self.units + 1) / len(runs)
            scores += [(abs(one.error) / known.size(one.point), weight) for one in runs]
        self._scores = sorted(scores)

    def reach(self, point: Point, level: float) -> tuple[float, float, bool]:
        """Returns the half width of the interval at a point, as a logarithm; the point's steps from the
        measured cases; and whether so many units make the level known."""
        below, claimed = 0.0, self.units >= ENOUGH and self.units / (self.units + 1) >= level
        score = self._scores[-1][0]
        for reached, weight in self._scores if claimed else ():
            below += weight
            if below >= level - 1e-9:
                score = reached
                break
        steps = self._group.steps(point) + self._unmeasured
        size = self._group.size(point) * GROWTH**self._unmeasured
        return max(LEAST_REACH, score * size), steps, claimed and not self._unmeasured

    def level(self, point: Point, factor: float) -> float:
        """Returns the share of measurements known to lie within this factor of a figure, either way."""
        size = self._group.size(point) * GROWTH**self._unmeasured
        return sum(weight for score, weight in self._scores if score * size <= abs(log(factor)))


class Uncertainty:
    """Intervals from residuals.  Raises ValueError for none."""

    def __init__(self, residuals: Sequence[Residual]) -> None:
        if not residuals:
            raise ValueError("intervals need at least one measured error")
        self.residuals = residuals
        self._found = cache(self._find)

    def interval(self, point: Point, level: float = LEVEL, narrowed: float = 1.0) -> Interval:
        """Returns the interval of a figure: as much above as below, on a logarithm, since the side on which
        one family lies says little about the next.

        narrowed: the share of its width that is left where such figures of this very model were measured.
        """
        known = self._found(point.group)
        reach, steps, claimed = known.reach(point, level)
        reach *= narrowed
        return Interval(exp(-reach), exp(reach), steps, known.runs, known.units, claimed, level)

    def confidence(self, point: Point, factor: float) -> float:
        """Returns the share of measurements that are known to be below `factor` times a predicted time: as
        much above as below, those within the factor and half of the others on the side that is allowed."""
        within = self._found(point.group).level(point, factor)
        return (1 + within) / 2 if factor >= 1 else (1 - within) / 2

    def _find(self, group: tuple[str, bool]) -> _Conformal:
        """Returns the scores of a kind of figure; of its medians where it has no tails; of all figures where
        nothing of the kind was measured."""
        kind, _ = group
        own = [one for one in self.residuals if one.point.group == group]
        own = own or [one for one in self.residuals if one.point.kind == kind]
        return _Conformal(own) if own else _Conformal(self.residuals, unmeasured=1)


def interval(point: Point, profile: RuntimeProfile, level: float = LEVEL) -> Interval:
    """Returns the interval of a figure that is predicted with a profile: narrower where that was fitted to
    such figures."""
    return shipped_uncertainty().interval(point, level, dict(profile.narrowed).get(point.kind, 1.0))


COLUMNS = (
    "kind", "instance", "profile", "architecture", "tensor", "tokens", "tail", "family", "campaign", "run",
    "error", "predicted", "unit",
)  # fmt: skip


def as_rows(residuals: Iterable[Residual]) -> list[list[object]]:
    """Returns the residuals for a file, in the order of COLUMNS."""
    return [
        [*(getattr(one.point, name) for name in COLUMNS[:7]), one.family, one.campaign, one.run,
         round(one.error, 5), float(f"{one.predicted:.5g}"), one.unit]
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


@cache
def shipped_uncertainty() -> Uncertainty:
    """Returns the uncertainty of the constants and rules that come with corepipe."""
    return Uncertainty(from_rows(record()["residuals"]))
