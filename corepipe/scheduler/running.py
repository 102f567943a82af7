"""Requests that wait, in a bounded queue, and those that run, with their preemption."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from operator import attrgetter

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.request import Rank, Request, Status


class QueueFull(Exception):  # noqa: N818 - named after queue.Full
    """No more requests can wait; a retry later may find room."""


_Entry = tuple[int, bool, float, int, Request]
_Turn = tuple[int, bool, int, float, int]


class WaitingQueue:
    """Requests that wait to run, at most `max_requests` and `max_tokens` known tokens of them, each with its
    rank.

    Those that are held have their place, which counts, and cannot start before they are released.  The others
    start in order of rank, except that among those of equal priority the preempted ones come first, and that
    owners take turns: of several with new requests of equal priority the one is next who started one longest
    ago.
    The bounds hold for new requests: one that was preempted is always taken back.
    """

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._lines: dict[str, list[_Entry]] = {}  # by owner; none is empty
        self._held: set[Request] = set()
        self._last_turns: dict[str, int] = {}  # of every owner that ever started a request
        self._turns = 0
        self._length = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return self._length

    @property
    def num_held(self) -> int:
        """Requests that cannot start yet."""
        return len(self._held)

    def __iter__(self) -> Iterator[Request]:
        """Yields the requests that may start, in the order in which they would if no other came."""
        last, turns = self._last_turns.copy(), self._turns
        heads = [(self._turn(owner, line[0], last), owner, 0) for owner, line in self._lines.items()]
        heapify(heads)
        while heads:
            _, owner, at = heads[0]
            line = self._lines[owner]
            request = line[at][-1]
            yield request
            if request.status is Status.WAITING:
                turns += 1
                last[owner] = turns
            if at + 1 < len(line):
                heapreplace(heads, (self._turn(owner, line[at + 1], last), owner, at + 1))
            else:
                heappop(heads)

    def push(self, request: Request) -> None:
        """Queues a request.  Raises QueueFull where it is a new one and there is no room for it."""
        if request.status is Status.WAITING:
            self._check_room(request.num_tokens)
        if request.held:
            self._held.add(request)
        else:
            self._line_up(request)
        self._length += 1
        self.num_tokens += request.num_tokens

    def release(self, request: Request) -> None:
        """Lets a held request start."""
        self._held.remove(request)
        request.held = False
        self._line_up(request)

    def peek(self) -> Request | None:
        """Returns the request that starts next; None where none may start."""
        if not self._lines:
            return None
        if len(self._lines) == 1:
            (line,) = self._lines.values()
            return line[0][-1]
        heads = (
            (self._turn(owner, line[0], self._last_turns), line[0][-1]) for owner, line in self._lines.items()
        )
        return min(heads)[-1]

    def start(self, request: Request) -> None:
        """Removes a request that is about to run; this counts as its owner's turn, unless it was
        preempted."""
        self.remove(request)
        if request.status is Status.WAITING:
            self._turns += 1
            self._last_turns[request.owner] = self._turns

    def remove(self, request: Request) -> None:
        """Removes a request from the queue."""
        if request.held:
            self._held.remove(request)
        else:
            self._step_out(request)
        self._length -= 1
        self.num_tokens -= request.num_tokens

    def _line_up(self, request: Request) -> None:
        insort(self._lines.setdefault(request.owner, []), (*_order(request), request))

    def _step_out(self, request: Request) -> None:
        line = self._lines[request.owner]
        del line[bisect_left(line, _order(request))]
        if not line:
            del self._lines[request.owner]

    @staticmethod
    def _turn(owner: str, entry: _Entry, last_turns: Mapping[str, int]) -> _Turn:
        """Returns the place of an owner's first request in the order: the smaller, the sooner; no two are
        equal."""
        priority, fresh, arrival, number, _ = entry
        return (priority, fresh, last_turns.get(owner, 0) if fresh else 0, arrival, number)

    def _check_room(self, tokens: int) -> None:
        if self._length >= self._max_requests:
            raise QueueFull(f"{self._length} requests are waiting; max_queued_requests is reached")
        if self.num_tokens + tokens > self._max_tokens:
            raise QueueFull(
                f"{self.num_tokens} tokens are waiting; {tokens} more would pass "
                f"max_queued_tokens = {self._max_tokens}"
            )


def _order(request: Request) -> tuple[int, bool, float, int]:
    priority, arrival, number = request.rank
    return (priority, request.status is not Status.PREEMPTED, arrival, number)


class Running:
    """The running requests, by priority, then by who was scheduled longest ago.

    They come from the queue, and go back to it where they are preempted.  `changes` counts how often one
    started or left.
    """

    def __init__(self, config: SchedulerConfig, queue: WaitingQueue, kv: KVCache) -> None:
        self._config = config
        self._queue = queue
        self._kv = kv
        self._requests: list[Request] = []
        self.changes = 0
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
        preempted for it but those in the background.

        `short` is the rank of a running request that lacks blocks; only a higher priority gets past it.
        """
        request = self._queue.peek()
        if request is None or (self.seats <= 0 and not self._preempt_background(request)):
            return None
        if short is not None and request.priority >= short.priority:
            return None
        hits = self._kv.take_prefix(request)
        while not self._kv.has_room_to_start(request):
            if not self._preempt_background(request):
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
        self.changes += 1
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
        self.changes += 1
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

    def _preempt_background(self, request: Request) -> bool:
        """Preempts the last request in the background for one that is not; returns whether it did."""
        last = self._requests[-1] if self._requests else request
        if request.in_background or not last.in_background or last.in_flight:
            return False
        self._preempt(last)
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
