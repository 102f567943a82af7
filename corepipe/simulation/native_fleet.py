"""A workload over native replicas: native versions of the schedulers and time lines that serve.

They decide as `Scheduler` does, are chosen as by `ReplicaRouter` and take as long as by `Timeline`, step by
step: requests of one priority.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from types import ModuleType
from typing import TYPE_CHECKING

from corepipe.engine.drafters.synthetic import SyntheticDrafter
from corepipe.engine.loop.loop import load_margin
from corepipe.errors import UserError
from corepipe.kernels import native
from corepipe.neuron.timing.clock import VirtualClock
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.next_batch import mixed, segregated
from corepipe.scheduler.running import QueueFull
from corepipe.simulation.packed_record import PackedRecord
from corepipe.simulation.record import SimulationRecord
from corepipe.simulation.scenario import Progress, Scenario, silent
from corepipe.simulation.simulated_request import SimulatedRequest
from corepipe.simulation.source import WorkloadSource
from corepipe.simulation.step_times import StepTimes

if TYPE_CHECKING:
    from corepipe.kernels import _native

AT_ONCE = 100
"""The number of requests after which progress is reported."""

MOST_TOKENS = 1 << 30
"""More tokens than any request that can run has."""


def has_native_replicas(scenario: Scenario) -> bool:
    """Returns whether native replicas can play the scenario; False where the native module is not built."""
    limits = scenario.limits
    has_blocks = limits.keeps_state and not limits.num_states and limits.state_span is None
    known = has_blocks and scenario.policy in {mixed, segregated}
    generates = scenario.encoding is None and not scenario.max_batch_delay
    return generates and not scenario.kinds and known and _module() is not None


@dataclass(slots=True)
class NativeReplica:
    """The parts of a native replica that reports read: its `number`, `timeline` and `scheduler`."""

    number: int
    timeline: Timeline
    scheduler: _native.SimulatedReplica


class NativeSimulation:
    """One run of a workload over native replicas; `has_native_replicas` must be true for it."""

    def __init__(self, scenario: Scenario) -> None:
        module = _module()
        assert module is not None
        limits, timelines = scenario.limits, scenario.timelines
        known: list[tuple[Timeline, _native.SimulatedStepTimes]] = []
        parts = []
        for timeline in timelines:
            profile = timeline.profile
            alike = next((one for one in known if one[0].same_times(timeline)), None)
            if alike is None:
                alike = timeline, module.SimulatedStepTimes(StepTimes(timeline))
                known.append(alike)
            parts.append((alike[1], alike[0].rounds, profile.host_seconds, profile.change_seconds))
        self._reports_events = scenario.reports_events
        rates = () if scenario.drafters is None else scenario.drafters(0).rates
        margin = load_margin(limits.max_num_seqs)
        self._fleet: _native.SimulatedFleet = module.SimulatedFleet(
            limits, scenario.policy is segregated, rates, parts, margin, self._reports_events
        )
        numbered = enumerate(timelines)
        self._replicas = [NativeReplica(n, each, self._fleet.replica(n)) for n, each in numbered]
        self._early_stop = scenario.early_stop
        self.record = PackedRecord(limits, self._replicas, self._fleet, self._early_stop)
        self._alive: dict[int, SimulatedRequest] = {}
        self._sent = 0
        self._source = WorkloadSource(
            scenario.workload, self, VirtualClock(), self.record, drafters=scenario.drafters
        )

    def next_event(self) -> float:
        """Returns the time of the next event of a replica; infinity: none before a request comes."""
        return self._fleet.next_event()

    def run(self, progress: Progress = silent) -> SimulationRecord:
        """Plays all arrivals and runs until the last request has ended, or the run is lost."""
        shown = 0
        while self._play_until_next() < inf:
            self._source.receive()
            if self.record.sent >= shown:
                progress("simulating", self._source.share)
                shown = self.record.sent + AT_ONCE
        for replica in self._replicas:
            replica.timeline.ran(replica.scheduler)
        progress("simulating", 1.0)
        return self.record

    def _play_until_next(self) -> float:
        """Plays all events before the next request and returns its time; infinity: none comes, or the run is
        lost."""
        while self._fleet.advance(until := self._source.next_arrival()):
            self._hear()
            if self.record.lost:
                return inf
        return until

    def add(self, request: SimulatedRequest) -> NativeReplica:
        """Raises QueueFull, and ValueError for one that can never run."""
        prompt, asked = len(request.prompt), request.asked
        if prompt >= MOST_TOKENS:
            raise ValueError(f"a prompt of {prompt} tokens")
        number = self._sent
        self._sent += 1
        seed = request.drafter.seed if isinstance(request.drafter, SyntheticDrafter) else 0
        refused = self._fleet.add(
            number, request.arrival, prompt, request.max_tokens, asked.answer, asked.prompt, seed
        )
        if refused == "overloaded":
            raise QueueFull
        if refused is not None:
            raise ValueError("the request can never run")
        if self._reports_events:
            self._alive[number] = request
        return self._replicas[0]

    def _hear(self) -> None:
        """Takes the first tokens and ends of requests since the last call."""
        firsts, ends = self._fleet.news()
        if self._early_stop is not None:
            for number, at in firsts:
                request = self._alive[number]
                request.first_at = at
                self._early_stop.started(request)
        for number, tokens, at in ends:
            request = self._alive.pop(number)
            request.num_tokens, request.last_at = tokens, at
            if self._early_stop is not None:
                self._early_stop.ended(request)
            self._source.ended(request, at)


def _module() -> ModuleType | None:
    """Returns the native module; None where it is not built."""
    try:
        return native()
    except UserError:
        return None
