"""A replica that waits for more requests before it computes less than a full batch (`--max-batch-delay`)."""

from __future__ import annotations

from collections import deque
from math import inf

from corepipe.engine.loop.replica import BatchRunner, InFlight, Replica
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.request import Request, Status
from corepipe.scheduler.scheduler import Scheduler


def replica_of(
    number: int, scheduler: Scheduler, runner: BatchRunner, timeline: Timeline, *, paced: bool, delay: float
) -> Replica:
    """Makes a replica, which waits up to `delay` seconds for more requests, if that is not 0."""
    if delay:
        return DelayedReplica(number, scheduler, runner, timeline, paced=paced, delay=delay)
    return Replica(number, scheduler, runner, timeline, paced=paced)


class DelayedReplica(Replica):
    """Starts a batch when the oldest request has waited `delay` seconds of the clock, or a batch is full.

    That moment is an event of the loop like any other: no thread sleeps for it. Requests that another engine
    has lost have waited already.
    """

    def __init__(
        self,
        number: int,
        scheduler: Scheduler,
        runner: BatchRunner,
        timeline: Timeline,
        *,
        paced: bool,
        delay: float,
    ) -> None:
        super().__init__(number, scheduler, runner, timeline, paced=paced)
        self._delay = delay
        self._came: deque[Request] = deque()  # in order; some of the first may have been started or ended
        self._free_at = 0.0  # when a batch could start, without waiting for more requests
        self._held_until = -inf
        self._waits_since: float | None = None  # set where the replica was idle when the request came

    def add(self, request: Request) -> None:
        waits = not self.in_flight and self.scheduler.waiting == 0
        super().add(request)
        self._waits_since = request.arrival if waits else self._waits_since
        self._came.append(request)
        self._hold()

    def submit(self, now: float) -> InFlight | None:
        if self._paced:
            self.device_now = max(self.device_now, self._held_until)
        elif self._waits_since is not None:  # the device would have waited as long as the host
            self.device_now += min(self._delay, now - self._waits_since)
        self._waits_since = None
        started = super().submit(now)
        self._free_at = self.accepts_at
        self._hold()
        return started

    def _wake(self, moment: float) -> None:
        self._idle = False
        self._free_at = max(self._free_at, moment)
        self._hold()

    def _hold(self) -> None:
        while self._came and self._came[0].status is not Status.WAITING:
            self._came.popleft()
        waits = self._came and not self.scheduler.fills_batch
        self._held_until = self._came[0].arrival + self._delay if waits else -inf
        self.accepts_at = max(self._free_at, self._held_until)
