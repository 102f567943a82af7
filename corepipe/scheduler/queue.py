"""The waiting queue: bounded, in order of rank, its owners by turns."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heapreplace

from corepipe.scheduler.request import Request, Status


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
