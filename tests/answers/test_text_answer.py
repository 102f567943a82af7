"""The answer is the same however Outputs are merged; streamed and whole answers are equal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.answers.parsing.formats import FORMATS, AnswerFormat
from corepipe.answers.parts import Finish, Pieces, Text, joined_logprobs, joined_text
from corepipe.answers.text_answer import Echo, TextAnswer
from corepipe.engine.messages import Output, Submit, TokenLogprobs
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.serving.api.answering.rendering import ChoicesRenderer, Envelope, TokenUsage
from corepipe.serving.api.routes.chat import ChatShape
from corepipe.serving.api.routes.completions import CompletionShape
from corepipe.serving.supervision.client import merge_outputs
from tests.serving.http_support import tokenizer

PIECES = Pieces(tokenizer(), skip_special_tokens=True)
EOS = min(tokenizer().eos_ids)
WORDS = ["Hello ", "wörld", "…", "o", "lo w", " and on "]


@dataclass(frozen=True)
class Asked:
    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    echo: str | None = None


ASKED = st.builds(
    Asked,
    stops=st.lists(st.sampled_from(["o", "lo w", "ö", "d…", "never"]), max_size=2).map(tuple),
    stop_token_ids=st.sampled_from([(), (EOS,)]),
    include_stop_str_in_output=st.booleans(),
    min_tokens=st.integers(0, 5),
    logprobs=st.sampled_from([None, 0]),
    echo=st.sampled_from([None, "", "Hi"]),
)


def news(text: str, *, ends: bool, logprobs: bool) -> list[Output]:
    """Returns Outputs of one token each, as of an engine; the answer `ends` with eos, or at its limit."""
    tokens = tokenizer().encode(text) + [EOS] * ends
    said = [Output("a", [t], [TokenLogprobs(t, -0.5)] if logprobs else []) for t in tokens]
    last = Output("a", said[-1].tokens, said[-1].logprobs, finish_reason="stop" if ends else "length")
    return [*said[:-1], last]


def merged(outputs: list[Output], cuts: set[int]) -> Iterator[Output]:
    """Yields the same Outputs, with those between two cuts merged."""
    at = sorted({0, len(outputs), *(cut for cut in cuts if cut < len(outputs))})
    for begin, end in pairwise(at):
        yield merge_outputs(outputs[begin:end])


def parts_of(asked: Asked, outputs: Iterator[Output]) -> list[list[Text | Finish]]:
    """Returns the parts of each Output, up to the answer's end."""
    sampling = TokenSampling(logprobs=asked.logprobs, prompt_logprobs=asked.logprobs)
    submit = Submit("a", [5, 6], 100, sampling, stop_ids=[EOS], min_tokens=asked.min_tokens)
    answer = TextAnswer(
        0, submit, asked, PIECES, None if asked.echo is None else Echo(asked.echo, asked.logprobs)
    )
    parts = []
    for output in outputs:
        parts.append(answer.take(output))
        if answer.finish is not None:
            return parts
    raise AssertionError("it has no end")


def summed(parts: list[list[Text | Finish]]) -> tuple[object, ...]:
    flat = [part for some in parts for part in some]
    texts = [part for part in flat if isinstance(part, Text)]
    return joined_text(texts), joined_logprobs(texts), flat[-1]


CASE = st.tuples(
    ASKED,
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("".join),
    st.booleans(),
    st.sets(st.integers(1, 30), max_size=8),
)


@given(CASE)
@settings(deadline=None, max_examples=200)
def test_an_answer_does_not_depend_on_how_its_news_are_cut(case):
    asked, text, ends, cuts = case
    told = news(text, ends=ends, logprobs=asked.logprobs is not None)
    assert summed(parts_of(asked, merged(told, cuts))) == summed(parts_of(asked, iter(told)))


@given(st.sets(st.integers(1, 60), max_size=8), st.booleans())
@settings(deadline=None, max_examples=100)
def test_an_answer_that_ends_with_a_call_has_the_same_tokens_however_they_come(cuts, logprobs):
    reading = AnswerFormat(FORMATS["hermes"], tools={"f": {}}, single=True)
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    told = news(f"So: {call} and more words {call}", ends=True, logprobs=logprobs)

    def counted(outputs: Iterator[Output]) -> tuple[object, ...]:
        submit = Submit("a", [5, 6], 100, TokenSampling(), stop_ids=[EOS])
        answer = TextAnswer(0, submit, Asked(), PIECES, reading=reading)
        parts = [part for output in outputs for part in answer.take(output)]
        texts = [part for part in parts if isinstance(part, Text)]
        return answer.generated, joined_text(texts), joined_logprobs(texts), answer.finish

    assert counted(merged(told, cuts)) == counted(iter(told))


@pytest.mark.parametrize("shape", [CompletionShape(tokenizer()), ChatShape(tokenizer())])
@given(case=CASE)
@settings(deadline=None, max_examples=100)
def test_a_stream_says_what_the_whole_answer_says(shape, case):
    asked, text, ends, cuts = case
    told = news(text, ends=ends, logprobs=asked.logprobs is not None)
    parts = parts_of(asked, merged(told, cuts))
    renderer = ChoicesRenderer(shape, tokenizer(), Envelope("id", 1, "m", "fp"), usage_chunk=True)
    usage = TokenUsage(2, len(told), 0)
    whole = json.loads(renderer.whole([part for some in parts for part in some] + [usage]))
    stream = [renderer.event(some) for some in parts] + [renderer.closing([usage])]
    chunks = [json.loads(one.removeprefix(b"data: ").partition(b"\n")[0]) for one in stream if one]
    (choice,) = whole["choices"]
    said = [c["choices"][0] for c in chunks[:-1]]
    assert "".join(text_of(one) for one in said) == text_of(choice)
    assert said[-1]["finish_reason"] == choice["finish_reason"]
    assert said[-1]["stop_reason"] == choice["stop_reason"]
    assert [one["finish_reason"] for one in said[:-1]] == [None] * (len(said) - 1)
    assert entries([one["logprobs"] for one in said]) == entries([choice["logprobs"]])
    assert chunks[-1]["usage"] == whole["usage"]


def text_of(choice):
    if "text" in choice:
        return choice["text"]
    return choice.get("message", choice.get("delta"))["content"] if choice.get("delta", True) else ""


def entries(logprobs):
    """Returns the values of each field, one after the other."""
    found = {}
    for one in filter(None, logprobs):
        for name, values in one.items():
            found.setdefault(name, []).extend(values or [])
    return found
