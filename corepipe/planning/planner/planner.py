"""The cheapest deployment of a model that meets its objectives, and its comparison with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.timing.uncertainty import LEVEL
from corepipe.planning.planner.bounds import PlanFailure, Reason
from corepipe.planning.planner.certainty import Certainty
from corepipe.planning.planner.confidence import Validation
from corepipe.planning.planner.demand import Demand
from corepipe.planning.planner.evaluate import SimulationEvaluator
from corepipe.planning.planner.prices import Price, PriceList
from corepipe.planning.planner.purchase import Purchase
from corepipe.planning.planner.search import Search, Watch
from corepipe.planning.planner.search_result import PlanOption, RejectedShape, SearchProgress, SearchResult
from corepipe.planning.planner.space import Candidate, DeploymentShape, SearchSpace

SPREAD = 4.0
"""Factor of the cheapest price up to which faster deployments are searched."""


@dataclass(frozen=True, slots=True)
class Market:
    """The region, the way of buying and the prices of instances."""

    prices: PriceList
    purchase: Purchase
    region: str

    def known(self, instances: Sequence[Instance]) -> dict[str, Price]:
        """Returns the prices of those instances that have one.  Raises UserError where none of them has."""
        self.prices.check_region(self.purchase, self.region)
        found = {one.name: self.prices.get(one.name, self.purchase, self.region) for one in instances}
        priced = {name: price for name, price in found.items() if price is not None}
        if not priced:
            self.prices.require(instances[0].name, self.purchase, self.region)
        return priced


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The input of a plan.  `max_error`: share above which a validation error is too high; `accepts`:
    filters shapes; `unfit`: returns the reason to exclude a candidate, for prompts of up to so many
    tokens; `confidence`: level by which options are ranked, instead of by prediction."""

    architecture: Architecture
    demand: Demand
    space: SearchSpace
    market: Market
    validation: Validation
    max_model_len: int | None = None
    max_error: float | None = None
    accepts: Callable[[DeploymentShape], bool] = lambda _: True
    unfit: Callable[[Candidate, int], str | None] = lambda _candidate, _prompt: None
    spread: float = SPREAD
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of a plan.  options: deployments that meet the objectives, cheapest first, those of equal
    price by latency; the first is the choice, unless certainty ranks them and distinguishes none.
    unpriced: instances without a price."""

    inquiry: PlanRequest
    max_model_len: int
    options: tuple[PlanOption, ...]
    search: SearchResult
    prices: dict[str, Price]
    unpriced: tuple[str, ...]
    certainty: Certainty

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes of the model that bound the degrees of a placement."""
        graph = _decoder(self.inquiry.architecture)
        return graph.attention_heads, graph.num_layers, graph.experts

    @property
    def best(self) -> PlanOption | None:
        return self.options[0] if self.options and not self.undecided else None

    @property
    def undecided(self) -> bool:
        """Tells whether options are ranked by certainty, and no two of them are distinguished."""
        return self.certainty.ranks and self.certainty.undecided(self.options)

    @property
    def alike(self) -> list[PlanOption]:
        """Options that cannot be distinguished from the first."""
        return self.certainty.alike(self.options)

    def is_tied(self, option: PlanOption) -> bool:
        """Tells whether the difference in cost from the choice is within the validation error."""
        assert self.best is not None
        shapes = (option.deployment.candidate.shape, self.best.deployment.candidate.shape)
        error = max(self.inquiry.validation.tied(shape) for shape in shapes)
        return option is not self.best and option.price <= self.best.price * (1 + error)

    @property
    def tied(self) -> list[PlanOption]:
        return [option for option in self.options if self.best and self.is_tied(option)]

    @property
    def front(self) -> list[PlanOption]:
        """The Pareto front: options that are each the fastest for their price or less."""
        front: list[PlanOption] = []
        for option in sorted(self.options, key=lambda o: (o.price, o.outcome.latency)):
            if not front or option.outcome.latency < front[-1].outcome.latency:
                front.append(option)
        return front

    @property
    def nearest(self) -> RejectedShape | None:
        """The rejected shape that can be deployed and comes nearest to the objectives."""
        return min(self.search.rejected, key=lambda r: r.failure.excess, default=None)


