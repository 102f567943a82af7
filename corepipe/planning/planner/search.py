"""Branch and bound: finds the cheapest deployment that meets the objectives, without trying them all.

More instances share the same requests, so a configuration that meets the objectives with some of them does
with more, except by chance where it is near: then the next ones are tried too.  Hence a configuration that
clearly fails with as many instances as are still cheaper than the best known one is out, after one
simulation; and for one that succeeds the fewest instances are found by bisection.  The first best one comes
from an estimate; what a bound rules out is never simulated.  Among deployments of one price the one with the
shortest estimated time of a request goes first.  Beyond the cheapest, the search goes on to `spread` times
its price, for deployments that are faster.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from corepipe.planning.planner.contender import Contender
from corepipe.planning.planner.evaluate import SimulationEvaluator
from corepipe.planning.planner.search_result import (
    CostlierShape,
    PlanOption,
    RejectedShape,
    SearchProgress,
    SearchResult,
    SearchStopped,
)
from corepipe.planning.planner.space import (
    MOST_INSTANCES,
    BatchLimits,
    Candidate,
    DeploymentShape,
    PlannedDeployment,
)

GROWTH = 1.5
"""Factor by which the number of instances grows where an estimate was too low, or one more."""

MORE_VARIANTS = 2
"""Batch limits tried for each shape and number of instances, once the cheapest deployment is known."""

MOST_TIES = 4
"""Deployments of one price that are simulated, in order of their estimated time: an instance with a
hundred cores can be divided in dozens of ways that all suffice."""

NOTICEABLE = 0.97
"""Share of the fastest time below which a dearer deployment's estimate must lie to be simulated."""


Watch = Callable[[SearchProgress], None]
"""Receives the progress; may raise SearchStopped."""

INTERRUPTED = "interrupted"
CHEAPEST, FASTER = "searching for the cheapest", "searching for faster ones"


