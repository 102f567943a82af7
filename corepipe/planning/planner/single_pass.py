"""The cheapest instances for a model that runs once over its input: encoders, and image classifiers.

Every core has a copy of the model, as with torch_neuronx's DataParallel, and copies share the requests.  Of a
demand the objective for the first token is that for the only result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from corepipe.engine.assembly.device_plan import DevicePlan, plan_device
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron.chips.hardware import Instance, Support
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import Format
from corepipe.neuron.step import StepShape
from corepipe.planning.planner.demand import Demand
from corepipe.planning.planner.evaluate import engine_settings
from corepipe.planning.planner.prices import Price
from corepipe.planning.planner.search import INTERRUPTED
from corepipe.planning.planner.search_result import SearchStopped
from corepipe.planning.planner.space import (
    MOST_INSTANCES,
    MOST_TOKENS,
    BatchLimits,
    Candidate,
    DeploymentShape,
    PlannedDeployment,
)
from corepipe.simulation.report import GROWS, Latencies, SimulationReport
from corepipe.simulation.simulate import SimulationConfig, simulate

SEATS = (1, 2, 4, 8, 16, 32)
"""Numbers of requests in a batch."""

LEAST_TOKENS = 16
"""Tokens of a batch at least, as `corepipe serve` takes them."""

OPTIMISM = 1.1
"""Factor by which a simulation may do better than full batches one after the other."""

MORE = 1.1
"""Factor by which a number of instances that is too small grows, where it is large."""


@dataclass(frozen=True, slots=True)
class PricedShape:
    """A copy of the model on each core of an instance, with the instance's price in dollars per hour.

    stack: the name or the file of its software profile.
    """

    shape: DeploymentShape
    price: float
    stack: str


@dataclass(frozen=True, slots=True)
class SinglePassOption:
    """A deployment that meets the demand: dollars per hour, seconds, and one instance's simulation."""

    deployment: PlannedDeployment
    offer: PricedShape
    price: float
    seconds: float
    report: SimulationReport

    @property
    def shape(self) -> DeploymentShape:
        return self.deployment.candidate.shape


@dataclass(slots=True)
class SinglePassResult:
    """The result of a search: options, the best first, one per shape; shapes that fail, with the reason.

    cut_short: the reason why the search ended early, if it did.
    """

    options: list[SinglePassOption] = field(default_factory=list)
    failed: dict[DeploymentShape, str] = field(default_factory=dict)
    simulations: int = 0
    cut_short: str | None = None

    def tell(self) -> None:
        """Sorts the options, and keeps the best of each shape."""
        self.options.sort(key=lambda option: (option.price, option.seconds))
        shapes = {option.shape: option for option in reversed(self.options)}
        self.options = sorted(shapes.values(), key=lambda option: (option.price, option.seconds))
        self.failed = {shape: why for shape, why in self.failed.items() if shape not in shapes}


@dataclass(frozen=True, slots=True)
class _PlacedBatch:
    """A candidate on its instance.  least: instances below which the rate cannot be sustained."""

    offer: PricedShape
    candidate: Candidate
    engine: EngineConfig
    device: DevicePlan
    alone: float
    least: int


def offers(
    instances: Sequence[Instance],
    prices: Mapping[str, Price],
    formats: Sequence[Format],
    stacks: Mapping[str, RuntimeProfile],
) -> Iterator[PricedShape]:
    """Yields each instance that has a price, in each format that its chip has, with each software."""
    for instance in instances:
        for fmt in formats:
            if instance.name in prices and instance.support(fmt) is Support.NATIVE:
                for stack, profile in stacks.items():
                    shape = DeploymentShape(instance.name, fmt, Placement(data=instance.cores), profile)
                    yield PricedShape(shape, prices[instance.name].per_hour, stack)


def search(
    architecture: Architecture,
    demand: Demand,
    offered: Sequence[PricedShape],
    positions: int,
    watch: Callable[[float], None],
) -> SinglePassResult:
    """Simulates the candidates that may be the cheapest, the least price first.  `watch` is called with the
    share that is done, and may end the search (`SearchStopped`).

    positions: the longest supported text.  Raises UserError where nothing is offered.
    """
    if not offered:
        raise UserError("nothing to choose from: give other --instance, --dtype or --prices", "instance")
    found = SinglePassResult()
    placed = list(_placed(architecture, demand, offered, positions, found))
    placed.sort(key=lambda one: (one.least * one.offer.price, one.alone))
    try:
        for number, one in enumerate(placed):
            watch(number / len(placed))
            best = min((option.price for option in found.options), default=inf)
            if one.least * one.offer.price <= best:
                _try(one, demand, best, found)
    except SearchStopped as stop:
        found.cut_short = str(stop)
    except KeyboardInterrupt:
        found.cut_short = INTERRUPTED
    found.tell()
    return found


def _placed(
    architecture: Architecture,
    demand: Demand,
    offered: Sequence[PricedShape],
    positions: int,
    found: SinglePassResult,
) -> Iterator[_PlacedBatch]:
    """Yields the candidates that fit, and may be in time."""
    tokens, limit = round(float(demand.sizes.prompts.mean())), demand.objectives.ttft
    for offer in offered:
        for seats in SEATS:
            most = max(LEAST_TOKENS, min(MOST_TOKENS, seats * positions))
            candidate = Candidate(offer.shape, BatchLimits(positions, seats, most))
            engine = _engine(architecture.name, candidate, offer.stack)
            try:
                device = plan_device(engine, architecture)
            except UserError as error:
                found.failed.setdefault(candidate.shape, error.message.splitlines()[0])
                break
            cost = device.timeline(0).cost
            alone, full = (cost.latency(StepShape.of([(0, tokens)] * n, n)) for n in (1, seats))
            if limit is not None and alone > limit:
                found.failed.setdefault(candidate.shape, f"a request alone takes {alone * 1e3:.4g} ms")
                break
            capacity = OPTIMISM * device.placement.data * seats / full
            yield _PlacedBatch(
                offer, candidate, engine, device, alone, ceil(demand.objectives.rate / capacity)
            )


def _engine(model: str, candidate: Candidate, stack: str) -> EngineConfig:
    longest = candidate.limits.max_model_len
    settings = engine_settings(model, candidate, stack)
    return EngineConfig.model_validate({**settings, "max_model_len": longest if longest > 1 else None})


def _try(one: _PlacedBatch, demand: Demand, best: float, found: SinglePassResult) -> None:
    """Tries ever more instances, until they suffice or cost more than the best."""
    why, count = "", one.least
    while count <= MOST_INSTANCES and count * one.offer.price <= best:
        rate = demand.objectives.rate / count
        load = demand.stream(rate, demand.requests_at(rate)).workload()
        report = simulate(SimulationConfig(one.engine), load, device=one.device)
        found.simulations += 1
        seconds = demand.objectives.quantile(Latencies.of(report.requests).e2e)
        why = _failure(report, seconds, demand)
        if not why:
            deployment = PlannedDeployment(one.candidate, count)
            found.options.append(
                SinglePassOption(deployment, one.offer, count * one.offer.price, seconds, report)
            )
            return
        count = max(count + 1, ceil(MORE * count))
    more = f"; {count} instances would cost {count * one.offer.price:.4g} $/h"
    found.failed.setdefault(one.candidate.shape, f"{why}{more}")


def _failure(report: SimulationReport, seconds: float, demand: Demand) -> str:
    if report.growth > GROWS:
        return "the queue grows"
    if demand.objectives.ttft is not None and seconds > demand.objectives.ttft:
        return f"a request takes {seconds * 1e3:.4g} ms"
    return ""
