"""Who owns time: always takes the earliest event over all replicas, under whichever clock.

Under the host clock a batch is due as soon as it is submitted, and taking it means waiting for the
executor: the order of submission decides.  Where the device sets the pace, a batch is due when the device
would have it, and the first core says when it takes the next one.
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
"""How long before an event a wait for what comes from outside ends, so that the clock can end it on time."""


class RequestSource(Protocol):
    """Where requests come from."""

    def next_arrival(self) -> float:
        """When the next one comes, on the clock; infinity: that is not known before it comes."""

    def receive(self) -> bool:
        """Adds and aborts what has come, and may wait for it; False: nothing comes any more."""


class LoopListener(Protocol):
    """Who is told of what happens."""

    def submitted(self, replica: Replica, batch: InFlight) -> None:
        """A batch has been started."""

    def completed(self, replica: Replica, batch: Completed, behind: float | None) -> None:
        """A batch is complete, so many host seconds later than it was due (None: that cannot be said)."""


class Loop:
    """Runs the replicas of a deployment under one clock.

    router: chooses among the replicas' schedulers.  When each of them is next due, and next takes a batch, is
    noted whenever it is acted upon, so that nobody has to be asked at each event.
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
        self._moment: float | None = None  # of what comes in this turn
        self._came_last = -inf  # the moment of an earlier turn's

    def turns(self, source: RequestSource) -> Iterator[None]:
        """Runs until the source is at its end.

        A turn completes what is due, takes what comes and starts what can be started; then, while the batches
        compute, it is the caller's turn.
        """
        while True:
            self.complete(until=source.next_arrival())
            if not source.receive():
                return
            self.submit()
            yield

    def next_event(self) -> float:
        """When there is anything to do, on the clock; infinity: not before a request comes."""
        return min(self._dues.first[0], self._starts.first[0])

    def patience(self) -> float | None:
        """Host seconds to wait for what comes from outside; None: as long as it takes."""
        event = self.next_event()
        return None if event == inf else max(0.0, self._clock.host_seconds_until(event) - LEAD_SECONDS)

    def complete(self, within: float = LEAD_SECONDS, until: float = inf) -> None:
        """Takes the next event, if it is not more than `within` host seconds off, and not after `until`: a
        batch that is due, or a wait until one can be submitted.

        Where the device sets the pace, what is due at the same time is one event: nothing comes between.
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
            self.changed(replica)
            if batch is not None:
                self._listener.submitted(replica, batch)

    def moment(self) -> float:
        """The time of what comes from outside now, until the next `submit`.

        Where the device sets the pace, what could start before has been started, and what is due comes later,
        however late the host is with it.  All that comes at one moment does so before anything starts: what
        comes after a `submit` comes later, even where the host's clock has not moved since.
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
        """The replica that has taken the request on, which comes at its `arrival`.  Raises QueueFull, and
        ValueError for one that can never run."""
        replica = self.replicas[self._router.choose(request)]
        try:
            replica.add(request)
        finally:  # one that is refused has been heard of, too
            self.changed(replica)
        return replica

    def release(self, request: Request) -> Replica:
        """A request that was added and is held may start; the replica that has it."""
        moment = self.moment()
        replica = next(one for one in self.replicas if request.id in one.scheduler)
        replica.release(request, moment)
        self.changed(replica)
        return replica

    def abort(self, request_id: str) -> Request | None:
        """Gives a request up; None where it is unknown or has ended."""
        moment = self.moment()
        for replica in self.replicas:
            request = replica.abort(request_id, moment)
            if request is not None:
                self.changed(replica)
                return request
        return None

    def changed(self, replica: Replica) -> None:
        """A replica was acted upon; whoever does so in the loop's place has to say it."""
        self._dues.put(replica.number, replica.due)
        self._starts.put(replica.number, replica.starts_at)
        self._router.loaded(replica.number)

    def _take(self, replica: Replica) -> None:
        """Completes its oldest batch: waits for the runner, and then until the device would have it."""
        batch = replica.complete()
        self.changed(replica)
        behind = self._clock.behind(batch.due)
        self._clock.wait_until(batch.due)
        self._listener.completed(replica, batch, behind)

    def _next_to_start(self, now: float) -> Replica | None:
        """A replica that takes a batch now.  Where the device sets the pace, they start in the order of its
        time, and what is due before comes before, even where the host is late with both."""
        if not self._clock.paced:
            return next((replica for replica in self.replicas if replica.accepts(now)), None)
        moment, number = self._starts.first
        return self.replicas[number] if moment <= now and moment < self._dues.first[0] else None
