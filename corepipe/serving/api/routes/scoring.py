"""Scores of how well texts match: a cross-encoder reads pairs, or vectors are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from corepipe.answers.values import activated, normalized
from corepipe.models.tasks import ScoreActivation, Task
from corepipe.serving.api.answering.pooled import PooledResult, array
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
