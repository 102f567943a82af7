"""Runs through the steps in which nothing happens but one more token for everyone.

What comes out is what `Loop.complete` and `Loop.submit` would have done, step for step and to the last
bit, without touching every request at every step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter

from corepipe.engine.batch.runner import SubmittedStep
from corepipe.engine.loop.loop import Loop
from corepipe.engine.loop.replica import InFlight, Replica
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.timeline import Timing
from corepipe.simulation.record import Record
from corepipe.simulation.rotation import Group, Rotation, advance, find

WORTHWHILE = 2
"""Fewer steps than this are not run through."""


def fast_forward(loop: Loop, until: float, record: Record) -> None:
    """Runs each replica on its own to `until` at most, as far as it only repeats itself."""
    for replica in loop.replicas:
        ahead = FastForward.of(replica, record, until)
        if ahead is not None:
            ahead.move_alone(until)
            ahead.end()
            loop.changed(replica)


def fast_forward_together(loop: Loop, until: float, record: Record) -> None:
    """As `fast_forward`, but no replica gets to the moment at which another one does something new."""
    moving, news = [], inf
    for replica in loop.replicas:
        ahead = FastForward.of(replica, record, until)
        if ahead is None:
            news = min(news, replica.next_event())
        else:
            moving.append(ahead)
    while moving:
        first = min(moving, key=attrgetter("turn"))
        if not first.can_move(until) or first.turn[0] >= news:
            break
        first.move()
    for ahead in moving:
        ahead.end()
        loop.changed(ahead.replica)


@dataclass(slots=True)
class _Group:
    """The requests of one batch in flight, which is due at `due`.

    growth: KV blocks taken in each round, by round modulo its length; landed_at: -1 before the first round.
    """

    requests: Group
    growth: list[int]
    step: SubmittedStep
    shape: StepShape
    timing: Timing
    due: float
    rounds: int = 0
    landed_at: float = -1.0


class FastForward:
    """One replica on its way through a rotation of its batches.

    next_move: when the next move is complete (a batch has landed and is submitted again); None: what comes
    next is no mere repetition.
    """

    def __init__(self, replica: Replica, rotation: Rotation, record: Record) -> None:
        self.replica = replica
        self._rotation = rotation
        self._record = record
        self._held = replica.scheduler.blocks_held
        batches, size = replica.in_flight, record.limits.block_size
        growth = [rotation.growth(number, size) for number in range(len(batches))]
        self._groups = deque(
            _Group(requests, taken, batch.step, batch.step.shape, batch.timing, batch.due)
            for requests, taken, batch in zip(rotation.groups, growth, batches, strict=True)
        )
        self._moves = 0
        self._now = 0.0
        self._device_now = replica.device_now
        self.next_move = self._plan(replica.accepts_at)

    @classmethod
    def of(cls, replica: Replica, record: Record, until: float) -> FastForward | None:
        """None where there is nothing to run through up to `until`."""
        if replica.due > until:
            return None
        scheduler, sequences = replica.scheduler, 0
        for batch in replica.in_flight:
            shape = batch.step.shape
            if shape.rows > shape.sequences:
                return None  # what the scheduler would say, at less expense
            sequences += shape.sequences
        if not sequences or sequences != scheduler.running:
            return None
        rotation = find(scheduler, [batch.step.batch for batch in replica.in_flight])
        if rotation is None or rotation.most < WORTHWHILE:
            return None
        return cls(replica, rotation, record)

    @property
    def turn(self) -> tuple[float, bool]:
        """When the next move is complete, and True; or when the replica does something new, and False."""
        return (self._groups[0].due, False) if self.next_move is None else (self.next_move, True)

    def can_move(self, until: float) -> bool:
        """Whether the next move is a repetition, and complete at `until` at the latest."""
        return self.next_move is not None and self.next_move <= until

    def move(self) -> None:
        """Lands the oldest batch and submits it again."""
        group = self._groups.popleft()
        self._now = max(self._now, group.due)
        self._land(group)
        self._device_now = max(self._device_now, group.timing.ready_at)
        self._launch(group)
        self._groups.append(group)
        self._moves += 1
        self.next_move = self._plan(group.timing.accepts_at)

    def move_alone(self, until: float) -> None:
        """Moves to `until` at most, whatever the other replicas do."""
        while self.can_move(until):
            self.move()

    def end(self) -> None:
        """Leaves the replica as if every move had been made for itself."""
        if self._moves == 0:
            return
        batches = advance(self.replica.scheduler, self._rotation, self._moves)
        in_flight = []
        for group, batch in zip(self._groups, batches, strict=True):
            step = replace(group.step, batch=batch, shape=group.shape)
            in_flight.append(InFlight(step, group.timing, max(group.due, self._now)))
            if group.rounds:
                self._record.repeated(group.requests, group.landed_at)
        self.replica.resume(in_flight, self._groups[-1].timing.accepts_at, self._device_now)

    def _plan(self, accepts_at: float) -> float | None:
        if self._moves == self._rotation.most:
            return None
        if len(self._groups) > 1 and self._groups[1].due <= accepts_at:
            return None  # the next batch lands first, and the two may be shared out anew
        return max(self._now, self._groups[0].due, accepts_at)

    def _land(self, group: _Group) -> None:
        """One more token for everyone.  Before the first round, each has had the last one when it had it."""
        if group.rounds == 0:
            self._record.tokens(group.requests, self._now)
        else:
            self._record.gap(self._now - group.landed_at, len(group.requests))
        group.landed_at = self._now
        group.rounds += 1

    def _launch(self, group: _Group) -> None:
        size, shape = len(group.requests), group.shape
        kv_tokens = shape.kv_tokens + size
        group.shape = StepShape.decoding(size, kv_tokens)
        group.timing = self.replica.timeline.submit(group.shape, self._device_now)
        group.due = group.timing.ready_at
        self._held += group.growth[group.rounds % len(group.growth)]
        self._record.step(self.replica, group.shape, group.timing, self._held)
