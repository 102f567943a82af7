"""Best-first search: the cheapest deployment that meets the objectives, without trying them all.

A shape's price can only rise with its instances, so shapes wait in order of price and the first that
meets the objectives is the cheapest.  What a bound rules out is never simulated.  Among deployments of one
price the one with the shortest estimated time of a request goes first.  Beyond the cheapest, the search
goes on to `spread` times its price, for deployments that are faster.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Protocol

from corepipe.planning.planner.bounds import Failure, Reason
from corepipe.planning.planner.space import BatchLimits, Candidate, Deployment, Shape

STEP = 1.03
"""Large deployments grow by this factor, or by one instance if that is more; what meets the objectives is
then taken back to the fewest instances that still do, and a shape's price is that of the fewest that it may
do with, so that none hides between two steps."""

MOST_INSTANCES = 256
"""Of a deployment: what needs more meets the objectives only by serving next to nothing on each."""

MORE_VARIANTS = 2
"""Batch limits tried for each shape and number of instances, once the cheapest deployment is known."""

MOST_TIES = 4
"""Deployments of one price that are simulated, those first that are estimated to be the fastest: an instance
with a hundred cores can be cut in dozens of ways that all do."""

NOTICEABLE = 0.97
"""Beyond the cheapest, only what is estimated to take this share of the fastest's time is simulated."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation gave: seconds at the objectives' percentile, and what it fails by, if it does."""

    ttft: float
    tpot: float
    latency: float
    tokens_per_second: float
    failure: Failure | None


class Evaluator(Protocol):
    """What the search asks about a model under a workload."""

    def failure(self, candidate: Candidate) -> Failure | None:
        """Why no number of instances can do it; None where a bound does not tell."""

    def fewest(self, candidate: Candidate) -> int:
        """Instances without which it cannot be done, at least 1; asked where `failure` says nothing."""

    def estimate(self, candidate: Candidate, instances: int) -> float:
        """Seconds of a request, about; decides who is tried first."""

    def price(self, shape: Shape) -> float:
        """Dollars an hour of one instance."""

    def measure(self, deployment: Deployment) -> Outcome:
        """Simulates it."""

    def alone(self, candidate: Candidate) -> Outcome:
        """Simulates it with next to no load: what more instances cannot better."""


@dataclass(frozen=True, slots=True)
class Option:
    """A deployment that meets the objectives."""

    deployment: Deployment
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
class Found:
    """What a search found: one option a shape, cheapest first; shapes that cannot; shapes given up because
    others are cheaper and no slower; how many configurations there were, and simulations."""

    options: list[Option] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    dearer: list[Dearer] = field(default_factory=list)
    configurations: int = 0
    simulations: int = 0


@dataclass(slots=True)
class _Open:
    """A shape that may yet do it, with `variants` that no bound or simulation has ruled out.

    fewest: instances that a variant needs at least; capable: variants that meet the objectives with no load;
    tried: instances that were too few.
    """

    index: int
    shape: Shape
    variants: list[Candidate]
    fewest: dict[Candidate, int]
    capable: set[Candidate] = field(default_factory=set)
    tried: int = 0
    failure: Failure | None = None
    nearest: Rejected | None = None


Report = Callable[[str, float], None]


def search(
    shapes: Sequence[Shape],
    limits: Sequence[BatchLimits],
    evaluator: Evaluator,
    report: Report,
    spread: float = 1.0,
    tied: Callable[[Shape], float] = lambda _: 0.0,
    most: int = MOST_INSTANCES,
) -> Found:
    """Searches all shapes x limits x up to `most` instances.  `tied`: the share by which a price may differ
    and still be tied, for which an option is wanted even if it is no faster.  The same arguments give the
    same result."""
    return _Search(shapes, limits, evaluator, report, spread, tied, most).run()


class _Search:
    def __init__(
        self,
        shapes: Sequence[Shape],
        limits: Sequence[BatchLimits],
        evaluator: Evaluator,
        report: Report,
        spread: float,
        tied: Callable[[Shape], float],
        most: int,
    ) -> None:
        self._limits = limits
        self._evaluator = evaluator
        self._report = report
        self._spread = spread
        self._tied = tied
        self._most = most
        self._total = len(shapes)
        self._found = Found(configurations=len(shapes) * len(limits))
        self._best = inf
        self._latency = inf
        priced = ((evaluator.price(shape), -inf, i, 0, shape) for i, shape in enumerate(shapes))
        self._heap: list[tuple[float, float, int, int, Shape]] = list(priced)
        heapq.heapify(self._heap)
        self._open: dict[int, _Open] = {}

    def run(self) -> Found:
        while self._heap:
            price, _, index, instances, shape = heapq.heappop(self._heap)
            if price > self._best * self._spread * (1 + self._tied(shape)):
                self._give_up(index, shape, instances, price)
            elif instances == 0:
                self._start(index, shape)
            else:
                self._try(self._open[index], instances, price)
            self._report("searching", 1 - len(self._heap) / self._total)
        return self._found

    def _start(self, index: int, shape: Shape) -> None:
        """Applies the bounds, and queues what is left at its least price."""
        opened = _Open(index, shape, [], {})
        for limits in self._limits:
            candidate = Candidate(shape, limits)
            failure = self._evaluator.failure(candidate)
            if failure is None:
                opened.variants.append(candidate)
                opened.fewest[candidate] = self._evaluator.fewest(candidate)
            else:
                self._reject(opened, Rejected(shape, failure, candidate))
        self._open[index] = opened
        self._queue(opened, 1)

    def _queue(self, opened: _Open, instances: int) -> None:
        """Queues the shape with the fewest instances, from `instances` up, that a variant may do with."""
        if not opened.variants:
            assert opened.nearest is not None
            self._found.rejected.append(opened.nearest)
            return
        least = max(instances, min(opened.fewest[v] for v in opened.variants))
        if least > self._most:
            failure = opened.failure or Failure(Reason.THROUGHPUT, f"needs {least} instances")
            self._found.rejected.append(Rejected(opened.shape, failure))
            return
        possible = min(least, max(opened.tried + 1, min(opened.fewest[v] for v in opened.variants)))
        price = possible * self._evaluator.price(opened.shape)
        estimate = min(self._evaluator.estimate(v, least) for v in opened.variants)
        heapq.heappush(self._heap, (price, estimate, opened.index, least, opened.shape))

    def _try(self, opened: _Open, instances: int, price: float) -> None:
        """Simulates the shape's variants with so many instances until one meets the objectives."""
        if self._is_dull(opened, instances, price):
            self._give_up(opened.index, opened.shape, instances, price)
            return
        again, failures = opened.tried > 0, []
        for candidate in self._variants(opened, instances):
            outcome = self._measure(Deployment(candidate, instances))
            if outcome.failure is None:
                paid = instances * self._evaluator.price(opened.shape)
                self._accept(self._refined(opened, Option(Deployment(candidate, instances), paid, outcome)))
                return
            failures.append(outcome.failure)
            if again:
                self._check_alone(opened, candidate)
        opened.tried = instances
        opened.failure = min(failures, key=lambda failure: failure.excess, default=opened.failure)
        self._queue(opened, max(instances + 1, ceil(instances * STEP)))

    def _give_up(self, index: int, shape: Shape, instances: int, price: float) -> None:
        failure = self._open[index].failure if instances else None
        self._found.dearer.append(Dearer(shape, instances, price, failure))

    def _refined(self, opened: _Open, option: Option) -> Option:
        """The same with the fewest instances, between those that were too few and those of `option`."""
        candidate = option.deployment.candidate
        low = max(opened.tried, opened.fewest[candidate] - 1)
        while option.deployment.instances - low > 1:
            fewer = Deployment(candidate, (low + option.deployment.instances) // 2)
            outcome = self._measure(fewer)
            if outcome.failure is None:
                price = fewer.instances * self._evaluator.price(opened.shape)
                option = Option(fewer, price, outcome)
            else:
                low = fewer.instances
        return option

    def _is_dull(self, opened: _Open, instances: int, price: float) -> bool:
        """Whether the shape is neither cheaper than what is known, nor one of its first ties, nor faster."""
        tied = self._best * (1 + self._tied(opened.shape))
        ties = sum(option.price <= tied for option in self._found.options)
        if price < self._best or (price <= tied and ties < MOST_TIES):
            return False
        estimate = min(self._evaluator.estimate(v, instances) for v in opened.variants)
        return estimate > NOTICEABLE * self._latency

    def _variants(self, opened: _Open, instances: int) -> list[Candidate]:
        ready = [v for v in opened.variants if opened.fewest[v] <= instances]
        ready.sort(key=lambda v: self._evaluator.estimate(v, instances))  # stable: the order of the limits
        return ready if self._best == inf else ready[:MORE_VARIANTS]

    def _measure(self, deployment: Deployment) -> Outcome:
        self._found.simulations += 1
        return self._evaluator.measure(deployment)

    def _check_alone(self, opened: _Open, candidate: Candidate) -> None:
        """Drops a variant that fails with no load too: more instances cannot help it."""
        if candidate in opened.capable:
            return
        self._found.simulations += 1
        alone = self._evaluator.alone(candidate)
        if alone.failure is None:
            opened.capable.add(candidate)
        else:
            opened.variants.remove(candidate)
            self._reject(opened, Rejected(opened.shape, alone.failure, candidate, alone))

    def _accept(self, option: Option) -> None:
        self._found.options.append(option)
        self._best = min(self._best, option.price)
        self._latency = min(self._latency, option.outcome.latency)

    @staticmethod
    def _reject(opened: _Open, rejected: Rejected) -> None:
        """Keeps the failure that came nearest."""
        if opened.nearest is None or rejected.failure.excess < opened.nearest.failure.excess:
            opened.nearest = rejected
