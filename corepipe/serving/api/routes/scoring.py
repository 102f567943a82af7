"""How well texts go with others: read as pairs by a cross-encoder, or compared as vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from corepipe.answers.values import activated, normalized
from corepipe.models.tasks import ScoreActivation, Task
from corepipe.serving.api.answering.pooled import PooledResult
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.texts import (
    EncodedPrompt,
    EncodingOptions,
    TextPair,
    read_entries,
    read_pairs,
)
from corepipe.serving.api.answering.truncation import Truncation
from corepipe.serving.api.answering.values import array
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.routes.embeddings import InputType, named_prompt

SCORED = (Task.SCORE, Task.EMBED)
"""Tasks that scores can be had of."""


class ComparedTexts(NamedTuple):
    """Texts on one side of a comparison, and the field that they came in."""

    texts: Sequence[str]
    field: str


async def plan_scores(
    service: Service, firsts: ComparedTexts, seconds: ComparedTexts, options: EncodingOptions
) -> list[EncodedPrompt]:
    """Prompts to compare the first text with each of the second, or as many texts with as many.

    Raises ApiError for other numbers of texts, and as `read_pairs` and `read_entries`.
    """
    if len(firsts.texts) not in (1, len(seconds.texts)) or not seconds.texts:
        counts = f"{firsts.field} has {len(firsts.texts)} texts and {seconds.field} {len(seconds.texts)}"
        message = f"{counts}: send one and any number, or as many of both."
        raise invalid(message, seconds.field)
    if service.task.task is Task.EMBED:
        left = await _vectors(service, firsts, "query", options._replace(most_second=0))
        return left + await _vectors(service, seconds, "document", _of_seconds(service, options))
    if not service.task.pairs:
        raise invalid("The model that is served reads no pairs of texts.", "model", "task_not_served")
    both = list(firsts.texts) * (len(seconds.texts) // len(firsts.texts))
    pairs = [
        TextPair(first, second, f"{seconds.field}[{at}]")
        for at, (first, second) in enumerate(zip(both, seconds.texts, strict=True))
    ]
    return await read_pairs(service, pairs, seconds.field, options)


def scores(
    service: Service, results: Sequence[PooledResult], firsts: int, use_activation: bool | None
) -> list[float]:
    """One for each of the second texts; `firsts`: how many first ones there are."""
    outputs = [result.output for result in results]
    task = service.task
    if task.task is Task.EMBED:
        vectors = normalized(np.concatenate([array(output) for output in outputs])).astype(np.float64)
        cosines: list[float] = (vectors[:firsts] * vectors[firsts:]).sum(-1).tolist()
        return cosines
    activation = ScoreActivation.IDENTITY if use_activation is False else task.activation
    return [float(activated(array(output), activation)[0, 0]) for output in outputs]


def _of_seconds(service: Service, options: EncodingOptions) -> EncodingOptions:
    """How second texts are read that stand alone: what is put around a text is not counted."""
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
