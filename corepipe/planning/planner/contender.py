"""The state of a shape in the search: what bounds and simulations have found about its variants."""

from __future__ import annotations

from dataclasses import dataclass, field

from corepipe.planning.planner.bounds import PlanFailure, Reason
from corepipe.planning.planner.search_result import RejectedShape
from corepipe.planning.planner.space import Candidate, DeploymentShape, PlannedDeployment

NEAR = 0.6
"""Share of its requests after which a failure counts as near: fewer instances may then meet the
objectives, as where 1 % may be late, up to 1.7 % may be by chance among a thousand requests."""


@dataclass(slots=True, eq=False)
class Contender:
    """A shape that may meet the objectives, with `variants` that no bound or simulation has ruled out.

    bound: instances that a variant needs at least; few: the same, as far as simulations have shown; likely:
    those that may suffice; capable: variants that meet the objectives without load; by_chance: whether the
    last simulation that failed was near enough; step: instances to add in the next attempt.
    """

    index: int
    shape: DeploymentShape
    price: float
    variants: list[Candidate] = field(default_factory=list)
    few: dict[Candidate, int] = field(default_factory=dict)
    bound: dict[Candidate, int] = field(default_factory=dict)
    likely: dict[Candidate, int] = field(default_factory=dict)
    capable: set[Candidate] = field(default_factory=set)
    by_chance: bool = False
    step: int = 1
    failure: PlanFailure | None = None
    nearest: RejectedShape | None = None

    @property
    def fewest(self) -> int:
        """The number of instances below which none of its variants suffices; 1 as long as none is known."""
        return min((self.few[variant] for variant in self.variants), default=1)

    @property
    def promising(self) -> int:
        """The number of instances with which one of its variants may suffice."""
        return min(max(self.few[variant], self.likely[variant]) for variant in self.variants)

    def failed(self, deployment: PlannedDeployment, failure: PlanFailure, seen: float) -> None:
        candidate = deployment.candidate
        self.by_chance = seen >= NEAR and failure.reason is not Reason.THROUGHPUT
        self.few[candidate] = max(self.few[candidate], deployment.instances + 1)
        if self.failure is None or failure.excess < self.failure.excess:
            self.failure = failure

    def reject(self, rejected: RejectedShape) -> None:
        """Keeps the rejection with the smallest excess."""
        if self.nearest is None or rejected.failure.excess < self.nearest.failure.excess:
            self.nearest = rejected

    def verdict(self) -> RejectedShape:
        """Returns the reason for which the shape meets the objectives at no price."""
        if not self.variants:
            assert self.nearest is not None
            return self.nearest
        needs = PlanFailure(Reason.THROUGHPUT, f"needs {self.fewest} instances")
        return RejectedShape(self.shape, self.failure or needs)
