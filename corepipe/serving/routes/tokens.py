"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from corepipe.serving.http_errors import invalid
from corepipe.serving.limits import read_body
from corepipe.serving.protocol import NEUTRAL_TOKENIZE, DetokenizeRequest, TokenizeRequest, parse
from corepipe.serving.routes.chat import render_chat
from corepipe.serving.routes.service import Service


def token_router(service: Service) -> APIRouter:
    """Both routes; they need the tokenizer alone."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        asked = parse(await read_body(request.receive), TokenizeRequest, NEUTRAL_TOKENIZE)
        service.require_model(asked.model)
        tokens = await _tokenize(service, asked)
        names = (
            [service.tokenizer.decode_token(token) for token in tokens] if asked.return_token_strs else None
        )
        longest = service.require_ready().max_model_len
        return {"count": len(tokens), "max_model_len": longest, "tokens": tokens, "token_strs": names}

    @router.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, str]:
        asked = parse(await read_body(request.receive), DetokenizeRequest, {})
        service.require_model(asked.model)
        if any(token >= service.tokenizer.vocab_size for token in asked.tokens):
            raise invalid(f"tokens must be below {service.tokenizer.vocab_size}.", "tokens")
        return {"prompt": service.tokenizer.decode(asked.tokens, skip_special_tokens=False)}

    return router


async def _tokenize(service: Service, asked: TokenizeRequest) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        raise invalid("Send either prompt or messages.", "prompt", "missing_required_parameter")
    chat = asked.messages is not None
    text = await render_chat(service, asked.messages) if asked.messages is not None else asked.prompt or ""
    special = not chat if asked.add_special_tokens is None else asked.add_special_tokens
    return await service.encode(text, add_special_tokens=special)
