"""The outputs of each open request as a stream, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from msgspec.structs import replace

from corepipe.engine.messages import Output
from corepipe.scheduler.request import FinishReason

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


def failed_output(request_id: str, error: str) -> Output:
    """Makes the last Output of a request whose engine is lost."""
    ended = FinishReason.ERROR.value
    return Output(request_id, finish_reason=ended, error=error, error_kind="unavailable")
