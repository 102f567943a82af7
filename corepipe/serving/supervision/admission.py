"""Admission to the queue: limits on requests and tokens, immediate refusals, and the time of a retry."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

LEAST_SECONDS, MOST_SECONDS = 1, 30
"""The limits of a Retry-After, in seconds."""

WINDOW_SECONDS = 10.0
"""The time over which the drain rate of the queue is measured."""


@dataclass(slots=True)
class DrainRate:
    """The rate at which requests left the queue in the last seconds."""

    _starts: deque[float] = field(default_factory=deque)

    def note(self, now: float) -> None:
        """Notes that a request has left the queue to be computed."""
        self._starts.append(now)
        self._forget(now)

    def retry_seconds(self, waiting: int, now: float) -> int:
        """Returns the whole seconds, 1 to 30, in which as many requests as wait now leave the queue."""
        rate = self.rate(now)
        if not rate:
            return MOST_SECONDS
        return min(max(LEAST_SECONDS, -int(-waiting // rate)), MOST_SECONDS)

    def rate(self, now: float) -> float:
        """Returns the requests a second that left the queue in the last seconds."""
        self._forget(now)
        return len(self._starts) / max(now - self._starts[0], 1.0) if self._starts else 0.0

    def _forget(self, now: float) -> None:
        while self._starts and self._starts[0] < now - WINDOW_SECONDS:
            self._starts.popleft()


@dataclass(slots=True)
class QueuedRequests:
    """The number of requests that wait, and of the tokens of their prompts."""

    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of a queue.  seconds: the longest that a request waits in it; None: no limit."""

    requests: int
    tokens: int
    seconds: float | None = None

    def times(self, replicas: int) -> QueueLimits:
        """Returns the limits of several replicas, each with a queue of its own."""
        return QueueLimits(self.requests * replicas, self.tokens * replicas, self.seconds)

    def refusal(self, waiting: QueuedRequests, tokens: int, own: QueuedRequests | None = None) -> str | None:
        """Returns why a request with `tokens` prompt tokens may not join the queue; None where it may.

        own: the part of `waiting` that belongs to the request's owner, where there are several.  An owner
        with waiting requests may have no more than what is free (the dynamic threshold of Choudhury and
        Hahne, 1998): a single owner gets half of the queue, and others always find room.
        """
        if waiting.requests >= self.requests:
            return f"{waiting.requests} requests are waiting; --max-num-queued-reqs is reached"
        if waiting.requests and waiting.tokens + tokens > self.tokens:
            return f"{waiting.tokens} tokens are waiting; {tokens} more would pass --max-num-queued-tokens"
        if own is not None and own.requests:
            free = QueuedRequests(self.requests - waiting.requests, self.tokens - waiting.tokens)
            if own.requests >= free.requests or own.tokens + tokens > free.tokens:
                return f"{own.requests} requests of this key are waiting; what is free is kept for other keys"
        return None
