"""Steps that all requests to a model share: the key's quota, the outputs while the client stays, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from starlette.types import Receive, Send

from corepipe.engine.messages import Output
from corepipe.serving.api.bodies.protocol import ModelRequest
from corepipe.serving.api.http.errors import unavailable
from corepipe.serving.api.http.tenants import Quota
from corepipe.serving.supervision.client import MAX_PENDING, OutputStream
from corepipe.serving.telemetry.observer import FinishedSequence

JSON_HEADER = (b"content-type", b"application/json")
TRACE = "corepipe.trace"
"""The key of a traced request's AnswerObserver in its ASGI scope."""


class AnswerObserver(Protocol):
    """An observer that learns how an answer ended, such as `tracing.RequestSpan`."""

    def answered(
        self, operation: str, request: ModelRequest, answer_id: str, parts: Sequence[FinishedSequence]
    ) -> None: ...


def _no_tokens() -> int:
    """Returns 0, for requests that generate nothing."""
    return 0


@contextmanager
def charged(
    quota: Quota | None, sequences: int, prompt_tokens: int, generated: Callable[[], int] = _no_tokens
) -> Iterator[None]:
    """Charges a key's quota for `sequences` requests in flight: prompt tokens now, generated ones at the end.

    Raises ApiError (429) if the quota is used up.
    """
    if quota is None:
        yield
        return
    with quota.holding(sequences - 1):  # RequestGuard holds one
        quota.charge(prompt_tokens)
        try:
            yield
        finally:
            quota.charge(generated())


@asynccontextmanager
async def followed(
    streams: Sequence[OutputStream], receive: Receive, report: Callable[[], None]
) -> AsyncIterator[None]:
    """Runs the body of `async with` while the client is connected; then closes all streams, also those added
    meanwhile, and calls `report`."""
    try:
        async with while_connected(receive):
            yield
    finally:
        for stream in streams:
            await stream.aclose()
        report()


class SingleOutputs:
    """The outputs of one sequence, as (0, output), without a task or a queue."""

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream

    async def next(self) -> tuple[int, Output]:
        return 0, await _next_output(self._stream)

    async def drop(self, index: int) -> None:  # noqa: ARG002
        """Aborts one sequence, unless it has ended."""
        await self._stream.aclose()

    async def close(self) -> None:
        await self._stream.aclose()


class MergedOutputs:
    """The outputs of several sequences, as (index of it, output), in the order they come; first those
    that were refused at once."""

    def __init__(self, streams: Sequence[OutputStream]) -> None:
        self._streams = streams
        self._queue: asyncio.Queue[tuple[int, Output] | Exception] = asyncio.Queue(MAX_PENDING)
        refused_first = sorted(enumerate(streams), key=lambda item: not item[1].has_news)
        self._tasks = [asyncio.create_task(self._pump(*item)) for item in refused_first]

    async def next(self) -> tuple[int, Output]:
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def drop(self, index: int) -> None:
        await self._streams[index].aclose()

    async def close(self) -> None:
        for stream in self._streams:
            await stream.aclose()
        for task in self._tasks:
            task.cancel()

    async def _pump(self, index: int, stream: OutputStream) -> None:
        try:
            finish_reason = None
            while finish_reason is None:
                output = await _next_output(stream)
                finish_reason = output.finish_reason
                await self._queue.put((index, output))
        except Exception as error:  # raised again in `next`
            await self._queue.put(error)


AnswerOutputs = SingleOutputs | MergedOutputs
"""The outputs of all sequences of an answer; `close` aborts those that have not ended."""


def answer_outputs(streams: Sequence[OutputStream]) -> AnswerOutputs:
    """Returns the outputs of these streams as one."""
    return SingleOutputs(streams[0]) if len(streams) == 1 else MergedOutputs(streams)


async def _next_output(stream: OutputStream) -> Output:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise unavailable("The engine stopped before the end of the answer.") from None


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Runs the body of `async with` while the client is connected; leaves it without error when it goes."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone or task.uncancel() > 0:
            raise
    finally:
        watcher.cancel()


async def answer(send: Send, body: bytes, *others: tuple[bytes, bytes]) -> None:
    """Sends an answer with status 200; its content type is JSON unless the headers `others` have one."""
    kind = () if any(name == b"content-type" for name, _ in others) else (JSON_HEADER,)
    headers = [*kind, (b"content-length", b"%d" % len(body)), *others]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
