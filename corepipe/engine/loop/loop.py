"""The loop, which owns time: it always takes the earliest event over all replicas, under whichever clock.

Under the host clock a batch is due as soon as it is submitted, and taking it means waiting for the executor:
the order of submission decides. Where the device sets the pace, a batch is due when the device would have it,
and the first core decides when it takes the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, nextafter
from typing import Protocol

from corepipe.engine.loop.replica import Completed, InFlight, Replica
from corepipe.engine.loop.router import ReplicaRouter
from corepipe.engine.loop.turn_queue import TurnQueue
from corepipe.neuron.timing.clock import Clock
from corepipe.scheduler.request import Request

LEAD_SECONDS = 2e-4
"""The time before an event at which a wait for outside input ends, so that the clock can end it on time."""


class RequestSource(Protocol):
    """The source of requests."""

    def next_arrival(self) -> float:
        """Returns when the next request comes, on the clock; infinity: that is not known before it comes."""

    def receive(self) -> bool:
        """Adds and aborts the requests that have come, and may wait for them; False: nothing comes any
        more."""


class LoopListener(Protocol):
    """The receiver of the loop's events."""

    def submitted(self, replica: Replica, batch: InFlight) -> None:
        """Called when a batch has been started."""

    def completed(self, replica: Replica, batch: Completed, behind: float | None) -> None:
        """Called when a batch is complete, so many host seconds later than it was due (None: that is not
        defined)."""


class Loop:
    """Runs the replicas of a deployment under one clock.

    router: chooses among the replicas' schedulers. The times at which each replica is next due, and next
    takes a batch, are noted whenever it is acted upon, so that not every replica has to be asked at each
    event.
    """

    def __init__(
        self, replicas: Sequence[Replica], clock: Clock, listener: LoopListener, router: ReplicaRouter
    ) -> None:
        self.replicas = tuple(replicas)
        self._router = router
        self._dues = TurnQueue(len(self.replicas))
        self._starts = TurnQueue(len(self.replicas))
        self._clock = clock
        self._listener = listener
        self._moment: float | None = None  # the time of this turn's input
        self._came_last = -inf  # the time of an earlier turn's input

    def turns(self, source: RequestSource) -> Iterator[None]:
        """Runs until the source is at its end.

        A turn completes the batch that is due, takes the requests that come and starts the batches that can
        start; then, while these compute, the caller runs.
        """
        while True:
            self.complete(until=source.next_arrival())
            if not source.receive():
                return
            self.submit()
            yield

    def next_event(self) -> float:
        """Returns when there is anything to do, on the clock; infinity: not before a request comes."""
        return min(self._dues.first[0], self._starts.first[0])

    def patience(self) -> float | None:
        """Returns the host seconds to wait for outside input; None: without limit."""
        event = self.next_event()
        return None if event == inf else max(0.0, self._clock.host_seconds_until(event) - LEAD_SECONDS)

    def complete(self, within: float = LEAD_SECONDS, until: float = inf) -> None:
        """Takes the next event, if it is not more than `within` host seconds off, and not after `until`: a
        batch that is due, or a wait until one can be submitted.

        Where the device sets the pace, batches that are due at the same time are one event: nothing comes
        between.
        """
        event = self.next_event()
        if event == inf or event > until or self._clock.host_seconds_until(event) > within:
            return
        due, number = self._dues.first
        if due > event:
            self._clock.wait_until(event)
            return
        self._take(self.replicas[number])
        while self._clock.paced and self._dues.first[0] <= event:
            self._take(self.replicas[self._dues.first[1]])

    def submit(self) -> None:
        """Starts a batch wherever a replica accepts one."""
        self._moment = None
        now = self._clock.now()
        while (replica := self._next_to_start(now)) is not None:
            batch = replica.submit(now)
            self._changed(replica)
            if batch is not None:
                self._listener.submitted(replica, batch)

    def moment(self) -> float:
        """Returns the time of the outside input of now, until the next `submit`.

        Where the device sets the pace, the batches that could start before have been started, and those that
        are due come later, however late the host is with them. All input of one moment comes before anything
        starts: input after a `submit` comes later, even where the host's clock has not moved since.
        """
        if self._moment is None:
            self._moment = self._paced_moment() if self._clock.paced else self._clock.now()
        return self._moment

    def _paced_moment(self) -> float:
        self.submit()
        now = max(self._clock.now(), nextafter(self._came_last, inf))
        self._came_last = min(now, nextafter(self._dues.first[0], -inf))
        return self._came_last

    def add(self, request: Request) -> Replica:
        """Returns the replica that has taken the request on, which comes at its `arrival`. Raises QueueFull,
        and ValueError for a request that can never run."""
        replica = self.replicas[self._router.choose(request)]
        try:
            replica.add(request)
        finally:  # a refused request changes it as well
            self._changed(replica)
        return replica

    def release(self, request: Request) -> Replica:
        """Lets a request that was added and is held start; returns its replica."""
        moment = self.moment()
        replica = next(one for one in self.replicas if request.id in one.scheduler)
        replica.release(request, moment)
        self._changed(replica)
        return replica

    def abort(self, request_id: str) -> Request | None:
        """Aborts a request; returns None where it is unknown or has ended."""
        moment = self.moment()
        for replica in self.replicas:
            request = replica.abort(request_id, moment)
            if request is not None:
                self._changed(replica)
                return request
        return None

    def _changed(self, replica: Replica) -> None:
        """Notes when a replica that was acted upon is next due and next takes a batch."""
        self._dues.put(replica.number, replica.due)
        self._starts.put(replica.number, replica.starts_at)
        self._router.loaded(replica.number)

    def _take(self, replica: Replica) -> None:
        """Completes the replica's oldest batch: waits for the runner, and then until the device would have
        it."""
        batch = replica.complete()
        self._changed(replica)
        behind = self._clock.behind(batch.due)
        self._clock.wait_until(batch.due)
        self._listener.completed(replica, batch, behind)

    def _next_to_start(self, now: float) -> Replica | None:
        """Returns a replica that takes a batch now. Where the device sets the pace, batches start in the
        order of its time, and those due before come before, even where the host is late with both."""
        if not self._clock.paced:
            return next((replica for replica in self.replicas if replica.accepts(now)), None)
        moment, number = self._starts.first
        return self.replicas[number] if moment <= now and moment < self._dues.first[0] else None
