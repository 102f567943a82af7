"""The loop, which owns time: it always takes the earliest event over all replicas, under whichever clock.

Under the host clock a batch is due as soon as it is submitted, and taking it means waiting for the executor:
the order of submission decides. Where the device sets the pace, a batch is due when the device would have it,
and the first core decides when it takes the next one.  A router chooses the replica of each request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf, nextafter
from typing import Protocol

from corepipe.engine.loop.replica import Completed, InFlight, Replica
from corepipe.neuron.timing.clock import Clock
from corepipe.scheduler.prefix_index import PrefixIndex
from corepipe.scheduler.request import Request
from corepipe.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """The state of a replica that decides where a request goes.

    cached: tokens of the request's prompt in the replica's prefix cache; load: its unfinished requests.
    """

    cached: int
    load: int


def load_margin(max_num_seqs: int) -> int:
    """Returns how many more requests than the least loaded replica a replica may have, to be given
    another."""
    return max(2, max_num_seqs // 4)


def choose_replica(replicas: Sequence[ReplicaView], margin: int) -> int:
    """Returns the index of the replica with the longest cached prefix; the least loaded among equals, then
    the first.

    A replica with more than `margin` requests above the least loaded one is left out, so that a prefix that
    all requests share does not send all of them to one replica.
    """
    limit = min(replica.load for replica in replicas) + margin
    eligible = (index for index, replica in enumerate(replicas) if replica.load <= limit)
    return min(eligible, key=lambda index: (-replicas[index].cached, replicas[index].load))


class ReplicaRouter:
    """Chooses as `choose_replica`, among any number of replicas and without asking each of them.

    Sets of replicas are numbers, a bit for each: those that have as many unfinished requests, and those that
    have a block (`PrefixIndex`). Where layers have windows each replica is asked. `margin`: see
    `choose_replica`.
    """

    def __init__(self, schedulers: Sequence[Scheduler], margin: int) -> None:
        self._schedulers = schedulers
        self._margin = margin
        self._loads = [0] * len(schedulers)
        self._loaded = defaultdict(int, {0: (1 << len(schedulers)) - 1})
        index, several = PrefixIndex(), len(schedulers) > 1
        announced = several and all(s.announce(index, 1 << n) for n, s in enumerate(schedulers))
        self._index = index if announced else None

    def loaded(self, number: int) -> None:
        """Notes that replica `number` may have another number of unfinished requests than before."""
        load, before = self._schedulers[number].unfinished, self._loads[number]
        if load == before:
            return
        self._loads[number] = load
        self._loaded[load] |= 1 << number
        self._loaded[before] &= ~(1 << number)
        if not self._loaded[before]:
            del self._loaded[before]

    def choose(self, request: Request) -> int:
        """Returns the number of the replica that a request goes to."""
        if len(self._schedulers) == 1:
            return 0
        if self._index is None:
            views = [ReplicaView(s.cached_prefix(request), s.unfinished) for s in self._schedulers]
            return choose_replica(views, self._margin)
        loads = sorted(self._loaded)
        best = sum(self._loaded[load] for load in loads if load <= loads[0] + self._margin)
        size = self._schedulers[0].block_size
        full = range((request.num_tokens - 1) // size)  # at least one token must be computed
        for holders in self._index.chain(request.keys_of(full, size)):
            if not best & holders:
                break
            best &= holders
        return next(_first(found) for load in loads if (found := best & self._loaded[load]))


def _first(replicas: int) -> int:
    """Returns the lowest number in a set."""
    return (replicas & -replicas).bit_length() - 1


class TurnQueue:
    """A moment for each number from 0 to `size` - 1, infinity at first; the earliest is found at once.

    A heap of all moments that were ever set and may still be valid: an invalid one is dropped when it reaches
    the top.
    """

    def __init__(self, size: int) -> None:
        self._moments = [inf] * size
        self._heap: list[tuple[float, int]] = []

    def put(self, number: int, moment: float) -> None:
        """Sets the moment of a number; infinity: it has none."""
        if moment != self._moments[number]:
            self._moments[number] = moment
            if moment < inf:
                heappush(self._heap, (moment, number))

    @property
    def first(self) -> tuple[float, int]:
        """The earliest moment and the first number that has it; infinity and 0 where none has one."""
        heap, moments = self._heap, self._moments
        while heap and moments[heap[0][1]] != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else (inf, 0)


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
