"""The small form of `make constrained`: a real engine's answers are what was asked, by `LLM` and HTTP."""

from __future__ import annotations

import openai
import pytest
from pydantic import BaseModel

from corepipe import LLM
from tests.constrained.cases import cases
from tests.constrained.run import Found, asks, by_http, by_library, longer, taken
from tests.servers import TINY, served

pytest.importorskip("corepipe.serving.engine.masks", reason="no engine here holds an answer to a grammar")

SEED = 20261122


class Small(BaseModel):
    kind: bool
    size: int


def test_answers_are_what_was_asked() -> None:
    """The same for the same seed: whether it holds does not depend on the machine."""
    listed, _, own, _ = taken(cases(made_up=15, number=SEED))
    assert own == []
    found = Found()
    with longer(TINY) as model, LLM(model) as llm:
        by_library(llm, list(asks(listed, 2 * len(listed), SEED)), found)
    assert (found.wrong, found.failed) == ([], [])
    assert found.share() >= 0.9


def test_answers_over_http_are_what_was_asked() -> None:
    listed, *_ = taken([case for case in cases(made_up=3, number=SEED) if case.bounded])
    found = Found()
    with longer(TINY) as model, served(model, "--served-model-name", "tiny") as server:
        by_http(server, list(asks(listed[::3], 2 * len(listed[::3]), SEED)), found)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            asked = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 64}
            answer = client.chat.completions.parse(**asked, response_format=Small, n=2, seed=1)
            refused = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
            with pytest.raises(openai.BadRequestError, match="Invalid schema for response_format 'x'"):
                client.chat.completions.create(**asked, response_format=refused)
    assert (found.wrong, found.failed) == ([], [])
    assert all(isinstance(choice.message.parsed, Small) for choice in answer.choices)
