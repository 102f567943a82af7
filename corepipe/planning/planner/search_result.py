"""What a search for a deployment tells of its way, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field

from corepipe.planning.planner.bounds import Failure
from corepipe.planning.planner.space import Candidate, PlannedDeployment, Shape


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation gave: seconds at the objectives' percentile, and what it fails by, if it does; and
    after which share of its requests that was certain."""

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
    """A shape that meets them at no price, and the failure that came nearest.  `outcome`: if simulated."""

    shape: Shape
    failure: Failure
    candidate: Candidate | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Dearer:
    """A shape that was given up at `instances` (0: before its bounds were looked at) and this price.

    failure: what fewer of them failed by; None where none were simulated.
    """

    shape: Shape
    instances: int
    price: float
    failure: Failure | None


@dataclass(slots=True)
class SearchResult:
    """What a search found: one option a shape, cheapest first; shapes that cannot; shapes given up because
    others are cheaper and no slower; how many configurations there were, and simulations.

    cut_short: why the search ended before its end, if it did; least: dollars an hour below which nothing
    meets the objectives, as far as was found out.
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
    """How far a search is: simulations so far, the best option, and shapes that are left of how many."""

    what: str
    tried: int
    best: Option | None
    left: int
    shapes: int


class Stopped(Exception):  # noqa: N818 -- nothing is wrong
    """Raised by whoever watches a search, to end it with what it has found; says why."""
