"""POST /tokenize and /detokenize, and GET /tokenizer_info, in vLLM's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from corepipe.answers.parsing.tools import MAX_TOOLS, Tool, offered
from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.endpoint import read_request
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.texts import check_ids
from corepipe.serving.api.bodies.client_settings import IGNORED
from corepipe.serving.api.bodies.messages import CHAT_OBJECTS, TemplateInput
from corepipe.serving.api.bodies.protocol import MAX_MESSAGES, ModelRequest, NaturalNumber
from corepipe.serving.api.bodies.reading import Chosen, Nested
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.routes.chat import (
    AddGenerationPrompt,
    ContinueFinalMessage,
    RequestTemplate,
    TemplateVariables,
    encode_chat,
)
from corepipe.serving.api.routes.route import Route, of_model, plain

MAX_TOKENIZED = 16_384
"""The most tokens of a text here, if the context is not larger."""


_OF_CHATS: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (None, True),
    "continue_final_message": (False,),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "tools": (None, []),
}
"""The values that these fields for messages may have beside a prompt."""


class TokenizeRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /tokenize: either a prompt or messages."""

    nested: ClassVar[Mapping[str, Nested | Chosen]] = CHAT_OBJECTS

    prompt: Annotated[str | None, Meta(description="text")] = None
    messages: Annotated[
        Annotated[list[dict[str, Any]], Meta(max_length=MAX_MESSAGES)] | None,
        Meta(description="as for chat, instead of `prompt`"),
    ] = None
    tools: Annotated[
        Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="as for chat, beside `messages`"),
    ] = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="default: true for a prompt, false for chat")
    ] = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = False
    chat_template: RequestTemplate = None
    chat_template_kwargs: TemplateVariables = None
    return_token_strs: Annotated[bool, Meta(description="add each token's text")] = False


class DetokenizeRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /detokenize."""

    tokens: Annotated[list[NaturalNumber], Meta(description="token ids")]


class Tokens(Strict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(Strict):
    prompt: str


class TokenizerInfo(Strict):
    """Facts that remote tokenizers need, under the names of tokenizer_config.json; null: there is none."""

    tokenizer_class: str
    model_max_length: int
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None


def _require_text(service: Service) -> None:
    """Raises ApiError if the model reads images, not text."""
    if service.task.images is not None:
        raise invalid(
            "The model that is served reads images, and has no tokenizer.", "model", "task_not_served"
        )


async def _tokenize(service: Service, request: Request) -> Response:
    _require_text(service)
    body, ignored = await read_request(service, request.receive, TokenizeRequest)
    tokens = await _tokens(service, body)

    def described() -> bytes:
        named = body.return_token_strs
        names = [service.tokenizer.decode_token(token) for token in tokens] if named else None
        return msgspec.json.encode(
            {
                "count": len(tokens),
                "max_model_len": service.require_ready().max_model_len,
                "tokens": tokens,
                "token_strs": names,
            }
        )

    return _json(await service.beside(len(tokens), described), ignored)


async def _detokenize(service: Service, request: Request) -> Response:
    _require_text(service)
    body, ignored = await read_request(service, request.receive, DetokenizeRequest)
    rows, known = service.vocab_size, service.tokenizer.token_bytes
    unknown = [token for token in body.tokens if token >= rows and not known(token)]
    check_ids(unknown, rows, "tokens")

    def text() -> bytes:
        return msgspec.json.encode(
            {"prompt": service.tokenizer.decode(body.tokens, skip_special_tokens=False)}
        )

    return _json(await service.beside(len(body.tokens), text), ignored)


_SPECIAL = tuple(name for name in TokenizerInfo.__struct_fields__ if name.endswith("_token"))


async def _info(service: Service, _: Request) -> Response:
    _require_text(service)
    tokenizer = service.tokenizer
    info = TokenizerInfo(
        tokenizer_class="PreTrainedTokenizerFast",
        model_max_length=service.require_ready().max_model_len,
        chat_template=tokenizer.chat_template,
        **{name: tokenizer.special_tokens.get(name) for name in _SPECIAL},
    )
    return _json(msgspec.json.encode(info), ())


def _json(body: bytes, ignored: Sequence[str]) -> Response:
    headers = {IGNORED: ", ".join(ignored)} if ignored else None
    return Response(body, headers=headers, media_type="application/json")


async def _tokens(service: Service, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise invalid("Send either prompt or messages.", "prompt", "missing_required_parameter")
    most = max(service.require_ready().max_model_len, MAX_TOKENIZED)
    special = body.add_special_tokens
    if body.messages is not None:
        conversation = TemplateInput.of(
            body.messages, body, add_special_tokens=bool(special), offer=offered(body.tools)
        )
        return await encode_chat(service, conversation, most)
    for name, neutral in _OF_CHATS.items():
        if getattr(body, name) not in neutral:
            raise invalid(f"{name} is for messages, not for a prompt.", name)
    encode = service.tokenizer.encode
    return await service.encode(
        body.prompt or "", "prompt", most, lambda text: encode(text, special is not False)
    )


ROUTES = (
    of_model("/tokenize", "Text to token ids", plain(_tokenize), request=TokenizeRequest, answer=Tokens),
    of_model("/detokenize", "Token ids to text", plain(_detokenize), request=DetokenizeRequest, answer=Text),
    Route(
        "GET",
        "/tokenizer_info",
        "The chat template and the special tokens",
        plain(_info),
        "for remote tokenizers, such as lm-eval's; of several models the first one's",
        answer=TokenizerInfo,
        of_model=True,
    ),
)