@dataclass(eq=False)
class Search:
    """A search of all shapes x limits x up to `most` instances.

    tied: the share by which a price may differ and still be tied, for which an option is kept even if it is
    no faster.  The same arguments give the same result, unless `watch` raises SearchStopped or the user
    interrupts: then it is what was found so far.
    """

    shapes: Sequence[DeploymentShape]
    limits: Sequence[BatchLimits]
    evaluator: SimulationEvaluator
    watch: Watch
    spread: float = 1.0
    tied: Callable[[DeploymentShape], float] = lambda _: 0.0
    most: int = MOST_INSTANCES

    def __post_init__(self) -> None:
        self._found = SearchResult(configurations=len(self.shapes) * len(self.limits))
        self._options: dict[DeploymentShape, PlanOption] = {}
        prices = map(self.evaluator.price, self.shapes)
        self._shapes = [Contender(i, *one) for i, one in enumerate(zip(self.shapes, prices, strict=True))]
        self._unseen = sorted(self._shapes, key=lambda opened: opened.price)
        self._open: list[Contender] = []  # bounded, and not yet settled
        self._what = CHEAPEST

    def run(self) -> SearchResult:
        """Searches until nothing is left, or until it is ended."""
        found = self._found
        try:
            self._find_cheapest()
            found.least = self._best
            self._find_faster()
        except SearchStopped as stopped:
            found.cut_short = str(stopped)
        except KeyboardInterrupt:
            found.cut_short = INTERRUPTED
        if not found.least:
            possible = (opened.fewest * opened.price for opened in [*self._unseen, *self._open])
            found.least = min(self._best, *possible, inf)
        found.options = list(self._options.values())
        return found

    @property
    def _best(self) -> float:
        return min((option.price for option in self._options.values()), default=inf)

    @property
    def _latency(self) -> float:
        return min((option.outcome.latency for option in self._options.values()), default=inf)

    def _tell(self) -> None:
        best = min(self._options.values(), key=lambda o: (o.price, o.outcome.latency), default=None)
        left = len(self._unseen) + len(self._open)
        self.watch(SearchProgress(self._what, self._found.simulations, best, left, len(self._shapes)))

    def _find_cheapest(self) -> None:
        """Tries each variant of each shape where it would beat the best, the most promising first."""
        while batch := self._next_bounded():
            if self._best == inf:
                self._find_first(batch)
            for opened in sorted((opened for opened in batch if opened.variants), key=self._promise):
                for candidate in sorted(opened.variants, key=lambda v: self._order(opened, v)):
                    self._undercut(opened, candidate)
            for opened in batch:
                if not opened.variants or opened.fewest > self.most:
                    self._settle(opened)
        self._polish()

    def _find_first(self, batch: Sequence[Contender]) -> None:
        """Tries variants at the least price that may suffice, and those that fail with ever more
        instances, until one succeeds."""
        heap = [self._guess(opened, candidate) for opened in batch for candidate in opened.variants]
        heapq.heapify(heap)
        while heap:
            _, _, index, number, instances = heapq.heappop(heap)
            opened = self._shapes[index]
            candidate = Candidate(opened.shape, self.limits[number])
            option = self._tried(opened, candidate, instances)
            if option is not None:
                self._keep(opened, option)
                return
            if self._can_alone(opened, candidate) and instances < self.most:
                opened.likely[candidate] = max(instances + 1, ceil(instances * GROWTH))
                heapq.heappush(heap, self._guess(opened, candidate))

    def _guess(self, opened: Contender, candidate: Candidate) -> tuple[float, float, int, int, int]:
        """Returns an entry of the heap: price, estimated seconds of a request, candidate, and instances."""
        instances, seconds = self._order(opened, candidate)
        instances = min(instances, self.most)
        return (
            instances * opened.price,
            seconds,
            opened.index,
            self.limits.index(candidate.limits),
            instances,
        )

    def _next_bounded(self) -> list[Contender]:
        """Returns the next shapes in order of price that are not yet bounded: all of which one instance
        costs less than the best, or than earlier ones are likely to."""
        bounded, promised = [], self._best
        while self._unseen and self._unseen[0].price < promised:
            opened = self._unseen[0]
            if self._bound(opened):
                bounded.append(opened)
                promised = min(promised, self._promise(opened)[0])
        return bounded

    def _bound(self, opened: Contender) -> bool:
        """Rules out variants that no number of instances makes good; returns whether any is left."""
        self._tell()
        for limits in self.limits:
            candidate = Candidate(opened.shape, limits)
            failure = self.evaluator.failure(candidate)
            if failure is not None:
                opened.reject(RejectedShape(opened.shape, failure, candidate))
                continue
            opened.variants.append(candidate)
            opened.bound[candidate] = opened.few[candidate] = fewest = self.evaluator.fewest(candidate)
            opened.likely[candidate] = max(fewest, self.evaluator.likely(candidate))
        self._unseen.remove(opened)
        self._open.append(opened)
        if opened.variants and opened.fewest <= self.most:
            return True
        self._settle(opened)
        return False

    def _settle(self, opened: Contender) -> None:
        """Removes a shape from the open ones: it has an option, or meets the objectives at no price."""
        self._open.remove(opened)
        if opened.shape not in self._options:
            self._found.rejected.append(opened.verdict())

    def _promise(self, opened: Contender) -> tuple[float, float]:
        """Returns the price that may suffice, and the time of a request then."""
        instances, seconds = min(self._order(opened, variant) for variant in opened.variants)
        return instances * opened.price, seconds

    def _order(self, opened: Contender, candidate: Candidate) -> tuple[int, float]:
        likely = opened.likely[candidate]
        return likely, self.evaluator.estimate(candidate, likely)

    def _undercut(self, opened: Contender, candidate: Candidate) -> None:
        """Finds the fewest instances of a variant that suffice and are cheaper than the best; keeps them."""
        most = self._below(opened.price, self._best)
        if most < opened.bound[candidate] or self._best == inf:
            return
        option = self._tried(opened, candidate, most) or self._nearly(opened, candidate, most)
        if option is not None:
            self._keep(opened, option)

    def _nearly(self, opened: Contender, candidate: Candidate, instances: int) -> PlanOption | None:
        """Tries fewer instances than failed, as long as they fail by chance."""
        while opened.by_chance and instances > max(1, opened.bound[candidate]):
            instances -= 1
            option = self._tried(opened, candidate, instances)
            if option is not None:
                return option
        return None

    def _keep(self, opened: Contender, option: PlanOption) -> None:
        """Keeps an option at once, in case the search ends, then reduces it to the fewest instances."""
        self._options[opened.shape] = option
        candidate = option.deployment.candidate
        low = opened.bound[candidate]
        while option.deployment.instances > low:
            fewer = (low + option.deployment.instances) // 2
            cheaper = self._tried(opened, candidate, fewer) or self._nearly(opened, candidate, fewer)
            low = low if cheaper else fewer + 1
            self._options[opened.shape] = option = cheaper or option

    def _below(self, price: float, best: float) -> int:
        """Returns the most instances of this price that cost less than `best`."""
        if best / price > self.most:
            return self.most
        instances = int(best // price) + 1
        while instances * price >= best:
            instances -= 1
        return instances

    def _tried(self, opened: Contender, candidate: Candidate, instances: int) -> PlanOption | None:
        """Simulates a deployment; returns the option if it meets the objectives."""
        self._tell()
        deployment = PlannedDeployment(candidate, instances)
        self._found.simulations += 1
        outcome = self.evaluator.measure(deployment)
        if outcome.failure is None:
            return PlanOption(deployment, instances * opened.price, outcome)
        opened.failed(deployment, outcome.failure, outcome.seen)
        return None

    def _can_alone(self, opened: Contender, candidate: Candidate) -> bool:
        """Tells whether a variant suffices without load; drops it otherwise, as instances cannot help it."""
        if candidate in opened.capable:
            return True
        self._found.simulations += 1
        alone = self.evaluator.alone(candidate)
        if alone.failure is None:
            opened.capable.add(candidate)
            return True
        opened.variants.remove(candidate)
        opened.reject(RejectedShape(opened.shape, alone.failure, candidate, alone))
        return False

    def _polish(self) -> None:
        """Replaces the option of a cheapest shape by another variant that suffices with as many instances
        and is estimated to be faster."""
        for opened in [opened for opened in self._open if opened.shape in self._options]:
            option = self._options[opened.shape]
            instances = option.deployment.instances
            if option.price == self._best:
                for candidate in self._variants(opened, instances):
                    if candidate == option.deployment.candidate:
                        break
                    better = self._tried(opened, candidate, instances)
                    if better is not None:
                        self._options[opened.shape] = better
                        break
            self._settle(opened)

    def _find_faster(self) -> None:
        """Tries the remaining shapes in order of price: those that are tied with the cheapest, and those
        that may be faster than all cheaper ones."""
        self._what = FASTER
        if self._best == inf:
            return
        for opened in [opened for opened in self._unseen if opened.price <= self._limit(opened)]:
            self._bound(opened)
        heap = [self._entry(opened, opened.promising) for opened in self._open]
        heapq.heapify(heap)
        while heap:
            price, _, index, instances = heapq.heappop(heap)
            opened = self._shapes[index]
            if price > self._limit(opened) or self._is_dull(opened, instances, price):
                self._give_up(opened, instances, price)
            elif self._try(opened, instances) or not opened.variants:
                self._settle(opened)
            else:
                heapq.heappush(heap, self._entry(opened, self._next(opened, instances)))
        for opened in self._unseen:
            self._found.dearer.append(CostlierShape(opened.shape, 0, opened.price, None))

    def _entry(self, opened: Contender, instances: int) -> tuple[float, float, int, int]:
        """Returns an entry of the heap: price, estimated seconds of a request, shape, and instances."""
        instances = max(instances, opened.fewest)
        estimate = min(self.evaluator.estimate(v, instances) for v in opened.variants)
        return instances * opened.price, estimate, opened.index, instances

    def _limit(self, opened: Contender) -> float:
        """Returns the most that a shape's option may cost."""
        return self._best * self.spread * (1 + self.tied(opened.shape))

    def _next(self, opened: Contender, instances: int) -> int:
        """Returns the next number of instances to try; steps grow, up to the last that may suffice."""
        last = min(self.most, int(self._limit(opened) / opened.price))
        following = min(instances + opened.step, last) if instances < last else instances + 1
        opened.step *= 2
        return following

    def _give_up(self, opened: Contender, instances: int, price: float) -> None:
        self._open.remove(opened)
        self._found.dearer.append(CostlierShape(opened.shape, instances, price, opened.failure))

    def _try(self, opened: Contender, instances: int) -> bool:
        """Simulates the first of the shape's variants with so many instances; tells if one succeeds."""
        for candidate in self._variants(opened, instances)[:MORE_VARIANTS]:
            option = self._tried(opened, candidate, instances)
            if option is not None:
                self._keep(opened, option)
                return True
            if opened.step > 1:
                self._can_alone(opened, candidate)
        return False

    def _is_dull(self, opened: Contender, instances: int, price: float) -> bool:
        """Tells whether the shape is no early tie of the cheapest, and no faster than known options."""
        tied = self._best * (1 + self.tied(opened.shape))
        ties = sum(option.price <= tied for option in self._options.values())
        if price <= tied and ties < MOST_TIES:
            return False
        estimate = min(self.evaluator.estimate(v, instances) for v in opened.variants)
        return estimate > NOTICEABLE * self._latency

    def _variants(self, opened: Contender, instances: int) -> list[Candidate]:
        """Returns the variants that may suffice with so many instances, by estimated time."""
        ready = [v for v in opened.variants if opened.bound[v] <= instances]
        return sorted(ready, key=lambda v: self.evaluator.estimate(v, instances))
