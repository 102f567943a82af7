"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from corepipe.models.tasks import Task
from corepipe.serving.api.answering.answers import DeviceTimes, Strict
from corepipe.serving.api.answering.endpoint import ReadRequest, read_request
from corepipe.serving.api.answering.generation import GenerationJob
from corepipe.serving.api.answering.rendering import Envelope, Renderer
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.bodies.client_settings import IGNORED
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.messages.body import CountTokensRequest, MessagesRequest
from corepipe.serving.api.messages.rendering import MessageForm, MessageRenderer
from corepipe.serving.api.messages.translation import marks_cache, translated
from corepipe.serving.api.routes.chat import Chat
from corepipe.serving.api.routes.chat_dialect import ChatDialect, Translation
from corepipe.serving.api.routes.route import ANTHROPIC, EVENTS, JSON, generating, of_model, plain

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageUsage(Strict):
    """Counts of tokens: the prompt's are the sum of the first three."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard"]


class MessageAnswer(Strict):
    """The answer; `content`: blocks of the types `thinking`, `text` and `tool_use`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal[
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
    ]
    stop_sequence: str | None
    usage: MessageUsage
    corepipe: DeviceTimes | UnsetType = UNSET


class MessageTokens(Strict):
    """The tokens of a prompt."""

    input_tokens: int


class MessagesErrorDetails(Strict):
    """A request's error; `details`: codes that Anthropic's SDK acts on."""

    type: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET


class MessagesError(Strict):
    """The answer to a request that failed."""

    type: Literal["error"]
    error: MessagesErrorDetails


class Messages(ChatDialect[MessagesRequest]):
    """The endpoint of messages."""

    request = MessagesRequest
    prefix = "msg_"

    async def translate(self, request: ReadRequest[MessagesRequest]) -> Translation:
        return translation_of(self.service, request.body)

    def renderer(self, body: MessagesRequest, translation: Translation, envelope: Envelope) -> Renderer:
        ready, caches = self.service.require_ready(), self.service.engine.prefix_cache and marks_cache(body)
        omitted = body.thinking is not None and body.thinking.display == "omitted"
        return MessageRenderer(
            MessageForm(
                id=envelope.id,
                model=translation.chat.model,
                most=body.max_tokens,
                block_size=ready.block_size if caches else 0,
                shows_thinking=not omitted,
            )
        )

    async def job(
        self, request: ReadRequest[MessagesRequest], translation: Translation, envelope: Envelope
    ) -> GenerationJob:
        """Prepares an answer that ends where the context does: agents ask for more tokens than it has."""
        job = await super().job(request, translation, envelope)
        plans = [replace(plan, max_tokens=None, default_tokens=request.body.max_tokens) for plan in job.plans]
        return replace(job, plans=plans)


def translation_of(service: Service, body: CountTokensRequest) -> Translation:
    """Returns a request as a chat.  Raises ApiError, on a strict server also for fields without effect."""
    translation = translated(body, drops_hosted=service.drop_hosted_tools)
    ignored = translation.ignored
    if body.thinking is not None and body.thinking.on and service.dialect.reasoning is None:
        ignored = (*ignored, "thinking")
    if ignored and service.strict:
        message = f"{ignored[0]} has no effect here; leave it out (--strict)."
        raise invalid(message, ignored[0], "unsupported_parameter")
    return replace(translation, ignored=ignored)


async def _count(service: Service, request: Request) -> Response:
    """Counts the tokens of a prompt: exactly those that an answer to it reports."""
    body, ignored = await read_request(service, request.receive, CountTokensRequest)
    service.require_task(Task.GENERATE)
    service.require_ready()
    translation = translation_of(service, body)
    with translation.naming_fields():
        (plan,) = await Chat(service).plan(translation.chat, "")
    named = ", ".join([*ignored, *translation.ignored])
    counted = msgspec.json.encode(MessageTokens(input_tokens=len(plan.prompt)))
    return Response(counted, headers={IGNORED: named} if named else None, media_type=JSON)


ROUTES = (
    generating(
        ANTHROPIC,
        "Message",
        Messages,
        "a chat in Anthropic's form: [messages](messages.md)",
        request=MessagesRequest,
        answer=MessageAnswer,
        failures=(MessagesError,),
        others=(EVENTS,),
        example={"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8},
    ),
    of_model(
        "/v1/messages/count_tokens",
        "The prompt of a message, counted",
        plain(_count),
        "nothing is generated",
        request=CountTokensRequest,
        answer=MessageTokens,
        failures=(MessagesError,),
    ),
)
