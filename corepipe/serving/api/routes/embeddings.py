"""POST /v1/embeddings and /embeddings: the body, the prompts and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta

from corepipe.answers.values import F32, normalized
from corepipe.engine.messages import Output
from corepipe.models.tasks import Task, TaskInfo
from corepipe.serving.api.answering.answers import Listing, Strict
from corepipe.serving.api.answering.pooled import (
    PooledEndpoint,
    PooledEnvelope,
    PooledRequest,
    PooledResult,
    VectorEncoding,
    array,
    to_json,
)
from corepipe.serving.api.answering.texts import (
    EncodedPrompt,
    EncodingOptions,
    Input,
    check_not_empty,
    entries,
    read_entries,
)
from corepipe.serving.api.http.errors import echo, invalid
from corepipe.serving.api.routes.route import generating

InputType = Literal[
    "query", "document", "passage", "search_query", "search_document", "classification", "clustering"
]
PROMPTS_OF: Mapping[InputType, tuple[str, ...]] = {
    "query": ("query", "search_query"),
    "search_query": ("search_query", "query"),
    "document": ("document", "passage", "search_document"),
    "passage": ("passage", "document", "search_document"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
"""The names that models give the prompt of each input type, the likeliest first."""


class VectorRequest(PooledRequest, frozen=True, kw_only=True):
    """The fields of all requests for vectors."""

    encoding_format: Annotated[
        VectorEncoding, Meta(description="`base64`: the numbers' bytes, little-endian fp32")
    ] = "float"
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None,
        Meta(description="keep that many numbers, and normalise again; only for models trained for it"),
    ] = None
    prompt_name: Annotated[
        str | None, Meta(description="the model's prompt to put before each text; none with an empty name")
    ] = None
    input_type: Annotated[
        InputType | None, Meta(description="use the model's prompt for this kind of text")
    ] = None
    add_special_tokens: Annotated[bool, Meta(description="encode text with special tokens")] = True
    use_activation: Annotated[
        bool | None, Meta(description="true: vectors of length 1; probabilities instead of scores")
    ] = None

    def check(self, task: TaskInfo) -> None:
        super().check(task)
        check_dimensions(self.dimensions, task)
        if self.prompt_name is not None and self.input_type is not None:
            raise invalid("Send either prompt_name or input_type.", "input_type")
        if self.use_activation is False and task.task is Task.EMBED and task.normalized:
            message = "use_activation: this model's vectors are of length 1; there are no others."
            raise invalid(message, "use_activation", "unsupported_value")

    def vector(self, output: Output, task: TaskInfo) -> F32:
        """Returns a vector as the body asks for it.  Raises ApiError as `array`."""
        return vector(output, task, self.dimensions, unit=self.use_activation is True)

    def prompt(self, task: TaskInfo) -> str:
        """Returns what is put before each text.  Raises ApiError for a prompt that the model lacks."""
        if self.input_type is None:
            return prompt_named(task, self.prompt_name)
        names = PROMPTS_OF[self.input_type]
        return _prompt(task, next((n for n in names if n in task.prompts), names[0]), "input_type")


class EmbeddingRequest(VectorRequest, frozen=True, kw_only=True):
    """The body of POST /v1/embeddings."""

    input: Annotated[
        Input, Meta(description="text, token ids, or up to 2048 of either; 300,000 tokens in all")
    ]


def check_dimensions(wanted: int | None, task: TaskInfo) -> None:
    """Raises ApiError unless the model's vectors can be cut to `wanted` dimensions."""
    if wanted is None or wanted == task.dimensions:
        return
    if task.matryoshka is None:
        message = f"dimensions: this model's vectors have {task.dimensions}; they cannot be cut."
        raise invalid(message, "dimensions", "unsupported_value")
    if wanted > task.dimensions:
        raise invalid(f"dimensions is at most {task.dimensions} here.", "dimensions")
    if task.matryoshka and wanted not in task.matryoshka:
        known = ", ".join(map(str, task.matryoshka))
        raise invalid(f"dimensions is one of {known} here.", "dimensions", "unsupported_value")


def prompt_named(task: TaskInfo, name: str | None) -> str:
    """Returns the prompt of a name; None: the default prompt, if there is one.  Raises ApiError."""
    name = task.default_prompt if name is None else name
    return _prompt(task, name, "prompt_name") if name else ""


def named_prompt(task: TaskInfo, kind: InputType) -> str:
    """Returns the default prompt of an input type: the model's prompt of that type, or its default prompt."""
    named = next((name for name in PROMPTS_OF[kind] if name in task.prompts), task.default_prompt)
    return task.prompts[named] if named else ""


def _prompt(task: TaskInfo, name: str, field: str) -> str:
    if name not in task.prompts:
        known = ", ".join(task.prompts) or "none"
        raise invalid(f"{field}: the model has no prompt {echo(name)}; it has {known}.", field)
    return task.prompts[name]


def vector(output: Output, task: TaskInfo, dimensions: int | None, *, unit: bool) -> F32:
    """Returns a vector, [dimensions], cut; `unit`: of length 1.  Raises ApiError as `array`."""
    found: F32 = array(output)[0]
    if dimensions is not None and dimensions < found.size:
        found = found[:dimensions]
    elif task.normalized:
        return found
    return normalized(found) if unit or task.normalized else found


class Embedding(Strict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Listing[Embedding]):
    pass


class EmbeddingsEndpoint(PooledEndpoint[EmbeddingRequest]):
    """The endpoint of embeddings."""

    request = EmbeddingRequest
    prefix = "embd"
    operation = "embeddings"
    tasks = (Task.EMBED,)

    async def plan(self, body: EmbeddingRequest, options: EncodingOptions) -> list[EncodedPrompt]:
        listed = entries(body.input, "input")
        check_not_empty(listed, "input")
        options = options._replace(special=body.add_special_tokens)
        return await read_entries(self.service, listed, "input", options, body.prompt(self.service.task))

    def render(
        self, body: EmbeddingRequest, results: Sequence[PooledResult], envelope: PooledEnvelope
    ) -> bytes:
        task, encoding = self.service.task, body.encoding_format
        vectors = (to_json(body.vector(result.output, task), encoding) for result in results)
        data = [b'{"object":"embedding","index":%d,"embedding":%b}' % item for item in enumerate(vectors)]
        return envelope.listing(data)


ROUTE = generating(
    "/v1/embeddings",
    "Vectors of texts",
    EmbeddingsEndpoint,
    "`float` or `base64`, `dimensions`, texts or token ids",
    request=EmbeddingRequest,
    example={"input": ["a cat sat", "a dog ran"]},
    answer=Embeddings,
)
ROUTES = (
    ROUTE,
    replace(
        ROUTE,
        path="/embeddings",
        summary="The same",
        details="for clients that use no `/v1`: Infinity's and TEI's",
    ),
)
