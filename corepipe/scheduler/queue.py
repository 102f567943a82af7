"""The waiting queue: bounded, in order of rank."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

from corepipe.scheduler.request import Request, Status


class QueueFull(Exception):  # noqa: N818 - named after queue.Full
    """No more requests can wait; a retry later may find room."""


class Rank(NamedTuple):
    """Who goes first: the smaller.  `number` counts the requests as they were added."""

    priority: int
    arrival: float
    number: int


_Entry = tuple[int, bool, float, int, Request]


class WaitingQueue:
    """Requests that wait to run, at most `max_requests` and `max_tokens` known tokens of them.

    In order of rank, except that among those of equal priority the preempted ones come first.  The bounds
    hold for new requests: one that was preempted is always taken back.
    """

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._entries: list[_Entry] = []
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in self._entries)

    def push(self, request: Request, rank: Rank) -> None:
        """Queues a request.  Raises QueueFull where it is a new one and there is no room for it."""
        if request.status is Status.WAITING:
            self._check_room(request.num_tokens)
        insort(self._entries, (*_order(request, rank), request))
        self.num_tokens += request.num_tokens

    def peek(self) -> Request | None:
        """The request whose turn it is; None where nobody waits."""
        return self._entries[0][-1] if self._entries else None

    def remove(self, request: Request, rank: Rank) -> None:
        """Takes out a request that is in the queue."""
        del self._entries[bisect_left(self._entries, _order(request, rank))]
        self.num_tokens -= request.num_tokens

    def _check_room(self, tokens: int) -> None:
        if len(self._entries) >= self._max_requests:
            raise QueueFull(f"{len(self._entries)} requests are waiting; max_queued_requests is reached")
        if self.num_tokens + tokens > self._max_tokens:
            raise QueueFull(
                f"{self.num_tokens} tokens are waiting; {tokens} more would pass "
                f"max_queued_tokens = {self._max_tokens}"
            )


def _order(request: Request, rank: Rank) -> tuple[int, bool, float, int]:
    return (rank.priority, request.status is not Status.PREEMPTED, rank.arrival, rank.number)
