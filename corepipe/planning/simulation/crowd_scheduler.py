"""The scheduler that serves, with those who generate as one request wherever that makes no difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from corepipe.planning.simulation.crowd import BatchWithCrowd, Crowd, Together, chunks_of
from corepipe.planning.simulation.rotation import shortage
from corepipe.planning.simulation.simulated import SimulatedRequest
from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.micro_batches import Pipeline
from corepipe.scheduler.policy import Policy
from corepipe.scheduler.request import Batch, FinishReason, TokenEvent
from corepipe.scheduler.scheduler import Scheduler


class CrowdScheduler(Scheduler):
    """A `Scheduler` of a single stage for `SimulatedRequest`s of one priority, of whom none is aborted.

    The crowd comes first among those who run.  It is dissolved before anything happens that may tell its
    members apart, as where blocks run short, and gathers again when they have landed.
    """

    def __init__(self, config: SchedulerConfig, policy: Policy, pipeline: Pipeline) -> None:
        super().__init__(config, policy, pipeline)
        self.crowd = Crowd(config, self._kv)

    def schedule(self) -> Batch | None:
        if self._generating:
            return None
        members = len(self.crowd)
        if not members:
            return super().schedule()
        if not self._is_one(members):
            self.crowd.dissolve()
            return super().schedule()
        if members == len(self._running.requests) and self._nobody_comes():
            return self._crowd_alone(members)
        share = self._running.sharing.share(0, 0)
        assert share is not None  # nothing is in flight
        step = BatchWithCrowd(self.crowd, self._config, self._running, self._queue, self._kv, share)
        self._policy(step)
        self._num_scheduled += 1
        self._generating.append(step.generates)
        return self._batch(step)

    def _nobody_comes(self) -> bool:
        """Whether nobody could be let in."""
        return self._queue.peek() is None or not self._running.seats

    def _is_one(self, members: int) -> bool:
        """Whether the next batch can hold all of the crowd and preempts nobody, whoever else is in it."""
        wanted = len(self.crowd.growing)
        for other in self._running.requests[members:]:
            if other.drafter is not None:
                return False
            wanted += self._kv.missing(other, other.num_tokens)
        return members <= self._config.max_num_batched_tokens and wanted <= self._kv.pool.available

    def _crowd_alone(self, members: int) -> Together:
        """What any policy makes of it where nobody else runs, and nobody can be let in."""
        crowd = self.crowd
        crowd.grow()
        fresh, crowd.fresh = crowd.fresh, []
        self._num_scheduled += 1
        self._generating.append(True)
        return Together(self._num_scheduled, (), crowd, members, crowd.contexts, fresh)

    def _batch(self, step: BatchWithCrowd) -> Batch:
        crowd, chunks = self.crowd, step.chunks
        number, running = self._num_scheduled, len(self._running)
        if step.together and len(crowd) + len(chunks) == running:
            fresh, crowd.fresh = crowd.fresh, []
            return Together(number, tuple(chunks), crowd, len(crowd), crowd.contexts, fresh)
        if step.together:  # others run before it from now on
            chunks = [*chunks_of(crowd.dissolve()), *chunks]
        if len(chunks) < running:
            self._running.queue_up([chunk.request for chunk in chunks])
        return Batch(number, tuple(chunks))

    def update(self, batch: Batch, tokens: Sequence[Sequence[int]]) -> list[TokenEvent]:
        """See `Scheduler.update`; of the crowd it tells of those who end."""
        events, together = [], isinstance(batch, Together)
        if together:
            self.crowd.land()
            for request in self.crowd.ended():
                self._end(request, FinishReason.LENGTH)
                events.append(TokenEvent(request, 0, FinishReason.LENGTH))
            if not batch.chunks:
                self._num_updated += 1
                self._generating.popleft()
                return events
        events += super().update(batch, tokens)
        self._gather(fresh=not together)
        return events

    def _gather(self, *, fresh: bool) -> None:
        """Lets those join who come next to the crowd and now generate."""
        running, crowd = self._running.requests, self.crowd
        while len(crowd) < len(running) and crowd.takes(running[len(crowd)]):
            crowd.join(cast("SimulatedRequest", running[len(crowd)]), fresh=fresh)

    def repetitions(self) -> int:
        """Where the crowd alone is in flight: how often it lands and is scheduled again, if nothing comes,
        without that anything else happens."""
        crowd, pool = self.crowd, self._kv.pool
        most = crowd.rounds_left - 1
        head = self._queue.peek() if self._running.seats else None
        if head is not None:
            if self._kv.blocks_for(head.num_tokens) <= pool.available:
                return 0  # it gets in, whatever it finds
            hits, short = shortage(head, self._kv)
            if hits or short <= 0:  # it may get in, or becomes a late user of what it finds
                return 0
            most = min(most, crowd.rounds_before_a_first_block() - 1)
        if len(crowd) * (most // self._config.block_size + 1) > pool.available:
            left = pool.available
            for move, taken in enumerate(crowd.growth(most)):
                left -= taken
                if left < 0:
                    return move
        return most

    def repeat(self, batch: Together, moves: int) -> Together:
        """Makes so many of them; what is in flight then."""
        crowd = self.crowd
        for _ in range(moves):
            crowd.land()
            crowd.grow()
        self._num_updated += moves
        self._num_scheduled += moves
        return Together(batch.number + moves, (), crowd, batch.members, crowd.contexts, ())
