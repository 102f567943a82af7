"""Endpoints that answer with what a model computes for its prompts, such as vectors or scores; they generate
no tokens."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from starlette.types import Receive, Scope, Send

from corepipe.answers.values import F32
from corepipe.engine.messages import Output, Submit
from corepipe.engine.sampling_parameters import MAX_TOKENS
from corepipe.models.tasks import Task, TaskInfo
from corepipe.models.text.tokenizer import Side
from corepipe.serving.api.answering.endpoint import asks_device, naming, read_request
from corepipe.serving.api.answering.rendering import EmulatedTimes
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.submission import (
    TRACE,
    AnswerObserver,
    answer,
    charged,
    failure,
    followed,
)
from corepipe.serving.api.answering.texts import EncodedPrompt, EncodingOptions, Truncation
from corepipe.serving.api.bodies.protocol import REQUEST_ID, ModelRequest
from corepipe.serving.api.bodies.values import Neutral, ShortText
from corepipe.serving.api.http.errors import invalid, overflowed, unavailable
from corepipe.serving.api.http.tenants import Tenant, tenant_of
from corepipe.serving.supervision.client import OutputStream
from corepipe.serving.telemetry.observer import FinishedSequence

MOST_AT_ONCE = 256
"""The most prompts of one request that are in the engine at a time."""
SHARE = 4
"""One request takes at most this fraction of the queue: 1 / SHARE."""

NEUTRAL_POOLED: Mapping[str, Neutral] = {
    "user": Neutral(type=ShortText),
    "embed_dtype": Neutral(("float32",)),
    "endianness": Neutral(("native", "little")),
}


class PooledBody(ModelRequest, frozen=True, kw_only=True):
    """The facts that an endpoint needs of every body; a dialect without fields for them has these."""

    @property
    def truncate_prompt_tokens(self) -> int | None:
        return None

    @property
    def truncation_side(self) -> Side:
        return "right"

    @property
    def priority(self) -> int:
        return 0

    @property
    def device_metrics(self) -> bool:
        return False

    @property
    def request_id(self) -> str | None:
        return None

    def check(self, task: TaskInfo) -> None:
        """Checks the rules between fields and those that depend on the model.  Raises ApiError."""


class PooledRequest(PooledBody, frozen=True, kw_only=True):
    """The fields that all pooled requests of our own form share.  Null stands for the default everywhere."""

    neutral: ClassVar[Mapping[str, Neutral]] = NEUTRAL_POOLED

    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None,
        Meta(description="keep that many tokens of each text; -1 = as many as the model reads"),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"], Meta(description="the side that is cut off: `right` keeps the beginning")
    ] = "right"
    priority: Annotated[
        int, Meta(ge=-(2**31), le=MAX_TOKENS, description="requests with a lower number run earlier")
    ] = 0
    device_metrics: Annotated[
        bool, Meta(description="add the times of the emulated device, as `corepipe`")
    ] = False
    request_id: Annotated[
        Annotated[str, Meta(pattern=REQUEST_ID)] | None,
        Meta(description="the answer's `id` ends with it; 1 to 128 letters, digits and `._:-`"),
    ] = None

    def check(self, task: TaskInfo) -> None:
        if task.images is not None and self.truncate_prompt_tokens is not None:
            raise invalid(
                "truncate_prompt_tokens is for texts; this model reads images.", "truncate_prompt_tokens"
            )
        if self.request_id is not None and self.request_id.endswith("\n"):  # which a pattern's end lets pass
            raise invalid("request_id must not end with a line break.", "request_id")


B = TypeVar("B", bound=PooledBody)


@dataclass(frozen=True, slots=True)
class PooledJob:
    """A request whose prompts are to be computed; traces name it by `operation`.

    `arrival` is when it came (perf_counter).  `id` is the answer's, which its client may have chosen; the
    ids of its sequences in the engine begin with `sequences`.
    """

    id: str
    sequences: str
    body: PooledBody
    operation: str
    arrival: float
    tenant: Tenant
    trace: AnswerObserver | None

    @staticmethod
    def by(scope: Scope, body: PooledBody, arrival: float, prefix: str, operation: str) -> PooledJob:
        """Makes the job of a request; its ids begin with `prefix`, its tenant and trace are in the scope."""
        drawn = secrets.token_hex(12)
        return PooledJob(
            id=f"{prefix}-{body.request_id or drawn}",
            sequences=f"{prefix}-{drawn}",
            body=body,
            operation=operation,
            arrival=arrival,
            tenant=tenant_of(scope),
            trace=scope.get(TRACE),
        )


class PooledResult(NamedTuple):
    """A prompt and the output that was computed for it."""

    prompt: EncodedPrompt
    output: Output


class PooledRunner:
    """Computes the prompts of a job, few enough at a time that other requests keep places in the queue."""

    def __init__(self, service: Service, job: PooledJob) -> None:
        job.tenant.check(1, job.body.priority)
        self._service = service
        self._job = job
        self._streams: list[OutputStream] = []
        self._outputs: list[Output] = []
        self._ends: list[float] = []

    async def results(self, prompts: Sequence[EncodedPrompt], receive: Receive) -> list[PooledResult] | None:
        """Returns the results in the order of the prompts; None if the client has gone away.

        Raises ApiError if a prompt fails; the others are aborted then.
        """
        quota, most = self._job.tenant.quota, self._most()
        tokens = sum(len(prompt.ids) for prompt in prompts)
        with charged(quota, min(len(prompts), most), tokens):
            async with followed(self._streams, receive, lambda: self._report(prompts)):
                await self._compute(prompts, most)
        if len(self._outputs) < len(prompts):
            return None
        return [*map(PooledResult, prompts, self._outputs)]

    def _most(self) -> int:
        """Returns how many prompts may be in the engine at a time."""
        quota = self._job.tenant.quota
        held = None if quota is None else quota.most()
        share = max(self._service.engine.max_queued_requests // SHARE, 1)
        return min(MOST_AT_ONCE, share, MOST_AT_ONCE if held is None else held)

    async def _compute(self, prompts: Sequence[EncodedPrompt], most: int) -> None:
        room = max(self._service.engine.max_queued_tokens // SHARE, 1)
        waiting: deque[tuple[OutputStream, int]] = deque()
        for number, prompt in enumerate(prompts):
            size = len(prompt.ids)
            while waiting and (len(waiting) == most or size > room):
                stream, its = waiting.popleft()
                room += its
                await self._take(stream)
            room -= size
            waiting.append((self._submitted(number, prompt), size))
        for stream, _ in waiting:
            await self._take(stream)

    def _submitted(self, number: int, prompt: EncodedPrompt) -> OutputStream:
        job = self._job
        stream = self._service.client.submit(
            Submit(
                id=f"{job.sequences}-{number}",
                prompt=prompt.ids,
                max_tokens=0,
                second=prompt.second,
                image=prompt.image,
                priority=job.tenant.priority(job.body.priority),
                owner=job.tenant.turn,
                cache_salt=job.tenant.salt,
                adapter=self._service.adapter_of(job.body.model),
            )
        )
        self._streams.append(stream)
        return stream

    async def _take(self, stream: OutputStream) -> None:
        try:
            output = await anext(stream)
        except StopAsyncIteration:
            raise unavailable("The engine stopped before the end of the answer.") from None
        self._outputs.append(output)
        self._ends.append(perf_counter())
        if output.finish_reason in ("error", "abort"):
            raise failure(output)

    def _report(self, prompts: Sequence[EncodedPrompt]) -> None:
        """Reports to the metrics, and to the trace if there is one, how each submitted prompt ended.

        A prompt without an end was given up: because another prompt failed, else because the client left.
        """
        job, failures = self._job, [output.finish_reason for output in self._outputs]
        given_up = "error" if "error" in failures else "abort"
        ends = [*zip(self._outputs, self._ends, strict=True)]
        parts = []
        for number, stream in enumerate(self._streams):
            output, at = ends[number] if number < len(ends) else (None, perf_counter())
            parts.append(self._finished(stream, len(prompts[number].ids), output, at, given_up))
        if not parts:
            return
        self._service.request_metrics(job.tenant).finish(parts)
        if job.trace is not None:
            job.trace.answered(job.operation, job.body, job.id, parts)

    def _finished(
        self, stream: OutputStream, tokens: int, output: Output | None, at: float, given_up: str
    ) -> FinishedSequence:
        started = stream.started_at
        return FinishedSequence(
            reason=(output and output.finish_reason) or given_up,
            prompt_tokens=tokens,
            cached_tokens=output.cached if output else 0,
            generated_tokens=0,
            max_tokens=0,
            n=1,
            seconds=at - self._job.arrival,
            queue_seconds=None if started is None else started - stream.opened_at,
            prefill_seconds=None if started is None or output is None else at - started,
            first_token_seconds=None,
            decoding_seconds=None,
            last=output,
            generates=False,
        )


class PooledEnvelope(NamedTuple):
    """The fields of every answer beside its values; `device`: the emulated device's times."""

    id: str
    created: int
    model: str
    tokens: int
    device: Mapping[str, Any] | None

    @property
    def usage(self) -> dict[str, int]:
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}

    @property
    def more(self) -> dict[str, Any]:
        """The device's times as a field of the answer, if they were requested."""
        return {} if self.device is None else {"corepipe": self.device}

    def listing(self, data: Sequence[bytes]) -> bytes:
        """Returns an object `list` of data that are JSON already."""
        head = {"id": self.id, "object": "list", "created": self.created, "model": self.model}
        tail = {"usage": self.usage, **self.more}
        return b'%b,"data":[%b],%b' % (_encode(head)[:-1], b",".join(data), _encode(tail)[1:])


