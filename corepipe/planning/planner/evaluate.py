"""Evaluation of deployments for the planner: bounds, then simulations that end once they fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from math import floor

from corepipe.engine.assembly.device_plan import DevicePlan
from corepipe.engine.assembly.draft_plan import draft_architecture, draft_graph
from corepipe.engine.config import EngineConfig, validated
from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.layer_groups import block_positions
from corepipe.neuron.compile.memory import (
    CoreMemory,
    DeploymentLimits,
    Draft,
    Footprint,
    MemoryPlan,
    blocks_that_fit,
    of_replica,
)
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program, of_each
from corepipe.neuron.formats import FORMATS, Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.timing import modes
from corepipe.neuron.timing.cost import CostModel
from corepipe.planning.planner.bounds import PlanFailure, Reason, ShapeBounds, ShapeTimes
from corepipe.planning.planner.demand import Demand
from corepipe.planning.planner.judging import Judge
from corepipe.planning.planner.lateness import Queue, surely_late
from corepipe.planning.planner.search_result import SimulatedOutcome, worst
from corepipe.planning.planner.space import (
    BLOCK_SIZE,
    MOST_INSTANCES,
    Candidate,
    DeploymentShape,
    PlannedDeployment,
)
from corepipe.simulation.early_stop import EarlyStop
from corepipe.simulation.record import SimulationRecord
from corepipe.simulation.report import SimulationReport
from corepipe.simulation.simulate import SimulationConfig, play, simulate
from corepipe.workload.slo import Slo

ALONE = 32
"""Requests that are simulated without load."""

IDLE = 50
"""Time between requests without load, in times of one request."""

QUEUE = 10**9
"""Queue limit of a simulation: no request is refused."""


@dataclass(frozen=True, slots=True)
class ProgramKey:
    """The properties that Programs depend on.  instance, profile: those that balance a pipeline's stages."""

    format: Format
    pipeline: int
    tensor: int
    expert: int
    instance: str | None
    profile: RuntimeProfile | None


@dataclass(frozen=True)
class PlacedCandidate(DevicePlan):
    """A DevicePlan whose cost models, one for each replica, are made once for all simulations."""

    costs: tuple[CostModel, ...] = ()

    def _costs(self) -> Sequence[CostModel]:
        return self.costs


