"""What a server must know of its open requests to hand them to another engine when theirs is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from msgspec.structs import replace

from corepipe.scheduler.request import FinishReason
from corepipe.serving.messages import Output, Outputs, Started, Submit
from corepipe.serving.supervision.admission import Load

RESTARTS_STARTED = 1
"""Engines that a request may lose once one has computed for it: it may be what kills them."""

RESTARTS_WAITING = 3
"""... and while it has only waited.  Not without end: it may be the taking of it that kills them."""

LOST = "The engine was lost while it answered, and again when it tried once more."


@dataclass(slots=True, eq=False)
class _Entry:
    """tokens: those told.  seed: what they are drawn with; None while the request waits."""

    submit: Submit
    joined: float
    tokens: list[int] = field(default_factory=list)
    seed: int | None = None
    given_up: bool = False
    restarts: int = 0

    @property
    def spent(self) -> bool:
        """Whether another engine must not be risked."""
        return self.restarts >= (RESTARTS_WAITING if self.seed is None else RESTARTS_STARTED)

    def again(self) -> Submit:
        """The request as another engine takes it: it goes on after the tokens that were told.

        The kernels give the same logits however the tokens before came into the cache, and draws depend on
        seed and position alone: the rest is the same, byte for byte.
        """
        if self.seed is None:
            return replace(self.submit, replay=True)
        sampling = replace(self.submit.sampling, seed=self.seed)
        if self.tokens:
            sampling = replace(sampling, prompt_logprobs=None)  # told with the first token
        return replace(self.submit, sampling=sampling, generated=self.tokens.copy(), replay=True)


class Journal:
    """The open requests of a server, in the order in which they came."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._waiting: dict[str, _Entry] = {}
        self.waiting = Load()
        self._waiting_of: defaultdict[str, Load] = defaultdict(Load)

    def __len__(self) -> int:
        return len(self._entries)

    def waiting_of(self, owner: str) -> Load:
        """This owner's part of `waiting`: the requests of which no token is computed yet."""
        return self._waiting_of[owner]

    def add(self, submit: Submit, now: float) -> None:
        """A request has come at `now`."""
        self._entries[submit.id] = self._waiting[submit.id] = _Entry(submit, now)
        self._count(submit, 1)

    def take(self, news: Outputs) -> None:
        """Writes down what is told."""
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
        """Nobody wants these any more; another engine will not get them."""
        for request_id in ids:
            if request_id in self._entries:
                self._entries[request_id].given_up = True

    def end(self, request_id: str) -> None:
        """A request has ended."""
        self._leave_queue(request_id)
        self._entries.pop(request_id, None)

    def overdue(self, moment: float) -> list[str]:
        """Those that came before `moment` and still wait."""
        return [name for name, _ in takewhile(lambda item: item[1].joined < moment, self._waiting.items())]

    def lose_engine(self) -> list[Output]:
        """The engine of all these is gone: the last news of those that end with it."""
        ended = list(self._ended())
        for output in ended:
            self.end(output.id)
        for entry in self._entries.values():
            entry.restarts += 1
        return ended

    def submits(self) -> list[Submit]:
        """All of them, for another engine."""
        return [entry.again() for entry in self._entries.values()]

    def _ended(self) -> Iterator[Output]:
        for request_id, entry in self._entries.items():
            if entry.given_up:
                yield Output(request_id, finish_reason=FinishReason.ABORT.value)
            elif entry.spent:
                ended = FinishReason.ERROR.value
                yield Output(request_id, finish_reason=ended, error=LOST, error_kind="unavailable")

    def _start(self, started: Started) -> None:
        entry = self._entries.get(started.id)
        if entry is not None:
            entry.seed = started.seed
            self._leave_queue(started.id)

    def _leave_queue(self, request_id: str) -> None:
        entry = self._waiting.pop(request_id, None)
        if entry is not None:
            self._count(entry.submit, -1)

    def _count(self, submit: Submit, times: int) -> None:
        for load in (self.waiting, self._waiting_of[submit.owner]):
            load.requests += times
            load.tokens += times * len(submit.prompt)
