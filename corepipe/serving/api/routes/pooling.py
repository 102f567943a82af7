"""POST /pooling, in vLLM's form: the values that the model computes, vectors or scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from corepipe.answers.values import F32, activated
from corepipe.engine.messages import Output
from corepipe.models.tasks import Task, TaskInfo
from corepipe.serving.api.answering.answers import Listing, Strict
from corepipe.serving.api.answering.pooled import PooledEndpoint, PooledEnvelope, PooledResult, array, to_json
from corepipe.serving.api.answering.texts import EncodedPrompt, EncodingOptions, Input, read_input
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.routes.embeddings import VectorRequest
from corepipe.serving.api.routes.route import generating

PoolingTask = Literal["embed", "classify", "score", "token_classify"]


class PoolingRequest(VectorRequest, frozen=True, kw_only=True):
    """The body of POST /pooling."""

    input: Annotated[
        Input,
        Meta(
            description="text, token ids, or up to 2048 of either; 300,000 tokens in all; of a model that "
            "reads images data URIs, as /classify"
        ),
    ]
    task: Annotated[PoolingTask | None, Meta(description="the task that the model is served for")] = None

    def check(self, task: TaskInfo) -> None:
        super().check(task)
        served = "token_classify" if task.per_token else task.task.value
        if self.task not in (None, served):
            raise invalid(f"task: this model is served for {served}.", "task", "unsupported_value")
        if task.task is not Task.EMBED and self.dimensions is not None:
            raise invalid("dimensions is for vectors; this model has scores.", "dimensions")


class Pooled(Strict):
    index: int
    object: Literal["pooling"]
    data: list[float | list[float]] | str


class PooledList(Listing[Pooled]):
    pass


class PoolingEndpoint(PooledEndpoint[PoolingRequest]):
    """The endpoint of pooling.  A token classifier's data of a text are rows, one for each token."""

    request = PoolingRequest
    prefix = "pool"
    operation = "pooling"
    tasks = (Task.EMBED, Task.CLASSIFY, Task.SCORE)

    async def plan(self, body: PoolingRequest, options: EncodingOptions) -> list[EncodedPrompt]:
        options = options._replace(special=body.add_special_tokens)
        before = body.prompt(self.service.task)
        return await read_input(self.service, body.input, "input", options, before)

    def render(
        self, body: PoolingRequest, results: Sequence[PooledResult], envelope: PooledEnvelope
    ) -> bytes:
        data = (to_json(self._values(result.output, body), body.encoding_format) for result in results)
        return envelope.listing(
            [b'{"index":%d,"object":"pooling","data":%b}' % item for item in enumerate(data)]
        )

    def _values(self, output: Output, body: PoolingRequest) -> F32:
        task = self.service.task
        if task.task is Task.EMBED:
            return body.vector(output, task)
        scores = array(output)
        if body.use_activation is not False:
            scores = activated(scores, task.activation)
        return scores if task.per_token else scores[0]


ROUTE = generating(
    "/pooling",
    "What the model computes of texts",
    PoolingEndpoint,
    "vectors or scores of classes, depending on the model",
    request=PoolingRequest,
    example={"input": ["a cat sat", "a dog ran"]},
    answer=PooledList,
)
