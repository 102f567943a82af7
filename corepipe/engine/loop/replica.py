"""One data-parallel copy of the model, in this process: a scheduler, a runner and a device time line.

`loop` decides when it acts.  `ReplicaStats` counts what it does.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from math import inf
from typing import Protocol

from corepipe.engine.batch.runner import RequestFailure, StepResult, SubmittedStep
from corepipe.engine.messages import StageWork, Stats, StepPace
from corepipe.neuron.timing.clock import LATE_SECONDS
from corepipe.neuron.timing.timeline import Activity, Timeline, Timing
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


class ReplicaStats:
    """Counts what the scheduler and the timeline do not count themselves.

    encodes: nothing is generated, and the rows that the device pads to its graphs are counted.
    """

    def __init__(self, replica: Replica, *, encodes: bool = False) -> None:
        self._encodes = encodes
        self._padded_tokens = 0
        self._replica = replica
        self._steps = 0
        self._failures: Counter[str] = Counter()
        self._host_seconds = 0.0
        self._prompt_tokens = 0
        self._prompt_tokens_cached = 0
        self._generation_tokens = 0
        self._iteration_tokens: list[int] = []
        self._step_seconds: list[tuple[float, float]] = []
        self._compile_seconds: list[float] = []
        self._mask_seconds: list[float] = []
        self._activity = Activity(replica.timeline.cost)
        self._last_due = 0.0
        self._late_steps = 0
        self._paces: list[StepPace] = []

    def count(self, batch: Completed, behind: float | None) -> None:
        """Counts a batch that is complete, so many host seconds late where the host has a pace to keep.

        A prompt counts with its first token, or with its other result.
        """
        timing, result = batch.timing, batch.result
        self._steps += 1
        self._failures.update(failure.kind for failure in batch.failures)
        self._host_seconds += result.output.seconds
        self._iteration_tokens.append(result.step.shape.rows)
        self._step_seconds.append((timing.ready_at - timing.starts_at, timing.ready_at - timing.submitted_at))
        self._mask_seconds += result.step.mask_seconds
        self._activity.add(result.step.shape, sum(end - start for start, end in timing.stages))
        if behind is not None:
            self._keep_pace(batch, behind)
        for event in batch.events:
            if event.token is not None:
                self._generation_tokens += 1
                if event.request.num_generated == 1:
                    self._count_prompt(event.request)
            elif event.finish_reason is not None:
                self._count_prompt(event.request)
        if self._encodes:
            shape = result.step.shape
            self._padded_tokens += self._replica.timeline.cost.padded(shape).rows - shape.rows

    def _count_prompt(self, request: Request) -> None:
        self._prompt_tokens += len(request.prompt)
        self._prompt_tokens_cached += request.num_cached

    def compiled(self, seconds: float) -> None:
        """Counts the compilation of a grammar, of a request of this replica."""
        self._compile_seconds.append(seconds)

    def _keep_pace(self, batch: Completed, behind: float) -> None:
        began = max(self._last_due, batch.timing.submitted_at)
        self._late_steps += behind > LATE_SECONDS
        self._paces.append(StepPace(began - self._last_due, batch.due - began, behind))
        self._last_due = batch.due

    def forget(self) -> None:
        """Drops the lists that grow with each batch until they are read, for callers that do not read
        them."""
        self._iteration_tokens.clear()
        self._step_seconds.clear()
        self._paces.clear()
        self._compile_seconds.clear()
        self._mask_seconds.clear()

    def stats(self) -> Stats:
        """Returns all counts; lists of one value a batch, grammar or mask start anew."""
        iteration_tokens, self._iteration_tokens = self._iteration_tokens, []
        step_seconds, self._step_seconds = self._step_seconds, []
        paces, self._paces = self._paces, []
        compile_seconds, self._compile_seconds = self._compile_seconds, []
        mask_seconds, self._mask_seconds = self._mask_seconds, []
        scheduler, timeline = self._replica.scheduler, self._replica.timeline
        busy = timeline.busy_seconds
        return Stats(
            replica=self._replica.number,
            running=scheduler.running,
            waiting=scheduler.waiting,
            waiting_tokens=scheduler.waiting_tokens,
            blocks_total=scheduler.blocks_total,
            blocks_held=scheduler.blocks_held,
            blocks_cached=scheduler.blocks_cached,
            preemptions=scheduler.preemptions,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            prompt_tokens=self._prompt_tokens,
            prompt_tokens_cached=self._prompt_tokens_cached,
            generation_tokens=self._generation_tokens,
            steps=self._steps,
            host_busy_seconds=self._host_seconds,
            device_busy_seconds=timeline.work_seconds,
            device_now_seconds=self._replica.device_now,
            late_steps=self._late_steps,
            core_busy_seconds=list(busy),
            iteration_tokens=iteration_tokens,
            work=[
                StageWork(list(work.engines), work.flops, work.memory_bytes)
                for work in self._activity.look(busy)
            ],
            step_seconds=step_seconds,
            overflows=self._failures["overflow"],
            constraint_failures=self._failures["constraint"] + self._failures["contradiction"],
            held=scheduler.held,
            paces=paces,
            compile_seconds=compile_seconds,
            mask_seconds=mask_seconds,
            padded_tokens=self._padded_tokens,
            drafts=scheduler.drafted.drafts,
            draft_tokens=scheduler.drafted.tokens,
            accepted_tokens=scheduler.drafted.accepted,
            accepted_per_position=scheduler.drafted.accepted_per_position[:],
        )