def plan(inquiry: PlanRequest, watch: Watch) -> Plan:
    """Searches the cheapest deployment.  `watch` is called with the progress all the time, and may end the
    search (`search_result.SearchStopped`).  Raises UserError for an impossible request: no shape to choose
    from, requests too long."""
    graph, longest = _decoder(inquiry.architecture), _max_model_len(inquiry)
    prices = inquiry.market.known(inquiry.space.instances)
    shapes, refused = _shapes(inquiry, graph, prices)
    found = _search(inquiry, shapes, prices, longest, watch)
    found.rejected += refused
    confidence = inquiry.confidence
    certainty = Certainty(inquiry.demand, graph, confidence or LEVEL, confidence is not None)
    options = sorted(found.options, key=certainty.order)
    unpriced = tuple(i.name for i in inquiry.space.instances if i.name not in prices)
    return Plan(inquiry, longest, tuple(options), found, prices, unpriced, certainty)


def _search(
    inquiry: PlanRequest, shapes: list[DeploymentShape], prices: dict[str, Price], longest: int, watch: Watch
) -> SearchResult:
    beat = _ProgressRepeater(watch)
    rates = {name: price.per_hour for name, price in prices.items()}
    demand, unfit = inquiry.demand.tightened, inquiry.unfit
    workbench = SimulationEvaluator(inquiry.architecture, demand, rates, longest, beat.again, unfit)
    limits = list(inquiry.space.limits(longest, workbench.longest_prompt))
    known = inquiry.validation.tied
    return Search(shapes, limits, workbench, beat.tell, inquiry.spread, known).run()


class _ProgressRepeater:
    """Repeats the last progress during long simulations."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._last: SearchProgress | None = None

    def tell(self, progress: SearchProgress) -> None:
        self._last = progress
        self._watch(progress)

    def again(self) -> None:
        if self._last is not None:
            self._watch(self._last)


def _decoder(architecture: Architecture) -> Graph:
    graph = architecture.graph(FORMATS["bf16"])
    if not graph.causal:
        raise UserError(f"{architecture.name} generates no tokens; a plan is for models that do", "model")
    return graph


def _max_model_len(inquiry: PlanRequest) -> int:
    """Returns the given length, or the next power of two above the longest request."""
    needed, most = inquiry.demand.sizes.longest, inquiry.architecture.max_positions
    if needed > most:
        prompts, answers = inquiry.demand.input_len.spec, inquiry.demand.output_len.spec
        raise UserError(
            f"--input-len {prompts}: with --output-len {answers} requests have up to {needed} tokens; "
            f"{inquiry.architecture.name} takes {most}",
            "input_len",
        )
    return longest_request(inquiry.architecture, needed, inquiry.max_model_len)


def longest_request(architecture: Architecture, needed: int, given: int | None) -> int:
    """Returns the given length, or the next power of two above the longest request, if the model takes it.

    Raises UserError where requests of `needed` tokens do not fit.
    """
    most = architecture.max_positions
    longest = given or min(most, 1 << (needed - 1).bit_length())
    if longest > most:
        message = f"--max-model-len {longest}: {architecture.name} takes {most}; use at most that"
        raise UserError(message, "max_model_len")
    if longest < needed:
        room = "use at least that" if needed <= most else f"{architecture.name} takes {most}"
        message = f"--max-model-len {longest}: requests have up to {needed} tokens; {room}"
        raise UserError(message, "max_model_len")
    return longest


def _shapes(
    inquiry: PlanRequest, graph: Graph, prices: dict[str, Price]
) -> tuple[list[DeploymentShape], list[RejectedShape]]:
    """Returns the shapes to search, and those that are not validated well enough."""
    shapes, refused = [], []
    for shape in inquiry.space.shapes(graph.attention_heads, graph.num_layers, graph.experts):
        if shape.instance in prices and inquiry.accepts(shape):
            failure = _doubt(inquiry, shape)
            if failure is None:
                shapes.append(shape)
            else:
                refused.append(RejectedShape(shape, failure))
    if not shapes and not refused:
        raise UserError("nothing to choose from: give other --instance, --dtype or --profile", "instance")
    return shapes, refused


def _doubt(inquiry: PlanRequest, shape: DeploymentShape) -> PlanFailure | None:
    if inquiry.max_error is None:
        return None
    worst = inquiry.validation.worst(shape)
    if worst.error is not None and worst.error <= inquiry.max_error:
        return None
    return PlanFailure(Reason.VALIDATION, f"{worst} ({worst.basis})" if worst.error else worst.basis)
