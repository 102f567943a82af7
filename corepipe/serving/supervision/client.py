"""The engine of a server as requests see it: streams of outputs, and a client that keeps what it submits."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from time import monotonic, perf_counter
from typing import Protocol

from msgspec.structs import replace

from corepipe.engine.config import EngineConfig
from corepipe.engine.lora import AdapterRef
from corepipe.engine.messages import (
    Abort,
    Command,
    LoadProgress,
    Output,
    Outputs,
    Ready,
    Stats,
    Submit,
    failed_output,
)
from corepipe.scheduler.request import FinishReason
from corepipe.serving.supervision.adapters import AdapterLoads
from corepipe.serving.supervision.journal import DrainRate, Journal, QueueLimits
from corepipe.serving.supervision.memory import MemoryGuard

ENGINE_DIED = "engine died"

OVERDUE_SECONDS = 0.1
"""The time between two searches for requests that have waited too long."""

MAX_PENDING = 256
"""Outputs that wait for a consumer before they are merged into one; the request bounds their tokens."""


def merge_outputs(outputs: Sequence[Output]) -> Output:
    """Merges consecutive Outputs of a request into one."""
    if len(outputs) == 1:
        return outputs[0]
    return replace(
        outputs[-1],
        tokens=[token for output in outputs for token in output.tokens],
        logprobs=[logprob for output in outputs for logprob in output.logprobs],
        prompt_logprobs=[logprob for output in outputs for logprob in output.prompt_logprobs],
        cached=max(output.cached for output in outputs),
    )


class OutputStream:
    """The Outputs of one request: an async iterator that ends after the one with a finish_reason.

    Outputs that come while the consumer is busy are merged into one; nothing is dropped.  Closing the stream,
    or cancelling a task that waits for it, aborts the request.

    opened_at, started_at: when it was submitted, and when something was first computed for it (None: not
    yet), in seconds of `perf_counter`.
    """

    def __init__(self, request_id: str, abort: Callable[[list[str]], None]) -> None:
        self.request_id = request_id
        self.opened_at = perf_counter()
        self.started_at: float | None = None
        self._abort = abort
        self._pending: list[Output] = []
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    @property
    def has_news(self) -> bool:
        """Tells whether there is an Output to read."""
        return bool(self._pending)

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> Output:
        if self._ended:
            raise StopAsyncIteration
        if not self._pending:
            await self._wait()
        news = merge_outputs(self._pending)
        self._pending.clear()
        self._ended = news.finish_reason is not None
        return news

    async def aclose(self) -> None:
        """Aborts the request unless its end has been read."""
        if not self._ended:
            self._ended = True
            self._abort([self.request_id])

    def start(self) -> None:
        """Notes when it has left the queue; a new start after the loss of an engine does not count."""
        if self.started_at is None:
            self.started_at = perf_counter()

    def push(self, output: Output) -> None:
        """Adds an Output, and wakes the consumer if it waits."""
        self._pending.append(output)
        if len(self._pending) > MAX_PENDING:
            self._pending = [merge_outputs(self._pending)]
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            await self.aclose()
            raise
        finally:
            self._waiter = None


class Streams:
    """The open streams of a client."""

    def __init__(self) -> None:
        self._open: dict[str, OutputStream] = {}

    def open(self, request_id: str, abort: Callable[[list[str]], None]) -> OutputStream:
        """Opens the stream of a request.  Raises ValueError where a request of that id is still open."""
        if request_id in self._open:
            raise ValueError(f"request {request_id} is already open")
        stream = self._open[request_id] = OutputStream(request_id, abort)
        return stream

    @property
    def ids(self) -> list[str]:
        """The ids of the requests whose streams are open."""
        return list(self._open)

    def start(self, ids: Iterable[str]) -> None:
        """Notes that the computation of these requests begins."""
        for request_id in ids:
            if request_id in self._open:
                self._open[request_id].start()

    def push(self, outputs: Iterable[Output]) -> None:
        """Adds each Output to its stream; a stream is closed with its last one."""
        streams = self._open
        for output in outputs:
            stream = streams.get(output.id)
            if stream is not None:
                stream.push(output)
                if output.finish_reason is not None:
                    del streams[output.id]

    def fail(self, error: str) -> None:
        """Ends every open stream with an error."""
        self.push([failed_output(request_id, error) for request_id in self._open])


class EngineClient(Protocol):
    """The interface of an engine for a server.  All calls belong to one event loop."""

    on_stats: Callable[[Stats], None]
    """Called with every Stats, once."""

    on_ready: Callable[[Ready], None]
    """Called when an engine has taken the place of a lost one."""

    on_failure: Callable[[Exception], None]
    """Called once with the reason, where an engine that was ready is lost and does not come back."""

    @property
    def adapters(self) -> AdapterLoads | None:
        """Loads LoRA adapters into the engine; None where that cannot be done."""

    @property
    def adapters_in_use(self) -> tuple[Set[AdapterRef], Set[AdapterRef]]:
        """The LoRA adapters of the requests that run, and of those that wait."""

    async def start(self, progress: Callable[[LoadProgress], None] | None = None) -> Ready:
        """Loads.  Raises UserError where the config is at fault, EngineError where the engine is."""

    def submit(self, submit: Submit) -> OutputStream:
        """Submits a request; a refusal comes as its first and last Output.

        Raises ValueError where a request of that id is still open.
        """

    def abort(self, ids: Sequence[str]) -> None:
        """Aborts requests; each open stream ends with finish_reason "abort"."""

    def abort_all(self) -> None:
        """Aborts all open requests."""

    @property
    def stats(self) -> Sequence[Stats]:
        """The latest Stats of each replica, by replica."""

    @property
    def restarts(self) -> Mapping[str, int]:
        """Counts of engines that were lost and replaced, by reason."""

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        """Counts of what a fleet refused, by machine (or "front") and reason; none without a fleet."""

    @property
    def alive(self) -> bool:
        """Tells whether the engine has loaded and works."""

    @property
    def restarting(self) -> bool:
        """Tells whether an engine was lost and another one is loading."""

    async def sleep(self) -> None:
        """Ends the engine, which is not needed now; `start` loads another one.

        Raises UserError where that is not possible.
        """

    async def close(self) -> None:
        """Ends the engine; open streams end first."""


class JournaledClient(ABC):
    """Admits requests within the limits of the queue, and keeps what another engine needs to continue each.

    `queue_seconds`: the longest that a request waits before anything is computed for it.  While a lost engine
    is being replaced (`restarting`), requests wait in the journal.  Outputs become items of streams.
    """

    def __init__(self, config: EngineConfig, queue_seconds: float | None) -> None:
        self.on_stats: Callable[[Stats], None] = _ignore
        self.on_ready: Callable[[Ready], None] = _ignore
        self.on_failure: Callable[[Exception], None] = _ignore
        self._config = config
        self._streams = Streams()
        self._stats: dict[int, Stats] = {}
        self._journal = Journal()
        self._bounds = QueueLimits(config.max_queued_requests, config.max_queued_tokens, queue_seconds)
        self._drain = DrainRate()
        self._memory = MemoryGuard()
        self._expiry: asyncio.Task[None] | None = None

    @property
    def adapters(self) -> AdapterLoads | None:
        return None

    @property
    def adapters_in_use(self) -> tuple[Set[AdapterRef], Set[AdapterRef]]:
        return self._journal.adapters(), self._journal.adapters(waiting=True)

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @property
    @abstractmethod
    def restarting(self) -> bool: ...

    @property
    def stats(self) -> list[Stats]:
        return [self._stats[replica] for replica in sorted(self._stats)]

    def submit(self, submit: Submit) -> OutputStream:
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

    def abort_all(self) -> None:
        self.abort(self._streams.ids)

    @abstractmethod
    def _command(self, command: Command) -> None:
        """Sends a command to a living engine."""

    def _take(self, news: Outputs) -> None:
        self._journal.take(news)
        if news.started:
            now = monotonic()
            for _ in news.started:
                self._drain.note(now)
            self._streams.start(started.id for started in news.started)
        self._streams.push(news.outputs)
        if news.stats is not None:
            self._show(news.stats)

    def _show(self, stats: Stats) -> None:
        self._stats[stats.replica] = stats
        self.on_stats(stats)

    def _refusal(self, submit: Submit) -> Output | None:
        """Refuses a request at once; the engine would read it only between two steps."""
        if not (self.alive or self.restarting):
            return failed_output(submit.id, ENGINE_DIED)
        journal, now = self._journal, monotonic()
        bounds = self._bounds.times(self._queues())
        own = journal.waiting_of(submit.owner) if submit.owner else None
        reason = bounds.refusal(journal.waiting, len(submit.prompt), own)
        if reason is None and len(journal) and self._memory.full(now):
            reason = "the server's memory is nearly used up"
        if reason is None:
            return None
        seconds = self._drain.retry_seconds(journal.waiting.requests, now)
        return failed_output(submit.id, reason, "overloaded", seconds)

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
                self._finish([failed_output(name, error, "expired") for name in late])


def _ignore(_news: object) -> None:
    """Ignores a message."""
