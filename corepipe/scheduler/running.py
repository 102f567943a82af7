"""The running requests, which have a seat and blocks, and their preemption."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from operator import attrgetter

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.micro_batches import Pipeline, Sharing
from corepipe.scheduler.queue import WaitingQueue
from corepipe.scheduler.request import Rank, Request, Status


class Running:
    """The running requests, by priority, then by who was scheduled longest ago.

    They come from the queue, and go back to it where they are preempted.  `sharing` says what a batch may
    hold of them.
    """

    def __init__(self, config: SchedulerConfig, queue: WaitingQueue, kv: KVCache, pipeline: Pipeline) -> None:
        self._config = config
        self._queue = queue
        self._kv = kv
        self._requests: list[Request] = []
        self.sharing = Sharing(config, self._requests, queue, kv, pipeline)
        self.preemptions = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def seats(self) -> int:
        """Returns the number of free seats."""
        return self._config.max_num_seqs - len(self._requests)

    def admit(self, short: Rank | None) -> Request | None:
        """Moves the head of the queue to the running requests, if there is a seat and room for all of its
        known tokens: a prompt that stops halfway would only hold blocks that others need.  Nobody is
        preempted for it.

        `short` is the rank of a running request that lacks blocks; only a higher priority gets past it.
        """
        request = self._queue.peek()
        if request is None or self.seats <= 0:
            return None
        if short is not None and request.priority >= short.priority:
            return None
        hits = self._kv.take_prefix(request)
        if not self._kv.has_room_to_start(request):
            self._kv.release(request)
            return None
        self._start(request, hits)
        return request

    def reserve(self, request: Request, tokens: int) -> bool:
        """Gives a running request the blocks of its first `tokens` tokens; returns False where there are too
        few."""
        missing = self._kv.missing(request, tokens)
        if missing > 0:
            if not self._make_room(request, tokens):
                return False
            self._kv.grow(request, missing)
        return True

    def leave(self, request: Request) -> None:
        """Removes a request from the running ones."""
        self.sharing.changed()
        self._requests.remove(request)

    def queue_up(self, requests: list[Request]) -> None:
        """Puts running requests that were scheduled, in this order, behind the others of their priority."""
        if self._requests[-len(requests) :] == requests:
            return
        scheduled = set(requests)
        others = [request for request in self._requests if request not in scheduled]
        self._requests[:] = sorted([*others, *requests], key=attrgetter("priority"))

    def _start(self, request: Request, hits: int) -> None:
        """Starts a request after `hits` tokens that it found in the prefix cache."""
        self.sharing.changed()
        self._queue.start(request)
        insort(self._requests, request, key=attrgetter("priority"))
        if request.num_preemptions == 0:
            request.num_cached = hits
            self._kv.count_prefix(request, hits)
        request.num_computed = request.num_done = hits
        request.status = Status.RUNNING

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Preempts requests of a later rank until there are blocks for so many of its tokens; returns whether
        there are."""
        while not self._kv.has_room(request, tokens):
            idle = [other for other in self._requests if not other.in_flight]
            victim = max(idle, key=attrgetter("rank"), default=None)
            if victim is None or victim.rank <= request.rank:
                return False
            self._preempt(victim)
        return True

    def _preempt(self, request: Request) -> None:
        """Returns a request to the queue; all its known tokens, generated ones too, will be computed anew."""
        self.leave(request)
        self._kv.release(request)
        request.num_computed = request.num_done = 0
        request.num_preemptions += 1
        self.preemptions += 1
        request.status = Status.PREEMPTED
        self._queue.push(request)
