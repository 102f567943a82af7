"""The share of recent requests whose answers met the objective, by the times that their clients saw."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corepipe.engine.messages import Output

WINDOW_SECONDS = 30.0
"""The time over which the share is taken."""

LEAST_JUDGED = 8
"""The fewest judged requests of which a share is given."""

Met = Callable[[float, float, float], bool]
"""Tells whether times in seconds meet the objective: to the first token, per token after it, and in all."""


@dataclass(slots=True)
class _OpenAnswer:
    came: float
    first: float | None = None
    tokens: int = 0


class SloShare:
    """Judges open requests by an objective: a late one as soon as it is late, others at their end, and none
    that ends without a token.  `met`: the objective; None where there is none, and then no request is
    followed."""

    def __init__(self, met: Met | None) -> None:
        self._met = met
        self._open: dict[str, _OpenAnswer] = {}
        self._judged: deque[tuple[float, bool]] = deque()

    def begin(self, request_id: str, now: float) -> None:
        """Begins to follow a request."""
        if self._met is not None:
            self._open[request_id] = _OpenAnswer(now)

    def take(self, outputs: Sequence[Output], now: float) -> None:
        """Takes outputs of requests at `now`; those of requests that are judged already are ignored."""
        for output in outputs:
            request = self._open.get(output.id)
            if request is None:
                continue
            if output.tokens:
                self._count(request, len(output.tokens), now)
            ended = output.finish_reason is not None
            if request.first is not None and (ended or not self._in_time(request, request.first)):
                self._judged.append((now, self._good(request, request.first, now)))
                ended = True
            if ended:
                del self._open[output.id]

    def share(self, now: float) -> float | None:
        """Returns the share of good requests among those judged in the last seconds; None: too few."""
        while self._judged and self._judged[0][0] < now - WINDOW_SECONDS:
            self._judged.popleft()
        if len(self._judged) < LEAST_JUDGED:
            return None
        return sum(good for _, good in self._judged) / len(self._judged)

    def forget(self) -> None:
        """Forgets the judged requests when a host is added: they say nothing about more hosts."""
        self._judged.clear()

    def _count(self, request: _OpenAnswer, tokens: int, now: float) -> None:
        request.tokens += tokens
        if request.first is None:
            request.first = now

    def _in_time(self, request: _OpenAnswer, first: float) -> bool:
        """Tells whether the first token of a request came in time."""
        return self._met is None or self._met(first - request.came, 0.0, 0.0)

    def _good(self, request: _OpenAnswer, first: float, now: float) -> bool:
        """Tells whether a request is good, as if its last token came now."""
        gaps = max(1, request.tokens - 1)
        return self._met is None or self._met(first - request.came, (now - first) / gaps, now - request.came)
