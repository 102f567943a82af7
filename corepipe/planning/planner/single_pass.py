"""The cheapest instances for a model that runs once over its input: encoders, and image classifiers.

Every core has a copy of the model, as with torch_neuronx's DataParallel, and copies share the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf
from statistics import fmean

import numpy as np

from corepipe.engine.assembly.device_plan import DevicePlan, plan_device
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron.chips.hardware import Instance, Support
from corepipe.neuron.chips.profiles import RuntimeProfile
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import Format
from corepipe.neuron.step import StepShape
from corepipe.planning.planner.evaluate import engine_settings
from corepipe.planning.planner.search import INTERRUPTED, MOST_INSTANCES
from corepipe.planning.planner.search_result import SearchStopped
from corepipe.planning.planner.space import (
    MOST_TOKENS,
    BatchLimits,
    Candidate,
    DeploymentShape,
    PlannedDeployment,
)
from corepipe.simulation.report import GROWS, Latencies, SimulationReport
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.lengths import Lengths
from corepipe.workload.workload import Synthetic, first_requests

SEATS = (1, 2, 4, 8, 16, 32)
"""Numbers of requests in a batch."""

LEAST_TOKENS = 16
"""Tokens of a batch at least, as `corepipe serve` takes them."""

REQUESTS = 1000
"""Requests of a simulation by default."""

OPTIMISM = 1.1
"""Factor by which a simulation may do better than full batches one after the other."""

MORE = 1.1
"""Factor by which a number of instances that is too small grows, where it is large."""


@dataclass(frozen=True)
class SinglePassDemand:
    """A demand for requests per second of given lengths, and seconds in which a percentile of them must be
    answered (None: any, as long as no queue grows)."""

    rate: float
    input_len: Lengths
    seconds: float | None
    percentile: float
    seed: int
    requests: int = REQUESTS

    def workload(self, rate: float) -> Synthetic:
        """Returns the workload of one instance."""
        arrivals, one = Arrivals(rate), Lengths.parse("1", "output-len")
        return Synthetic(self.input_len, one, self.requests, arrivals=arrivals, seed=self.seed)

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each request."""
        load = self.workload(1.0).workload()
        return [turn.prompt_tokens for turn in first_requests(load, self.requests)]


@dataclass(frozen=True, slots=True)
class PricedInstance:
    """An instance with its price in dollars per hour, and a format and software for it."""

    instance: Instance
    price: float
    format: Format
    profile: RuntimeProfile
    stack: str


@dataclass(frozen=True, slots=True)
class SinglePassOption:
    """A deployment that meets the demand: dollars per hour, seconds, and one instance's simulation."""

    deployment: PlannedDeployment
    offer: PricedInstance
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

    offer: PricedInstance
    candidate: Candidate
    engine: EngineConfig
    device: DevicePlan
    alone: float
    least: int


def offers(
    instances: Sequence[Instance],
    prices: Mapping[str, float],
    formats: Sequence[Format],
    stacks: Mapping[str, RuntimeProfile],
) -> Iterator[PricedInstance]:
    """Yields each instance that has a price, in each format that its chip has."""
    for instance in instances:
        for fmt in formats:
            if instance.name in prices and instance.support(fmt) is Support.NATIVE:
                for stack, profile in stacks.items():
                    yield PricedInstance(instance, prices[instance.name], fmt, profile, stack)


def search(
    architecture: Architecture,
    demand: SinglePassDemand,
    offered: Sequence[PricedInstance],
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
    demand: SinglePassDemand,
    offered: Sequence[PricedInstance],
    positions: int,
    found: SinglePassResult,
) -> Iterator[_PlacedBatch]:
    """Yields the candidates that fit, and may be in time."""
    tokens = round(fmean(demand.lengths))
    for offer in offered:
        for seats in SEATS:
            candidate = _candidate(offer, seats, positions)
            engine = _engine(architecture.name, candidate, offer.stack)
            try:
                device = plan_device(engine, architecture)
            except UserError as error:
                found.failed.setdefault(candidate.shape, error.message.splitlines()[0])
                break
            cost = device.timeline(0).cost
            alone, full = (cost.latency(StepShape.of([(0, tokens)] * n, n)) for n in (1, seats))
            if demand.seconds is not None and alone > demand.seconds:
                found.failed.setdefault(candidate.shape, f"a request alone takes {alone * 1e3:.4g} ms")
                break
            capacity = OPTIMISM * device.placement.data * seats / full
            yield _PlacedBatch(offer, candidate, engine, device, alone, ceil(demand.rate / capacity))


def _candidate(offer: PricedInstance, seats: int, positions: int) -> Candidate:
    shape = DeploymentShape(
        offer.instance.name, offer.format, Placement(data=offer.instance.cores), offer.profile
    )
    return Candidate(
        shape, BatchLimits(positions, seats, max(LEAST_TOKENS, min(MOST_TOKENS, seats * positions)))
    )


def _engine(model: str, candidate: Candidate, stack: str) -> EngineConfig:
    longest = candidate.limits.max_model_len
    settings = engine_settings(model, candidate, stack)
    return EngineConfig.model_validate({**settings, "max_model_len": longest if longest > 1 else None})


def _try(one: _PlacedBatch, demand: SinglePassDemand, best: float, found: SinglePassResult) -> None:
    """Tries ever more instances, until they suffice or cost more than the best."""
    why, count = "", one.least
    while count <= MOST_INSTANCES and count * one.offer.price <= best:
        report = simulate(
            SimulationConfig(one.engine), demand.workload(demand.rate / count).workload(), device=one.device
        )
        found.simulations += 1
        seconds = float(np.percentile(Latencies.of(report.requests).e2e, demand.percentile))
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


def _failure(report: SimulationReport, seconds: float, demand: SinglePassDemand) -> str:
    if report.growth > GROWS:
        return "the queue grows"
    if demand.seconds is not None and seconds > demand.seconds:
        return f"a request takes {seconds * 1e3:.4g} ms"
    return ""


def tightened(demand: SinglePassDemand, margin: float) -> SinglePassDemand:
    """Returns the demand with the margin, a share, taken off its objective."""
    return demand if demand.seconds is None else replace(demand, seconds=demand.seconds * (1 - margin))
