"""The short form of `make constrained`: a real engine's answers fit their constraints, by `LLM` and HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import openai
import pytest
from pydantic import BaseModel

from corepipe import LLM, SamplingParams
from corepipe.answers.parsing.formats import FORMATS
from tests.constrained import calls, run
from tests.constrained.cases import cases
from tests.constrained.engine_times import EngineTimes
from tests.constrained.longer import longer
from tests.servers import TINY, Served, served

pytest.importorskip("corepipe.engine.batch.masks", reason="no engine here holds an answer to a grammar")

SEED = 20261122


class Small(BaseModel):
    kind: bool
    size: int


@pytest.fixture(scope="module")
def tiny() -> Iterator[Path]:
    with longer(TINY, calls.CONTEXT) as model:
        yield model


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Served]:
    with served(tiny, "--served-model-name", "tiny") as running:
        yield running


def test_answers_are_what_was_asked(tiny: Path) -> None:
    """Answers are the same for the same seed, so the result does not depend on the machine."""
    listed, _, own, _ = run.taken(cases(made_up=15, number=SEED))
    assert own == []
    found = run.Found()
    with LLM(tiny, max_model_len=run.CONTEXT) as llm:
        run.by_library(llm, list(run.asks(listed, 2 * len(listed), SEED)), found)
    assert (found.wrong, found.failed) == ([], [])
    assert found.share() >= 0.9


def test_answers_over_http_are_what_was_asked(server: Served) -> None:
    listed, *_ = run.taken([case for case in cases(made_up=3, number=SEED) if case.bounded])
    found = run.Found()
    run.by_http(server, list(run.asks(listed[::3], 2 * len(listed[::3]), SEED)), found)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 64}
        answer = client.chat.completions.parse(**asked, response_format=Small, n=2, seed=1)
        refused = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
        with pytest.raises(openai.BadRequestError, match="Invalid schema for response_format 'x'"):
            client.chat.completions.create(**asked, response_format=refused)
    assert (found.wrong, found.failed) == ([], [])
    assert all(isinstance(choice.message.parsed, Small) for choice in answer.choices)
    times = EngineTimes.of(server)
    assert times.compiled[float("inf")] >= len(listed[::3]), "each grammar, once at least"
    assert times.masks[float("inf")] > times.compiled[float("inf")]


def test_calls_over_http_are_what_was_asked(server: Served) -> None:
    """The openai package receives them whole and streamed."""
    heard = calls.Heard()
    calls.by_http(server, "tiny", list(calls.asks(32, SEED)), heard)
    assert heard.wrong == []
    assert heard.share() >= 0.9


EVERY = {msgspec.structs.replace(form, name=""): name for name, form in FORMATS.items()}
"""One name for each different format of calls."""


@pytest.mark.parametrize("name", EVERY.values())
def test_calls_in_every_format(tiny: Path, name: str) -> None:
    """They are forced, by `LLM.chat`, at every temperature."""
    heard = calls.Heard()
    with LLM(tiny, tool_call_parser=name) as llm:
        for ask in calls.asks(4, SEED):
            body = ask.body()
            params = SamplingParams(temperature=ask.temperature, seed=ask.seed, max_tokens=calls.MOST)
            chosen = {field: body[field] for field in ("tools", "tool_choice", "parallel_tool_calls")}
            (output,) = llm.chat(body["messages"], params, **chosen)
            told = tuple((call.id, call.name, call.arguments) for call in output.tool_calls)
            heard.judge(name, ask, calls.Answer(told, output.text, output.finish_reason))
    assert heard.wrong == []
    assert heard.finished.total() >= 3
