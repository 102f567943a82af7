"""How many of the requests of late were answered as soon as they are to be, as their clients saw it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corepipe.engine.messages import Output

WINDOW_SECONDS = 30.0
"""How far back the share looks."""

LEAST_JUDGED = 8
"""Requests; a share of fewer says nothing."""

Met = Callable[[float, float, float], bool]
"""Whether these seconds are good: to the first token, for each one after it, and in all."""


@dataclass(slots=True)
class _OpenAnswer:
    came: float
    first: float | None = None
    tokens: int = 0


class SloShare:
    """Follows open requests.  One that is late is judged as soon as that is known, others at their end; one
    that ends without a token is not judged.  `met`: None where nothing is asked; then none is followed."""

    def __init__(self, met: Met | None) -> None:
        self._met = met
        self._open: dict[str, _OpenAnswer] = {}
        self._judged: deque[tuple[float, bool]] = deque()

    def begin(self, request_id: str, now: float) -> None:
        """A request has come."""
        if self._met is not None:
            self._open[request_id] = _OpenAnswer(now)

    def take(self, outputs: Sequence[Output], now: float) -> None:
        """The news of some requests, at `now`; of those that were judged nothing is asked."""
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
        """Of the requests judged in the last seconds, those that were good; None: too few were judged."""
        while self._judged and self._judged[0][0] < now - WINDOW_SECONDS:
            self._judged.popleft()
        if len(self._judged) < LEAST_JUDGED:
            return None
        return sum(good for _, good in self._judged) / len(self._judged)

    def forget(self) -> None:
        """There are more hosts now: what was judged with fewer says nothing of them."""
        self._judged.clear()

    def _count(self, request: _OpenAnswer, tokens: int, now: float) -> None:
        request.tokens += tokens
        if request.first is None:
            request.first = now

    def _in_time(self, request: _OpenAnswer, first: float) -> bool:
        """Whether its first token was."""
        return self._met is None or self._met(first - request.came, 0.0, 0.0)

    def _good(self, request: _OpenAnswer, first: float, now: float) -> bool:
        """As it would be if its last token had come now."""
        gaps = max(1, request.tokens - 1)
        return self._met is None or self._met(first - request.came, (now - first) / gaps, now - request.came)
