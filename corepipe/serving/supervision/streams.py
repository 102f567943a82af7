"""A client's side of its requests: news by request, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from msgspec.structs import replace

from corepipe.engine.messages import Output
from corepipe.scheduler.request import FinishReason

MAX_PENDING = 256
"""Pieces of news that wait for a consumer before they become one; their tokens are bounded by the request."""


def merge_outputs(outputs: Sequence[Output]) -> Output:
    """One Output that says what several of a request said in turn."""
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
    """News of one request, as an async iterator that ends after the Output with a finish_reason.

    What comes while the consumer is busy is merged into one Output; nothing is dropped.  Closing the
    stream, or cancelling the one who waits for it, aborts the request.

    opened_at, started_at: when it was handed over, and when something was first computed for it (None: not
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
        """Whether there is something to read."""
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
        """It has left the queue; that it is begun anew, after the loss of an engine, does not count."""
        if self.started_at is None:
            self.started_at = perf_counter()

    def push(self, output: Output) -> None:
        """Adds news, and wakes the consumer if it waits."""
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
        """Raises ValueError where a request of that id is still open."""
        if request_id in self._open:
            raise ValueError(f"request {request_id} is already open")
        stream = self._open[request_id] = OutputStream(request_id, abort)
        return stream

    @property
    def ids(self) -> list[str]:
        """The requests whose streams are open."""
        return list(self._open)

    def start(self, ids: Iterable[str]) -> None:
        """Something is about to be computed for these."""
        for request_id in ids:
            if request_id in self._open:
                self._open[request_id].start()

    def push(self, outputs: Iterable[Output]) -> None:
        """Hands each Output to its stream; a stream leaves with its last."""
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
    """The last news of a request whose engine cannot go on."""
    ended = FinishReason.ERROR.value
    return Output(request_id, finish_reason=ended, error=error, error_kind="unavailable")
