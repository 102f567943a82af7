"""POST /embed, and /rerank with `texts`, in the form of Text Embeddings Inference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.types import Receive, Scope, Send

from corepipe.models.tasks import Task, TaskInfo
from corepipe.models.text.tokenizer import Side
from corepipe.serving.api.answering.pooled import PooledBody, PooledEndpoint, PooledEnvelope, PooledResult
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.texts import (
    EncodedPrompt,
    EncodingOptions,
    Input,
    check_not_empty,
    entries,
    read_entries,
)
from corepipe.serving.api.bodies.reading import decode
from corepipe.serving.api.http.errors import ApiError, invalid
from corepipe.serving.api.http.guard import read_again, read_body
from corepipe.serving.api.routes.embeddings import check_dimensions, prompt_named, vector
from corepipe.serving.api.routes.rerank import RERANK, Rerank
from corepipe.serving.api.routes.route import JSON, generating
from corepipe.serving.api.routes.score import SCORED, ComparedTexts, plan_scores, scores

Direction = Annotated[
    Literal["Left", "Right", "left", "right"],
    Meta(description="the side that is cut off: `Right` keeps the beginning"),
]
TeiTruncate = Annotated[bool, Meta(description="cut a text that is too long; else it is refused")]


class TeiRequest(PooledBody, frozen=True, kw_only=True):
    """The fields that both endpoints share."""

    truncate: TeiTruncate = False
    truncation_direction: Direction = "Right"

    @property
    def truncate_prompt_tokens(self) -> int | None:
        return -1 if self.truncate else None

    @property
    def truncation_side(self) -> Side:
        return "left" if self.truncation_direction.lower() == "left" else "right"


class TeiEmbedRequest(TeiRequest, frozen=True, kw_only=True):
    """The body of POST /embed."""

    inputs: Annotated[Input, Meta(description="text, token ids, or up to 2048 of either")]
    normalize: Annotated[bool, Meta(description="vectors of length 1")] = True
    prompt_name: Annotated[str | None, Meta(description="the model's prompt to put before each text")] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None, Meta(description="as in /v1/embeddings")
    ] = None

    def check(self, task: TaskInfo) -> None:
        check_dimensions(self.dimensions, task)
        if task.normalized and not self.normalize:
            message = "normalize: this model's vectors are of length 1; there are no others."
            raise invalid(message, "normalize", "unsupported_value")


class TeiRerankRequest(TeiRequest, frozen=True, kw_only=True):
    """The body of POST /rerank with `texts`."""

    query: Annotated[str, Meta(description="the query")]
    texts: Annotated[list[str], Meta(min_length=1, description="up to 2048 texts")]
    raw_scores: Annotated[bool, Meta(description="scores as the model computes them")] = False
    return_text: Annotated[bool, Meta(description="each result has its `text`")] = False


class TeiEmbed(PooledEndpoint[TeiEmbedRequest]):
    """The endpoint /embed: answers with a list of vectors."""

    request = TeiEmbedRequest
    prefix = "embd"
    operation = "embeddings"
    tasks = (Task.EMBED,)

    async def plan(self, body: TeiEmbedRequest, options: EncodingOptions) -> list[EncodedPrompt]:
        before = prompt_named(self.service.task, body.prompt_name)
        listed = entries(body.inputs, "inputs")
        check_not_empty(listed, "inputs")
        return await read_entries(self.service, listed, "inputs", options, before)

    def render(
        self,
        body: TeiEmbedRequest,
        results: Sequence[PooledResult],
        envelope: PooledEnvelope,  # noqa: ARG002
    ) -> bytes:
        task = self.service.task
        vectors = (vector(one.output, task, body.dimensions, unit=body.normalize) for one in results)
        return msgspec.json.encode([one.tolist() for one in vectors])


class TeiRerank(PooledEndpoint[TeiRerankRequest]):
    """The endpoint /rerank with `texts`: a list of results, the best first; scores from 0 to 1, or raw."""

    request = TeiRerankRequest
    prefix = "rerank"
    operation = "rerank"
    tasks = SCORED

    async def plan(self, body: TeiRerankRequest, options: EncodingOptions) -> list[EncodedPrompt]:
        return await plan_scores(
            self.service, ComparedTexts([body.query], "query"), ComparedTexts(body.texts, "texts"), options
        )

    def render(
        self,
        body: TeiRerankRequest,
        results: Sequence[PooledResult],
        envelope: PooledEnvelope,  # noqa: ARG002
    ) -> bytes:
        found = scores(self.service, results, 1, use_activation=False)
        if self.service.task.task is Task.SCORE and not body.raw_scores:
            found = [_sigmoid(one) for one in found]
        best = sorted(range(len(found)), key=lambda at: (-found[at], at))
        texts = [{"text": text} if body.return_text else {} for text in body.texts]
        return msgspec.json.encode([{"index": at, "score": found[at], **texts[at]} for at in best])


class RerankByForm:
    """Chooses by the body: `documents` are Jina's and Cohere's form, `texts` Text Embeddings Inference's."""

    def __init__(self, service: Service) -> None:
        self._documents = Rerank(service)
        self._texts = TeiRerank(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        answerer = self._texts if b'"texts"' in body and _has_texts(body) else self._documents
        await answerer(scope, read_again(body, receive), send)


def _has_texts(body: bytes) -> bool:
    try:
        fields = decode(body)
    except ApiError:
        return False
    return "texts" in fields and "documents" not in fields


def _sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-score)) if score > -700 else 0.0


_EMBED = generating(
    "/embed",
    "Vectors of texts, in the form of Text Embeddings Inference",
    TeiEmbed,
    "a list of vectors of `inputs`",
    request=TeiEmbedRequest,
    example={"inputs": ["a cat sat", "a dog ran"]},
    others=(JSON,),
)
ROUTES = (replace(RERANK, make=RerankByForm), _EMBED)
