"""POST /v1/chat/completions."""

from __future__ import annotations

from time import perf_counter

from starlette.types import Receive, Scope, Send

from corepipe.serving.api.chat import plain_messages
from corepipe.serving.api.http_errors import invalid
from corepipe.serving.api.limits import read_body
from corepipe.serving.api.protocol import NEUTRAL_CHAT, ChatRequest, check_combination, parse
from corepipe.serving.api.routes.choice import Prompt
from corepipe.serving.api.routes.generation import TRACE, Generation, Plan, wants_device_metrics
from corepipe.serving.api.routes.rendering import ChatShape
from corepipe.serving.api.routes.service import LONG_TEXT, Service
from corepipe.serving.api.tenants import tenant_of


class Chat:
    """The endpoint, as plain ASGI."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._shape = ChatShape(service.tokenizer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = perf_counter()
        service = self._service
        request = parse(await read_body(receive), ChatRequest, NEUTRAL_CHAT)
        service.require_model(request.model)
        service.require_ready()
        check_combination(request, service.tokenizer.vocab_size, service.engine.max_num_seqs)
        plan = Plan(
            request=request,
            prompts=[await self._prompt(request)],
            shape=self._shape,
            prefix="chatcmpl",
            source="messages",
            max_tokens=request.max_completion_tokens or request.max_tokens,
            logprobs=request.top_logprobs if request.logprobs else None,
            device_metrics=wants_device_metrics(request, scope),
            tenant=tenant_of(scope),
            trace=scope.get(TRACE),
        )
        await Generation(service, plan, arrival).answer(receive, send)

    async def _prompt(self, request: ChatRequest) -> Prompt:
        text = await render_chat(self._service, request.messages)
        ids = await self._service.encode(
            text, "messages", self._service.require_ready().max_model_len, add_special_tokens=False
        )
        if not ids:
            raise invalid("messages render to an empty prompt.", "messages")
        return Prompt(ids)


async def render_chat(service: Service, messages: list[dict[str, object]]) -> str:
    """The prompt of a chat, up to where the assistant speaks.  Raises ApiError, and UserError for what the
    template refuses; one that takes its time holds up nobody else."""
    plain = plain_messages(messages)
    if not service.tokenizer.has_chat_template:
        message = "This model has no chat template: use /v1/completions."
        raise invalid(message, "messages", "unsupported_value")
    return await service.beside(
        LONG_TEXT, lambda: service.tokenizer.apply_chat_template(plain, add_generation_prompt=True)
    )
