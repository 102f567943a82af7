"""POST /classify and /v1/classify of texts and images in vLLM's form, and of tokens in a similar form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corepipe.answers.values import F32, activated
from corepipe.models.tasks import ScoreActivation, Task
from corepipe.serving.api.answering.answers import DeviceTimes, PooledUsage, Strict
from corepipe.serving.api.answering.pooled import (
    PooledEndpoint,
    PooledEnvelope,
    PooledRequest,
    PooledResult,
    array,
)
from corepipe.serving.api.answering.texts import EncodedPrompt, EncodingOptions, Input, read_input
from corepipe.serving.api.routes.route import generating

encode = msgspec.json.encode


class ClassifyRequest(PooledRequest, frozen=True, kw_only=True):
    """POST /classify."""

    input: Annotated[
        Input,
        Meta(
            description="text, token ids, or up to 2048 of either; 300,000 tokens in all; of a model that "
            "reads images a data URI (PNG, JPEG, WebP, GIF), or up to 64"
        ),
    ]
    add_special_tokens: Annotated[bool, Meta(description="encode text with special tokens")] = True
    use_activation: Annotated[
        bool | None, Meta(description="false: scores as the model computes them, instead of probabilities")
    ] = None


class TokenClass(Strict):
    """The class of a token of the text; `position` counts from 0, special tokens included."""

    position: int
    token: str
    label: str
    probs: list[float]


class Classes(Strict):
    """The classes of a text: `label` and `probs`, or `tokens` if the model classifies tokens."""

    index: int
    num_classes: int
    label: str | UnsetType = UNSET
    probs: list[float] | UnsetType = UNSET
    tokens: list[TokenClass] | UnsetType = UNSET


class Classification(Strict):
    id: str
    object: str
    created: int
    model: str
    data: list[Classes]
    usage: PooledUsage
    corepipe: DeviceTimes | UnsetType = UNSET


class ClassifyEndpoint(PooledEndpoint[ClassifyRequest]):
    """The endpoint of /classify."""

    request = ClassifyRequest
    prefix = "classify"
    operation = "classify"
    tasks = (Task.CLASSIFY,)

    async def plan(self, body: ClassifyRequest, options: EncodingOptions) -> list[EncodedPrompt]:
        options = options._replace(special=body.add_special_tokens)
        return await read_input(self.service, body.input, "input", options)

    def render(
        self, body: ClassifyRequest, results: Sequence[PooledResult], envelope: PooledEnvelope
    ) -> bytes:
        task = self.service.task
        activation = ScoreActivation.IDENTITY if body.use_activation is False else task.activation
        data = []
        for index, (prompt, output) in enumerate(results):
            scores = activated(array(output), activation)
            classes = self._of_tokens(prompt, scores) if task.per_token else self._of_text(scores)
            data.append(encode({"index": index, **classes, "num_classes": scores.shape[1]}))
        return envelope.listing(data)

    def _of_text(self, scores: F32) -> dict[str, object]:
        (row,) = scores
        return {"label": self._label(row), "probs": row.tolist()}

    def _of_tokens(self, prompt: EncodedPrompt, scores: F32) -> dict[str, object]:
        name = self.service.tokenizer.decode_token
        tokens = [
            {"position": at, "token": name(token), "label": self._label(row), "probs": row.tolist()}
            for at, (token, row) in enumerate(zip(prompt.ids, scores, strict=True))
        ]
        return {"tokens": tokens}

    def _label(self, row: F32) -> str:
        return self.service.task.labels[int(row.argmax())]


_CLASSIFY = generating(
    "/classify",
    "Classes of texts, of their tokens, or of images",
    ClassifyEndpoint,
    "the likeliest `label`, and `probs` of all",
    request=ClassifyRequest,
    example={"input": ["a cat sat", "a dog ran"]},
    answer=Classification,
)
ROUTES = (_CLASSIFY, replace(_CLASSIFY, path="/v1/classify", summary="The same", details=""))
