"""The submission of sequences to the engine, and each choice of an answer: its parts and its failures."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter
from typing import NamedTuple, Protocol

from msgspec.structs import replace
from starlette.types import Receive, Send

from corepipe.answers.parts import PromptTokens, Said, Tokens
from corepipe.answers.text_answer import TextAnswer, prompt_entries
from corepipe.engine.messages import Output
from corepipe.serving.api.bodies.protocol import GenerationRequest, ModelRequest
from corepipe.serving.api.http.errors import (
    ApiError,
    contradicted,
    expired,
    internal,
    invalid,
    overflowed,
    overloaded,
    unavailable,
    unconstrained,
)
from corepipe.serving.api.http.tenants import Quota
from corepipe.serving.supervision.client import MAX_PENDING, OutputStream
from corepipe.serving.telemetry.observer import FinishedSequence, RequestMetrics

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


class EachToken:
    """Outputs of one token each, made of `outputs`."""

    def __init__(self, outputs: SingleOutputs | MergedOutputs) -> None:
        self._outputs = outputs
        self._ready: deque[tuple[int, Output]] = deque()

    async def next(self) -> tuple[int, Output]:
        if not self._ready:
            index, output = await self._outputs.next()
            self._ready += ((index, one) for one in _singly(output))
        return self._ready.popleft()

    async def drop(self, index: int) -> None:
        await self._outputs.drop(index)

    async def close(self) -> None:
        await self._outputs.close()


def _singly(output: Output) -> Iterator[Output]:
    """Yields an output token by token; the last has all that is about the end."""
    *firsts, last = output.tokens or [0]
    for at, token in enumerate(firsts):
        prompt = output.prompt_logprobs if at == 0 else []
        logprobs = output.logprobs[at : at + 1]
        yield Output(output.id, [token], logprobs, prompt, output.cached)
    if firsts:
        output = replace(output, tokens=[last], logprobs=output.logprobs[-1:], prompt_logprobs=[])
    yield output


AnswerOutputs = SingleOutputs | MergedOutputs | EachToken
"""The outputs of all sequences of an answer; `close` aborts those that have not ended."""


def answer_outputs(streams: Sequence[OutputStream], *, singly: bool = False) -> AnswerOutputs:
    """Returns the outputs of these streams as one; `singly`: each has one token."""
    outputs = SingleOutputs(streams[0]) if len(streams) == 1 else MergedOutputs(streams)
    return EachToken(outputs) if singly else outputs


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


AnswerPart = Said | PromptTokens | Tokens
"""The parts that a choice consists of."""

_FAILURES: dict[str, tuple[Callable[[str], ApiError], str]] = {
    "expired": (expired, "It has waited too long."),
    "unavailable": (unavailable, "The engine has stopped."),
    "invalid": (invalid, "The engine refused the request."),
    "overflow": (overflowed, "The model's logits overflowed."),
    "contradiction": (contradicted, "The answer's grammar allows none of allowed_token_ids."),
    "constraint": (unconstrained, "No next token fits the grammar of the answer."),
}
"""The error for each `error_kind` of an Output, and its message where the Output has none."""


class RequestedDetails(NamedTuple):
    """Details that a request wants beside the text: token ids; alternatives for each prompt token."""

    token_ids: bool
    prompt_logprobs: int | None

    @staticmethod
    def of(body: GenerationRequest) -> RequestedDetails | None:
        """Returns what the body requests; None where it requests nothing, which is the usual case."""
        if body.return_token_ids or body.prompt_logprobs is not None:
            return RequestedDetails(body.return_token_ids, body.prompt_logprobs)
        return None

    def prompt(self, answer: TextAnswer, output: Output) -> PromptTokens:
        """Makes the part about the prompt from the first output."""
        tokens = answer.submit.prompt if self.token_ids else None
        wanted = self.prompt_logprobs
        return PromptTokens(answer.choice, tokens, None if wanted is None else prompt_entries(output, wanted))


class GeneratedChoice:
    """Follows one sequence.  `failure`: "error" or "abort", where the sequence did not finish by itself."""

    def __init__(
        self,
        answer: TextAnswer,
        arrival: float,
        metrics: RequestMetrics,
        details: RequestedDetails | None = None,
    ) -> None:
        self.answer = answer
        self.failure: str | None = None
        self._details = details
        self._begun = False
        self._arrival = arrival
        self._metrics = metrics
        self._first_at: float | None = None
        self._last_at = 0.0

    @property
    def index(self) -> int:
        return self.answer.choice

    @property
    def ended(self) -> bool:
        return self.answer.finish is not None or self.failure is not None

    def take(self, output: Output) -> Sequence[AnswerPart]:
        """Returns the parts that `output` adds.  Raises ApiError if it says that the request failed."""
        answer = self.answer
        if output.finish_reason in ("error", "abort"):
            answer.last, self.failure = output, output.finish_reason
            raise failure(output)
        before = answer.generated
        parts = answer.take(output)
        if answer.generated > before:
            self._record_times(answer.generated - before)
        if self._details is None:
            return parts
        return [*self._requested(self._details, output, answer.generated - before), *parts]

    def _requested(self, details: RequestedDetails, output: Output, count: int) -> Iterator[AnswerPart]:
        """Yields the requested details of an output that has `count` tokens."""
        if not self._begun:
            self._begun = True
            yield details.prompt(self.answer, output)
        if details.token_ids:
            yield Tokens(self.index, output.tokens[:count])

    def finished(self, otherwise: str, n: int, stream: OutputStream) -> FinishedSequence:
        """Returns what the metrics record at the end; times are by the server's own clock, not the engine's.

        `otherwise`: the finish reason of a sequence that neither ended nor failed.
        """
        answer, started, first = self.answer, stream.started_at, self._first_at
        return FinishedSequence(
            reason=answer.finish.finish_reason if answer.finish else self.failure or otherwise,
            prompt_tokens=len(answer.submit.prompt),
            cached_tokens=answer.cached,
            generated_tokens=answer.generated,
            max_tokens=0 if answer.silent else answer.submit.max_tokens,
            n=n,
            seconds=perf_counter() - self._arrival,
            queue_seconds=None if started is None else started - stream.opened_at,
            prefill_seconds=None if started is None or first is None else first - started,
            first_token_seconds=None if first is None else first - self._arrival,
            decoding_seconds=None if first is None else self._last_at - first,
            last=answer.last,
        )

    def _record_times(self, count: int) -> None:
        """Records the times of `count` tokens that came together: each but the first has a gap before it."""
        now = perf_counter()
        if self._first_at is None:
            self._first_at = self._last_at = now
            self._metrics.time_to_first_token.observe(now - self._arrival)
            count -= 1
        if count:
            self._metrics.inter_token_latency.observe((now - self._last_at) / count, count)
        self._last_at = now


def failure(output: Output) -> ApiError:
    """Returns the error for the engine's last output of a failed sequence."""
    if output.finish_reason == "abort":
        return unavailable("The request was aborted by the server.")
    if output.error_kind == "overloaded":
        return overloaded(output.error or "The queue is full.", output.retry_seconds)
    if output.error_kind in _FAILURES:
        make, reason = _FAILURES[output.error_kind]
        return make(output.error or reason)
    logging.getLogger(__name__).error("request %s failed: %s", output.id, output.error)
    return internal()
