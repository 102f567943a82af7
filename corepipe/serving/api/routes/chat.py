"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from starlette.types import Receive, Scope, Send

from corepipe.models.text.chat import TemplateRefusalError
from corepipe.serving.api.chat import joined, plain_messages
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
        ids = await encode_chat(self._service, request.messages, self._service.require_ready().max_model_len)
        if not ids:
            raise invalid("messages render to an empty prompt.", "messages")
        return Prompt(ids)


async def encode_chat(
    service: Service, messages: list[dict[str, object]], most: int, add_special_tokens: bool = False
) -> list[int]:
    """The prompt of a chat, up to where the assistant speaks; special tokens in it are the template's alone,
    unless the server allows texts to spell them.

    Raises ApiError, also for more than `most` tokens, and UserError for what the template refuses; one that
    takes its time holds up nobody else.
    """
    plain = plain_messages(messages)
    tokenizer = service.tokenizer
    if not tokenizer.has_chat_template:
        message = "This model has no chat template: use /v1/completions."
        raise invalid(message, "messages", "unsupported_value")
    allowed = service.special_tokens_in_text
    render = tokenizer.apply_chat_template if allowed else tokenizer.render_chat
    encode: Callable[[str, bool], list[int]] = tokenizer.encode if allowed else tokenizer.encode_chat
    text = await service.beside(LONG_TEXT, lambda: _rendered(render, plain))
    return await service.encode(text, "messages", most, lambda one: encode(one, add_special_tokens))


def _rendered(render: Callable[[list[dict[str, str]]], str], messages: list[dict[str, str]]) -> str:
    """The prompt's text; messages of one speaker are joined for templates that want roles to alternate."""
    try:
        return render(messages)
    except TemplateRefusalError:
        turns = joined(messages)
        if len(turns) == len(messages):
            raise
        return render(turns)
