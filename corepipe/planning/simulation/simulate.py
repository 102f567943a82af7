"""A workload through a deployment in virtual time: the scheduler, policy, router and device timelines that
serve HTTP, with nothing computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf

from corepipe.models import registry
from corepipe.neuron.clock import VirtualClock
from corepipe.neuron.timeline import Timeline
from corepipe.planning.simulation.fast_forward import fast_forward, fast_forward_together
from corepipe.planning.simulation.patience import Patience
from corepipe.planning.simulation.record import Record
from corepipe.planning.simulation.report import Report
from corepipe.planning.simulation.simulated import NullRunner, SimulatedRequest
from corepipe.planning.slo import NO_SLO, Slo
from corepipe.planning.workload import Session, Workload
from corepipe.scheduler.policy import Policy
from corepipe.scheduler.scheduler import QueueFull, SchedulerConfig
from corepipe.serving.config import EngineConfig
from corepipe.serving.engine.device_plan import DevicePlan, batch_policy, plan_device, scheduler_config
from corepipe.serving.engine.driver import router_margin
from corepipe.serving.engine.engine import Engine, Landing
from corepipe.serving.engine.lanes import Lane, Lanes

RETRY_SECONDS = 1.0
"""After which a user of a closed loop who was refused comes back."""

PROGRESS_REQUESTS = 100
"""Progress is told of so many requests at a time."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """A deployment, as `corepipe serve` takes it, and what is asked of it.

    Of `engine` its clock, time scale, threads, cache directory and host memory do not matter; `model` is
    what `registry.architecture` takes.
    """

    engine: EngineConfig
    slo: Slo = NO_SLO


def simulate(
    config: SimulationConfig,
    workload: Workload,
    progress: Progress | None = None,
    device: DevicePlan | None = None,
) -> Report:
    """Runs the workload to its end and says what its requests saw.

    device: the placed model, where the caller has it (`device_plan.plan_device(config.engine, ...)`); it
    can be used for any number of workloads.  The same arguments give the same report, byte for byte.
    Raises UserError for what cannot be deployed, and for what is wrong in the workload.
    """
    device = device or plan_device(_virtual(config.engine), registry.architecture(config.engine.model))
    return Report.of(play(config, workload, device, progress), device, config.slo, workload)


def play(
    config: SimulationConfig,
    workload: Workload,
    device: DevicePlan,
    progress: Progress | None = None,
    patience: Patience | None = None,
) -> Record:
    """Runs the workload to its end, or until it is lost; what happened."""
    engine = _virtual(config.engine)
    most, blocks = device.graph.max_positions, device.memory.num_blocks
    limits = scheduler_config(engine, device, blocks, most, max_cached_blocks=None)
    if not workload.shares_prefixes:  # nothing would be found: the same times, without looking
        limits = replace(limits, prefix_cache=False)
    timelines = [device.timeline(replica) for replica in range(device.placement.data)]
    simulation = Simulation(limits, batch_policy(engine), timelines, workload, patience)
    return simulation.run(progress or _silent)


def _virtual(engine: EngineConfig) -> EngineConfig:
    return engine.model_copy(update={"clock": "virtual", "time_scale": 1.0})


def _silent(_what: str, _done: float) -> None:
    pass


class Simulation:
    """One run of a workload over replicas: a timeline for each, and the limits and the policy of all.

    patience: ends the run when it is lost.  step_by_step: without running through repetitions; the same
    result, later.
    """

    def __init__(
        self,
        limits: SchedulerConfig,
        policy: Policy,
        timelines: Sequence[Timeline],
        workload: Workload,
        patience: Patience | None = None,
        *,
        step_by_step: bool = False,
    ) -> None:
        self._clock = VirtualClock()
        engines = [Engine(limits, policy, NullRunner(), timeline) for timeline in timelines]
        lanes = [Lane(number, engine, limits.most_in_flight) for number, engine in enumerate(engines)]
        self._lanes = Lanes(lanes, self._clock, paced=True, margin=router_margin(limits))
        self._max_model_len = limits.max_model_len
        self._source = _Source(workload)
        self._patience = patience
        self._record = Record(limits, lanes, patience)
        apart = len(lanes) == 1 or not workload.chained
        self._run_through = None if step_by_step else fast_forward if apart else fast_forward_together

    def run(self, progress: Progress = _silent) -> Record:
        """Plays all arrivals and runs until the last request has ended, or the run is lost."""
        shown = 0
        while True:
            while self._due() and not self._lost():
                if not self._ran_through() or self._due():
                    self._turn()
            if self._record.sent >= shown:
                progress("simulating", self._source.share)
                shown = self._record.sent + PROGRESS_REQUESTS
            if self._source.next_arrival == inf or self._lost():
                progress("simulating", 1.0)
                return self._record
            self._arrive()

    def _lost(self) -> bool:
        return self._patience is not None and self._patience.lost

    def _due(self) -> bool:
        """Whether anything happens before the next request comes, or at that moment."""
        event = self._lanes.next_event()
        return event <= self._source.next_arrival and event < inf

    def _ran_through(self) -> bool:
        """Whether anything was run through that comes before the next request."""
        if self._run_through is None:
            return False
        return self._run_through(tuple(self._lanes), self._source.next_arrival, self._record)

    def _turn(self) -> None:
        completed = self._lanes.complete()
        if completed is not None:
            self._landed(completed[1])
        self._submit()

    def _submit(self) -> None:
        now = self._clock.now()
        for lane, flight in self._lanes.submit():
            self._record.launched(lane, flight, now)

    def _landed(self, landing: Landing) -> None:
        now = self._clock.now()
        for request in self._record.landed(landing, now):
            self._source.ended(request, now)

    def _arrive(self) -> None:
        """Takes on all that comes at the next moment, and only then schedules."""
        now = self._source.next_arrival
        self._clock.wait_until(now)
        while self._source.next_arrival <= now:
            self._admit(self._source.take())
        self._submit()

    def _admit(self, request: SimulatedRequest) -> None:
        refused = self._refusal(request)
        if refused is not None:
            self._record.refused(refused)
            self._source.refused(self._clock.now())

    def _refusal(self, request: SimulatedRequest) -> str | None:
        """Queues the request, or says why not."""
        room = self._max_model_len - len(request.prompt)
        request.max_tokens = min(request.max_tokens, room)
        try:
            lane = self._lanes.route(request)
            self._lanes.stir(lane, request.arrival)
            lane.engine.scheduler.add(request)
            self._record.admitted(lane)
        except QueueFull:
            return "overloaded"
        except ValueError:
            return "invalid"
        return None


class _Source:
    """The requests of a workload in order of their arrival."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._sessions = workload.sessions()
        self._coming: list[tuple[float, int, Session, int]] = []
        self._sequence = 0
        self._taken = 0
        for _ in range(workload.users or 1):
            self._start(0.0)

    @property
    def next_arrival(self) -> float:
        """Seconds; infinity: none, unless a request ends."""
        return self._coming[0][0] if self._coming else inf

    @property
    def share(self) -> float:
        """How far the stream is, 0 to 1, where it says how long it is; else 0, and 1 at its end."""
        if not self._coming:
            return 1.0
        most = self._workload.requests
        return self._taken / most if most else min(1.0, self.next_arrival / (self._workload.duration or inf))

    def take(self) -> SimulatedRequest:
        """The next request."""
        arrival, _, session, turn = heappop(self._coming)
        request = SimulatedRequest.of(self._taken, session, turn, arrival)
        self._taken += 1
        if self._workload.users is None and turn == 0:
            self._start(0.0)
        return request

    def ended(self, request: SimulatedRequest, now: float) -> None:
        """What follows from a request that was answered."""
        turn = request.turn + 1
        if turn < len(request.session.turns):
            self._push(now + request.session.turns[turn].think_seconds, request.session, turn)
        elif self._workload.users is not None:
            self._start(now + self._workload.think_seconds)

    def refused(self, now: float) -> None:
        """What follows from a request that was not taken: its session ends."""
        if self._workload.users is not None:
            self._start(now + RETRY_SECONDS)

    def _start(self, free_at: float) -> None:
        """Lets the next session come: at its time, or as soon as the user is free."""
        end = self._workload.duration
        if self._workload.users is not None and end is not None and free_at > end:
            return
        session = next(self._sessions, None)
        if session is not None:
            self._push(free_at if session.start is None else session.start, session, 0)

    def _push(self, time: float, session: Session, turn: int) -> None:
        heappush(self._coming, (time, self._sequence, session, turn))
        self._sequence += 1
