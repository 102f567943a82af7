"""One replica's engine: schedules batches, hands them to a runner, in two moves.  `lanes` says when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from corepipe.neuron.timeline import Timeline, Timing
from corepipe.scheduler.policy import Policy
from corepipe.scheduler.request import Batch, FinishReason, Request, Status, TokenEvent
from corepipe.scheduler.scheduler import Scheduler, SchedulerConfig
from corepipe.serving.engine.device_time import DeviceTime
from corepipe.serving.engine.router import ReplicaView
from corepipe.serving.engine.runner import Step, StepResult


class BatchRunner(Protocol):
    """What makes tokens of batches; they complete in the order in which they were submitted."""

    def submit(self, batch: Batch) -> Step:
        """Starts a batch and does not wait."""

    def wait(self, step: Step) -> StepResult:
        """Waits for a batch."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch under way, and when the device runs it."""

    step: Step
    timing: Timing


@dataclass(frozen=True, slots=True)
class Landing:
    """A batch that is complete, what it meant for its requests, and the device time of it.

    overflowed: requests that ended with it because no token can be drawn from what the model gave.
    """

    timing: Timing
    result: StepResult
    events: list[TokenEvent]
    device_now: float
    overflowed: list[Request]


class Engine:
    """The scheduler, the runner and the device timeline of one replica."""

    def __init__(
        self, limits: SchedulerConfig, policy: Policy, runner: BatchRunner, timeline: Timeline
    ) -> None:
        self.scheduler = Scheduler(limits, policy, timeline.rounds)
        self.device = DeviceTime(timeline)
        self._runner = runner

    def submit(self) -> Flight | None:
        """Starts the next batch and does not wait; None where nothing can be scheduled."""
        batch = self.scheduler.schedule()
        if batch is None:
            return None
        step = self._runner.submit(batch)
        return Flight(step, self.device.submit(step.shape))

    def complete(self, flight: Flight) -> Landing:
        """Waits for the oldest batch and tells the scheduler what came of it."""
        result = self._runner.wait(flight.step)
        overflowed = [r for r in result.overflowed if r.status is not Status.FINISHED]
        for request in overflowed:
            self.scheduler.abort(request.id, FinishReason.ERROR)
        events = self.scheduler.update(flight.step.batch, result.tokens)
        self.device.advance(flight.timing.ready_at)
        return Landing(flight.timing, result, events, self.device.now, overflowed)

    def view(self, request: Request) -> ReplicaView:
        """What the router asks about this replica."""
        return ReplicaView(self.scheduler.cached_prefix(request), self.scheduler.unfinished)
