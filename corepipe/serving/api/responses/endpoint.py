"""POST /v1/responses: from its body to a chat, and to the renderer of its answer."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send

from corepipe.models.tasks import Task
from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.endpoint import ReadRequest, drawn_id, envelope_of, naming, read_request
from corepipe.serving.api.answering.generation import Generation, GenerationJob
from corepipe.serving.api.answering.rendering import Envelope, Renderer
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.submission import answer
from corepipe.serving.api.bodies.client_settings import IGNORED
from corepipe.serving.api.bodies.values import convert
from corepipe.serving.api.http.errors import ApiError, invalid
from corepipe.serving.api.http.tenants import SCOPE_KEY, Tenant, tenant_of
from corepipe.serving.api.responses.body import ENCRYPTED, ResponsesRequest
from corepipe.serving.api.responses.items import listed
from corepipe.serving.api.responses.kept import (
    MOST_RUNNING,
    Computation,
    KeptResponses,
    WholeKeeper,
    check_count,
    kept_of,
)
from corepipe.serving.api.responses.output import RESPONSE
from corepipe.serving.api.responses.rendering import ResponseRenderer
from corepipe.serving.api.responses.resource import ResponseObject
from corepipe.serving.api.responses.running import (
    Recorder,
    RunningResponse,
    nobody_leaves,
    send_events,
)
from corepipe.serving.api.responses.translation import TranslatedResponse, translated, turns, without_turns
from corepipe.serving.api.routes.chat_dialect import ChatDialect, Translation
from corepipe.serving.api.routes.route import EVENTS, JSON, generating, of_model, plain
from corepipe.serving.stores.errors import StoreError
from corepipe.serving.stores.responses import StoredResponse
from corepipe.serving.stores.table import Row

Json = dict[str, Any]

TOO_LONG = "context_length_exceeded"
"""The code of errors for a prompt that does not fit the context."""
READY_TICK_SECONDS = 0.1
"""Seconds between two checks whether an engine has loaded."""


class Responses(ChatDialect[ResponsesRequest]):
    """The endpoint of responses."""

    request = ResponsesRequest
    prefix = RESPONSE

    async def translate(self, request: ReadRequest[ResponsesRequest]) -> TranslatedResponse:
        body, kept, tenant = request.body, kept_of(request.scope), tenant_of(request.scope)
        if body.background and not body.store:
            raise invalid("background needs store: true.", "background")
        before = await kept.before(tenant, body.previous_response_id)
        items = [*before, *await kept.resolved(tenant, listed(body.input))]
        check_count(items)
        made = translated(body, items, drop=self.service.drop_hosted_tools, stored=len(before))
        if made.ignored and self.service.strict:
            message = f"{made.ignored[0]} has no effect here; leave it out (--strict)."
            raise invalid(message, made.ignored[0], "unsupported_parameter")
        return made

    def renderer(self, body: ResponsesRequest, translation: Translation, envelope: Envelope) -> Renderer:
        assert isinstance(translation, TranslatedResponse)
        tools = translation.tools
        return ResponseRenderer(
            ResponseObject(body, envelope, kept=body.store, dropped=tools.dropped),
            self.service.tokenizer,
            tools.called,
            encrypted=ENCRYPTED in body.includes,
            reasoned=body.include_reasoning,
        )

    async def job(
        self, request: ReadRequest[ResponsesRequest], translation: Translation, envelope: Envelope
    ) -> GenerationJob:
        """Prepares an answer.  With `truncation: auto`, it is to as many of the last turns as fit."""

        async def after(turn: int) -> GenerationJob:
            chat = structs.replace(translation.chat, messages=without_turns(messages, turn))
            job = await super(Responses, self).job(request, replace(translation, chat=chat), envelope)
            for plan in job.plans:
                plan.tokens_within(context)
            return replace(job, singly=request.body.store and chat.stream)

        context = self.service.require_ready().max_model_len
        messages = translation.chat.messages
        try:
            return await after(0)
        except ApiError as error:
            if request.body.truncation != "auto" or error.code != TOO_LONG:
                raise
        most = turns(messages)
        job, too_few, enough = await after(most), 0, most
        while too_few + 1 < enough:
            middle = (too_few + enough) // 2
            try:
                job, enough = await after(middle), middle
            except ApiError as error:
                if error.code != TOO_LONG:
                    raise
                too_few = middle
        return job

    async def answer(
        self,
        request: ReadRequest[ResponsesRequest],
        translation: Translation,
        receive: Receive,
        send: Send,
    ) -> None:
        assert isinstance(translation, TranslatedResponse)
        body = request.body
        if not body.store:
            await super().answer(request, translation, receive, send)
        elif not (body.stream or body.background):
            keeper = WholeKeeper(request.scope, translation.items, send)
            await super().answer(request, translation, receive, keeper)
        else:
            await self._kept_stream(_seeded(request), translation, receive, send)

    async def _kept_stream(
        self,
        request: ReadRequest[ResponsesRequest],
        translation: TranslatedResponse,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answers with a stream that is kept, or in the background."""
        body, kept, tenant = request.body, kept_of(request.scope), tenant_of(request.scope)
        chat = structs.replace(translation.chat, seed=body.seed)
        translation = replace(translation, chat=chat)
        envelope = envelope_of(self.service, body.model, drawn_id(self.prefix))
        with translation.naming_fields():
            job = await self.job(request, translation, envelope)
            generation = Generation(self.service, job)
        begun = ResponseObject(body, envelope, kept=True, dropped=translation.tools.dropped).fields(
            "queued" if body.background else "in_progress", ()
        )
        value = StoredResponse(
            begun, [*translation.items], _wire(body), self.service.tokens_fingerprint(body.model)
        )
        told = naming(send, [translation.place(one) for one in job.ignored])
        try:
            running = await kept.begin(tenant, value, most=MOST_RUNNING if body.background else None)
        except StoreError:
            if body.background:
                raise
            unkept = replace(request, body=structs.replace(body, store=False))
            await super().answer(unkept, translation, receive, send)
            return
        if body.background:
            kept.start(tenant, running, computation(kept, running.row, tenant))
            await self._begun(running, begun, body, receive, told)
        else:
            with translation.naming_fields():
                await kept.record(tenant, running, generation, receive, told)

    async def _begun(
        self, running: RunningResponse, begun: Json, body: ResponsesRequest, receive: Receive, send: Send
    ) -> None:
        """Answers a request whose response is computed in the background."""
        if body.stream:
            await send_events(running, -1, receive, send)
        else:
            await answer(send, msgspec.json.encode(begun))


