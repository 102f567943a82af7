"""POST /v1/chat/completions: its body, its plan, its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from corepipe.models.text.chat import TemplateRefusalError
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.serving.api.chat import MAX_TEMPLATE, Conversation, joined
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
from corepipe.serving.api.routes.cut import Cut
from corepipe.serving.api.routes.endpoint import ChoicesEndpoint
from corepipe.serving.api.routes.generation import Plan
from corepipe.serving.api.routes.rendering import Shape
from corepipe.serving.api.routes.route import EVENTS, NO_MODEL, Route
from corepipe.serving.api.routes.service import LONG_TEXT, Service
from corepipe.serving.api.routes.token_details import PromptDetails, Vocabulary
from corepipe.serving.chat_variables import MOST
from corepipe.serving.parts import Finish, Logprobs
from corepipe.serving.text_answer import Echo

MAX_DOCUMENTS = 1024

AddGenerationPrompt = Annotated[
    bool | None,
    Meta(description="end where the assistant begins to speak; default: unless `continue_final_message`"),
]
ContinueFinalMessage = Annotated[
    bool, Meta(description="end within the last message, which the model goes on with")
]
RequestTemplate = Annotated[
    Annotated[str, Meta(max_length=MAX_TEMPLATE)] | None,
    Meta(description="instead of the model's; only with `--trust-request-chat-template`"),
]
TemplateVariables = Annotated[
    Annotated[dict[str, Any], Meta(max_length=MOST)] | None,
    Meta(description="variables for the chat template, such as `enable_thinking`"),
]


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

    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = False
    add_special_tokens: Annotated[
        bool, Meta(description="put what the tokenizer puts around texts around what the template renders")
    ] = False
    echo: Annotated[bool, Meta(description="begin with the last message, if it is the assistant's")] = False
    documents: Annotated[
        Annotated[list[dict[str, str]], Meta(max_length=MAX_DOCUMENTS)] | None,
        Meta(description="texts by name, for a chat template that has `documents`"),
    ] = None
    chat_template: RequestTemplate = None
    chat_template_kwargs: TemplateVariables = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def check(self, vocab_size: int, max_num_seqs: int) -> None:
        super().check(vocab_size, max_num_seqs)
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs needs logprobs: true.", "top_logprobs")


_PredictedPart = Annotated[dict[Literal["type", "text"], str], Meta(min_length=2)]
Prediction = Annotated[dict[Literal["type", "content"], str | list[_PredictedPart]], Meta(min_length=2)]
"""What the client expects the answer to be, for speed alone: the answer is the same without it."""

NEUTRAL_CHAT: Mapping[str, Neutral] = {
    **NEUTRAL_EVERYWHERE,
    "tools": Neutral(([],)),
    "tool_choice": Neutral(("none", "auto")),
    "parallel_tool_calls": Neutral((True, False)),
    "functions": Neutral(([],)),
    "function_call": Neutral(("none", "auto")),
    "modalities": Neutral((["text"],)),
    "audio": Neutral(),
    "prediction": Neutral(type=Prediction),
    "moderation": Neutral(),
    "web_search_options": Neutral(),
    "reasoning_effort": Neutral(("none",)),
    "verbosity": Neutral(("medium",)),
    "prompt_cache_retention": Neutral(("in_memory",)),
    "prompt_cache_options": Neutral(),
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
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(PromptDetails, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    corepipe: DeviceTimes | UnsetType = UNSET


class Chat(ChoicesEndpoint[ChatRequest]):
    """The endpoint."""

    request = ChatRequest
    neutral = NEUTRAL_CHAT
    prefix = "chatcmpl"
    operation = "chat"

    def shape(self, vocabulary: Vocabulary) -> Shape:
        return ChatShape(vocabulary)

    async def plan(self, body: ChatRequest) -> list[Plan]:
        conversation = Conversation.of(
            body.messages, body, body.documents or (), add_special_tokens=body.add_special_tokens
        )
        context = self.service.require_ready().max_model_len
        cut = Cut.of(body, context, body.most_tokens or 1)
        ids = await encode_chat(self.service, conversation, context if cut is None else cut.readable)
        if cut is not None:
            ids = self.service.tokenizer.cut(ids, cut.most, cut.side, framed=body.add_special_tokens)
        if not ids:
            raise invalid("messages render to an empty prompt.", "messages")
        said = conversation.last_said if body.echo else ""
        return [
            Plan(
                prompt=ids,
                source="messages",
                max_tokens=body.most_tokens,
                logprobs=body.top_logprobs if body.logprobs else None,
                prompt_logprobs=body.prompt_logprobs,
                echo=Echo(said) if said else None,
            )
        ]


async def encode_chat(service: Service, conversation: Conversation, most: int) -> list[int]:
    """The prompt of a chat, up to where the answer begins; special tokens in it are the template's alone,
    unless the server allows texts to spell them.

    Raises ApiError, also for more than `most` tokens, and UserError for what the template refuses; one that
    takes its time holds up nobody else.
    """
    tokenizer = await _tokenizer(service, conversation.template)
    if not tokenizer.has_chat_template:
        message = "This model has no chat template: use /v1/completions."
        raise invalid(message, "messages", "unsupported_value")
    if "documents" in conversation.variables and not tokenizer.template_names("documents"):
        message = "The chat template has no documents: put them into a message."
        raise invalid(message, "documents", "unsupported_value")
    allowed = service.special_tokens_in_text
    render = tokenizer.apply_chat_template if allowed else tokenizer.render_chat
    encode: Callable[[str, bool], list[int]] = tokenizer.encode if allowed else tokenizer.encode_chat
    text = await service.beside(LONG_TEXT, lambda: _rendered(render, conversation))
    special = conversation.add_special_tokens
    return await service.encode(text, "messages", most, lambda one: encode(one, special))


async def _tokenizer(service: Service, template: str | None) -> Tokenizer:
    """The one that renders by `template`, where the server takes those of requests; else the model's."""
    if template is None:
        return service.tokenizer
    templates = service.request_templates
    if templates is None:
        message = "chat_template needs a server with --trust-request-chat-template."
        raise invalid(message, "chat_template", "unsupported_parameter")
    return await service.beside(LONG_TEXT, lambda: templates.tokenizer(template))


def _rendered(render: Callable[..., str], conversation: Conversation) -> str:
    """The prompt's text; messages of one speaker are joined for templates that want roles to alternate."""

    def rendered(messages: Sequence[Mapping[str, str]]) -> str:
        return render(
            messages,
            conversation.add_generation_prompt,
            conversation.continue_final_message,
            **conversation.variables,
        )

    try:
        return rendered(conversation.messages)
    except TemplateRefusalError:
        turns = joined(conversation.messages)
        if len(turns) == len(conversation.messages):
            raise
        return rendered(turns)


class ChatShape:
    """`chat.completion` and `chat.completion.chunk`."""

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    one_prompt = True

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
