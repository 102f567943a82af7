"""POST /score and /v1/score, in vLLM's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from corepipe.serving.api.answering.answers import Listing, Strict
from corepipe.serving.api.answering.pooled import PooledEndpoint, PooledEnvelope, PooledRequest, PooledResult
from corepipe.serving.api.answering.texts import EncodedPrompt, EncodingOptions
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.routes.route import generating
from corepipe.serving.api.routes.scoring import SCORED, ComparedTexts, plan_scores, scores

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
