"""POST /v1/completions/render and /v1/chat/completions/render, in vLLM's form: prompts as token ids.

A gateway that routes by prefix requests the token ids of a prompt here before it chooses a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
from starlette.types import Receive, Scope, Send

from corepipe.engine.messages import Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.endpoint import Endpoint, naming
from corepipe.serving.api.answering.generation import Generation, GenerationJob
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.submission import answer
from corepipe.serving.api.bodies.protocol import GenerationRequest
from corepipe.serving.api.routes import chat, completions
from corepipe.serving.api.routes.route import of_model


class _Counted(Strict):
    n: int


if TYPE_CHECKING:
    _Sampled = _Counted
else:  # logit_bias: by token id as text, as in the body
    _kinds = get_type_hints(TokenSampling) | {"logit_bias": dict[str, float]}
    _Sampled = msgspec.defstruct("_Sampled", _kinds.items(), bases=(_Counted,))


class Drawing(_Sampled):
    """The sampling parameters and the stop conditions of an answer, under the names of the body.

    `seed` is that of the first choice; `max_tokens` is what fits the context if the body has none.
    """

    bad_words: list[str]
    stop: list[str]
    stop_token_ids: list[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    min_tokens: int
    max_tokens: int
    skip_special_tokens: bool


class Rendered(Strict):
    """vLLM's `GenerateRequest` of one prompt; `cache_salt` is the body's."""

    request_id: str
    token_ids: list[int]
    features: None
    sampling_params: Drawing
    model: str
    stream: bool
    stream_options: dict[str, bool] | None
    cache_salt: str | None
    priority: int
    kv_transfer_params: None


class RenderEndpoint:
    """A render endpoint, as plain ASGI: refuses what `endpoint` would refuse before it computes anything.

    A key's tokens are not charged, since nothing is generated.
    """

    def __init__(self, endpoint: Endpoint[Any], *, listed: bool) -> None:
        self._endpoint = endpoint
        self._listed = listed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._endpoint.service
        job = await self._endpoint.prepare(scope, receive)
        submits = Generation(service, job).submits[:: job.body.n]
        answers = [_rendered(job, submit) for submit in submits]
        sent = answers if self._listed else answers[0]
        tokens = sum(len(submit.prompt) for submit in submits)
        body = await service.beside(tokens, lambda: msgspec.json.encode(sent))
        await answer(naming(send, job.ignored), body)


def _rendered(job: GenerationJob, submit: Submit) -> Rendered:
    body = job.body
    options = body.stream_options
    return Rendered(
        request_id=job.id,
        token_ids=submit.prompt,
        features=None,
        sampling_params=_drawing(body, submit),
        model=body.model,
        stream=body.stream,
        stream_options=None if options is None else msgspec.to_builtins(options),
        cache_salt=body.cache_salt or None,
        priority=submit.priority,
        kv_transfer_params=None,
    )


def _drawing(body: GenerationRequest, submit: Submit) -> Drawing:
    drawn = msgspec.structs.asdict(submit.sampling)
    return Drawing(
        **drawn | {"logit_bias": body.logit_bias},
        n=body.n,
        bad_words=body.bad_words,
        stop=body.stops,
        stop_token_ids=body.stop_token_ids,
        include_stop_str_in_output=body.include_stop_str_in_output,
        ignore_eos=body.ignore_eos,
        min_tokens=submit.min_tokens,
        max_tokens=submit.max_tokens,
        skip_special_tokens=body.skip_special_tokens,
    )


def _completions(service: Service) -> RenderEndpoint:
    return RenderEndpoint(completions.Completions(service), listed=True)


def _chat(service: Service) -> RenderEndpoint:
    return RenderEndpoint(chat.Chat(service), listed=False)


ROUTES = (
    of_model(
        "/v1/completions/render",
        "The prompts of a completion as token ids",
        _completions,
        "a list, with an entry for each prompt; nothing is generated",
        request=completions.CompletionRequest,
        answer=Rendered,
        listed=True,
    ),
    of_model(
        "/v1/chat/completions/render",
        "The prompt of a chat as token ids",
        _chat,
        "by the chat template; nothing is generated",
        request=chat.ChatRequest,
        answer=Rendered,
    ),
)
