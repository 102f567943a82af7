"""The open requests of a server: which may join the queue, and what another engine needs to continue them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from msgspec.structs import replace

from corepipe.engine.lora import AdapterRef
from corepipe.engine.messages import Output, Outputs, Started, Submit, failed_output
from corepipe.scheduler.request import FinishReason

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


BREAKS_IN_A_ROW = 1
"""Engines in a row that may break while they compute for a request before they have sent a token of it: the
request may be what breaks them."""

MOST_BREAKS = 5
"""Engines in all that may break while they compute for a request, with tokens sent in between."""

KILLS_IN_A_ROW = 10
"""Engines in a row that may be killed while they compute for a request.  No request kills an engine, but
the kernel does when a request needs too much memory."""

BREAKS_WAITING = 3
"""Idle engines that may break while a request waits: to take it may be what breaks them."""

LOST = "The engine was lost while it answered, and again when it was tried once more."


@dataclass(slots=True, eq=False)
class _Entry:
    """An open request.  tokens: those that were sent.  seed: that of its draws; None while the request waits.

    given_up: its client aborted it.  running: the current engine computes for it.  handed: the number of
    tokens that this engine was given at its submit.  The others count lost engines, for the limits above.
    """

    submit: Submit
    joined: float
    tokens: list[int] = field(default_factory=list)
    seed: int | None = None
    given_up: bool = False
    running: bool = False
    handed: int = 0
    breaks_in_a_row: int = 0
    breaks: int = 0
    kills_in_a_row: int = 0
    breaks_waiting: int = 0

    @property
    def spent(self) -> bool:
        """Tells whether the request has lost too many engines to be given to another one."""
        return (
            self.breaks_in_a_row > BREAKS_IN_A_ROW
            or self.breaks > MOST_BREAKS
            or self.kills_in_a_row > KILLS_IN_A_ROW
            or self.breaks_waiting > BREAKS_WAITING
        )

    def lose_engine(self, *, broke: bool, idle: bool) -> None:
        """Counts the loss of the engine.  broke: it was not killed; idle: it computed nothing."""
        self.breaks += self.running and broke
        self.breaks_waiting += broke and idle
        if len(self.tokens) > self.handed:
            self.breaks_in_a_row = self.kills_in_a_row = 0
        elif self.running:
            self.breaks_in_a_row += broke
            self.kills_in_a_row += not broke
        self.running, self.handed = False, len(self.tokens)

    def again(self) -> Submit:
        """Returns the request for another engine, which continues after the tokens that were sent.

        The kernels give the same logits however the tokens before came into the cache, and draws depend only
        on the seed and the position: the rest is the same, byte for byte.
        """
        if self.seed is None:
            return replace(self.submit, replay=True)
        sampling = replace(self.submit.sampling, seed=self.seed)
        if self.tokens:
            sampling = replace(sampling, prompt_logprobs=None)  # sent with the first token
        return replace(self.submit, sampling=sampling, generated=self.tokens.copy(), replay=True)


class Journal:
    """The open requests of a server, in the order in which they came."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._waiting: dict[str, _Entry] = {}
        self.waiting = QueuedRequests()
        self._waiting_of: defaultdict[str, QueuedRequests] = defaultdict(QueuedRequests)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def waiting_of(self, owner: str) -> QueuedRequests:
        """Returns the part of `waiting` of one owner: requests of which no token is computed yet."""
        return self._waiting_of[owner]

    def adapters(self, *, waiting: bool = False) -> set[AdapterRef]:
        """Returns the LoRA adapters of the requests that something is computed for, or of those that wait."""
        entries = self._waiting if waiting else self._entries.keys() - self._waiting.keys()
        found = {self._entries[name].submit.adapter for name in entries}
        return {adapter for adapter in found if adapter is not None}

    def add(self, submit: Submit, now: float) -> None:
        """Adds a request that has come at `now`."""
        self._entries[submit.id] = self._waiting[submit.id] = _Entry(submit, now)
        self._count(submit, 1)

    def take(self, news: Outputs) -> None:
        """Notes the tokens and ends that an engine reports."""
        for started in news.started:
            self._start(started)
        entries = self._entries
        for output in news.outputs:
            entry = entries.get(output.id)
            if entry is not None:
                entry.tokens += output.tokens
                if output.finish_reason is not None:
                    self.end(output.id)

    def give_up(self, ids: Iterable[str]) -> None:
        """Notes that these requests are aborted: no other engine gets them."""
        for request_id in ids:
            if request_id in self._entries:
                self._entries[request_id].given_up = True

    def end(self, request_id: str) -> None:
        """Removes a request that has ended."""
        self._leave_queue(request_id)
        self._entries.pop(request_id, None)

    def overdue(self, moment: float) -> list[str]:
        """Returns the ids of requests that came before `moment` and still wait."""
        return [name for name, _ in takewhile(lambda item: item[1].joined < moment, self._waiting.items())]

    def lose_engine(self, *, broke: bool, of: Collection[str] | None = None) -> list[Output]:
        """Notes the loss of the engine of some requests, or of all.  Returns the last Output of those that
        end.

        broke: it broke by itself, so that one of the requests may be the cause; otherwise it was killed.
        """
        lost = self._of(of)
        idle = not any(entry.running for entry in lost.values())
        for entry in lost.values():
            entry.lose_engine(broke=broke, idle=idle)
        ended = list(_ended(lost))
        for output in ended:
            self.end(output.id)
        return ended

    def submits(self, of: Collection[str] | None = None) -> list[Submit]:
        """Returns some requests, or all, for another engine, in the order in which they came."""
        return [entry.again() for entry in self._of(of).values()]

    def _of(self, ids: Collection[str] | None) -> dict[str, _Entry]:
        if ids is None:
            return self._entries
        return {name: entry for name, entry in self._entries.items() if name in ids}

    def _start(self, started: Started) -> None:
        entry = self._entries.get(started.id)
        if entry is not None:
            entry.seed, entry.running = started.seed, True
            self._leave_queue(started.id)

    def _leave_queue(self, request_id: str) -> None:
        entry = self._waiting.pop(request_id, None)
        if entry is not None:
            self._count(entry.submit, -1)

    def _count(self, submit: Submit, times: int) -> None:
        for load in (self.waiting, self._waiting_of[submit.owner]):
            load.requests += times
            load.tokens += times * len(submit.prompt)


def _ended(lost: dict[str, _Entry]) -> Iterator[Output]:
    for request_id, entry in lost.items():
        if entry.given_up:
            yield Output(request_id, finish_reason=FinishReason.ABORT.value)
        elif entry.spent:
            yield failed_output(request_id, LOST)
