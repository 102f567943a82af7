"""POST /v1/chat/completions: its body, its plan, its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from corepipe.models.text.chat import TemplateRefusalError
from corepipe.serving.api.chat import joined, plain_messages
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
from corepipe.serving.api.routes.endpoint import Endpoint
from corepipe.serving.api.routes.generation import Plan
from corepipe.serving.api.routes.rendering import ChoicesRenderer, Envelope, Renderer, Vocabulary
from corepipe.serving.api.routes.route import EVENTS, NO_MODEL, Route
from corepipe.serving.api.routes.service import LONG_TEXT, Service
from corepipe.serving.parts import Finish, Logprobs


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[
        list[dict[str, Any]],
        Meta(
            max_length=MAX_MESSAGES,
            description="roles system, developer (as system), user, assistant; text or parts of type text",
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

    def check(self, vocab_size: int, max_num_seqs: int) -> None:
        super().check(vocab_size, max_num_seqs)
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs needs logprobs: true.", "top_logprobs")


NEUTRAL_CHAT: Mapping[str, Neutral] = {
    **NEUTRAL_EVERYWHERE,
    "tools": Neutral(([],)),
    "tool_choice": Neutral(("none", "auto")),
    "parallel_tool_calls": Neutral((True, False)),
    "functions": Neutral(([],)),
    "function_call": Neutral(("none", "auto")),
    "modalities": Neutral((["text"],)),
    "audio": Neutral(),
    "prediction": Neutral(),
    "moderation": Neutral(),
    "web_search_options": Neutral(),
    "reasoning_effort": Neutral(("none",)),
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


class ChatMessage(Strict):
    role: Literal["assistant"]
    content: str
    refusal: None
    annotations: list[Any]


class ChatChoice(Strict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
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
        return ChoicesRenderer(self._shape, envelope, usage_chunk=body.usage_chunk)

    async def plan(self, body: ChatRequest) -> list[Plan]:
        ids = await encode_chat(self.service, body.messages, self.service.require_ready().max_model_len)
        if not ids:
            raise invalid("messages render to an empty prompt.", "messages")
        return [
            Plan(
                prompt=ids,
                source="messages",
                max_tokens=body.max_completion_tokens or body.max_tokens,
                logprobs=body.top_logprobs if body.logprobs else None,
            )
        ]


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


class ChatShape:
    """`chat.completion` and `chat.completion.chunk`."""

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._choice(index, {"role": "assistant", "content": ""}, None, None)

    def piece(self, index: int) -> tuple[bytes, bytes]:
        before = b'{"index":%d,"delta":{"content":' % index
        return before, b'},"logprobs":null,"finish_reason":null,"stop_reason":null}'

    def chunk(
        self, index: int, text: str, logprobs: Logprobs | None, finish: Finish | None
    ) -> dict[str, Any]:
        return self._choice(index, {"content": text} if text else {}, logprobs, finish)

    def whole(self, index: int, text: str, logprobs: Logprobs | None, finish: Finish) -> dict[str, Any]:
        choice = self._choice(index, {}, logprobs, finish)
        del choice["delta"]
        choice["message"] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        return choice

    def _choice(
        self, index: int, delta: dict[str, Any], logprobs: Logprobs | None, finish: Finish | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": finish and finish.finish_reason,
            "stop_reason": finish and finish.stop_reason,
        }

    def _logprobs(self, logprobs: Logprobs) -> dict[str, Any]:
        entries = [entry for entry in logprobs.entries if entry is not None]
        content = [
            self._token(entry.token, entry.logprob)
            | {"top_logprobs": [self._token(token, value) for token, value in entry.top]}
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._vocabulary.decode_token(token)
        return {"token": text, "logprob": logprob, "bytes": list(self._vocabulary.token_bytes(token))}


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
