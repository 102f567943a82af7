"""What the planner asks about a model under a workload: bounds, then short simulations, then long ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, floor

import numpy as np

from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron import modes
from corepipe.neuron.catalog import INSTANCES
from corepipe.neuron.catalog import instance as find_instance
from corepipe.neuron.compiler import compile_for_timing
from corepipe.neuron.cost import CostModel
from corepipe.neuron.graph import Format, Graph
from corepipe.neuron.hardware import Instance
from corepipe.neuron.memory import CoreMemory, Limits, MemoryPlan, blocks_that_fit, measure
from corepipe.neuron.placement import Placement
from corepipe.neuron.profiles import RuntimeProfile
from corepipe.neuron.program import Program
from corepipe.neuron.timeline import Timeline
from corepipe.planning.arrivals import Arrivals
from corepipe.planning.lengths import Lengths
from corepipe.planning.planner.bounds import Bounds, Failure, Objectives, Reason, RequestSizes, Timed
from corepipe.planning.planner.search import Outcome
from corepipe.planning.planner.space import BLOCK_SIZE, Candidate, Deployment, Shape
from corepipe.planning.simulation.report import Latencies, Report
from corepipe.planning.simulation.simulate import SimulationConfig, simulate
from corepipe.planning.slo import Slo
from corepipe.planning.workload import Synthetic, first_requests
from corepipe.serving.config import EngineConfig, validated
from corepipe.serving.engine.device_plan import DevicePlan

LEAST_REQUESTS = 1000
"""Requests of a simulation, unless it takes more to see a steady state: a 99th percentile then has ten
requests above it."""

TURNOVERS = 10
"""A simulation lasts as long as so many requests one after the other, at the objectives."""

MOST_REQUESTS = 20_000

SHORT = (32, 8, 3)
"""Before the whole of a simulation, so many parts of it: enough where too many requests are late already."""

ALONE = 32
"""Requests that are simulated without load."""

IDLE = 50
"""Without load, requests come so many times further apart than they take."""

SUSTAINED = 0.9
"""Requests must leave at least at this share of the rate at which they come."""

QUEUE = 10**9
"""Nothing is refused: a plan's queues are as long as they get."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked for: lengths as `corepipe simulate` takes them; `requests` None: as many as it takes."""

    input_len: Lengths
    output_len: Lengths
    objectives: Objectives
    requests: int | None
    seed: int

    def stream(self, rate: float, requests: int) -> Synthetic:
        """So many requests at a rate; fewer are the first of more."""
        return Synthetic(self.input_len, self.output_len, requests, arrivals=Arrivals(rate), seed=self.seed)

    def sizes(self) -> RequestSizes:
        """Of every request that any simulation may hold."""
        most = self.requests or MOST_REQUESTS
        turns = first_requests(self.stream(1.0, most).workload(), most)
        return RequestSizes(
            np.array([turn.prompt_tokens for turn in turns]), np.array([turn.output_tokens for turn in turns])
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """What Programs depend on.  instance, profile: those for which a pipeline's stages are balanced."""

    format: Format
    pipeline: int
    tensor: int
    instance: str | None
    profile: RuntimeProfile | None


@dataclass(frozen=True)
class Placed(DevicePlan):
    """A DevicePlan whose cost models are made once for all simulations, one for each replica."""

    costs: tuple[CostModel, ...] = ()

    def timeline(self, replica: int) -> Timeline:
        return Timeline(self.costs[replica], self.profile)


class Workbench:
    """Implements `search.Evaluator` for one model: `prices` of instances by name, dollars an hour."""

    def __init__(
        self, architecture: Architecture, demand: Demand, prices: Mapping[str, float], max_model_len: int
    ) -> None:
        self._architecture = architecture
        self._demand = demand
        self._prices = prices
        self._max_model_len = max_model_len
        self._sizes = demand.sizes()
        self._graph = cache(self._make_graph)
        self._programs = cache(self._make_programs)
        self._cost = cache(self._make_cost)
        self._memory = cache(self._make_memory)
        self._bounds = cache(self._make_bounds)
        self._measure = cache(self._make_measurement)
        self._alone = cache(self._make_alone)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return int(self._sizes.prompts.max())

    def failure(self, candidate: Candidate) -> Failure | None:
        try:
            return self._bounds_of(candidate).failure(candidate.limits)
        except UserError as error:  # the model cannot be cut so
            return Failure(Reason.UNSUPPORTED, error.message.splitlines()[0])

    def fewest(self, candidate: Candidate) -> int:
        return self._bounds_of(candidate).fewest(candidate.limits)

    def estimate(self, candidate: Candidate, instances: int) -> float:
        return self._bounds_of(candidate).estimate(candidate.limits, instances)

    def price(self, shape: Shape) -> float:
        return self._prices[shape.instance]

    def measure(self, deployment: Deployment) -> Outcome:
        return self._measure(twin(deployment.candidate), deployment.instances)

    def _make_measurement(self, candidate: Candidate, instances: int) -> Outcome:
        """Parts of the simulation before the whole: what fails on a part fails on the whole."""
        rate = self._demand.objectives.rate / instances
        whole = self._requests(rate)
        for parts in SHORT:
            failure = self._early_failure(self._run(candidate, rate, whole // parts), whole)
            if failure is not None:
                return failure
        return self.outcome(self._run(candidate, rate, whole))

    def alone(self, candidate: Candidate) -> Outcome:
        return self._alone(twin(candidate))

    def _make_alone(self, candidate: Candidate) -> Outcome:
        seconds = self._bounds_of(candidate).fastest(candidate.limits)
        return self.outcome(self._run(candidate, 1 / (IDLE * seconds), ALONE))

    def outcome(self, report: Report) -> Outcome:
        """What a simulation means for the objectives."""
        objectives, latencies = self._demand.objectives, Latencies.of(report.requests)
        ttft = objectives.quantile(latencies.ttft)
        tpot = objectives.quantile(latencies.tpot[report.requests["output_tokens"] > 1])
        failure = _worst(
            _missed(Reason.TTFT, ttft, objectives.ttft),
            _missed(Reason.TPOT, tpot, objectives.tpot),
            _unsustained(report),
        )
        latency = objectives.quantile(latencies.e2e)
        return Outcome(ttft, tpot, latency, report.throughput.output_tokens, failure)

    def simulate(self, deployment: Deployment) -> Report:
        """The whole simulation of one of the deployment's instances."""
        rate = self._demand.objectives.rate / deployment.instances
        return self._run(deployment.candidate, rate, self._requests(rate))

    def config(self, candidate: Candidate) -> SimulationConfig:
        """What `corepipe simulate` would be asked for this candidate."""
        return SimulationConfig(self._engine(candidate), self._slo())

    def _bounds_of(self, candidate: Candidate) -> Bounds:
        return self._bounds(twin(candidate))

    def _requests(self, rate: float) -> int:
        """How many requests show a steady state at this rate of one instance."""
        if self._demand.requests is not None:
            return self._demand.requests
        objectives, answer = self._demand.objectives, float(self._sizes.answers.mean())
        seconds = (objectives.ttft or 0.0) + answer * (objectives.tpot or 0.0)
        return min(MOST_REQUESTS, max(LEAST_REQUESTS, ceil(TURNOVERS * rate * seconds)))

    def _early_failure(self, report: Report, whole: int) -> Outcome | None:
        """A part's outcome, where so many of its requests are late that the whole must fail too: requests
        that come later make none of them faster."""
        outcome, late = self.outcome(report), _late(report, self._slo())
        most = whole - floor(self._demand.objectives.percentile / 100 * (whole - 1))
        return outcome if outcome.failure is not None and late >= most else None

    def _run(self, candidate: Candidate, rate: float, requests: int) -> Report:
        workload = self._demand.stream(rate, max(1, requests)).workload()
        return simulate(self.config(candidate), workload, device=self.place(candidate))

    def _slo(self) -> Slo:
        return Slo(self._demand.objectives.ttft, self._demand.objectives.tpot)

    def _engine(self, candidate: Candidate) -> EngineConfig:
        shape, limits = candidate.shape, candidate.limits
        place = shape.placement
        return validated(
            EngineConfig,
            {
                "model": self._architecture.name,
                "format": shape.format.name,
                "instance": shape.instance,
                "lnc": shape.lnc,
                "pipeline": place.pipeline,
                "tensor": place.tensor,
                "data": place.data,
                "clock": "virtual",
                "profile": shape.profile.name,
                "policy": shape.profile.policy,
                "max_model_len": limits.max_model_len,
                "max_num_seqs": limits.max_num_seqs,
                "max_num_batched_tokens": limits.max_num_batched_tokens,
                "block_size": BLOCK_SIZE,
                "max_queued_requests": QUEUE,
                "max_queued_tokens": QUEUE,
            },
        )

    def place(self, candidate: Candidate) -> Placed:
        """The candidate's model on its instance, for any number of simulations."""
        shape, limits = candidate.shape, candidate.limits
        cores = self._cores(candidate)
        blocks = blocks_that_fit(cores, shape.placement.data, shape.device)
        needed = limits.max_num_seqs * -(-limits.max_model_len // BLOCK_SIZE)
        return Placed(
            graph=self._graph(shape.format),
            instance=shape.device,
            placement=shape.placement,
            reason="chosen by the planner",
            programs=self._programs(_cut(shape)),
            memory=MemoryPlan(min(blocks, needed), cores),
            profile=shape.profile,
            batch=limits.max_num_seqs,
            costs=tuple(self._cost(shape, limits.max_num_seqs, n) for n in range(shape.placement.data)),
        )

    def _make_bounds(self, candidate: Candidate) -> Bounds:
        shape, limits = candidate.shape, candidate.limits
        host = 0.0 if shape.profile.asynchronous else shape.profile.host_seconds
        cost = self._cost(shape, limits.max_num_seqs, 0)
        return Bounds(Timed(shape, cost, self._cores(candidate), host), self._sizes, self._demand.objectives)

    def _make_cost(self, shape: Shape, sequences: int, replica: int) -> CostModel:
        """Of one replica, with decode graphs for so many sequences."""
        if sequences > 1:
            return self._cost(shape, 1, replica).with_batch(sequences)
        return CostModel(
            self._programs(_cut(shape)), shape.device, shape.profile, shape.placement.data, replica, batch=1
        )

    def _cores(self, candidate: Candidate) -> tuple[CoreMemory, ...]:
        """Memory of one replica's cores."""
        limits = candidate.limits
        return self._memory(_cut(candidate.shape), limits.max_num_seqs, limits.max_num_batched_tokens)

    def _make_memory(self, cut: Cut, sequences: int, tokens: int) -> tuple[CoreMemory, ...]:
        """Cores whose Programs are alike are measured once."""
        limits = Limits(self._max_model_len, sequences, tokens, BLOCK_SIZE, max_blocks=1)
        programs = self._programs(cut)
        distinct = {id(program.ops): program for program in programs}
        measured = dict(zip(distinct, measure(list(distinct.values()), limits), strict=True))
        return tuple(measured[id(program.ops)] for program in programs)

    def _make_programs(self, cut: Cut) -> tuple[Program, ...]:
        """The Programs of one replica."""
        graph, placement = self._graph(cut.format), Placement(cut.pipeline, cut.tensor)
        if cut.instance is None or cut.profile is None:
            return compile_for_timing(graph, placement)
        return modes.compiler(graph, find_instance(cut.instance), cut.profile)(placement)

    def _make_graph(self, fmt: Format) -> Graph:
        return self._architecture.graph(fmt, self._max_model_len)


def _cut(shape: Shape) -> Cut:
    pipeline, tensor = shape.placement.pipeline, shape.placement.tensor
    if pipeline == 1:
        return Cut(shape.format, pipeline, tensor, None, None)
    return Cut(shape.format, pipeline, tensor, shape.instance, shape.profile)


def twin(candidate: Candidate) -> Candidate:
    """The same on the first instance of the catalogue with the same device: it differs in host and price."""
    shape = candidate.shape
    device = shape.device
    alike = (i if shape.lnc is None else i.with_lnc(shape.lnc) for i in INSTANCES)
    first = next(i for i in alike if _device(i) == _device(device))
    return (
        candidate
        if first.name == device.name
        else replace(candidate, shape=replace(shape, instance=first.name))
    )


def _device(instance: Instance) -> tuple[object, ...]:
    """All that times and memory depend on."""
    chip = replace(instance.chip, name="")
    return chip, instance.chips, instance.topology, instance.link_bytes_per_second, instance.lnc


def _missed(reason: Reason, seconds: float, objective: float | None) -> Failure | None:
    if objective is None or seconds <= objective:
        return None
    return Failure(reason, f"{reason} of {seconds * 1e3:.4g} ms", seconds / objective)


def _worst(*failures: Failure | None) -> Failure | None:
    return max((f for f in failures if f is not None), key=lambda f: f.excess, default=None)


def _unsustained(report: Report) -> Failure | None:
    """Whether requests leave more slowly than they come."""
    arrivals, ends = report.requests["arrival"], report.requests["last_at"]
    came, left = float(np.ptp(arrivals)), float(np.ptp(ends))
    if left <= came / SUSTAINED or came == 0:
        return None
    return Failure(Reason.THROUGHPUT, f"sustains {came / left:.0%} of the rate", left / came)


def _late(report: Report, slo: Slo) -> int:
    """Requests that miss the objective that most of them miss."""
    latencies = Latencies.of(report.requests)
    pairs = ((slo.ttft, latencies.ttft), (slo.tpot, latencies.tpot))
    return max((int((seconds > limit).sum()) for limit, seconds in pairs if limit is not None), default=0)
