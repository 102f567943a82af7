"""The results of a search for a deployment, and its progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from corepipe.planning.planner.bounds import Failure
from corepipe.planning.planner.space import Candidate, PlannedDeployment, Shape


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a simulation: seconds at the objectives' percentile, the failure if there is one, and
    the share of requests after which it was certain."""

    ttft: float
    tpot: float
    latency: float
    tokens_per_second: float
    failure: Failure | None
    seen: float = 1.0


@dataclass(frozen=True, slots=True)
class Option:
    """A deployment that meets the objectives."""

    deployment: PlannedDeployment
    price: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Rejected:
    """A shape that meets the objectives at no price, and its nearest failure.  `outcome`: if simulated."""

    shape: Shape
    failure: Failure
    candidate: Candidate | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Dearer:
    """A shape that was given up at `instances` (0: before its bounds were computed) and this price.

    failure: of fewer instances; None where none were simulated.
    """

    shape: Shape
    instances: int
    price: float
    failure: Failure | None


@dataclass(slots=True)
class SearchResult:
    """The result of a search: one option per shape, cheapest first; shapes that cannot meet the objectives;
    shapes given up because others are cheaper and no slower; the numbers of configurations and of
    simulations.

    cut_short: the reason why the search ended early, if it did; least: dollars per hour below which nothing
    meets the objectives, as far as is known.
    """

    options: list[Option] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    dearer: list[Dearer] = field(default_factory=list)
    configurations: int = 0
    simulations: int = 0
    cut_short: str | None = None
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a search: simulations so far, the best option, and the shapes left of all."""

    what: str
    tried: int
    best: Option | None
    left: int
    shapes: int


class Stopped(Exception):  # noqa: N818 -- nothing is wrong
    """Raised by `watch` to end a search with what it has found; the message says why."""
