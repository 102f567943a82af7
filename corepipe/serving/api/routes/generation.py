"""From a valid request to its answer: submit, follow the sequences, send text, abort what nobody awaits."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from corepipe.serving.api.http_errors import ApiError, internal, invalid, unavailable
from corepipe.serving.api.protocol import GenerationRequest, sampling
from corepipe.serving.api.routes.choice import Choice, Delta, Prompt
from corepipe.serving.api.routes.rendering import (
    DONE,
    Envelope,
    Logprobs,
    Renderer,
    Shape,
    Usage,
    device_fields,
)
from corepipe.serving.api.routes.service import Service
from corepipe.serving.api.tenants import ANYONE, Tenant
from corepipe.serving.messages import Output, Submit
from corepipe.serving.supervision.streams import MAX_PENDING, OutputStream
from corepipe.serving.telemetry.requests import Finished

_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


TRACE = "corepipe.trace"
"""Where the scope of a request that is traced has its Trace."""


class Trace(Protocol):
    """Who is told how an answer went; `tracing.Trace`."""

    def answered(
        self, operation: str, request: GenerationRequest, answer_id: str, parts: Sequence[Finished]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """A request made ready: what to compute and how to write it.

    `max_tokens` None: `default_tokens`, or what is left of the context if that is less.
    `logprobs` and `prompt_logprobs` are as in `Sampling`.  `source` is the field the prompts came from.
    """

    request: GenerationRequest
    prompts: Sequence[Prompt]
    shape: Shape
    prefix: str
    source: str
    max_tokens: int | None
    default_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    device_metrics: bool = False
    tenant: Tenant = ANYONE
    trace: Trace | None = None


class Generation:
    """One answer in the making; `arrival` is when its request came (perf_counter).

    Raises ApiError, before anything is submitted, if a prompt does not fit the context.
    """

    def __init__(self, service: Service, plan: Plan, arrival: float) -> None:
        plan.tenant.check(len(plan.prompts) * plan.request.n, plan.request.priority)
        self._service = service
        self._plan = plan
        self._arrival = arrival
        self._envelope = Envelope(
            id=f"{plan.prefix}-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=plan.request.model,
            fingerprint=service.fingerprint,
        )
        self._renderer = Renderer(plan.shape, self._envelope, usage_chunk=plan.request.usage_chunk)
        self._choices = list(self._make_choices())
        self._left = len(self._choices)

    async def answer(self, receive: Receive, send: Send) -> None:
        """Send the answer.  Raises ApiError if it fails before anything was sent.

        The sequences are aborted as soon as the client goes away.
        """
        quota = self._plan.tenant.quota
        if quota is None:
            await self._answer(receive, send)
            return
        with quota.holding(len(self._choices) - 1):  # the guard holds one
            quota.charge(sum(len(prompt.ids) for prompt in self._plan.prompts))
            try:
                await self._answer(receive, send)
            finally:
                quota.charge(sum(choice.generated for choice in self._choices))

    async def _answer(self, receive: Receive, send: Send) -> None:
        streams = [self._service.client.submit(choice.submit) for choice in self._choices]
        news = Single(streams[0]) if len(streams) == 1 else Merged(streams)
        try:
            async with while_connected(receive):
                await (self._stream(news, send) if self._plan.request.stream else self._whole(news, send))
        finally:
            await news.close()
            self._settle(streams)

    def _make_choices(self) -> Iterator[Choice]:
        plan, service = self._plan, self._service
        pieces = service.shown if plan.request.skip_special_tokens else service.raw
        for at, prompt in enumerate(plan.prompts):
            max_tokens = self._max_tokens(len(prompt.ids))
            for copy in range(plan.request.n):
                index = at * plan.request.n + copy
                submit = self._submission(index, copy, prompt, max(max_tokens, 1))
                choice = Choice(index, submit, plan.request, prompt, pieces)
                choice.silent = max_tokens == 0
                yield choice

    def _max_tokens(self, prompt_tokens: int) -> int:
        plan, context = self._plan, self._service.require_ready().max_model_len
        room = context - prompt_tokens
        wanted = plan.max_tokens
        if wanted is None and room > 0:
            return room if plan.default_tokens is None else min(plan.default_tokens, room)
        if room <= 0 or (wanted or 0) > room:
            message = (
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{prompt_tokens + (wanted or 1)} tokens ({prompt_tokens} in the {plan.source}, "
                f"{wanted or 1} for the answer)."
            )
            raise invalid(message, plan.source, "context_length_exceeded")
        return wanted or 0

    def _submission(self, index: int, copy: int, prompt: Prompt, max_tokens: int) -> Submit:
        plan, request = self._plan, self._plan.request
        if request.min_tokens > max_tokens:
            raise invalid(f"min_tokens is more than max_tokens, {max_tokens}.", "min_tokens")
        stop_ids = set(request.stop_token_ids)
        if not request.ignore_eos:
            stop_ids |= self._service.tokenizer.eos_ids
        return Submit(
            id=f"{self._envelope.id}-{index}",
            prompt=prompt.ids,
            max_tokens=max_tokens,
            sampling=sampling(request, copy, plan.logprobs, plan.prompt_logprobs),
            stop_ids=sorted(stop_ids),
            min_tokens=request.min_tokens,
            priority=request.priority,
            owner=plan.tenant.turn,
            cache_salt=plan.tenant.salt + request.cache_salt,
        )

    async def _whole(self, news: News, send: Send) -> None:
        texts: list[list[str]] = [[] for _ in self._choices]
        logprobs: list[Logprobs | None] = [None] * len(self._choices)
        while self._left:
            choice, delta = await self._next(news)
            texts[choice.index].append(delta.text)
            logprobs[choice.index] = joined(logprobs[choice.index], delta.logprobs)
        endings = [choice.ending for choice in self._choices if choice.ending is not None]
        parts = zip(["".join(text) for text in texts], logprobs, endings, strict=True)
        body = self._renderer.whole(list(parts), self._usage(), self._extra())
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, news: News, send: Send) -> None:
        """Wait for the first news, so that a refusal still has its own status; then send events."""
        choice, delta = await self._next(news)
        await send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})
        body = b"".join(self._renderer.opening(choice.index) for choice in self._choices)
        try:
            body += self._event(choice, delta)
            while self._left:
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                body = self._event(*await self._next(news))
            body += self._closing()
        except ApiError as error:
            body = _error_event(error)
        except Exception:
            await send({"type": "http.response.body", "body": _error_event(internal())})
            raise
        await send({"type": "http.response.body", "body": body})

    async def _next(self, news: News) -> tuple[Choice, Delta]:
        """The next addition to a choice that has not ended; what comes after a choice's end is dropped."""
        while True:
            index, output = await news.next()
            choice = self._choices[index]
            if not choice.ended:
                break
        delta = choice.take(output, self._service.metrics.requests, self._arrival)
        if choice.ending is not None:
            self._left -= 1
            if choice.cut:
                await news.drop(index)
        return choice, delta

    def _event(self, choice: Choice, delta: Delta) -> bytes:
        if choice.ending is None and delta.logprobs is None:
            return self._renderer.piece(choice.index, delta.text) if delta.text else b""
        extra = {} if self._left or self._plan.request.usage_chunk else self._extra()
        return self._renderer.chunk(choice.index, delta.text, delta.logprobs, choice.ending, extra)

    def _closing(self) -> bytes:
        if self._plan.request.usage_chunk:
            return self._renderer.usage(self._usage(), self._extra()) + DONE
        return DONE

    def _usage(self) -> Usage:
        firsts = self._choices[:: self._plan.request.n]
        return Usage(
            prompt=sum(len(choice.submit.prompt) for choice in firsts),
            completion=sum(choice.generated for choice in self._choices),
            cached=sum(choice.cached for choice in firsts),
        )

    def _extra(self) -> dict[str, Any]:
        if not self._plan.device_metrics:
            return {}
        times = [choice.last.device if choice.last else None for choice in self._choices]
        return device_fields(self._service.engine.instance, times, self._service.lateness.verdict)

    def _settle(self, streams: Sequence[OutputStream]) -> None:
        """Tell the metrics, and the trace if there is one, how each choice ended.

        What has no end of its own was given up: with the choice that failed, else by the client.
        """
        plan, ends = self._plan, [c.ending.finish_reason if c.ending else None for c in self._choices]
        given_up = "error" if "error" in ends else "abort"
        parts = [
            choice.finished(end or given_up, plan.request.n, self._arrival, stream)
            for choice, end, stream in zip(self._choices, ends, streams, strict=True)
        ]
        self._service.metrics.requests.finish(parts)
        if plan.trace is not None:
            operation = "chat" if plan.source == "messages" else "text_completion"
            plan.trace.answered(operation, plan.request, self._envelope.id, parts)


