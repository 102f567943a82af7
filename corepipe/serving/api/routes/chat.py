"""POST /v1/chat/completions: its body, its plan, its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corepipe.models.text.chat import TemplateRefusalError
from corepipe.serving.api.chat import Plain, joined, plain_messages
from corepipe.serving.api.http_errors import invalid
from corepipe.serving.api.protocol import (
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_TOKENS,
    NEUTRAL_EVERYWHERE,
    GenerationRequest,
    Neutral,
)
from corepipe.serving.api.routes.answers import DeviceTimes, FinishReason, Strict, Usage
from corepipe.serving.api.routes.chat_rendering import ChatRenderer, ChatShape
from corepipe.serving.api.routes.endpoint import Endpoint
from corepipe.serving.api.routes.generation import Plan
from corepipe.serving.api.routes.rendering import ChoicesRenderer, Envelope, Renderer
from corepipe.serving.api.routes.route import EVENTS, NO_MODEL, Route
from corepipe.serving.api.routes.service import LONG_TEXT, Service
from corepipe.serving.parsing.prompt import (
    TAIL_TOKENS,
    check_callable,
    reading_of,
    reasoning_variables,
    template_input,
)
from corepipe.serving.parsing.reading import Reading
from corepipe.serving.parsing.tools import MAX_TOOLS, Offer, Tool, ToolChoice, offered

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[
        list[dict[str, Any]],
        Meta(
            max_length=MAX_MESSAGES,
            description="roles system, developer (as system), user, assistant, tool; text or parts of it",
        ),
    ]
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None, Meta(description="default: the rest of the context")
    ] = None
    max_completion_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None, Meta(description="goes before `max_tokens`")
    ] = None
    logprobs: Annotated[bool, Meta(description="report each token's logprob")] = False
    top_logprobs: Annotated[
        int, Meta(ge=0, le=MAX_LOGPROBS, description="alternatives for each token; needs `logprobs`")
    ] = 0

    # Tools and reasoning.
    tools: Annotated[
        Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="functions that the model may call: [tools](tools.md)"),
    ] = None
    tool_choice: Annotated[
        ToolChoice | None,
        Meta(description="none, auto (the default), required, one function, or `allowed_tools`"),
    ] = None
    parallel_tool_calls: Annotated[bool, Meta(description="false: at most one call")] = True
    reasoning_effort: Annotated[
        Effort | None, Meta(description="none: no reasoning; else as the chat template has it")
    ] = None

    def check(self, vocab_size: int, max_num_seqs: int) -> None:
        super().check(vocab_size, max_num_seqs)
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs needs logprobs: true.", "top_logprobs")


NEUTRAL_CHAT: Mapping[str, Neutral] = {
    **NEUTRAL_EVERYWHERE,
    "functions": Neutral(([],)),
    "function_call": Neutral(("none", "auto")),
    "modalities": Neutral((["text"],)),
    "audio": Neutral(),
    "prediction": Neutral(),
    "moderation": Neutral(),
    "web_search_options": Neutral(),
    "verbosity": Neutral(("medium",)),
    "prompt_cache_retention": Neutral(("in_memory",)),
    "prompt_cache_options": Neutral(),
    "add_generation_prompt": Neutral((True,)),
    "continue_final_message": Neutral((False,)),
    "add_special_tokens": Neutral((False,)),
    "echo": Neutral((False,)),
    "documents": Neutral(([],)),
    "chat_template": Neutral(),
    "chat_template_kwargs": Neutral(({},)),
}


class TopLogprob(Strict):
    token: str
    logprob: float | None
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Strict):
    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Strict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(Strict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | Literal["tool_calls"]
    stop_reason: str | int | None


class ChatCompletion(Strict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    corepipe: DeviceTimes | UnsetType = UNSET


class Chat(Endpoint[ChatRequest]):
    """The endpoint."""

    request = ChatRequest
    neutral = NEUTRAL_CHAT
    prefix = "chatcmpl"
    operation = "chat"

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._shape = ChatShape(service.tokenizer)

    def renderer(self, body: ChatRequest, envelope: Envelope) -> Renderer:
        kind = ChatRenderer if body.tools or self.service.dialect.reasoning else ChoicesRenderer
        return kind(self._shape, envelope, usage_chunk=body.usage_chunk)

    async def plan(self, body: ChatRequest) -> list[Plan]:
        service = self.service
        offer = offered(body.tools, body.tool_choice, parallel=body.parallel_tool_calls)
        check_callable(service.dialect, offer)
        prompt = ChatPrompt(body.messages, offer, body.reasoning_effort)
        ids = await encode_chat(service, prompt, service.require_ready().max_model_len)
        if not ids:
            raise invalid("messages render to an empty prompt.", "messages")
        return [
            Plan(
                prompt=ids,
                source="messages",
                max_tokens=body.max_completion_tokens or body.max_tokens,
                logprobs=body.top_logprobs if body.logprobs else None,
                reading=self._reading(offer, ids),
            )
        ]

    def _reading(self, offer: Offer | None, prompt: list[int]) -> Reading | None:
        tokenizer, dialect = self.service.tokenizer, self.service.dialect
        if offer is None and dialect.reasoning is None:
            return None
        tail = tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special_tokens=False)
        return reading_of(dialect, offer, tail)


class ChatPrompt(msgspec.Struct, frozen=True):
    """What a chat template is given, as the request has it."""

    messages: list[dict[str, Any]]
    offer: Offer | None = None
    effort: str | None = None


async def encode_chat(
    service: Service, prompt: ChatPrompt, most: int, add_special_tokens: bool = False
) -> list[int]:
    """The prompt of a chat, up to where the assistant speaks; special tokens in it are the template's alone,
    unless the server allows texts to spell them.

    Raises ApiError, also for more than `most` tokens, and UserError for what the template refuses; one that
    takes its time holds up nobody else.
    """
    plain = plain_messages(prompt.messages)
    tokenizer = service.tokenizer
    if not tokenizer.has_chat_template:
        message = "This model has no chat template: use /v1/completions."
        raise invalid(message, "messages", "unsupported_value")
    turns, variables = template_input(plain, prompt.offer, service.dialect)
    variables |= reasoning_variables(prompt.effort, tokenizer.chat_template)
    allowed = service.special_tokens_in_text
    render = tokenizer.apply_chat_template if allowed else tokenizer.render_chat
    encode: Callable[[str, bool], list[int]] = tokenizer.encode if allowed else tokenizer.encode_chat
    text = await service.beside(LONG_TEXT, lambda: _rendered(partial(render, **variables), turns))
    return await service.encode(text, "messages", most, lambda one: encode(one, add_special_tokens))


def _rendered(render: Callable[[Sequence[Plain]], str], messages: list[Plain]) -> str:
    """The prompt's text; messages of one speaker are joined for templates that want roles to alternate."""
    try:
        return render(messages)
    except TemplateRefusalError:
        turns = joined(messages)
        if len(turns) == len(messages):
            raise
        return render(turns)


ROUTE = Route(
    "POST",
    "/v1/chat/completions",
    "Chat completion",
    Chat,
    "by the model's chat template",
    request=ChatRequest,
    neutral=NEUTRAL_CHAT,
    answer=ChatCompletion,
    statuses=NO_MODEL,
    others=(EVENTS,),
    generates=True,
)
