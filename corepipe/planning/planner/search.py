"""Branch and bound: the cheapest deployment that meets the objectives, without trying them all.

More instances share the same requests, so what meets the objectives with some of them does with more, but for
chance where it is near: then the next ones are tried too.  Hence a configuration that clearly fails with as
many instances as are still cheaper than the best known one is out, after one simulation; and one that does is
taken back to the fewest that do, by halves.  The first best one comes from a guess; what a bound rules out is
never simulated.  Among deployments of one price the one with the
shortest estimated time of a request goes first.  Beyond the cheapest, the search goes on to `spread` times
its price, for deployments that are faster.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import ceil, inf
from typing import Protocol

from corepipe.planning.planner.bounds import Failure
from corepipe.planning.planner.contender import Contender
from corepipe.planning.planner.search_result import (
    Dearer,
    Option,
    Outcome,
    Progress,
    Rejected,
    SearchResult,
    Stopped,
)
from corepipe.planning.planner.space import BatchLimits, Candidate, PlannedDeployment, Shape

GROWTH = 1.5
"""Where a guess was too low, the next one is so many times as many instances, or one more."""

MOST_INSTANCES = 256
"""Of a deployment: what needs more meets the objectives only by serving next to nothing on each."""

MORE_VARIANTS = 2
"""Batch limits tried for each shape and number of instances, once the cheapest deployment is known."""

MOST_TIES = 4
"""Deployments of one price that are simulated, those first that are estimated to be the fastest: an instance
with a hundred cores can be cut in dozens of ways that all do."""

NOTICEABLE = 0.97
"""Beyond the cheapest, only what is estimated to take this share of the fastest's time is simulated."""


class Evaluator(Protocol):
    """What the search asks about a model under a workload."""

    def failure(self, candidate: Candidate) -> Failure | None:
        """Why no number of instances can do it; None where a bound does not tell."""

    def fewest(self, candidate: Candidate) -> int:
        """Instances without which it cannot be done, at least 1; asked where `failure` says nothing."""

    def likely(self, candidate: Candidate) -> int:
        """Instances that may do, about: where the search begins."""

    def estimate(self, candidate: Candidate, instances: int) -> float:
        """Seconds of a request, about; decides who is tried first."""

    def price(self, shape: Shape) -> float:
        """Dollars an hour of one instance."""

    def measure(self, deployment: PlannedDeployment) -> Outcome:
        """Simulates it."""

    def alone(self, candidate: Candidate) -> Outcome:
        """Simulates it with next to no load: what more instances cannot better."""


Watch = Callable[[Progress], None]
"""Is told of progress; may raise Stopped."""

INTERRUPTED = "interrupted"
CHEAPEST, FASTER = "searching for the cheapest", "searching for faster ones"


def search(
    shapes: Sequence[Shape],
    limits: Sequence[BatchLimits],
    evaluator: Evaluator,
    watch: Watch,
    spread: float = 1.0,
    tied: Callable[[Shape], float] = lambda _: 0.0,
    most: int = MOST_INSTANCES,
) -> SearchResult:
    """Searches all shapes x limits x up to `most` instances.  `tied`: the share by which a price may differ
    and still be tied, for which an option is wanted even if it is no faster.  The same arguments give the
    same result, unless `watch` raises Stopped or the user interrupts: then it is what was found so far."""
    return _Search(shapes, limits, evaluator, watch, spread, tied, most).run()


