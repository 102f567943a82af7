"""POST /score and /v1/score, in vLLM's form, and scores for other routes.

A cross-encoder reads pairs of texts, or vectors of texts are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from corepipe.answers.values import activated, normalized
from corepipe.models.tasks import ScoreActivation, Task
from corepipe.serving.api.answering.answers import Listing, Strict
from corepipe.serving.api.answering.pooled import (
    PooledEndpoint,
    PooledEnvelope,
    PooledRequest,
    PooledResult,
    array,
)
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.texts import (
    EncodedPrompt,
    EncodingOptions,
    TextPair,
    Truncation,
    read_entries,
    read_pairs,
)
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.routes.embeddings import InputType, named_prompt
from corepipe.serving.api.routes.route import generating

SCORED = (Task.SCORE, Task.EMBED)
"""The tasks whose models can give scores."""


class ComparedTexts(NamedTuple):
    """The texts on one side of a comparison, and the field that they came from."""

    texts: Sequence[str]
    field: str


async def plan_scores(
    service: Service, firsts: ComparedTexts, seconds: ComparedTexts, options: EncodingOptions
) -> list[EncodedPrompt]:
    """Returns prompts to compare one first text with each second one, or each first one with its second one.

    Raises ApiError for other numbers of texts, and as `read_pairs` and `read_entries`.
    """
    if len(firsts.texts) not in (1, len(seconds.texts)) or not seconds.texts:
        counts = f"{firsts.field} has {len(firsts.texts)} texts and {seconds.field} {len(seconds.texts)}"
        message = f"{counts}: send one text and any number, or the same number of both."
        raise invalid(message, seconds.field)
    if service.task.task is Task.EMBED:
        left = await _vectors(service, firsts, "query", options._replace(most_second=0))
        return left + await _vectors(service, seconds, "document", _of_seconds(service, options))
    if not service.task.pairs:
        raise invalid("The served model reads no pairs of texts.", "model", "task_not_served")
    both = list(firsts.texts) * (len(seconds.texts) // len(firsts.texts))
    pairs = [
        TextPair(first, second, f"{seconds.field}[{at}]")
        for at, (first, second) in enumerate(zip(both, seconds.texts, strict=True))
    ]
    return await read_pairs(service, pairs, seconds.field, options)


def scores(
    service: Service, results: Sequence[PooledResult], firsts: int, use_activation: bool | None
) -> list[float]:
    """Returns a score for each of the second texts; `firsts`: the number of first texts."""
    outputs = [result.output for result in results]
    task = service.task
    if task.task is Task.EMBED:
        vectors = normalized(np.concatenate([array(output) for output in outputs])).astype(np.float64)
        cosines: list[float] = (vectors[:firsts] * vectors[firsts:]).sum(-1).tolist()
        return cosines
    activation = ScoreActivation.IDENTITY if use_activation is False else task.activation
    return [float(activated(array(output), activation)[0, 0]) for output in outputs]


def _of_seconds(service: Service, options: EncodingOptions) -> EncodingOptions:
    """Returns the options for second texts that are read alone: their limit does not count special tokens."""
    if not options.most_second:
        return options
    most = options.most_second + len(service.tokenizer.encode("", options.special))
    shorter = options.cut is not None and options.cut.most <= most
    return options if shorter else options._replace(cut=Truncation(most, "right"))


async def _vectors(
    service: Service, side: ComparedTexts, kind: InputType, options: EncodingOptions
) -> list[EncodedPrompt]:
    before = named_prompt(service.task, kind)
    return await read_entries(service, list(side.texts), side.field, options, before)


OneOrMoreTexts = str | list[str]
NAMES = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))
"""The pairs of names of the two fields; a body has one pair."""


class ScoreRequest(PooledRequest, frozen=True, kw_only=True):
    """The body of POST /score."""

    text_1: Annotated[OneOrMoreTexts | None, Meta(description="a text, or as many as `text_2` has")] = None
    text_2: Annotated[OneOrMoreTexts | None, Meta(description="a text, or up to 2048")] = None
    queries: Annotated[OneOrMoreTexts | None, Meta(description="another name of `text_1`")] = None
    documents: Annotated[OneOrMoreTexts | None, Meta(description="another name of `text_2`")] = None
    data_1: Annotated[OneOrMoreTexts | None, Meta(description="another name of `text_1`")] = None
    data_2: Annotated[OneOrMoreTexts | None, Meta(description="another name of `text_2`")] = None
    use_activation: Annotated[bool | None, Meta(description="false: scores as the model computes them")] = (
        None
    )

    def sides(self) -> tuple[ComparedTexts, ComparedTexts]:
        """Returns the texts of the two fields.  Raises ApiError unless there is exactly one pair."""
        sent = [pair for pair in NAMES if any(getattr(self, name) is not None for name in pair)]
        if len(sent) > 1:
            raise invalid(f"Send {sent[0][1]} or {sent[1][1]}, not both.", sent[1][1])
        first, second = sent[0] if sent else NAMES[0]
        return self._side(first), self._side(second)

    def _side(self, name: str) -> ComparedTexts:
        given: OneOrMoreTexts | None = getattr(self, name)
        if given is None:
            raise invalid(f"Missing required parameter: '{name}'.", name, "missing_required_parameter")
        if not given and isinstance(given, list):
            raise invalid(f"{name} must not be empty.", name)
        return ComparedTexts([given] if isinstance(given, str) else given, name)


class Score(Strict):
    index: int
    object: Literal["score"]
    score: float


class Scores(Listing[Score]):
    pass


class ScoreEndpoint(PooledEndpoint[ScoreRequest]):
    """The endpoint of scores."""

    request = ScoreRequest
    prefix = "score"
    operation = "score"
    tasks = SCORED

    async def plan(self, body: ScoreRequest, options: EncodingOptions) -> list[EncodedPrompt]:
        return await plan_scores(self.service, *body.sides(), options)

    def render(self, body: ScoreRequest, results: Sequence[PooledResult], envelope: PooledEnvelope) -> bytes:
        firsts, _ = body.sides()
        found = scores(self.service, results, len(firsts.texts), body.use_activation)
        data = [{"index": at, "object": "score", "score": score} for at, score in enumerate(found)]
        return envelope.listing([msgspec.json.encode(one) for one in data])


_SCORE = generating(
    "/score",
    "How well texts go with others",
    ScoreEndpoint,
    "one with one, one with many, or as many with as many",
    request=ScoreRequest,
    example={"text_1": "pets", "text_2": ["a cat sat", "shares fell"]},
    answer=Scores,
)
ROUTES = (_SCORE, replace(_SCORE, path="/v1/score", summary="The same", details=""))
