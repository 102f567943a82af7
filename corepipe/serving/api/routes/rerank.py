"""POST /rerank, /v1/rerank and /v2/rerank: documents ranked for a query (Jina, Cohere, vLLM)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corepipe.engine.sampling_parameters import MAX_TOKENS
from corepipe.serving.api.answering.answers import DeviceTimes, PooledUsage, Strict
from corepipe.serving.api.answering.pooled import PooledEndpoint, PooledEnvelope, PooledRequest, PooledResult
from corepipe.serving.api.answering.texts import EncodedPrompt, EncodingOptions
from corepipe.serving.api.bodies.protocol import NaturalNumber
from corepipe.serving.api.routes.route import generating
from corepipe.serving.api.routes.score import SCORED, ComparedTexts, plan_scores, scores

DOCUMENTS_A_UNIT = 100
"""The documents that Cohere bills as one search."""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document's text."""

    text: str


class RerankRequest(PooledRequest, frozen=True, kw_only=True):
    """The body of POST /rerank."""

    query: Annotated[str, Meta(description="the query")]
    documents: Annotated[
        list[str | Document], Meta(min_length=1, description="up to 2048 texts, or objects with a `text`")
    ]
    top_n: Annotated[NaturalNumber | None, Meta(description="the number of best results; 0 = all")] = None
    return_documents: Annotated[
        bool | None, Meta(description="each result has its `document`; default: true, at `/v2/rerank` false")
    ] = None
    max_tokens_per_doc: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None,
        Meta(description="keep that many tokens of each document, from its beginning"),
    ] = None
    use_activation: Annotated[bool | None, Meta(description="false: scores as the model computes them")] = (
        None
    )

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


class Ranked(Strict):
    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class ApiVersion(Strict):
    version: str


class BilledUnits(Strict):
    search_units: int


class RankingMeta(Strict):
    """Metadata that Cohere's clients read."""

    api_version: ApiVersion
    billed_units: BilledUnits


class Ranking(Strict):
    id: str
    model: str
    results: list[Ranked]
    usage: PooledUsage
    meta: RankingMeta
    corepipe: DeviceTimes | UnsetType = UNSET


class Rerank(PooledEndpoint[RerankRequest]):
    """The endpoint of Jina, vLLM and Cohere's first version."""

    request = RerankRequest
    prefix = "rerank"
    operation = "rerank"
    tasks = SCORED
    version: ClassVar[str] = "1"
    returns_documents: ClassVar[bool] = True

    async def plan(self, body: RerankRequest, options: EncodingOptions) -> list[EncodedPrompt]:
        options = options._replace(most_second=body.max_tokens_per_doc or 0)
        documents = ComparedTexts(body.texts, "documents")
        return await plan_scores(self.service, ComparedTexts([body.query], "query"), documents, options)

    def render(self, body: RerankRequest, results: Sequence[PooledResult], envelope: PooledEnvelope) -> bytes:
        found = scores(self.service, results, 1, body.use_activation)
        best = sorted(range(len(found)), key=lambda at: (-found[at], at))
        texts = body.texts if self._has_documents(body) else None
        units = -(-len(found) // DOCUMENTS_A_UNIT)
        answer = {
            "id": envelope.id,
            "model": envelope.model,
            "results": [_ranked(at, found[at], texts) for at in best[: body.top_n or None]],
            "usage": envelope.usage,
            "meta": {"api_version": {"version": self.version}, "billed_units": {"search_units": units}},
        }
        return msgspec.json.encode(answer | envelope.more)

    def _has_documents(self, body: RerankRequest) -> bool:
        return self.returns_documents if body.return_documents is None else body.return_documents


class RerankV2(Rerank):
    """The endpoint of Cohere's second version, whose results have no documents."""

    version = "2"
    returns_documents = False


def _ranked(index: int, score: float, texts: Sequence[str] | None) -> dict[str, Any]:
    fields = {"index": index, "relevance_score": score}
    return fields if texts is None else {**fields, "document": {"text": texts[index]}}


RERANK = generating(
    "/rerank",
    "Documents by how well they answer a query",
    Rerank,
    "`top_n`, `return_documents`, `max_tokens_per_doc`; or `texts`, with `raw_scores`, `return_text` and "
    "`truncate`, in the form of Text Embeddings Inference",
    request=RerankRequest,
    example={"query": "pets", "documents": ["a cat sat", "shares fell"], "top_n": 1},
    answer=Ranking,
)
"""The route /rerank, which accepts another form, too: `tei`."""
ROUTES = (
    replace(RERANK, path="/v1/rerank", summary="The same", details="for clients of Jina and Cohere"),
    replace(
        RERANK,
        path="/v2/rerank",
        make=RerankV2,
        summary="The same",
        details="for clients of Cohere's second version: results without documents",
    ),
)
