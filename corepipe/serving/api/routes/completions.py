"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from starlette.types import Receive, Scope, Send

from corepipe.serving.api.http_errors import invalid
from corepipe.serving.api.limits import read_body
from corepipe.serving.api.protocol import (
    MAX_CHOICES,
    NEUTRAL_COMPLETION,
    CompletionRequest,
    check_combination,
    parse,
)
from corepipe.serving.api.routes.choice import Prompt
from corepipe.serving.api.routes.generation import TRACE, Generation, Plan, wants_device_metrics
from corepipe.serving.api.routes.rendering import CompletionShape
from corepipe.serving.api.routes.service import Service
from corepipe.serving.api.tenants import tenant_of

DEFAULT_TOKENS = 16


class Completions:
    """The endpoint, as plain ASGI: request and response objects would cost more than all the rest."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._shape = CompletionShape(service.tokenizer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = perf_counter()
        service = self._service
        request = parse(await read_body(receive), CompletionRequest, NEUTRAL_COMPLETION)
        service.require_model(request.model)
        service.require_ready()
        check_combination(request, service.tokenizer.vocab_size, service.engine.max_num_seqs)
        plan = Plan(
            request=request,
            prompts=await self._prompts(request),
            shape=self._shape,
            prefix="cmpl",
            source="prompt",
            max_tokens=_max_tokens(request),
            default_tokens=DEFAULT_TOKENS,
            logprobs=request.logprobs,
            prompt_logprobs=request.logprobs if request.echo else None,
            device_metrics=wants_device_metrics(request, scope),
            tenant=tenant_of(scope),
            trace=scope.get(TRACE),
        )
        await Generation(service, plan, arrival).answer(receive, send)

    async def _prompts(self, request: CompletionRequest) -> list[Prompt]:
        listed = prompt_list(request.prompt)
        if len(listed) * request.n > MAX_CHOICES:
            raise invalid(f"prompts times n is at most {MAX_CHOICES}.", "prompt")
        return [await self._prompt(one, request) for one in listed]

    async def _prompt(self, prompt: str | Sequence[int], request: CompletionRequest) -> Prompt:
        if isinstance(prompt, str):
            most = self._service.require_ready().max_model_len
            special = request.add_special_tokens
            encode = self._service.tokenizer.encode
            ids = await self._service.encode(prompt, "prompt", most, lambda text: encode(text, special))
            text = prompt if request.echo else ""
        else:
            ids = list(prompt)
            self._check_ids(ids)
            if len(ids) > self._service.require_ready().max_model_len:
                return Prompt(ids)  # refused further on
            text = self._service.tokenizer.decode(ids, request.skip_special_tokens) if request.echo else ""
        if not prompt or not ids:
            raise invalid("prompt must not be empty.", "prompt")
        return Prompt(ids, text)

    def _check_ids(self, ids: Sequence[int]) -> None:
        size = self._service.tokenizer.vocab_size
        if ids and not (min(ids) >= 0 and max(ids) < size):
            raise invalid(f"prompt: token ids must be from 0 to {size - 1}.", "prompt")


def prompt_list(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts in any of the four shapes: text, ids, a list of either.  Raises ApiError for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt must not be empty.", "prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [ids]
    several = [item for item in prompt if not isinstance(item, int)]
    if len(several) != len(prompt) or len({type(item) for item in several}) > 1:
        raise invalid("prompt mixes texts, token ids and lists of them.", "prompt", "invalid_type")
    return several


def _max_tokens(request: CompletionRequest) -> int | None:
    if request.max_tokens == 0 and not request.echo:
        raise invalid("max_tokens must be at least 1, or 0 with echo: true.", "max_tokens")
    return request.max_tokens
