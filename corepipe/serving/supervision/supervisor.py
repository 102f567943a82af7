"""An engine in a child process that is replaced when it is lost, with the requests that it had.

A lost engine's requests go to the next one: as they came where nothing was computed for them, else with the
tokens that their owners have been told, after which they go on.  Who waits for news sees a pause.  A request
that breaks its engines (`journal`) ends with an error, so that it is not tried for ever.  An engine that has
loaded has computed a token, and so can its like: it is replaced as often as it is lost.  Where engines do not
even load, one after the other, the server ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from corepipe.errors import UserError
from corepipe.scheduler.request import FinishReason
from corepipe.serving.config import EngineConfig
from corepipe.serving.messages import Abort, Command, Output, Outputs, Progress, Ready, Stats, Submit
from corepipe.serving.supervision.admission import Bounds, DrainRate
from corepipe.serving.supervision.child import Child, End, EngineError
from corepipe.serving.supervision.client import StreamingClient
from corepipe.serving.supervision.journal import Journal
from corepipe.serving.supervision.memory import MemoryGuard
from corepipe.serving.supervision.stats import idle, total
from corepipe.serving.supervision.streams import OutputStream
from corepipe.serving.supervision.watchdog import Patience

ENGINE_COMMAND = (sys.executable, "-P", "-m", "corepipe.serving.engine.process")

MOST_FAILED_LOADS = 10
"""Engines in a row that may fail to load; then another one would, too.  One that somebody killed while it
loaded tells nothing of the next."""

PROVEN_SECONDS = 2.0
"""An engine that has lived for so long, or has computed for a request, was good for something."""

FIRST_PAUSE, MOST_PAUSE = 0.1, 3.0
"""Seconds before the third engine in a row after such as were good for nothing; twice as long before each one
more."""

LEAST_LOAD_SECONDS = 10.0
"""A new engine may work on its load for so long without telling of progress, or `LOAD_RATIO` times as long as
the first one needed: see `Patience`."""

LOAD_RATIO = 3.0

OVERDUE_SECONDS = 0.1
"""Between two looks at who has waited too long."""


class ProcessClient(StreamingClient):
    """The engine of a server, in one child process after another; see `serving.engine.process`.

    `queue_seconds`: the longest that a request waits before anything is computed for it.  `command` starts a
    child; see `Child`.  `called`: what the log calls the engine.
    """

    def __init__(
        self,
        config: EngineConfig,
        command: Sequence[str] = ENGINE_COMMAND,
        queue_seconds: float | None = None,
        called: str = "the engine",
    ) -> None:
        super().__init__()
        self._called = called
        self._config = config
        self._program = command
        self._child = Child(command, 0, self._take)
        self._spare: Child | None = None
        self._journal = Journal()
        self._bounds = Bounds(config.max_queued_requests, config.max_queued_tokens, queue_seconds)
        self._drain = DrainRate()
        self._memory = MemoryGuard()
        self._restarts: Counter[str] = Counter()
        self._before: dict[int, Stats] = {}
        self._fruitless = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._epoch = 0
        self._restarting = False

    @property
    def restarting(self) -> bool:
        return self._restarting

    @property
    def restarts(self) -> Mapping[str, int]:
        return self._restarts

    @property
    def engine_pid(self) -> int | None:
        """None before the start."""
        return self._child.pid

    async def start(self, progress: Callable[[Progress], None] | None = None) -> Ready:
        began = monotonic()
        ready = await self._child.start(self._config, progress or _ignore)
        self._alive = True
        self._prepare()
        load_seconds = max(LEAST_LOAD_SECONDS, LOAD_RATIO * (monotonic() - began))
        self._tasks = [asyncio.create_task(self._supervise(Patience(load_seconds, load_seconds)))]
        if self._bounds.seconds is not None:
            self._tasks.append(asyncio.create_task(self._expire(self._bounds.seconds)))
        return ready

    def submit(self, submit: Submit) -> OutputStream:
        if not (self._alive or self._restarting):
            return super().submit(submit)
        stream = self._streams.open(submit.id, self.abort)
        refused = self._refusal(submit)
        if refused is not None:
            self._streams.push([refused])
            return stream
        self._journal.add(submit, monotonic())
        if self._alive:
            self._command(submit)
        return stream

    def abort(self, ids: Sequence[str]) -> None:
        self._journal.give_up(ids)
        if self._alive:
            self._command(Abort(list(ids)))
        else:
            self._finish([Output(name, finish_reason=FinishReason.ABORT.value) for name in ids])

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._restarting = False
        if self._spare is not None:
            await self._spare.kill()
        await self._child.close()
        self._die()

    def _command(self, command: Command) -> None:
        self._child.send(command)

    def _take(self, news: Outputs) -> None:
        self._journal.take(news)
        if news.started:
            now = monotonic()
            for _ in news.started:
                self._drain.note(now)
        if news.outputs:
            self._fruitless = 0
        super()._take(news)

    def _show(self, stats: Stats) -> None:
        before = self._before.get(stats.replica)
        super()._show(stats if before is None else total(before, stats))

    def _refusal(self, submit: Submit) -> Output | None:
        """Told here, not by the engine, which hears of a request only between two steps."""
        journal, now = self._journal, monotonic()
        bounds = self._bounds.times(max(1, len(self._stats)))
        own = journal.waiting_of(submit.owner) if submit.owner else None
        reason = bounds.refusal(journal.waiting, len(submit.prompt), own)
        if reason is None and len(journal) and self._memory.full(now):
            reason = "the server's memory is nearly used up"
        if reason is None:
            return None
        return Output(
            submit.id,
            finish_reason=FinishReason.ERROR.value,
            error=reason,
            error_kind="overloaded",
            retry_seconds=self._drain.retry_seconds(journal.waiting.requests, now),
        )

    def _finish(self, outputs: Sequence[Output]) -> None:
        """The last news of requests, from here."""
        for output in outputs:
            self._journal.end(output.id)
        self._streams.push(outputs)

    async def _expire(self, seconds: float) -> None:
        """Ends requests that have waited for so long."""
        while True:
            await asyncio.sleep(OVERDUE_SECONDS)
            late = self._journal.overdue(monotonic() - seconds)
            if late:
                if self._alive:
                    self._command(Abort(late))
                error = f"nothing could be computed for it within {seconds:g} s"
                ended = FinishReason.ERROR.value
                self._finish(
                    [Output(name, finish_reason=ended, error=error, error_kind="expired") for name in late]
                )

    async def _supervise(self, loading: Patience) -> None:
        """Replaces each engine that is lost, until that makes no sense."""
        try:
            while True:
                born = monotonic()
                end = await self._child.ended()
                self._lose(end, monotonic() - born)
                await self._replace(loading)
        except Exception as error:  # whatever it is: without an engine there is nothing to serve
            self._restarting = False
            self._die()
            self.on_failure(error)

    def _lose(self, end: End, lived: float) -> None:
        """What is told when an engine that was ready is gone after `lived` seconds."""
        self._alive, self._restarting = False, True
        self._restarts[end.reason] += 1
        if lived >= PROVEN_SECONDS:
            self._fruitless = 0
        self._before = dict(self._stats)
        self._finish(self._journal.lose_engine(broke=end.reason != "killed"))
        for stats in self._before.values():
            super()._show(idle(stats))
        kept = len(self._journal)
        _log().warning("%s %s; %d open requests go to another one", self._called, end.words, kept)

    async def _replace(self, loading: Patience) -> None:
        """Starts engines until one has loaded.  Raises UserError or EngineError where none does."""
        failed = 0
        while True:
            await self._pause()
            self._child = self._next()
            try:
                ready = await self._child.start(self._config, _ignore, loading)
                break
            except (UserError, EngineError) as error:
                await self._child.kill()
                self._restarts["load"] += 1
                _log().warning("%s did not load again: %s", self._called, error)
                failed += not self._child.killed
                if failed >= MOST_FAILED_LOADS and isinstance(error, EngineError):
                    words = f"{failed} engines in a row did not load; the last: {error}"
                    raise EngineError(words) from error
                if failed >= MOST_FAILED_LOADS:
                    raise
                self._prepare()
        self._alive, self._restarting = True, False
        self._prepare()
        self.on_ready(ready)
        for submit in self._journal.submits():
            self._command(submit)
        _log().warning("%s is back, loaded in %.1f s", self._called, ready.load_seconds)

    def _prepare(self) -> None:
        """A spare engine, with its imports done: more than half of the time until a lost one is replaced."""
        with contextlib.suppress(EngineError):  # it is made when it is needed, or that is told then
            self._spare = Child(self._program, self._epoch + 1, self._take)
            self._spare.spawn()

    def _next(self) -> Child:
        """The spare engine, or a new one where that is gone."""
        self._epoch += 1
        spare, self._spare = self._spare, None
        return spare if spare is not None and spare.waits else Child(self._program, self._epoch, self._take)

    async def _pause(self) -> None:
        """Longer with each engine in a row that was good for nothing."""
        self._fruitless += 1
        if self._fruitless > 2:
            await asyncio.sleep(min(FIRST_PAUSE * 2 ** min(self._fruitless - 3, 10), MOST_PAUSE))


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


def _ignore(_news: object) -> None:
    """For those who want no news."""
