"""One data-parallel copy of the model, in this process: a scheduler, a runner and a device's time line.

`loop` decides when it acts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Protocol

from corepipe.engine.batch.runner import RequestFailure, StepResult, SubmittedStep
from corepipe.neuron.timing.timeline import Timeline, Timing
from corepipe.scheduler.request import Batch, FinishReason, Request, Status, TokenEvent
from corepipe.scheduler.scheduler import Scheduler


class BatchRunner(Protocol):
    """Computes the tokens of batches; they complete in the order in which they were submitted."""

    def add(self, request: Request) -> None:
        """Takes on a request before its first batch."""

    def remove(self, request_id: str) -> None:
        """Forgets a request that has ended; batches in flight may still hold it."""

    def submit(self, batch: Batch) -> SubmittedStep:
        """Starts a batch and does not wait."""

    def wait(self, step: SubmittedStep) -> StepResult:
        """Waits for a batch."""


@dataclass(slots=True)  # not frozen, for speed: one is made for each step
class InFlight:
    """A batch under way, when the device runs it, and when it is due on the clock."""

    step: SubmittedStep
    timing: Timing
    due: float


@dataclass(slots=True)
class Completed:
    """A batch that is complete, the events of its requests, and its device time.

    ended: the requests that ended with it; failures: those of them that could not go on. due: when it was, on
    the clock.
    """

    timing: Timing
    result: StepResult
    events: list[TokenEvent]
    ended: list[Request]
    failures: list[RequestFailure]
    device_now: float
    due: float


class Replica:
    """Replica number `number` of a deployment.

    paced: the device decides when a batch is due and when the first core takes the next one; otherwise a
    batch is due when it is submitted, and taking it means waiting for the runner. device_now: the device time
    of the last event that the scheduler knows of: the latest result, and (where the device sets the pace) the
    latest arrival. A batch is submitted to the device at that time, however long the host took to compute the
    batches before. Where the host sets the pace a request arrives at the device time of the latest result, so
    that one that comes while a batch runs waits for all of it. in_flight: batches, oldest first. accepts_at:
    when the first core takes another batch, on the clock.
    """

    def __init__(
        self, number: int, scheduler: Scheduler, runner: BatchRunner, timeline: Timeline, *, paced: bool
    ) -> None:
        self.number = number
        self.scheduler = scheduler
        self.timeline = timeline
        self.in_flight: deque[InFlight] = deque()
        self.accepts_at = 0.0
        self.device_now = 0.0
        self._runner = runner
        self._most_in_flight = scheduler.most_in_flight
        self._paced = paced
        self._idle = True  # the scheduler had no batch, and nothing has happened since

    @property
    def due(self) -> float:
        """The time at which the oldest batch is due; infinity where none is in flight."""
        return self.in_flight[0].due if self.in_flight else inf

    def next_event(self) -> float:
        """Returns when a batch is due or another can be submitted; infinity: not before a request comes."""
        return min(self.due, self.starts_at)

    @property
    def starts_at(self) -> float:
        """The time from which another batch can be tried; infinity: not before something happens."""
        if self._idle or len(self.in_flight) >= self._most_in_flight:
            return inf
        return self.accepts_at

    def accepts(self, now: float) -> bool:
        """Tells whether another batch can be tried."""
        return self.starts_at <= now

    def add(self, request: Request) -> None:
        """Queues a request that comes now, at its `arrival`.

        Raises QueueFull, and ValueError for a request that can never run.
        """
        self._hear(request.arrival)
        self.scheduler.add(request)
        self._runner.add(request)

    def release(self, request: Request, moment: float) -> None:
        """Lets a request that was added and is held start from `moment` on."""
        self._hear(moment)
        self.scheduler.release(request)

    def abort(self, request_id: str, moment: float) -> Request | None:
        """Aborts a request at `moment`; returns None where it is unknown or has ended."""
        request = self.scheduler.abort(request_id)
        if request is not None:
            self._runner.remove(request_id)
            self._hear(moment)
        return request

    def submit(self, now: float) -> InFlight | None:
        """Starts the next batch and does not wait; returns None where nothing can be scheduled."""
        batch = self.scheduler.schedule()
        self._idle = batch is None
        if batch is None:
            return None
        step = self._runner.submit(batch)
        timing = self.timeline.submit(step.shape, self.device_now)
        self.accepts_at = timing.accepts_at if self._paced else now
        started = InFlight(step, timing, timing.ready_at if self._paced else now)
        self.in_flight.append(started)
        self._idle = self.scheduler.has_enough_in_flight
        return started

    def complete(self) -> Completed:
        """Waits for the oldest batch and passes its results to the scheduler."""
        batch = self.in_flight.popleft()
        result = self._runner.wait(batch.step)
        failures: list[RequestFailure] = []
        if result.failures:
            failures = [each for each in result.failures if each.request.status is not Status.FINISHED]
            for failure in failures:
                self.scheduler.abort(failure.request.id, FinishReason.ERROR)
        events = self.scheduler.update(batch.step.batch, result.tokens)
        ended = [failure.request for failure in failures]
        ended += [event.request for event in events if event.finish_reason is not None]
        for request in ended:
            self._runner.remove(request.id)
        self.device_now = max(self.device_now, batch.timing.ready_at)
        self._wake(batch.due)
        return Completed(batch.timing, result, events, ended, failures, self.device_now, batch.due)

    def _hear(self, moment: float) -> None:
        """Notes that outside input comes at `moment`."""
        if self._paced:
            self.device_now = max(self.device_now, moment)
        self._wake(moment)

    def _wake(self, moment: float) -> None:
        """Lets the scheduler answer an event at once, and not before."""
        self._idle = False
        self.accepts_at = max(self.accepts_at, moment)