class PooledEndpoint(ABC, Generic[B]):
    """An endpoint that generates nothing, as plain ASGI like `endpoint.Endpoint`; it does `tasks`."""

    request: type[B]
    prefix: ClassVar[str]
    operation: ClassVar[str]
    tasks: ClassVar[tuple[Task, ...]]

    def __init__(self, service: Service) -> None:
        self.service = service

    @abstractmethod
    async def plan(self, body: B, options: EncodingOptions) -> list[EncodedPrompt]:
        """Returns the prompts to compute.  Raises ApiError."""

    @abstractmethod
    def render(self, body: B, results: Sequence[PooledResult], envelope: PooledEnvelope) -> bytes:
        """Returns the body of the answer.  Raises ApiError."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival, service = perf_counter(), self.service
        body, ignored = await read_request(service, receive, self.request)
        service.require_task(*self.tasks)
        most = service.most_tokens
        body.check(service.task)
        options = EncodingOptions(most, Truncation.of(body, most, 0))
        prompts = await self.plan(body, options)
        job = PooledJob.by(scope, body, arrival, self.prefix, self.operation)
        results = await PooledRunner(service, job).results(prompts, receive)
        if results is None:
            return
        outputs = [result.output for result in results]
        envelope = PooledEnvelope(
            id=job.id,
            created=int(time.time()),
            model=body.model or service.names[0],
            tokens=sum(len(prompt.ids) for prompt in prompts),
            device=emulated(service, outputs) if asks_device(body.device_metrics, scope) else None,
        )
        size = sum(len(output.values) for output in outputs) // 4
        await answer(
            naming(send, ignored), await service.beside(size, lambda: self.render(body, results, envelope))
        )


def emulated(service: Service, outputs: Sequence[Output]) -> dict[str, Any]:
    """Returns the emulated device's times of these outputs, as fields of an answer."""
    times = [output.device for output in outputs]
    return EmulatedTimes(service.engine.instance, times, service.observer.lateness.verdict).fields()


def _encode(fields: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(fields)


VectorEncoding = Literal["float", "base64"]


def array(output: Output) -> F32:
    """Returns values, [rows, width].  Raises ApiError (500) for infinity or NaN, which JSON does not have."""
    found = np.frombuffer(output.values, "<f4")
    if not np.isfinite(found).all():
        raise overflowed("The model computed infinity or NaN.")
    return found.reshape(output.rows, -1)


def to_json(values: F32, encoding: VectorEncoding) -> bytes:
    """Returns JSON: a (nested) list of numbers, or a base64 string of their bytes, little-endian fp32."""
    if encoding == "base64":
        return b'"' + b64encode(values.astype("<f4", copy=False).tobytes()) + b'"'
    return msgspec.json.encode(values.tolist())
