"""A workload as the source of the loop that serves: requests at their arrival times, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from corepipe.engine.drafters.synthetic import SyntheticDrafter
from corepipe.neuron.timing.clock import Clock
from corepipe.scheduler.scheduler import QueueFull
from corepipe.simulation.record import SimulationRecord
from corepipe.simulation.simulated_request import SimulatedRequest
from corepipe.workload.workload import Session, Workload

RETRY_SECONDS = 1.0
"""The time after which a refused user of a closed loop retries."""


class Numbered(Protocol):
    """A replica."""

    @property
    def number(self) -> int: ...


class RequestReceiver(Protocol):
    """The receiver of requests; `Loop` is one."""

    def next_event(self) -> float: ...

    def add(self, request: SimulatedRequest, /) -> Numbered: ...


DrafterMaker = Callable[[int], SyntheticDrafter]
"""A function from n to the drafter of the n-th admitted request."""


class WorkloadSource:
    """The requests of a workload in order of their arrival, each added to `loop` when its time has come on
    `clock`; implements `loop.Source`.  `record` notes what was sent; `generates`: whether requests
    generate tokens; `drafters`: makes the drafters of requests (None: a step has one token of each)."""

    def __init__(
        self,
        workload: Workload,
        loop: RequestReceiver,
        clock: Clock,
        record: SimulationRecord,
        *,
        generates: bool = True,
        drafters: DrafterMaker | None = None,
    ) -> None:
        self._generates = generates
        self._drafters = drafters
        self._admitted = 0
        self._workload = workload
        self._loop = loop
        self._clock = clock
        self._record = record
        self._sessions = workload.sessions()
        self._coming: list[tuple[float, int, Session, int]] = []
        self._sequence = 0
        self._taken = 0
        for _ in range(workload.users or 1):
            self._start(0.0)

    def next_arrival(self) -> float:
        """Returns the time of the next arrival in seconds; infinity: none, unless a request ends."""
        return self._coming[0][0] if self._coming else inf

    def receive(self) -> bool:
        """Adds all requests of the next arrival time, unless another event comes before it."""
        if self._record.lost:
            return False
        if self.waits:
            return True
        now = self.next_arrival()
        if now == inf:
            return False
        self._clock.wait_until(now)
        while self.next_arrival() <= now:
            self._add(self._take())
        return True

    @property
    def waits(self) -> bool:
        """Returns whether an event comes before the next request, or at the same time."""
        event = self._loop.next_event()
        return event <= self.next_arrival() and event < inf

    @property
    def share(self) -> float:
        """Returns the share of the workload that has come, 0 to 1, where its length is known; else 0, and 1
        at its end."""
        if not self._coming:
            return 1.0
        most = self._workload.requests
        return (
            self._taken / most if most else min(1.0, self.next_arrival() / (self._workload.duration or inf))
        )

    def ended(self, request: SimulatedRequest, now: float) -> None:
        """Schedules the turns or sessions that follow an answered request."""
        session, following = request.session, request.session.following(request.turn)
        for turn in following:
            self._push(now + session.turns[turn].think_seconds, session, turn)
        if not following and self._workload.users is not None:
            self._start(now + self._workload.think_seconds)

    def _take(self) -> SimulatedRequest:
        """Returns the next request."""
        arrival, _, session, turn = heappop(self._coming)
        request = SimulatedRequest.of(self._taken, session, turn, arrival)
        self._taken += 1
        if self._workload.users is None and turn == 0:
            self._start(0.0)
        return request

    def _add(self, request: SimulatedRequest) -> None:
        room = self._record.limits.max_model_len - len(request.prompt)
        request.max_tokens = min(request.max_tokens, room) if self._generates else 0
        if self._drafters is not None:
            request.drafter = self._drafters(self._admitted)
        try:
            self._record.admitted(self._loop.add(request).number)
            self._admitted += 1
        except QueueFull:
            self._refused("overloaded")
        except ValueError:
            self._refused("invalid")

    def _refused(self, kind: str) -> None:
        """Ends the session of a refused request; a user of a closed loop retries."""
        self._record.refused(kind)
        if self._workload.users is not None:
            self._start(self._clock.now() + RETRY_SECONDS)

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
