"""Runs through the steps of lanes in which nothing happens but one more token for everyone.

What comes out is what `Lanes.complete` and `Lanes.submit` would have done, step for step and to the last
bit, without touching every request at every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter

import numpy as np

from corepipe.neuron.step import StepShape
from corepipe.neuron.timeline import Timing
from corepipe.planning.simulation.record import Record
from corepipe.scheduler.rotation import Group, Rotation
from corepipe.serving.engine.engine import Flight
from corepipe.serving.engine.lanes import Lane
from corepipe.serving.engine.runner import Step

WORTHWHILE = 2
"""Fewer steps than this are not run through."""

MANY = 6
"""From so many steps of a lone batch on they are computed together, as arrays, which take time to make."""


def fast_forward(lanes: Sequence[Lane], until: float, record: Record) -> bool:
    """Runs each lane on its own to `until` at most, as far as it only repeats itself; whether any did."""
    moved = False
    for lane in lanes:
        cruise = Cruise.of(lane, record)
        if cruise is not None:
            cruise.move_alone(until)
            moved |= cruise.end()
    return moved


def fast_forward_together(lanes: Sequence[Lane], until: float, record: Record) -> bool:
    """As `fast_forward`, but no lane gets to the moment at which another one does something new."""
    cruises, news = [], inf
    for lane in lanes:
        cruise = Cruise.of(lane, record)
        if cruise is None:
            news = min(news, lane.next_event())
        else:
            cruises.append(cruise)
    while cruises:
        first = min(cruises, key=attrgetter("turn"))
        if not first.can_move(until) or first.turn[0] >= news:
            break
        first.move()
    moved = [cruise.end() for cruise in cruises]
    return any(moved)


@dataclass(slots=True)
class _Group:
    """The requests of one batch in flight, which is due at `due`.

    growth: KV blocks taken in each round, by round modulo its length; landed_at: -1 before the first round.
    """

    requests: Group
    growth: list[int]
    step: Step
    shape: StepShape
    timing: Timing
    due: float
    rounds: int = 0
    landed_at: float = -1.0


class Cruise:
    """One lane on its way through a rotation of its batches.

    next_move: when the next move is complete (a batch has landed and is submitted again); None: what comes
    next is no mere repetition.
    """

    def __init__(self, lane: Lane, rotation: Rotation, record: Record) -> None:
        self._lane = lane
        self._device = lane.engine.device
        self._rotation = rotation
        self._record = record
        self._held = lane.engine.scheduler.blocks_held
        growth = [rotation.growth(number, record.limits.block_size) for number in range(len(lane.flights))]
        self._groups = deque(
            _Group(requests, taken, flight.step, flight.step.shape, flight.timing, due)
            for requests, taken, (due, flight) in zip(rotation.groups, growth, lane.flights, strict=True)
        )
        self._moves = 0
        self._now = 0.0
        self.next_move = self._plan(lane.accepts_at)

    @classmethod
    def of(cls, lane: Lane, record: Record) -> Cruise | None:
        """None where there is nothing to run through."""
        scheduler, sequences = lane.engine.scheduler, 0
        for _, flight in lane.flights:
            shape = flight.step.shape
            if shape.rows > shape.sequences:
                return None  # what the scheduler would say, at less expense
            sequences += shape.sequences
        if not sequences or sequences != scheduler.running:
            return None
        rotation = scheduler.rotation([flight.step.batch for _, flight in lane.flights])
        if rotation is None or rotation.most < WORTHWHILE:
            return None
        return cls(lane, rotation, record)

    @property
    def turn(self) -> tuple[float, bool]:
        """When the next move is complete, and True; or when the lane does something new, and False."""
        return (self._groups[0].due, False) if self.next_move is None else (self.next_move, True)

    def can_move(self, until: float) -> bool:
        """Whether the next move is a repetition, and complete at `until` at the latest."""
        return self.next_move is not None and self.next_move <= until

    def move(self) -> None:
        """Lands the oldest batch and submits it again."""
        group = self._groups.popleft()
        self._now = max(self._now, group.due)
        self._land(group)
        self._device.advance(group.timing.ready_at)
        self._launch(group)
        self._groups.append(group)
        self._moves += 1
        self.next_move = self._plan(group.timing.accepts_at)

    def move_alone(self, until: float) -> None:
        """Moves to `until` at most, whatever the other lanes do."""
        while self.can_move(until):
            self.move()
            if self._lone and self.can_move(until) and self._expected(until) >= MANY:
                self._move_together(until)

    @property
    def _lone(self) -> bool:
        """Whether one batch goes through one stage: each step then begins where the one before ended."""
        return len(self._groups) == 1 and len(self._groups[0].timing.stages) == 1

    def _expected(self, until: float) -> int:
        """Moves until then, about: steps get longer, hardly."""
        timing, left = self._groups[0].timing, self._rotation.most - self._moves
        if until == inf:
            return left
        return min(left, int((until - timing.ready_at) / (timing.ready_at - timing.submitted_at)) + 1)

    def _move_together(self, until: float) -> None:
        """Makes many moves of the lone batch at once; the first is one that can be made."""
        group, size = self._groups[0], len(self._groups[0].requests)
        rounds = group.rounds + np.arange(self._expected(until))
        kv_tokens = group.shape.kv_tokens + size * (1 + rounds - group.rounds)
        times = self._device.timeline.repeat(size, kv_tokens, group.due, until)
        moves = len(times.ready_at)
        kv_tokens = kv_tokens[:moves]
        taken = np.array(group.growth)[(rounds[:moves] + 1) % len(group.growth)]
        held = self._held + np.cumsum(taken)
        self._record.gaps_between(np.concatenate([[group.landed_at], times.submitted_at]), size)
        self._record.steps_of(self._lane, size, kv_tokens, times, held)
        self._device.advance(times.last.submitted_at)
        self._now = group.landed_at = times.last.submitted_at
        group.shape = StepShape.decoding(size, int(kv_tokens[-1]))
        group.timing, group.due = times.last, times.last.ready_at
        group.rounds += moves
        self._held = int(held[-1])
        self._moves += moves
        self.next_move = self._plan(group.timing.accepts_at)

    def end(self) -> bool:
        """Leaves the lane as if every move had been made for itself; whether any was."""
        if self._moves == 0:
            return False
        batches = self._lane.engine.scheduler.advance(self._rotation, self._moves)
        self._lane.flights.clear()
        for group, batch in zip(self._groups, batches, strict=True):
            step = replace(group.step, batch=batch, shape=group.shape)
            self._lane.flights.append((max(group.due, self._now), Flight(step, group.timing)))
            if group.rounds:
                self._record.repeated(group.requests, group.landed_at)
        self._lane.accepts_at = self._groups[-1].timing.accepts_at
        self._lane.stirred = True
        return True

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
        group.timing = self._device.submit(group.shape)
        group.due = group.timing.ready_at
        self._held += group.growth[group.rounds % len(group.growth)]
        self._record.step(self._lane, group.shape, group.timing, self._held)
