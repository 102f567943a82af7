"""An answer that another engine goes on with, after any token, is the one that was begun."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Output, Started, Submit
from corepipe.engine.sampling_parameters import TokenSampling
from tests.servers import TINY

PROMPT = [7 + 11 * i % 200 for i in range(40)]
TOKENS = 24

VARIANTS = {
    "greedy": TokenSampling(temperature=0.0, logprobs=3),
    "seeded": TokenSampling(temperature=1.3, seed=11, top_p=0.9, logprobs=1),
    "unseeded": TokenSampling(temperature=1.0),
    "penalties": TokenSampling(
        temperature=0.8, seed=5, repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.4
    ),
    "biased": TokenSampling(temperature=1.0, seed=3, logit_bias={5: 3.0, 9: -100.0}),
    "prompt": TokenSampling(temperature=0.0, prompt_logprobs=2, logprobs=0),
    "bad words": TokenSampling(temperature=0.9, seed=2),
    "allowed": TokenSampling(temperature=1.2, seed=4, logprobs=1, allowed_token_ids=[1, *range(7, 300, 9)]),
}


def bad_words(variant: str) -> list[list[int]]:
    """Pairs of tokens, and single ones, of those that the answer has without them."""
    if variant != "bad words":
        return []
    plain = answer(Submit("plain", PROMPT, TOKENS, VARIANTS[variant], stop_ids=[1, 2], min_tokens=TOKENS))
    said = [token for output in plain for token in output.tokens]
    return [[said[0]], said[3:5], said[7:9], said[12:15]]


@functools.cache
def engine() -> tuple[Driver, list[Started]]:
    """A Driver, and what it has told to have started."""
    told: list[Started] = []
    config = EngineConfig(model=str(TINY), format="int8", threads=1, max_model_len=256)
    return Driver(assemble(config, lambda _what, _done: None), told.extend), told


def answer(submit: Submit) -> list[Output]:
    driver, _ = engine()
    driver.handle(submit)
    return list(_news(driver))


def _news(driver: Driver) -> Iterator[Output]:
    while driver.busy:
        yield from driver.turn()


@functools.cache
def whole(variant: str) -> tuple[Submit, list[Output]]:
    """A request with the seed that it was given, and its answer; stop tokens are banned until its end."""
    early = {"stop_ids": [1, 2], "min_tokens": TOKENS - 2, "bad_words": bad_words(variant)}
    submit = Submit(variant, PROMPT, TOKENS, VARIANTS[variant], **early)  # type: ignore[arg-type]
    outputs = answer(submit)
    seed = next(started.seed for started in reversed(engine()[1]) if started.id == variant)
    return changed(submit, sampling=changed(submit.sampling, seed=seed)), outputs


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(VARIANTS)), st.integers(1, TOKENS - 1))
def test_it_goes_on_with_the_same_tokens_and_logprobs(variant: str, cut: int) -> None:
    submit, outputs = whole(variant)
    before, after = outputs[:cut], outputs[cut:]
    generated = [token for output in before for token in output.tokens]
    assert len(generated) == cut
    sampling = changed(submit.sampling, prompt_logprobs=None)
    rest = answer(changed(submit, generated=generated, replay=True, sampling=sampling))
    assert [output.tokens for output in rest] == [output.tokens for output in after]
    assert [output.logprobs for output in rest] == [output.logprobs for output in after]
    assert rest[-1].finish_reason == after[-1].finish_reason
    assert not any(output.prompt_logprobs or output.cached or output.device for output in rest)


def test_bad_words_are_not_said() -> None:
    submit, outputs = whole("bad words")
    said = [token for output in outputs for token in output.tokens]
    assert len(said) > TOKENS // 2
    for word in submit.bad_words:
        assert not any(said[at : at + len(word)] == word for at in range(len(said)))


def test_no_other_tokens_are_said_than_those_allowed() -> None:
    submit, outputs = whole("allowed")
    said = {token for output in outputs for token in output.tokens}
    assert said <= {*(submit.sampling.allowed_token_ids or ())}
    assert len(said) > 4


@pytest.mark.parametrize(
    ("generated", "message"),
    [([1] * TOKENS, "leave none"), ([1] * 300, "leave none"), ([-1], "vocabulary"), ([10**6], "vocabulary")],
)
def test_tokens_that_no_engine_can_have_made_are_refused(generated: list[int], message: str) -> None:
    submit = Submit("a", PROMPT, TOKENS, TokenSampling(), generated=generated, replay=True)
    (output,) = answer(submit)
    assert output.error_kind == "invalid"
    assert message in (output.error or "")


def test_who_comes_again_has_its_place_however_full_the_queue_is() -> None:
    config = EngineConfig(model=str(TINY), threads=1, max_model_len=64, max_num_seqs=1, max_queued_requests=1)
    driver = Driver(assemble(config, lambda _what, _done: None))
    first = Submit("new", PROMPT, 2, TokenSampling())
    for submit in [
        first,
        *(replace_id(first, name, replay=True) for name in "abc"),
        replace_id(first, "late"),
    ]:
        driver.handle(submit)
    ends = {output.id: output for output in _news(driver) if output.finish_reason}
    assert ends["late"].error_kind == "overloaded"
    assert [name for name, end in ends.items() if end.finish_reason == "length"] == ["a", "b", "c", "new"]
    driver.close()


def replace_id(submit: Submit, name: str, *, replay: bool = False) -> Submit:
    return changed(submit, id=name, replay=replay)
