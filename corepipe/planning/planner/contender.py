"""A shape in the running: what bounds and simulations have told of its variants."""

from __future__ import annotations

from dataclasses import dataclass, field

from corepipe.planning.planner.bounds import Failure, Reason
from corepipe.planning.planner.search_result import Rejected
from corepipe.planning.planner.space import Candidate, PlannedDeployment, Shape

NEAR = 0.6
"""What fails, and that is certain no sooner than after such a share of its requests, may do with fewer
instances: where 1 % may be late, up to 1.7 % are, and of a thousand requests that is chance."""


@dataclass(slots=True, eq=False)
class Contender:
    """A shape that may yet do it, with `variants` that no bound or simulation has ruled out.

    bound: instances that a variant needs at least; few: as far as is known from simulations; likely: those
    that may do; capable: variants that meet the objectives with no load; by_chance: whether the last
    simulation that failed was near enough; step: by how many more the next try goes.
    """

    index: int
    shape: Shape
    price: float
    variants: list[Candidate] = field(default_factory=list)
    few: dict[Candidate, int] = field(default_factory=dict)
    bound: dict[Candidate, int] = field(default_factory=dict)
    likely: dict[Candidate, int] = field(default_factory=dict)
    capable: set[Candidate] = field(default_factory=set)
    by_chance: bool = False
    step: int = 1
    failure: Failure | None = None
    nearest: Rejected | None = None

    @property
    def fewest(self) -> int:
        """Instances without which none of its variants does; 1 as long as none is known."""
        return min((self.few[variant] for variant in self.variants), default=1)

    @property
    def promising(self) -> int:
        """Instances with which one of its variants may do."""
        return min(max(self.few[variant], self.likely[variant]) for variant in self.variants)

    def failed(self, deployment: PlannedDeployment, failure: Failure, seen: float) -> None:
        candidate = deployment.candidate
        self.by_chance = seen >= NEAR and failure.reason is not Reason.THROUGHPUT
        self.few[candidate] = max(self.few[candidate], deployment.instances + 1)
        if self.failure is None or failure.excess < self.failure.excess:
            self.failure = failure

    def reject(self, rejected: Rejected) -> None:
        """Keeps the failure that came nearest."""
        if self.nearest is None or rejected.failure.excess < self.nearest.failure.excess:
            self.nearest = rejected

    def verdict(self) -> Rejected:
        """Why it meets the objectives at no price."""
        if not self.variants:
            assert self.nearest is not None
            return self.nearest
        needs = Failure(Reason.THROUGHPUT, f"needs {self.fewest} instances")
        return Rejected(self.shape, self.failure or needs)
