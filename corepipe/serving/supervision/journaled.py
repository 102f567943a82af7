"""A client with a journal: its open requests survive the loss of their engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Abort, Output, Outputs, Submit
from corepipe.scheduler.request import FinishReason
from corepipe.serving.supervision.admission import DrainRate, QueueLimits
from corepipe.serving.supervision.client import StreamingClient
from corepipe.serving.supervision.journal import Journal
from corepipe.serving.supervision.memory import MemoryGuard
from corepipe.serving.supervision.streams import OutputStream

OVERDUE_SECONDS = 0.1
"""The time between two searches for requests that have waited too long."""


class JournaledClient(StreamingClient):
    """Admits requests within the limits of the queue, and keeps what another engine needs to continue each.

    `queue_seconds`: the longest that a request waits before anything is computed for it.  While a lost engine
    is being replaced (`restarting`), requests wait in the journal.
    """

    def __init__(self, config: EngineConfig, queue_seconds: float | None) -> None:
        super().__init__()
        self._config = config
        self._journal = Journal()
        self._bounds = QueueLimits(config.max_queued_requests, config.max_queued_tokens, queue_seconds)
        self._drain = DrainRate()
        self._memory = MemoryGuard()
        self._expiry: asyncio.Task[None] | None = None

    def submit(self, submit: Submit) -> OutputStream:
        if not (self.alive or self.restarting):
            return super().submit(submit)
        stream = self._streams.open(submit.id, self.abort)
        refused = self._refusal(submit)
        if refused is not None:
            self._streams.push([refused])
            return stream
        self._journal.add(submit, monotonic())
        if self.alive:
            self._command(submit)
        return stream

    def abort(self, ids: Sequence[str]) -> None:
        self._journal.give_up(ids)
        if self.alive:
            self._command(Abort(list(ids)))
        else:
            self._finish([Output(name, finish_reason=FinishReason.ABORT.value) for name in ids])

    def _take(self, news: Outputs) -> None:
        self._journal.take(news)
        if news.started:
            now = monotonic()
            for _ in news.started:
                self._drain.note(now)
        super()._take(news)

    def _refusal(self, submit: Submit) -> Output | None:
        """Refuses a request at once; the engine would read it only between two steps."""
        journal, now = self._journal, monotonic()
        bounds = self._bounds.times(self._queues())
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

    def _queues(self) -> int:
        """Counts the replicas, each of which has a queue."""
        return max(1, len(self._stats))

    def _finish(self, outputs: Sequence[Output]) -> None:
        """Ends requests with these last Outputs."""
        for output in outputs:
            self._journal.end(output.id)
        self._streams.push(outputs)

    def _watch_queue(self) -> None:
        """Begins to end requests that have waited too long, if there is such a limit."""
        if self._bounds.seconds is not None:
            self._expiry = asyncio.create_task(self._expire(self._bounds.seconds))

    async def _leave_queue(self) -> None:
        """Stops ending requests that have waited too long."""
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.wait([self._expiry])

    async def _expire(self, seconds: float) -> None:
        """Ends requests that have waited for `seconds`, again and again."""
        while True:
            await asyncio.sleep(OVERDUE_SECONDS)
            late = self._journal.overdue(monotonic() - seconds)
            if late:
                if self.alive:
                    self._command(Abort(late))
                error = f"nothing could be computed for it within {seconds:g} s"
                ended = FinishReason.ERROR.value
                self._finish(
                    [Output(name, finish_reason=ended, error=error, error_kind="expired") for name in late]
                )