def computation(kept: KeptResponses, row: Row[StoredResponse], tenant: Tenant) -> Computation:
    """Returns the computation of a response without its client: in the background, or after a restart."""
    value = row.value

    async def compute(running: RunningResponse) -> None:
        body: ResponsesRequest = convert(value.request, ResponsesRequest)
        request = ReadRequest({"headers": [], SCOPE_KEY: tenant, "app": kept.app}, perf_counter(), body)
        async with kept.models.using(body.model, nobody_leaves) as service:
            await until_ready(service)
            if service.adapters is not None:
                await service.adapters.fetch(body.model)
            if service.tokens_fingerprint(body.model) != value.fingerprint:
                raise ApiError(500, "The server has come back with another model or other settings.")
            drop = service.drop_hosted_tools
            translation = translated(body, value.items, drop=drop, stored=len(value.items))
            created = int(value.response["created_at"])
            envelope = Envelope(row.id, created, body.model, service.fingerprint_of(body.model))
            job = await Responses(service).job(request, translation, envelope)
            await Generation(service, job).answer(nobody_leaves, Recorder(running))

    return compute


async def until_ready(service: Service) -> None:
    """Waits until an engine is there; at a start it is loading.  Raises ApiError where it has failed."""
    while service.ready is None and service.failure is None:
        await asyncio.sleep(READY_TICK_SECONDS)
    service.require_ready()


def _seeded(request: ReadRequest[ResponsesRequest]) -> ReadRequest[ResponsesRequest]:
    """Returns a request with a seed, so that the same answer can be computed again."""
    if request.body.seed is not None:
        return request
    return replace(request, body=structs.replace(request.body, seed=secrets.randbits(62)))


def _wire(body: ResponsesRequest) -> Json:
    """Returns a body as JSON has it, without the input, which is kept beside it."""
    fields: Json = msgspec.to_builtins(structs.replace(body, input=[]))
    return {name: value for name, value in fields.items() if value is not None}


class InputTokens(Strict):
    object: Literal["response.input_tokens"]
    input_tokens: int


async def _count(service: Service, request: Request) -> Response:
    """Counts the tokens of a prompt: exactly those that an answer to it reports."""
    body, ignored = await read_request(service, request.receive, ResponsesRequest)
    service.require_task(Task.GENERATE)
    service.require_ready()
    endpoint = Responses(service)
    translation = await endpoint.translate(ReadRequest(request.scope, perf_counter(), body, ignored))
    with translation.naming_fields():
        (plan,) = await endpoint.chat.plan(translation.chat, "")
    counted = InputTokens(object="response.input_tokens", input_tokens=len(plan.prompt))
    named = ", ".join([*ignored, *translation.ignored])
    headers = {IGNORED: named} if named else None
    return Response(msgspec.json.encode(counted), headers=headers, media_type=JSON)


ROUTES = (
    generating(
        "/v1/responses",
        "Response",
        Responses,
        "as items, by the model's chat template",
        request=ResponsesRequest,
        others=(JSON, EVENTS),
        example={"input": "Hello", "max_output_tokens": 8, "store": False},
    ),
    of_model(
        "/v1/responses/input_tokens",
        "The prompt of a response, counted",
        plain(_count),
        "nothing is generated",
        request=ResponsesRequest,
        answer=InputTokens,
    ),
)
