"""One replica's engine: requests in, batches out, in two moves."""

from __future__ import annotations

from dataclasses import dataclass

from corepipe.neuron.timeline import Timing
from corepipe.scheduler.request import FinishReason, Request, TokenEvent
from corepipe.scheduler.scheduler import Scheduler
from corepipe.serving.deployment import Replica
from corepipe.serving.device_time import DeviceTime
from corepipe.serving.messages import Output, Sampling, Stats
from corepipe.serving.reporter import Reporter
from corepipe.serving.router import ReplicaView
from corepipe.serving.runner import Runner, Step, StepResult
from corepipe.serving.tally import Tally


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch under way, and when the device runs it."""

    step: Step
    timing: Timing


@dataclass(frozen=True, slots=True)
class Landing:
    """A batch that is complete, and what it meant for its requests."""

    result: StepResult
    events: list[TokenEvent]


class Engine:
    """Schedules, submits and completes the batches of one replica.  A driver says when."""

    def __init__(self, replica: Replica) -> None:
        self.device = DeviceTime(replica.timeline)
        self._scheduler = Scheduler(replica.scheduler, replica.policy)
        self._runner = Runner(replica.executor)
        self._reporter = Reporter(self.device)
        self._tally = Tally(replica.timeline)

    def submit(self, now: float) -> Flight | None:
        """Starts the next batch and does not wait; None where nothing can be scheduled."""
        batch = self._scheduler.schedule()
        if batch is None:
            return None
        step = self._runner.submit(batch)
        self._reporter.schedule(batch, now)
        return Flight(step, self.device.submit(step.shape))

    def complete(self, flight: Flight) -> Landing:
        """Waits for the oldest batch and tells the scheduler what came of it."""
        result = self._runner.wait(flight.step)
        events = self._scheduler.update(flight.step.batch, result.tokens)
        self.device.land(flight.timing, events)
        self._tally.count(result, events)
        self._forget(events)
        return Landing(result, events)

    def outputs(self, landing: Landing, now: float) -> list[Output]:
        """What the requests' owners are told of a batch that landed at `now`."""
        return self._reporter.outputs(landing.result, landing.events, now)

    def add(self, request: Request, params: Sampling, seed: int) -> None:
        """Queues a request.  Raises QueueFull."""
        self._scheduler.add(request)
        self._runner.add(request, params, seed)
        self._reporter.add(request)
        self.device.arrive(request.id)

    def abort(self, request_id: str) -> Output | None:
        """The last news of a request that is given up; None where it is unknown or has ended."""
        request = self._scheduler.abort(request_id)
        if request is None:
            return None
        self._runner.remove(request_id)
        return self._reporter.end(request, FinishReason.ABORT)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._runner

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Of the requests that have not ended, in order of arrival."""
        return self._runner.request_ids

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._runner)

    def view(self, request: Request) -> ReplicaView:
        """What the router asks about this replica."""
        return ReplicaView(self._scheduler.cached_prefix(request.prompt, request.cache_salt), self.unfinished)

    def stats(self, replica: int, late_steps: int) -> Stats:
        """Gauges and counters of this engine, which is replica number `replica`."""
        return self._tally.stats(replica, late_steps, self._scheduler, self.device.now)

    def _forget(self, events: list[TokenEvent]) -> None:
        for event in events:
            if event.finish_reason is not None:
                self._runner.remove(event.request.id)
