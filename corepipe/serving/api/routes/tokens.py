"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from corepipe.serving.api.http_errors import invalid
from corepipe.serving.api.limits import read_body
from corepipe.serving.api.protocol import NEUTRAL_TOKENIZE, DetokenizeRequest, TokenizeRequest, parse
from corepipe.serving.api.routes.chat import encode_chat
from corepipe.serving.api.routes.service import Service

MAX_TOKENIZED = 16_384
"""Tokens that text may have here, where the context has not more room."""


def token_router(service: Service) -> APIRouter:
    """Both routes; they need the tokenizer alone."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        asked = parse(await read_body(request.receive), TokenizeRequest, NEUTRAL_TOKENIZE)
        service.require_model(asked.model)
        tokens = await _tokenize(service, asked)

        def described() -> bytes:
            named = asked.return_token_strs
            names = [service.tokenizer.decode_token(token) for token in tokens] if named else None
            return msgspec.json.encode(
                {
                    "count": len(tokens),
                    "max_model_len": service.require_ready().max_model_len,
                    "tokens": tokens,
                    "token_strs": names,
                }
            )

        return _json(await service.beside(len(tokens), described))

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        asked = parse(await read_body(request.receive), DetokenizeRequest, {})
        service.require_model(asked.model)
        if any(token >= service.tokenizer.vocab_size for token in asked.tokens):
            raise invalid(f"tokens must be below {service.tokenizer.vocab_size}.", "tokens")

        def text() -> bytes:
            return msgspec.json.encode(
                {"prompt": service.tokenizer.decode(asked.tokens, skip_special_tokens=False)}
            )

        return _json(await service.beside(len(asked.tokens), text))

    return router


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _tokenize(service: Service, asked: TokenizeRequest) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        raise invalid("Send either prompt or messages.", "prompt", "missing_required_parameter")
    most = max(service.require_ready().max_model_len, MAX_TOKENIZED)
    special = asked.add_special_tokens
    if asked.messages is not None:
        return await encode_chat(service, asked.messages, most, bool(special))
    encode = service.tokenizer.encode
    return await service.encode(
        asked.prompt or "", "prompt", most, lambda text: encode(text, special is not False)
    )
