from __future__ import annotations

import math

import pytest

from corepipe.engine.batch.requests import to_request
from corepipe.engine.messages import Submit
from corepipe.engine.sampling_parameters import TokenSampling


def test_a_submit_becomes_a_request() -> None:
    submit = Submit(
        "a", [1, 2], 9, TokenSampling(prompt_logprobs=0), [7, 999], 3, -1, "salt", owner="key", grammar="{}"
    )
    request = to_request(submit, arrival=2.5, seed=5, vocab_size=100, max_model_len=8)
    assert (request.id, request.prompt, request.arrival) == ("a", [1, 2], 2.5)
    assert request.max_tokens == 6
    assert request.stop_ids == {7}
    assert (request.min_tokens, request.priority, request.cache_salt) == (3, -1, "salt")
    assert (request.owner, request.grammar) == ("key", "{}")
    assert request.prompt_logits


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "empty"), ([1] * 8, "8 tokens"), ([1, 100], "vocabulary"), ([-1], "vocabulary"), ([2**40], "voc")],
)
def test_prompts_that_cannot_run_are_refused(prompt: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_request(Submit("a", prompt, 1), 0.0, 0, vocab_size=100, max_model_len=8)


@pytest.mark.parametrize(
    "params",
    [
        TokenSampling(temperature=-0.1),
        TokenSampling(temperature=math.nan),
        TokenSampling(temperature=math.inf),
        TokenSampling(temperature=1e300),
        TokenSampling(top_p=-0.1),
        TokenSampling(top_p=math.nan),
        TokenSampling(min_p=1.5),
        TokenSampling(repetition_penalty=0.0),
        TokenSampling(repetition_penalty=5e-324),
        TokenSampling(presence_penalty=math.nan),
        TokenSampling(frequency_penalty=math.inf),
        TokenSampling(logit_bias={100: 1.0}),
        TokenSampling(logit_bias={-1: 1.0}),
        TokenSampling(logit_bias={1: math.nan}),
        TokenSampling(logit_bias={1: -1e300}),
        TokenSampling(logit_bias={1: math.inf}),
        TokenSampling(allowed_token_ids=[]),
        TokenSampling(allowed_token_ids=[-1]),
        TokenSampling(allowed_token_ids=[5, 100]),
        TokenSampling(logprobs=-1),
        TokenSampling(prompt_logprobs=101),
    ],
)
def test_parameters_that_no_sampler_can_follow_are_refused(params: TokenSampling) -> None:
    with pytest.raises(ValueError, match=r"must|vocabulary"):
        to_request(Submit("a", [1], 1, params), 0.0, 0, vocab_size=100, max_model_len=8)


@pytest.mark.parametrize("words", [[[]], [[1], []], [[100]], [[1, -1]]])
def test_bad_words_that_no_answer_can_have_are_refused(words: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="bad_words"):
        to_request(Submit("a", [1], 1, bad_words=words), 0.0, 0, vocab_size=100, max_model_len=8)


def test_no_tokens_to_generate_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        to_request(Submit("a", [1], 0), 0.0, 0, vocab_size=100, max_model_len=8)
