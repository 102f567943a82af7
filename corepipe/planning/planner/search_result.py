"""The results of a search for a deployment, and its progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from corepipe.planning.planner.bounds import PlanFailure
from corepipe.planning.planner.space import Candidate, DeploymentShape, PlannedDeployment


@dataclass(frozen=True, slots=True)
class SimulatedOutcome:
    """The outcome of a simulation: seconds at the objectives' percentile, the failure if there is one, and
    the share of requests after which it was certain."""

    ttft: float
    tpot: float
    latency: float
    tokens_per_second: float
    failure: PlanFailure | None
    seen: float = 1.0


def worst(outcomes: Iterable[SimulatedOutcome]) -> SimulatedOutcome:
    """Returns the slowest of each figure, and a failure where one fails."""
    found = list(outcomes)
    return SimulatedOutcome(
        ttft=max(one.ttft for one in found),
        tpot=max(one.tpot for one in found),
        latency=max(one.latency for one in found),
        tokens_per_second=min(one.tokens_per_second for one in found),
        failure=next((one.failure for one in found if one.failure is not None), None),
        seen=min(one.seen for one in found),
    )


@dataclass(frozen=True, slots=True)
class PlanOption:
    """A deployment that meets the objectives."""

    deployment: PlannedDeployment
    price: float
    outcome: SimulatedOutcome


@dataclass(frozen=True, slots=True)
class RejectedShape:
    """A shape that meets the objectives at no price, and its nearest failure.  `outcome`: if simulated."""

    shape: DeploymentShape
    failure: PlanFailure
    candidate: Candidate | None = None
    outcome: SimulatedOutcome | None = None


@dataclass(frozen=True, slots=True)
class CostlierShape:
    """A shape that was given up at `instances` (0: before its bounds were computed) and this price.

    failure: of fewer instances; None where none were simulated.
    """

    shape: DeploymentShape
    instances: int
    price: float
    failure: PlanFailure | None


@dataclass(slots=True)
class SearchResult:
    """The result of a search: one option per shape, cheapest first; shapes that cannot meet the objectives;
    shapes given up because others are cheaper and no slower; the numbers of configurations and of
    simulations.

    cut_short: the reason why the search ended early, if it did; least: dollars per hour below which nothing
    meets the objectives, as far as is known.
    """

    options: list[PlanOption] = field(default_factory=list)
    rejected: list[RejectedShape] = field(default_factory=list)
    dearer: list[CostlierShape] = field(default_factory=list)
    configurations: int = 0
    simulations: int = 0
    cut_short: str | None = None
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """The progress of a search: simulations so far, the best option, and the shapes left of all."""

    what: str
    tried: int
    best: PlanOption | None
    left: int
    shapes: int


class SearchStopped(Exception):  # noqa: N818 -- nothing is wrong
    """Raised by `watch` to end a search with what it has found; the message says why."""
