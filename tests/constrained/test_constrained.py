"""A real engine's answers fit their constraints, by `LLM` and HTTP; `make constrained` is the long form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import openai
import pytest
from pydantic import BaseModel

from corepipe import LLM, SamplingParams
from corepipe.answers.parsing.formats import FORMATS
from tests.constrained import answers, calls
from tests.constrained.answers import Judged
from tests.constrained.cases import cases
from tests.constrained.longer import longer
from tests.servers import TINY, Served, default_model, served

pytest.importorskip("corepipe.engine.batch.masks", reason="no engine here holds an answer to a grammar")

SEED = 20261122
ENOUGH = 0.95


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
    listed, judged = answers.taken(cases(made_up=15, number=SEED)), Judged()
    with LLM(tiny, max_model_len=answers.CONTEXT) as llm:
        answers.by_library(llm, list(answers.asks(listed, 2 * len(listed), SEED)), judged)
    assert judged.wrong == []
    assert judged.share("bounded") >= 0.9


def test_answers_over_http_are_what_was_asked(server: Served) -> None:
    listed = answers.taken([case for case in cases(made_up=3, number=SEED) if case.bounded])[::3]
    judged = Judged()
    answers.by_http(server, list(answers.asks(listed, 2 * len(listed), SEED)), judged)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 64}
        answer = client.chat.completions.parse(**asked, response_format=Small, n=2, seed=1)
        refused = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
        with pytest.raises(openai.BadRequestError, match="Invalid schema for response_format 'x'"):
            client.chat.completions.create(**asked, response_format=refused)
    assert judged.wrong == []
    assert all(isinstance(choice.message.parsed, Small) for choice in answer.choices)
    compiled, masks = (
        server.metric(f"corepipe_grammar_{name}_seconds_count") for name in ("compile", "mask")
    )
    assert masks > compiled >= len(listed), "each grammar, once at least"


@pytest.mark.slow
def test_ten_thousand_answers(tiny: Path) -> None:
    """Most are a tiny model's through `LLM`, a tenth its own over HTTP, and some the default model's."""
    listed, judged = answers.taken(cases(made_up=300, number=1)), Judged()
    wanted = list(answers.asks(listed, 10_000, 1))
    with LLM(tiny, max_model_len=answers.CONTEXT) as llm:
        answers.by_library(llm, wanted[:8500], judged)
    for model, share in ((tiny, wanted[8500:9500]), (default_model(), wanted[9500:])):
        with served(model, "--max-model-len", answers.CONTEXT) as running:
            answers.by_http(running, share, judged)
    assert judged.wrong == []
    assert judged.share("bounded") >= ENOUGH


@pytest.mark.slow
def test_a_thousand_calls(tiny: Path) -> None:
    """They are the default model's, in its own format, and a tiny model's in each of the others."""
    judged = Judged()
    with served(default_model(), "--max-model-len", calls.CONTEXT) as running:
        calls.by_http(running, "the default model", list(calls.asks(1000, 1)), judged)
    for name in FORMATS:
        with served(tiny, "--tool-call-parser", name) as running:
            calls.by_http(running, name, list(calls.asks(40, 1)), judged)
    assert judged.wrong == []
    assert judged.share() >= ENOUGH


def test_calls_over_http_are_what_was_asked(server: Served) -> None:
    """The openai package receives them whole and streamed."""
    judged = Judged()
    calls.by_http(server, "tiny", list(calls.asks(32, SEED)), judged)
    assert judged.wrong == []
    assert judged.share() >= 0.9


EVERY = {msgspec.structs.replace(form, name=""): name for name, form in FORMATS.items()}
"""One name for each different format of calls."""


@pytest.mark.parametrize("name", EVERY.values())
def test_calls_in_every_format(tiny: Path, name: str) -> None:
    """They are forced, by `LLM.chat`, at every temperature."""
    judged = Judged()
    with LLM(tiny, tool_call_parser=name) as llm:
        for ask in calls.asks(4, SEED):
            body = ask.body()
            params = SamplingParams(temperature=ask.temperature, seed=ask.seed, max_tokens=calls.MOST)
            chosen = {field: body[field] for field in ("tools", "tool_choice", "parallel_tool_calls")}
            (output,) = llm.chat(body["messages"], params, **chosen)
            told = tuple((call.id, call.name, call.arguments) for call in output.tool_calls)
            calls.judge(judged, name, ask, calls.Answer(told, output.text, output.finish_reason))
    assert judged.wrong == []
    assert judged.finished.total() >= 3
