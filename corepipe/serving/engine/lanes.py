"""Who owns time: always takes the earliest event over all replicas, under whichever clock.

Under the host clock a batch is due as soon as it is submitted, and taking it means waiting for the
executor: the order of submission decides.  Where the device sets the pace, a batch is due when the device
would have it, and the first core says when it takes the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, nextafter

from corepipe.neuron.clock import LATE_SECONDS, Clock
from corepipe.scheduler.request import Request
from corepipe.serving.engine.engine import Engine, Flight, Landing
from corepipe.serving.engine.router import choose_replica
from corepipe.serving.messages import StepPace


@dataclass(slots=True, eq=False)
class Lane:
    """Replica number `number`: its engine and its batches in flight, oldest first, each with its time.

    accepts_at: when the first core takes another batch.  stirred: something has happened since the
    scheduler last had nothing to give.  landed_at: when the last batch was due.  paces: of the batches that
    have landed, where the host has a pace to keep; whoever reads them takes them.
    """

    number: int
    engine: Engine
    most_flights: int
    flights: deque[tuple[float, Flight]] = field(default_factory=deque)
    accepts_at: float = 0.0
    stirred: bool = False
    late_steps: int = 0
    landed_at: float = 0.0
    paces: list[StepPace] = field(default_factory=list)

    @property
    def may_submit(self) -> bool:
        """Whether another batch can be tried once the first core accepts it."""
        return self.stirred and len(self.flights) < self.most_flights

    @property
    def due(self) -> float:
        """When the oldest batch is due; infinity where none is in flight."""
        return self.flights[0][0] if self.flights else inf

    def keep_pace(self, flight: Flight, due: float, behind: float) -> None:
        """Notes that the host had a batch `behind` seconds too late."""
        began = max(self.landed_at, flight.timing.submitted_at)
        self.late_steps += behind > LATE_SECONDS
        self.paces.append(StepPace(began - self.landed_at, due - began, behind))
        self.landed_at = due

    def next_event(self) -> float:
        """When a batch is due or another can be submitted; infinity: not before a request comes."""
        return min(self.due, self.accepts_at) if self.may_submit else self.due


class Lanes:
    """The replicas of a deployment under one clock.  paced: the device decides when a result may leave."""

    def __init__(self, lanes: Sequence[Lane], clock: Clock, *, paced: bool, margin: int) -> None:
        self._lanes = tuple(lanes)
        self._clock = clock
        self._paced = paced
        self._margin = margin

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def next_event(self) -> float:
        """When there is anything to do, on the clock; infinity: not before a request comes."""
        return min([lane.next_event() for lane in self._lanes])

    def due(self) -> float:
        """When the next batch lands, on the clock; infinity: none is in flight."""
        return min([lane.due for lane in self._lanes])

    def complete(self) -> tuple[Lane, Landing] | None:
        """Takes the next event, however far off: a batch that lands, or a wait until one can be submitted.

        Waits for the executor's result, and then until the device would have it.
        """
        event = self.next_event()
        if event == inf:
            return None
        lane = min(self._lanes, key=_due)
        if lane.due == event:
            return lane, self._land(lane)
        if self._clock.now() < event:
            self._clock.wait_until(event)
        return None

    def submit(self) -> list[tuple[Lane, Flight]]:
        """Starts a batch wherever a replica accepts one; those that were started."""
        now = self._clock.now()
        started = []
        while (lane := self._next_to_start(now)) is not None:
            flight = self._launch(lane, now)
            if flight is not None:
                started.append((lane, flight))
        return started

    def route(self, request: Request) -> Lane:
        """The replica that takes a new request."""
        if len(self._lanes) == 1:
            return self._lanes[0]
        return self._lanes[choose_replica([lane.engine.view(request) for lane in self._lanes], self._margin)]

    def moment(self) -> float:
        """The time of what comes from outside now: where the device sets the pace, before the batches that
        have not landed yet, however late the host is with them."""
        now = self._clock.now()
        return min(now, nextafter(self.due(), -inf)) if self._paced else now

    def stir(self, lane: Lane, moment: float) -> None:
        """A request has come to this replica, or was given up, at `moment`."""
        if self._paced:
            lane.engine.device.advance(moment)
        self._stir(lane, moment)

    def _next_to_start(self, now: float) -> Lane | None:
        """A replica that takes a batch now.  Where the device sets the pace, they start in the order of its
        time, and what is due before lands before, even where the host is late with both."""
        waiting = [lane for lane in self._lanes if lane.may_submit and lane.accepts_at <= now]
        if not waiting or not self._paced:
            return waiting[0] if waiting else None
        first = min(waiting, key=_accepts_at)
        return first if first.accepts_at < self.due() else None

    def _launch(self, lane: Lane, now: float) -> Flight | None:
        flight = lane.engine.submit()
        lane.stirred = flight is not None
        if flight is not None:
            lane.accepts_at = flight.timing.accepts_at if self._paced else now
            lane.flights.append((flight.timing.ready_at if self._paced else now, flight))
        return flight

    def _land(self, lane: Lane) -> Landing:
        due, flight = lane.flights.popleft()
        landing = lane.engine.complete(flight)
        behind = self._clock.behind(due)
        if behind is not None:
            lane.keep_pace(flight, due, behind)
        self._clock.wait_until(due)
        self._stir(lane, due)
        return landing

    def _stir(self, lane: Lane, moment: float) -> None:
        """What has happened may be answered at once, and not before."""
        lane.stirred = True
        lane.accepts_at = max(lane.accepts_at, moment)


def _accepts_at(lane: Lane) -> float:
    return lane.accepts_at


def _due(lane: Lane) -> float:
    return lane.due