class _Search:
    def __init__(
        self,
        shapes: Sequence[Shape],
        limits: Sequence[BatchLimits],
        evaluator: Evaluator,
        watch: Watch,
        spread: float,
        tied: Callable[[Shape], float],
        most: int,
    ) -> None:
        self._limits = limits
        self._evaluator = evaluator
        self._watch = watch
        self._spread = spread
        self._tied = tied
        self._most = most
        self._found = SearchResult(configurations=len(shapes) * len(limits))
        self._options: dict[Shape, Option] = {}
        self._shapes = [Contender(i, shape, evaluator.price(shape)) for i, shape in enumerate(shapes)]
        self._unseen = sorted(self._shapes, key=lambda opened: opened.price)
        self._open: list[Contender] = []  # bounded, and not settled
        self._what = CHEAPEST

    def run(self) -> SearchResult:
        found = self._found
        try:
            self._find_cheapest()
            found.least = self._best
            self._find_faster()
        except Stopped as stopped:
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
        self._watch(Progress(self._what, self._found.simulations, best, left, len(self._shapes)))

    def _find_cheapest(self) -> None:
        """Tries each variant of each shape where it would be cheaper than the best, the most promising
        first."""
        while batch := self._next_bounded():
            if self._best == inf:
                self._find_first(batch)
            for opened in sorted((opened for opened in batch if opened.variants), key=self._promise):
                for candidate in sorted(opened.variants, key=lambda v: self._order(opened, v)):
                    self._undercut(opened, candidate)
            for opened in batch:
                if not opened.variants or opened.fewest > self._most:
                    self._settle(opened)
        self._polish()

    def _find_first(self, batch: Sequence[Contender]) -> None:
        """Tries variants at the least price that may do, and those that fail with ever more instances, until
        one does."""
        heap = [self._guess(opened, candidate) for opened in batch for candidate in opened.variants]
        heapq.heapify(heap)
        while heap:
            _, _, index, number, instances = heapq.heappop(heap)
            opened = self._shapes[index]
            candidate = Candidate(opened.shape, self._limits[number])
            option = self._tried(opened, candidate, instances)
            if option is not None:
                self._keep(opened, option)
                return
            if self._can_alone(opened, candidate) and instances < self._most:
                opened.likely[candidate] = max(instances + 1, ceil(instances * GROWTH))
                heapq.heappush(heap, self._guess(opened, candidate))

    def _guess(self, opened: Contender, candidate: Candidate) -> tuple[float, float, int, int, int]:
        """Of the queue: price, estimated seconds of a request, which candidate, and how many instances."""
        instances, seconds = self._order(opened, candidate)
        instances = min(instances, self._most)
        return (
            instances * opened.price,
            seconds,
            opened.index,
            self._limits.index(candidate.limits),
            instances,
        )

    def _next_bounded(self) -> list[Contender]:
        """Of the shapes that nobody has looked at, in order of price, all of which one instance costs less
        than the best, or than those before are likely to."""
        bounded, promised = [], self._best
        while self._unseen and self._unseen[0].price < promised:
            opened = self._unseen[0]
            if self._bound(opened):
                bounded.append(opened)
                promised = min(promised, self._promise(opened)[0])
        return bounded

    def _bound(self, opened: Contender) -> bool:
        """Rules out what no number of instances makes good; whether anything is left of the shape."""
        self._tell()
        for limits in self._limits:
            candidate = Candidate(opened.shape, limits)
            failure = self._evaluator.failure(candidate)
            if failure is not None:
                opened.reject(Rejected(opened.shape, failure, candidate))
                continue
            opened.variants.append(candidate)
            opened.bound[candidate] = opened.few[candidate] = fewest = self._evaluator.fewest(candidate)
            opened.likely[candidate] = max(fewest, self._evaluator.likely(candidate))
        self._unseen.remove(opened)
        self._open.append(opened)
        if opened.variants and opened.fewest <= self._most:
            return True
        self._settle(opened)
        return False

    def _settle(self, opened: Contender) -> None:
        """Takes a shape out: it has an option, or meets the objectives at no price."""
        self._open.remove(opened)
        if opened.shape not in self._options:
            self._found.rejected.append(opened.verdict())

    def _promise(self, opened: Contender) -> tuple[float, float]:
        """The price that may do, and the time of a request then."""
        instances, seconds = min(self._order(opened, variant) for variant in opened.variants)
        return instances * opened.price, seconds

    def _order(self, opened: Contender, candidate: Candidate) -> tuple[int, float]:
        likely = opened.likely[candidate]
        return likely, self._evaluator.estimate(candidate, likely)

    def _undercut(self, opened: Contender, candidate: Candidate) -> None:
        """Finds the fewest instances of a variant that do and are cheaper than the best; keeps them."""
        most = self._below(opened.price, self._best)
        if most < opened.bound[candidate] or self._best == inf:
            return
        option = self._tried(opened, candidate, most) or self._nearly(opened, candidate, most)
        if option is not None:
            self._keep(opened, option)

    def _nearly(self, opened: Contender, candidate: Candidate, instances: int) -> Option | None:
        """With fewer instances than failed, as long as they fail by chance."""
        while opened.by_chance and instances > max(1, opened.bound[candidate]):
            instances -= 1
            option = self._tried(opened, candidate, instances)
            if option is not None:
                return option
        return None

    def _keep(self, opened: Contender, option: Option) -> None:
        """Keeps an option at once, in case that time runs out, and then takes it back to the fewest."""
        self._options[opened.shape] = option
        candidate = option.deployment.candidate
        low = opened.bound[candidate]
        while option.deployment.instances > low:
            fewer = (low + option.deployment.instances) // 2
            cheaper = self._tried(opened, candidate, fewer) or self._nearly(opened, candidate, fewer)
            low = low if cheaper else fewer + 1
            self._options[opened.shape] = option = cheaper or option

    def _below(self, price: float, best: float) -> int:
        """The most instances of this price that cost less than `best`."""
        if best / price > self._most:
            return self._most
        instances = int(best // price) + 1
        while instances * price >= best:
            instances -= 1
        return instances

    def _tried(self, opened: Contender, candidate: Candidate, instances: int) -> Option | None:
        """The simulated deployment, if it meets the objectives."""
        self._tell()
        deployment = PlannedDeployment(candidate, instances)
        self._found.simulations += 1
        outcome = self._evaluator.measure(deployment)
        if outcome.failure is None:
            return Option(deployment, instances * opened.price, outcome)
        opened.failed(deployment, outcome.failure, outcome.seen)
        return None

    def _can_alone(self, opened: Contender, candidate: Candidate) -> bool:
        """Whether a variant does with no load; drops it otherwise: more instances cannot help it."""
        if candidate in opened.capable:
            return True
        self._found.simulations += 1
        alone = self._evaluator.alone(candidate)
        if alone.failure is None:
            opened.capable.add(candidate)
            return True
        opened.variants.remove(candidate)
        opened.reject(Rejected(opened.shape, alone.failure, candidate, alone))
        return False

    def _polish(self) -> None:
        """Where another variant of a cheapest shape does with as many instances and is estimated to be
        faster, takes that."""
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
        """Tries the shapes that are left in order of price: those that are tied with the cheapest, and those
        that may be faster than all that are cheaper."""
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
            self._found.dearer.append(Dearer(opened.shape, 0, opened.price, None))

    def _entry(self, opened: Contender, instances: int) -> tuple[float, float, int, int]:
        """Of the queue: price, estimated seconds of a request, which shape, and how many instances."""
        instances = max(instances, opened.fewest)
        estimate = min(self._evaluator.estimate(v, instances) for v in opened.variants)
        return instances * opened.price, estimate, opened.index, instances

    def _limit(self, opened: Contender) -> float:
        """The most that a shape's option may cost."""
        return self._best * self._spread * (1 + self._tied(opened.shape))

    def _next(self, opened: Contender, instances: int) -> int:
        """How many are tried after so many: steps get longer, but none goes past the last that may do."""
        last = min(self._most, int(self._limit(opened) / opened.price))
        following = min(instances + opened.step, last) if instances < last else instances + 1
        opened.step *= 2
        return following

    def _give_up(self, opened: Contender, instances: int, price: float) -> None:
        self._open.remove(opened)
        self._found.dearer.append(Dearer(opened.shape, instances, price, opened.failure))

    def _try(self, opened: Contender, instances: int) -> bool:
        """Simulates the first of the shape's variants with so many instances; whether one does."""
        for candidate in self._variants(opened, instances)[:MORE_VARIANTS]:
            option = self._tried(opened, candidate, instances)
            if option is not None:
                self._keep(opened, option)
                return True
            if opened.step > 1:
                self._can_alone(opened, candidate)
        return False

    def _is_dull(self, opened: Contender, instances: int, price: float) -> bool:
        """Whether the shape is neither one of the first ties of the cheapest, nor faster than what is
        known."""
        tied = self._best * (1 + self._tied(opened.shape))
        ties = sum(option.price <= tied for option in self._options.values())
        if price <= tied and ties < MOST_TIES:
            return False
        estimate = min(self._evaluator.estimate(v, instances) for v in opened.variants)
        return estimate > NOTICEABLE * self._latency

    def _variants(self, opened: Contender, instances: int) -> list[Candidate]:
        """Those that may do with so many instances, by what a request is estimated to take."""
        ready = [v for v in opened.variants if opened.bound[v] <= instances]
        return sorted(ready, key=lambda v: self._evaluator.estimate(v, instances))