@dataclass(eq=False)
class SimulationEvaluator:
    """Evaluates deployments of one model for the search: `prices` of instances by name, dollars per hour.

    on_progress: called regularly during a long simulation; may raise.  unfit: as in `PlanRequest`.
    """

    architecture: Architecture
    demand: Demand
    prices: Mapping[str, float]
    max_model_len: int
    on_progress: Callable[[], None] = lambda: None
    unfit: Callable[[Candidate, int], str | None] = lambda _candidate, _prompt: None

    def __post_init__(self) -> None:
        graph = self.architecture.graph(FORMATS["bf16"], self.max_model_len)
        self._block_size = block_positions(graph, BLOCK_SIZE)
        self._judge = Judge(self.demand.objectives)
        self._graph = cache(self._make_graph)
        self._programs = cache(self._make_programs)
        self._cost = cache(self._make_cost)
        self._footprints = cache(self._make_footprints)
        self._memory = cache(self._make_memory)
        self._draft = cache(self._make_draft)
        self._twin = cache(twin_shape)
        self._arrivals = cache(self._make_arrivals)
        self._bounds = cache(self._make_bounds)
        self._measure = cache(self._make_measurement)
        self._alone = cache(self._make_alone)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return int(self.demand.sizes.prompts.max())

    def failure(self, candidate: Candidate) -> PlanFailure | None:
        """Returns the reason for which no number of instances suffices; None where a bound does not tell."""
        if (why := self.unfit(candidate, self.longest_prompt)) is not None:
            return PlanFailure(Reason.UNSUPPORTED, why)
        shape, sequences = candidate.shape, candidate.limits.max_num_seqs
        graph = self._graph(shape.format)
        if (why := modes.refuses_experts(graph, shape.placement, shape.profile, sequences)) is not None:
            return PlanFailure(Reason.UNSUPPORTED, why)
        try:
            return self._bounds_of(candidate).failure(candidate.limits)
        except UserError as error:  # the model cannot be divided so
            if error.param == "kernels":  # no other candidate makes a kernel right
                raise
            return PlanFailure(Reason.UNSUPPORTED, error.message.splitlines()[0])

    def fewest(self, candidate: Candidate) -> int:
        """Returns the least number of instances that may suffice, from 1; called where `failure` is None."""
        bounds, limits = self._bounds_of(candidate), candidate.limits
        queues = bounds.queues(limits)
        return _first(lambda n: not self._must_be_late(queues, n), bounds.fewest(limits))

    def likely(self, candidate: Candidate) -> int:
        """Returns the estimated number of instances that suffice: the search begins there."""
        bounds, limits = self._bounds_of(candidate), candidate.limits
        replicas = candidate.shape.placement.data

        def may_do(instances: int) -> bool:
            if not bounds.is_likely(limits, instances):
                return False
            queues = bounds.likely_queues(limits, instances)
            return not self._must_be_late(queues, instances, replicas)

        return _first(may_do, self.fewest(candidate))

    def _must_be_late(self, queues: Sequence[Queue], instances: int, replicas: int = 1) -> bool:
        """Tells whether so many requests wait for too long that the percentile is missed, of the requests
        of one instance, or of one of `replicas` that take turns."""
        arrivals = self._arrivals(self.demand.objectives.rate / max(1, instances))[::replicas]
        enough = self._most_late(len(arrivals))
        return any(surely_late(arrivals, queue, enough) for queue in queues)

    def _make_arrivals(self, rate: float) -> tuple[float, ...]:
        """Returns the arrival times in a simulation at this rate."""
        requests = self.demand.requests_at(rate)
        starts = islice(self.demand.stream(rate, requests).starts(), requests)
        return tuple(start or 0.0 for start in starts)

    def _most_late(self, requests: int) -> int:
        """Returns the number of late requests, out of so many, with which the percentile is missed."""
        return requests - floor(self.demand.objectives.percentile / 100 * (requests - 1))

    def estimate(self, candidate: Candidate, instances: int) -> float:
        """Returns the estimated seconds of a request; decides the order of attempts."""
        return self._bounds_of(candidate).estimate(candidate.limits, instances)

    def price(self, shape: DeploymentShape) -> float:
        """Returns the dollars per hour of one instance."""
        return self.prices[shape.instance]

    def measure(self, deployment: PlannedDeployment) -> SimulatedOutcome:
        """Simulates a deployment: with both of its software's ways, where no document decides."""
        candidates = map(self._twin_of, _undocumented(deployment.candidate))
        return worst(self._measure(candidate, deployment.instances) for candidate in candidates)

    def _make_measurement(self, candidate: Candidate, instances: int) -> SimulatedOutcome:
        """Simulates a deployment; stops when so many requests are late that the whole must fail: requests
        that come later make none of them faster."""
        rate = self.demand.objectives.rate / instances
        requests = self.demand.requests_at(rate)
        early_stop = EarlyStop(self._slo(), self._most_late(requests))
        record = self._play(candidate, rate, requests, early_stop)
        return self._judge.of_lost(early_stop, requests) if early_stop.lost else self._judge.of_record(record)

    def alone(self, candidate: Candidate) -> SimulatedOutcome:
        """Simulates a candidate with next to no load: more instances cannot do better."""
        return worst(self._alone(self._twin_of(one)) for one in _undocumented(candidate))

    def _make_alone(self, candidate: Candidate) -> SimulatedOutcome:
        seconds = self._bounds_of(candidate).fastest(candidate.limits)
        return self._judge.of_record(self._play(candidate, 1 / (IDLE * seconds), ALONE))

    def outcome(self, report: SimulationReport) -> SimulatedOutcome:
        """Returns the outcome of a simulation for the objectives."""
        return self._judge.of_report(report)

    def simulate(self, deployment: PlannedDeployment) -> SimulationReport:
        """Returns the whole simulation of one of the deployment's instances."""
        rate = self.demand.objectives.rate / deployment.instances
        candidate = deployment.candidate
        workload = self.demand.stream(rate, self.demand.requests_at(rate)).workload()
        return simulate(self.config(candidate), workload, device=self.place(candidate))

    def config(self, candidate: Candidate) -> SimulationConfig:
        """Returns the configuration of `corepipe simulate` for this candidate."""
        return SimulationConfig(self._engine(candidate), self._slo())

    def _bounds_of(self, candidate: Candidate) -> ShapeBounds:
        return self._bounds(self._twin_of(candidate))

    def _twin_of(self, candidate: Candidate) -> Candidate:
        return replace(candidate, shape=self._twin(candidate.shape))

    def _play(
        self, candidate: Candidate, rate: float, requests: int, early_stop: EarlyStop | None = None
    ) -> SimulationRecord:
        workload = self.demand.stream(rate, max(1, requests)).workload()
        config, device = self.config(candidate), self.place(candidate)
        return play(config, workload, device, lambda _what, _done: self.on_progress(), early_stop)

    def _slo(self) -> Slo:
        return Slo(self.demand.objectives.ttft, self.demand.objectives.tpot)

    def _engine(self, candidate: Candidate) -> EngineConfig:
        shape, limits = candidate.shape, candidate.limits
        return validated(
            EngineConfig,
            {
                **engine_settings(self.architecture.name, candidate, shape.profile.name),
                "lnc": shape.lnc,
                "policy": shape.profile.policy,
                "max_model_len": limits.max_model_len,
                "speculative_config": limits.speculative_config,
                "seed": self.demand.seed,
            },
        )

    def place(self, candidate: Candidate) -> PlacedCandidate:
        """Places the candidate's model on its instance, for any number of simulations."""
        shape, limits = candidate.shape, candidate.limits
        cores = self._cores(candidate)
        blocks = blocks_that_fit(cores, shape.placement.data, shape.device, shape.profile.kv_budget)
        needed = limits.max_num_seqs * -(-limits.max_model_len // self._block_size)
        return PlacedCandidate(
            graph=self._graph(shape.format),
            instance=shape.device,
            placement=shape.placement,
            reason="chosen by the planner",
            programs=self._programs(_cut(shape)),
            memory=MemoryPlan(min(blocks, needed), cores),
            profile=shape.profile,
            batch=limits.max_num_seqs,
            draft=self._draft_of(candidate),
            costs=tuple(self._cost_of(candidate, n) for n in range(shape.placement.data)),
        )

    def _make_bounds(self, candidate: Candidate) -> ShapeBounds:
        shape = candidate.shape
        host = 0.0 if shape.profile.asynchronous else shape.profile.host_seconds
        cost = partial(self._cost_of, candidate, 0)
        timed = ShapeTimes(shape, cost, self._cores(candidate), host, self._block_size)
        guesses = candidate.limits.speculative_config
        rates = () if guesses is None else guesses.synthetic_rates or ()
        return ShapeBounds(timed, self.demand.sizes, self.demand.objectives, rates)

    def _cost_of(self, candidate: Candidate, replica: int) -> CostModel:
        """Returns the cost model of one replica, with the graphs for the candidate's limits."""
        shape, limits = candidate.shape, candidate.limits
        chunk = None if shape.profile.chunk is None else limits.max_num_batched_tokens
        return self._cost(shape, limits.max_num_seqs, chunk, replica)

    def _make_cost(
        self, shape: DeploymentShape, sequences: int, chunk: int | None, replica: int
    ) -> CostModel:
        """Makes a replica's cost model, with graphs for so many sequences and tokens of a prompt."""
        if replica > 0:
            return self._cost(shape, sequences, chunk, 0).on_replica(replica)
        if sequences > 1 or chunk is not None:
            return self._cost(shape, 1, None, replica).with_batch(sequences, chunk)
        programs = self._programs(_cut(shape))
        return CostModel(programs, shape.device, shape.profile, shape.placement.data, batch=1)

    def _cores(self, candidate: Candidate) -> tuple[CoreMemory, ...]:
        """Returns the memory of one replica's cores."""
        limits, draft = candidate.limits, self._draft_of(candidate)
        return self._memory(_cut(candidate.shape), limits.max_num_seqs, limits.max_num_batched_tokens, draft)

    def _make_memory(
        self, cut: ProgramKey, sequences: int, tokens: int, draft: Draft | None
    ) -> tuple[CoreMemory, ...]:
        limits = DeploymentLimits(self.max_model_len, sequences, tokens, self._block_size, max_blocks=1)
        cores = of_replica(self._footprints(cut), limits)
        return cores if draft is None else draft.add(cores, cut.tensor, limits)

    def _draft_of(self, candidate: Candidate) -> Draft | None:
        """Returns the draft model, if any.  Raises UserError where it cannot draft for so long requests."""
        guesses = candidate.limits.speculative_config
        model = None if guesses is None else guesses.model
        return None if model is None else self._draft(model, candidate.shape.format)

    def _make_draft(self, model: str, fmt: Format) -> Draft:
        return Draft(draft_graph(draft_architecture(model), self._graph(fmt)))

    def _make_footprints(self, cut: ProgramKey) -> tuple[Footprint, ...]:
        """Returns the footprints of one replica's cores."""
        return tuple(of_each(self._programs(cut), Footprint.of))

    def _make_programs(self, cut: ProgramKey) -> tuple[Program, ...]:
        """Compiles the Programs of one replica."""
        graph, placement = self._graph(cut.format), Placement(cut.pipeline, cut.tensor, expert=cut.expert)
        if cut.instance is None or cut.profile is None:
            return compile_for_timing(graph, placement)
        return modes.compiler(graph, find_instance(cut.instance), cut.profile)(placement)

    def _make_graph(self, fmt: Format) -> Graph:
        return self.architecture.graph(fmt, self.max_model_len)


def engine_settings(model: str, candidate: Candidate, stack: str) -> dict[str, object]:
    """Returns the settings of an engine that every simulation of a candidate has."""
    shape, limits = candidate.shape, candidate.limits
    return {
        "model": model,
        "instance": shape.instance,
        "format": shape.format.name,
        "profile": stack,
        **shape.placement.degrees,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "block_size": BLOCK_SIZE,
        "clock": "virtual",
        "max_queued_requests": QUEUE,
        "max_queued_tokens": QUEUE,
    }


def _first(good: Callable[[int], bool], least: int) -> int:
    """Returns the first number from `least` on that is good, where all after it are good too; or one past
    the most instances that there may be."""
    low, high = least - 1, max(1, least)
    while not good(high):
        if high > MOST_INSTANCES:
            return high
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def _cut(shape: DeploymentShape) -> ProgramKey:
    place = shape.placement
    degrees = (place.pipeline, place.tensor, place.expert)
    if place.pipeline == 1:
        return ProgramKey(shape.format, *degrees, None, None)
    return ProgramKey(shape.format, *degrees, shape.instance, shape.profile)


def twin_shape(shape: DeploymentShape) -> DeploymentShape:
    """Returns the shape on the first instance with the same device: only host and price differ."""
    wanted = _device(shape.device)
    alike = (i if shape.lnc is None else i.with_lnc(shape.lnc) for i in INSTANCES)
    return replace(shape, instance=next(i.name for i in alike if _device(i) == wanted))


def _device(instance: Instance) -> tuple[object, ...]:
    """Returns all properties that times and memory depend on."""
    chip = replace(instance.chip, name="")
    return chip, instance.chips, instance.topology, instance.link_bytes_per_second, instance.lnc


def _undocumented(candidate: Candidate) -> list[Candidate]:
    """Returns the candidate, and the one that it is where its software chooses otherwise than its profile
    says: which of them holds is not documented."""
    profile = candidate.shape.profile
    if not profile.otherwise:
        return [candidate]
    other = PROFILES[profile.otherwise].with_kernels(profile.kernels)
    return [candidate, replace(candidate, shape=replace(candidate.shape, profile=other))]