class News(Protocol):
    """News of all sequences of an answer: (index of the sequence, output)."""

    async def next(self) -> tuple[int, Output]: ...

    async def drop(self, index: int) -> None:
        """Abort one sequence, unless it has ended."""

    async def close(self) -> None:
        """Abort all that have not ended."""


class Single:
    """News of one sequence: no task, no queue."""

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream

    async def next(self) -> tuple[int, Output]:
        return 0, await _next_output(self._stream)

    async def drop(self, index: int) -> None:  # noqa: ARG002
        await self._stream.aclose()

    async def close(self) -> None:
        await self._stream.aclose()


class Merged:
    """News of several sequences, in the order they come; first of all those that were refused at once."""

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
        except Exception as error:  # handed to the one who waits for news
            await self._queue.put(error)


async def _next_output(stream: OutputStream) -> Output:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise unavailable("The engine stopped before the end of the answer.") from None


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Run the body for as long as the client is there; leave it, quietly, when the client goes away."""
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


def wants_device_metrics(request: GenerationRequest, scope: Scope) -> bool:
    """Asked for in the body, or by the header `x-corepipe-device: 1`."""
    return request.device_metrics or (b"x-corepipe-device", b"1") in scope["headers"]


def joined(first: Logprobs | None, second: Logprobs | None) -> Logprobs | None:
    """The logprobs of two runs of tokens, one after the other."""
    if first is None or second is None:
        return first or second
    return Logprobs(
        [*first.tokens, *second.tokens],
        [*first.entries, *second.entries],
        [*first.offsets, *second.offsets],
    )


def _error_event(error: ApiError) -> bytes:
    return b"data: " + error.body() + b"\n\n"
