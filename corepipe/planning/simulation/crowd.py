"""Those who generate, as one: a scheduler that does not touch each of them at every token.

While a batch holds everybody who generates, each of them gets one more token when it lands.  How often that
was so is counted once for all; what a member has itself follows from the rounds since it joined, and is
written back when it leaves.  What becomes of blocks is done in the round in which it happens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import cast

from corepipe.neuron.step import StepShape
from corepipe.planning.simulation.simulated import SimulatedRequest
from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.micro_batches import Share
from corepipe.scheduler.next_batch import NextBatch
from corepipe.scheduler.queue import WaitingQueue
from corepipe.scheduler.request import Batch, Chunk, Request
from corepipe.scheduler.running import Running
from corepipe.serving.engine.assuming import shape_of


@dataclass(slots=True)
class Together(Batch):
    """A batch with a token of each of `members` requests of the crowd, whose contexts have `contexts` tokens
    in all, and with `chunks` of others.  fresh: members whose first batch with the others it is."""

    crowd: Crowd
    members: int
    contexts: int
    fresh: Sequence[SimulatedRequest]

    @property
    def shape(self) -> StepShape:
        """What of it decides its time."""
        if not self.chunks:
            return StepShape.decoding(self.members, self.contexts)
        return _joined(
            shape_of(self.chunks, sum([c.samples for c in self.chunks])), self.members, self.contexts
        )


class Crowd:
    """Running requests whose next chunk is the one token that was generated last, in the order in which they
    run; a batch holds all of them or none.  They end by their length alone, and nobody guesses for them.

    rounds: how often they have landed.  contexts: tokens that they have in all.  landed_at: when they landed
    last.  fresh: those who were not with them then.
    """

    generates = True

    def __init__(self, limits: SchedulerConfig, kv: KVCache) -> None:
        self.rounds = 0
        self.contexts = 0
        self.landed_at = -1.0
        self.fresh: list[SimulatedRequest] = []
        self._size = limits.block_size
        self._longest = limits.max_model_len
        self._kv = kv
        self._publishes = limits.prefix_cache
        self._joined: dict[SimulatedRequest, int] = {}  # after how many rounds
        self._filling: defaultdict[int, list[SimulatedRequest]] = defaultdict(list)
        self._ends: list[tuple[int, int, SimulatedRequest]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._joined)

    def takes(self, request: Request) -> bool:
        """Whether it may join, behind those who run before it."""
        return (
            request.generates
            and not request.in_flight
            and not (request.stop_ids or request.complete)
            and request.drafter is None
        )

    def join(self, request: SimulatedRequest, *, fresh: bool) -> None:
        """It is in all rounds from now on.  fresh: its last token did not come when the others landed."""
        left = min(request.max_tokens - request.num_generated, self._longest - request.num_tokens)
        self._number += 1
        heappush(self._ends, (self.rounds + left, self._number, request))
        self._filling[(request.num_done - self.rounds) % self._size].append(request)
        self._joined[request] = self.rounds
        self.contexts += request.num_tokens
        if fresh:
            self.fresh.append(request)

    @property
    def growing(self) -> Sequence[SimulatedRequest]:
        """Those whose blocks are full, so that the next round needs another one of each."""
        return self._filling.get(-self.rounds % self._size, ())

    @property
    def rounds_left(self) -> int:
        """Until the first of them ends, the round in which it does included."""
        return self._ends[0][0] - self.rounds

    def rounds_before_a_first_block(self) -> int:
        """Until a member has the first of its blocks full; many where each has."""
        left = [self._size - self._done(request) for request in self._joined]
        return min([rounds for rounds in left if rounds > 0], default=self._longest)

    def growth(self, rounds: int) -> list[int]:
        """KV blocks that are taken after each of the next rounds."""
        filling, size, first = self._filling, self._size, self.rounds + 1
        return [len(filling.get(-number % size, ())) for number in range(first, first + rounds)]

    def grow(self) -> None:
        """Gives each the room for its next token; the pool must have it."""
        for request in self.growing:
            self._kv.grow(request, 1)

    def land(self) -> None:
        """A round is over: each has one more token."""
        self.rounds += 1
        self.contexts += len(self._joined)
        if self._publishes:
            for request in self.growing:
                self._kv.publish(request, self._done(request) // self._size - 1)

    def ended(self) -> list[SimulatedRequest]:
        """Takes those out that have all their tokens."""
        ended = []
        while self._ends and self._ends[0][0] == self.rounds:
            request = heappop(self._ends)[-1]
            self._filling[(request.num_done - self._joined[request]) % self._size].remove(request)
            self._settle(request)
            self.contexts -= request.num_tokens
            ended.append(request)
        return ended

    def dissolve(self) -> list[SimulatedRequest]:
        """Everybody leaves, and is as if there had never been a crowd."""
        fresh = set(self.fresh)
        for request in (members := list(self._joined)):
            if request not in fresh:
                request.last_at = self.landed_at
            self._settle(request)
        self._filling.clear()
        self._ends.clear()
        self.fresh.clear()
        self.contexts = 0
        return members

    def _done(self, request: SimulatedRequest) -> int:
        return request.num_done + self.rounds - self._joined[request]

    def _settle(self, request: SimulatedRequest) -> None:
        rounds = self.rounds - self._joined.pop(request)
        request.num_tokens += rounds
        request.num_done += rounds
        request.num_computed += rounds


class BatchWithCrowd(NextBatch):
    """A `policy.BatchBuilder` for which the crowd is one request among the others that run, before them.  It
    must have tokens and blocks for all of its members."""

    def __init__(
        self,
        crowd: Crowd,
        config: SchedulerConfig,
        running: Running,
        queue: WaitingQueue,
        kv: KVCache,
        share: Share,
    ) -> None:
        super().__init__(config, running, queue, kv, share)
        self._crowd = crowd
        self._as_request = cast("Request", crowd)
        self.together = False

    def ready(self) -> Sequence[Request]:
        others = self._running.requests[len(self._crowd) :]
        return [self._as_request, *[r for r in others if r.num_computed < r.num_tokens]]

    def run(self, request: Request) -> bool:
        if request is not self._as_request:
            return super().run(request)
        self._tokens -= len(self._crowd)
        self._seats -= len(self._crowd)
        self._crowd.grow()
        self.together = self.generates = True
        return True


def chunks_of(members: Sequence[Request]) -> list[Chunk]:
    """A chunk for each, which is scheduled with it."""
    for request in members:
        request.num_computed += 1
    return [Chunk(request, request.num_done, count=1, samples=True) for request in members]


def _joined(others: StepShape, members: int, contexts: int) -> StepShape:
    """A step of these and of a crowd."""
    rows, logits = others.counts
    return StepShape(
        (rows + members, logits + members),
        others.sequences + members,
        others.kv_tokens + contexts,
        others.attended + contexts,
    )
