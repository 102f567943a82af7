"""Endpoints that generate text: from a body to plans, and from the parts of an answer to bytes."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar, Generic, TypeVar

from starlette.types import Message, Receive, Scope, Send

from corepipe.models.tasks import Task
from corepipe.serving.api.answering.answers import NamedById, TokenTexts
from corepipe.serving.api.answering.generation import Generation, GenerationJob, GenerationPlan
from corepipe.serving.api.answering.rendering import ChoiceShape, ChoicesRenderer, Envelope, Renderer
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.submission import TRACE
from corepipe.serving.api.bodies.client_settings import IGNORED
from corepipe.serving.api.bodies.protocol import GenerationRequest, ModelRequest
from corepipe.serving.api.bodies.reading import decode, read
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.http.guard import read_body
from corepipe.serving.api.http.tenants import tenant_of

PREDICTED_CHARACTERS = 16
"""Characters of a prediction that are read for each token of the context: few answers have more."""

R = TypeVar("R", bound=ModelRequest)
B = TypeVar("B", bound=GenerationRequest)


async def read_request(service: Service, receive: Receive, request: type[R]) -> tuple[R, list[str]]:
    """Reads the body of a request to a served model; returns it and the names of its fields without effect.

    Where one model is served, a body need not name it; for a strict server it must.
    Raises ApiError for a wrong field, and for a model that is not served.
    """
    fields = decode(await read_body(receive))
    if not (service.strict or service.listed) and fields.get("model") is None:
        fields["model"] = service.names[0]
    body, ignored = read(fields, request, strict=service.strict)
    if service.adapters is not None:
        await service.adapters.fetch(body.model)
    service.require_model(body.model)
    return body, ignored


def naming(send: Send, ignored: Sequence[str]) -> Send:
    """Returns `send` with a header that names the fields without effect, if there are any."""
    if not ignored:
        return send
    header = (IGNORED.encode(), ", ".join(ignored).encode())

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], header]}
        await send(message)

    return named


@dataclass(frozen=True, slots=True)
class ReadRequest(Generic[R]):
    """A request that was read: its body, and the names of the fields without effect.

    scope: that of ASGI.  arrival: when it came (perf_counter).
    """

    scope: Scope
    arrival: float
    body: R
    ignored: Sequence[str] = ()


def drawn_id(prefix: str, wanted: str | None = None) -> str:
    """Returns an id that begins with `prefix` and ends with the one that a client `wanted`, or by chance."""
    return f"{prefix}{wanted or secrets.token_hex(12)}"


def envelope_of(service: Service, model: str, answer_id: str) -> Envelope:
    """Returns the fields that all objects of an answer share; it is created now."""
    return Envelope(answer_id, int(time.time()), model, service.fingerprint_of(model))


class Endpoint(ABC, Generic[B]):
    """An endpoint that generates text, as plain ASGI: request and response objects would cost more time than
    all the rest.

    `request` is the type of bodies; the ids of answers begin with `prefix`; traces name the endpoint by
    `operation`.
    """

    request: type[B]
    prefix: ClassVar[str]
    operation: ClassVar[str]

    def __init__(self, service: Service) -> None:
        self.service = service

    @abstractmethod
    async def plan(self, body: B, grammar: str) -> list[GenerationPlan]:
        """Returns a plan for each prompt; `grammar` constrains the text, unless empty.  Raises ApiError."""

    @abstractmethod
    def renderer(self, body: B, envelope: Envelope) -> Renderer:
        """Returns what writes the answer."""

    async def without_effect(self, body: B) -> Sequence[str]:  # noqa: ARG002
        """Returns fields without effect for this model.  Raises ApiError for one if the server is strict."""
        return ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        job = await self.prepare(scope, receive)
        await Generation(self.service, job).answer(receive, naming(send, job.ignored))

    async def prepare(self, scope: Scope, receive: Receive) -> GenerationJob:
        """Reads a request and prepares all that is computed for it.  Raises ApiError."""
        arrival = perf_counter()
        body, ignored = await read_request(self.service, receive, self.request)
        envelope = envelope_of(self.service, body.model, drawn_id(self.prefix, body.request_id))
        request = ReadRequest(scope, arrival, body, ignored)
        return await self.job(request, envelope, self.renderer(body, envelope))

    async def job(self, request: ReadRequest[B], envelope: Envelope, renderer: Renderer) -> GenerationJob:
        """Prepares all that is computed for a request; its answer has the fields of `envelope`.

        Raises ApiError.
        """
        body, service = request.body, self.service
        service.require_task(Task.GENERATE)
        service.require_ready()
        body.check(service.vocab_size, service.engine.max_num_seqs)
        without_effect = await self.without_effect(body)
        plans = await self.plan(body, await service.grammar(body))
        return GenerationJob(
            id=envelope.id,
            sequences=envelope.id if body.request_id is None else drawn_id(self.prefix),
            body=body,
            plans=plans,
            prediction=await self._predicted(body),
            renderer=renderer,
            operation=self.operation,
            arrival=request.arrival,
            device_metrics=asks_device(body.device_metrics, request.scope),
            tenant=tenant_of(request.scope),
            trace=request.scope.get(TRACE),
            ignored=[*request.ignored, *without_effect],
        )

    async def _predicted(self, body: GenerationRequest) -> list[int]:
        """Returns the tokens of the `prediction`, at most as many as the context has.  Raises ApiError."""
        if body.prediction is None:
            return []
        if not body.speculation:
            raise invalid(
                "prediction needs speculation: send one of prediction and speculation: false.", "speculation"
            )
        context, tokenizer = self.service.require_ready().max_model_len, self.service.tokenizer
        text = body.prediction.text[: PREDICTED_CHARACTERS * context]
        ids = await self.service.beside(len(text), lambda: tokenizer.encode(text, add_special_tokens=False))
        return ids[:context]


class ChoicesEndpoint(Endpoint[B]):
    """An endpoint whose answers list choices; their tokens are named by their texts, or by their ids."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._shape = self.shape(service.tokenizer)
        self._shape_by_id = self.shape(NamedById(service.tokenizer))

    @abstractmethod
    def shape(self, vocabulary: TokenTexts) -> ChoiceShape:
        """Returns the format in which choices are written."""

    def kind(self, body: B) -> type[ChoicesRenderer]:  # noqa: ARG002
        """Returns the class that renders the answer to this body."""
        return ChoicesRenderer

    def renderer(self, body: B, envelope: Envelope) -> Renderer:
        return self.kind(body)(
            self._shape_by_id if body.return_tokens_as_token_ids else self._shape,
            self.service.tokenizer,
            envelope,
            usage_chunk=body.usage_chunk and not body.usage_everywhere,
        )


def asks_device(in_body: bool, scope: Scope) -> bool:
    """Returns whether the body or the header `x-corepipe-device: 1` requests the device's times."""
    return in_body or (b"x-corepipe-device", b"1") in scope["headers"]
