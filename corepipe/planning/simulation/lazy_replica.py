"""Replicas that make many alike steps at once, when somebody acts upon them and not before.

While nothing comes and nobody ends, a batch on a single stage lands and is submitted again, token by token.
When each of these moves will be complete is known beforehand; they are made when a request comes, as many as
are complete by then, or when something new happens.  So a fleet costs what happens in it, not its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import Protocol

from corepipe.neuron.timeline import Timeline
from corepipe.planning.simulation.crowd import Together
from corepipe.planning.simulation.crowd_scheduler import CrowdScheduler
from corepipe.planning.simulation.null_runner import NullRunner
from corepipe.planning.simulation.record import Record
from corepipe.scheduler.request import Request
from corepipe.serving.engine.replica import BatchRunner, Completed, InFlight, Replica
from corepipe.serving.engine.router import Router

WORTHWHILE = 2
"""Fewer moves than this are made one by one."""

MOST = 1024
"""Moves that are foreseen at a time."""


class Player(Protocol):
    """Who plays a workload over replicas.  quiet_until: when somebody else acts at the earliest."""

    @property
    def record(self) -> Record: ...

    @property
    def quiet_until(self) -> float: ...

    def landed(self, replica: Replica, batch: Completed, now: float) -> None:
        """A batch is complete."""


class LazyReplica(Replica):
    """A replica of one stage under a virtual clock.

    stirred: takes up each that was acted upon, and that may run ahead again.  While it runs ahead its batch
    is due for everybody else when the last of its moves is.
    """

    scheduler: CrowdScheduler

    def __init__(
        self,
        number: int,
        scheduler: CrowdScheduler,
        runner: BatchRunner,
        timeline: Timeline,
        stirred: set[LazyReplica],
    ) -> None:
        super().__init__(number, scheduler, runner, timeline, paced=True)
        self._stirred = stirred
        self._ahead: _Ahead | None = None

    @property
    def due(self) -> float:
        """When the oldest batch is due, or the one that is in flight after all moves that are foreseen."""
        return super().due if self._ahead is None else self._ahead.due

    def run_ahead(self, record: Record) -> None:
        """Foresees what comes, if it is a repetition."""
        self._ahead = _Ahead.of(self, record)

    def go_on(self, listener: Player) -> None:
        """Does what the loop would have it do, as long as nothing can come between."""
        until = listener.quiet_until
        while True:
            if self._ahead is None:
                self._ahead = _Ahead.of(self, listener.record)
            due, starts_at = self.due, self.starts_at
            now = min(due, starts_at)
            if now >= until:
                return
            if due <= now:
                listener.landed(self, self.complete(), now)
                until, starts_at = listener.quiet_until, self.starts_at
            if starts_at <= now:
                batch = self.submit(now)
                if batch is not None:
                    listener.record.submitted(self, batch, now)

    def catch_up(self, moment: float) -> bool:
        """Makes the foreseen moves that are complete at `moment`, and foresees nothing more; whether there
        were any."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return False
        self._stirred.add(self)
        return ahead.move(self, moment)

    def add(self, request: Request) -> None:
        self.catch_up(request.arrival)
        self._stirred.add(self)
        super().add(request)

    def submit(self, now: float) -> InFlight | None:
        self._stirred.add(self)
        return super().submit(now)

    def complete(self) -> Completed:
        self.catch_up(inf)
        return super().complete()


class CatchingUp(Router):
    """Chooses among replicas that catch up when they are chosen."""

    def __init__(self, replicas: Sequence[LazyReplica], margin: int) -> None:
        super().__init__([replica.scheduler for replica in replicas], margin)
        self._replicas = replicas

    def choose(self, request: Request) -> int:
        """Whoever runs ahead seems to have all blocks that it had: some may have gone since, none that a
        request asks for has come.  So the one that is chosen catches up, and is then still the best or not.
        """
        if not self.indexed:
            for replica in self._replicas:
                replica.catch_up(request.arrival)
        number = super().choose(request)
        while self._replicas[number].catch_up(request.arrival):
            number = super().choose(request)
        return number


class _Ahead:
    """The moves of the crowd that is in flight on a replica; `due`: when it is due after the last of them."""

    def __init__(
        self, batch: InFlight, crowd: Together, moves: int, record: Record, timeline: Timeline
    ) -> None:
        self._batch = batch
        self._crowd = crowd
        self._record = record
        size, tokens = crowd.members, crowd.contexts
        self._contexts = range(tokens + size, tokens + size * moves + 1, size)
        self._foreseen = timeline.foresee(size, self._contexts, batch.due)
        self.due = self._foreseen.end

    @classmethod
    def of(cls, replica: LazyReplica, record: Record) -> _Ahead | None:
        """None where what comes next is no mere repetition."""
        if not replica.in_flight:
            return None
        flight = replica.in_flight[0]
        batch = flight.step.batch
        if not isinstance(batch, Together) or batch.chunks or replica.accepts_at > flight.due:
            return None
        moves = replica.scheduler.repetitions()
        if moves < WORTHWHILE:
            return None
        return cls(flight, batch, min(moves, MOST), record, replica.timeline)

    def move(self, replica: LazyReplica, until: float) -> bool:
        """Makes the moves that are complete at `until`; whether there are any.

        What comes out is what `Loop.complete` and `Loop.submit` would have done, step for step and to the
        last bit, without touching every request at every step.
        """
        times = replica.timeline.repeat(self._foreseen, until)
        if times is None:
            return False
        moves, size, record = len(times.ready_at), self._crowd.members, self._record
        moments, last = times.submitted_at, times.last
        held = list(accumulate(self._crowd.crowd.growth(moves), initial=replica.scheduler.blocks_held))
        record.together(self._crowd, moments[0])
        record.gaps_between(moments, size)
        record.steps_of(replica, size, self._contexts[:moves], times, held[1:])
        self._crowd.crowd.landed_at = last.submitted_at
        batch = replica.scheduler.repeat(self._crowd, moves)
        step = NullRunner.together(batch)
        replica.resume([InFlight(step, last, last.ready_at)], last.accepts_at, last.submitted_at)
        return True
