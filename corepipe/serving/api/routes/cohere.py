"""POST /v1/embed and /v2/embed: vectors in the forms of Cohere's two API versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corepipe.models.tasks import Task, TaskInfo
from corepipe.models.text.tokenizer import Side
from corepipe.serving.api.answering.answers import DeviceTimes, Strict
from corepipe.serving.api.answering.pooled import (
    PooledBody,
    PooledEndpoint,
    PooledEnvelope,
    PooledResult,
    VectorEncoding,
    to_json,
)
from corepipe.serving.api.answering.texts import EncodedPrompt, EncodingOptions, check_not_empty, read_entries
from corepipe.serving.api.bodies.values import Neutral
from corepipe.serving.api.routes.embeddings import (
    InputType,
    check_dimensions,
    named_prompt,
    prompt_named,
    vector,
)
from corepipe.serving.api.routes.rerank import ApiVersion
from corepipe.serving.api.routes.route import generating

CohereTruncate = Literal["NONE", "START", "END"]


class EmbedRequest(PooledBody, frozen=True, kw_only=True):
    """The body of POST /v2/embed."""

    neutral: ClassVar[Mapping[str, Neutral]] = {"images": Neutral(([],))}

    texts: Annotated[list[str], Meta(min_length=1, description="up to 2048 texts")]
    input_type: Annotated[
        InputType | None,
        Meta(description="put the model's prompt for this kind of text before each text, if it has one"),
    ] = None
    embedding_types: Annotated[
        list[VectorEncoding] | None, Meta(description="`base64`: the numbers' bytes, little-endian fp32")
    ] = None
    output_dimension: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None, Meta(description="as `dimensions` of /v1/embeddings")
    ] = None
    truncate: Annotated[
        CohereTruncate,
        Meta(description="the end of a text that is cut off if it is too long; NONE: it is refused"),
    ] = "END"

    @property
    def truncate_prompt_tokens(self) -> int | None:
        return None if self.truncate == "NONE" else -1

    @property
    def truncation_side(self) -> Side:
        return "left" if self.truncate == "START" else "right"

    def check(self, task: TaskInfo) -> None:
        check_dimensions(self.output_dimension, task)


class InputTokens(Strict):
    input_tokens: int


class EmbedMeta(Strict):
    """Metadata that Cohere's clients read."""

    api_version: ApiVersion
    billed_units: InputTokens


class Embedded(Strict):
    """An answer; `embeddings` are by type, or for /v1/embed a list if the request names no types."""

    id: str
    embeddings: dict[str, list[Any]] | list[list[float]]
    texts: list[str]
    meta: EmbedMeta
    response_type: Literal["embeddings_floats", "embeddings_by_type"] | UnsetType = UNSET
    corepipe: DeviceTimes | UnsetType = UNSET


class Embed(PooledEndpoint[EmbedRequest]):
    """The endpoint /v2/embed of the second version."""

    request = EmbedRequest
    prefix = "embd"
    operation = "embeddings"
    tasks = (Task.EMBED,)
    version: ClassVar[str] = "2"

    async def plan(self, body: EmbedRequest, options: EncodingOptions) -> list[EncodedPrompt]:
        kind, task = body.input_type, self.service.task
        before = prompt_named(task, None) if kind is None else named_prompt(task, kind)
        check_not_empty(body.texts, "texts")
        return await read_entries(self.service, body.texts, "texts", options, before)

    def render(self, body: EmbedRequest, results: Sequence[PooledResult], envelope: PooledEnvelope) -> bytes:
        size, task = body.output_dimension, self.service.task
        vectors = [vector(result.output, task, size, unit=False) for result in results]
        types: Sequence[VectorEncoding] = body.embedding_types or ("float",)
        found = {kind: [msgspec.Raw(to_json(one, kind)) for one in vectors] for kind in types}
        meta = {"api_version": {"version": self.version}, "billed_units": {"input_tokens": envelope.tokens}}
        answer = {"id": envelope.id, **self._of_version(body, found), "texts": body.texts, "meta": meta}
        return msgspec.json.encode(answer | envelope.more)

    def _of_version(self, body: EmbedRequest, found: Mapping[VectorEncoding, Any]) -> dict[str, Any]:  # noqa: ARG002
        return {"embeddings": found}


class EmbedV1(Embed):
    """The endpoint /v1/embed of the first version, which names the form of `embeddings`."""

    version = "1"

    def _of_version(self, body: EmbedRequest, found: Mapping[VectorEncoding, Any]) -> dict[str, Any]:
        if body.embedding_types is None:
            return {"response_type": "embeddings_floats", "embeddings": found["float"]}
        return {"response_type": "embeddings_by_type", "embeddings": found}


_EMBED = generating(
    "/v2/embed",
    "Vectors of texts, in Cohere's form",
    Embed,
    "`float` or `base64`; a text that is too long is cut, unless `truncate` is NONE",
    request=EmbedRequest,
    example={"texts": ["a cat sat", "a dog ran"], "input_type": "search_document"},
    answer=Embedded,
)
ROUTES = (
    _EMBED,
    replace(
        _EMBED,
        path="/v1/embed",
        make=EmbedV1,
        summary="The same",
        details="in the form of Cohere's first version",
    ),
)
