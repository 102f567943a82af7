"""Drafts change how soon tokens come, and nothing else: every answer with them is the answer without."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from msgspec.structs import replace as changed

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Output, Stats, Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.errors import UserError
from corepipe.scheduler.request import Drafter, Request
from tests import tiny_encoders
from tests.engine.engine_support import by_request, run
from tests.parity import expected
from tests.servers import TINY, Served, served, until
from tests.support import killed
from tests.test_constrained import GRAMMARS, tokenizer

PROMPT = [7 + 11 * i % 200 for i in range(40)]
TOKENS = 40
SEEDED = TokenSampling(temperature=1.3, seed=11, top_p=0.9, logprobs=1)
WORDS = LLMatcher.grammar_from_regex(r"(yes|no|maybe)( (so|not)){3,9}")
KINDS: dict[str, tuple[TokenSampling, dict[str, Any]]] = {
    "greedy": (TokenSampling(temperature=0.0, logprobs=3), {}),
    "seeded": (SEEDED, {"stop_ids": [1, 2], "min_tokens": 20}),
    "few": (TokenSampling(temperature=1.0, seed=2, top_k=3, min_p=0.05, logprobs=0), {}),
    "penalties": (
        TokenSampling(temperature=0.8, seed=5, repetition_penalty=1.3, presence_penalty=0.7, logprobs=0),
        {},
    ),
    "frequent": (TokenSampling(temperature=0.0, frequency_penalty=1.4), {"stop_ids": [9], "min_tokens": 6}),
    "biased": (
        TokenSampling(temperature=1.0, seed=3, logit_bias={5: 3.0, 9: -100.0}, prompt_logprobs=1),
        {"stop_ids": [5, 1], "min_tokens": 12},
    ),
    "allowed": (TokenSampling(temperature=1.2, seed=4, allowed_token_ids=[1, *range(7, 300, 9)]), {}),
    "json": (
        TokenSampling(temperature=1.0, seed=6, logprobs=2),
        {"grammar": GRAMMARS["json"], "max_tokens": 90},
    ),
    "words": (TokenSampling(temperature=0.7, seed=8), {"grammar": WORDS, "min_tokens": 9}),
    "nothing": (
        TokenSampling(
            temperature=1.0, seed=1, allowed_token_ids=sorted(set(tokenizer().encode("a b c d e f g")))
        ),
        {"grammar": LLMatcher.grammar_from_regex("[a-g ]{9}[0-9]")},
    ),
}
"""The last kind has no token to draw after some tokens: it ends with an error."""
BESIDE = {"max_num_seqs": 16, "max_num_batched_tokens": 48, "num_blocks": 20, "block_size": 16}


class Knows:
    """Drafts an answer that is known, wrongly once in a while."""

    def __init__(self, answer: Sequence[int], rng: random.Random) -> None:
        self._answer = answer
        self._rng = rng
        self.drafts = self.accepted = 0

    def propose(self, request: Request, most: int) -> Sequence[int]:
        rest = self._answer[request.num_generated :]
        guesses = [token if self._rng.random() < 0.8 else self._rng.randrange(100) for token in rest]
        ends = [0] * 3  # beyond the end of the answer, too
        return (guesses + ends)[: min(most, self._rng.randint(0, 8))]

    def verified(self, drafts: int, accepted: int) -> None:
        self.drafts += drafts
        self.accepted += accepted


def engine(drafter: Any = None, model: Path = TINY, **options: Any) -> Driver:
    settings = {"format": "int8", "threads": 1, "max_model_len": 256, **options}
    deployment = assemble(EngineConfig(model=str(model), **settings), lambda _what, _done: None)
    return Driver(deployment if drafter is None else replace(deployment, drafter=drafter, drafts=True))


def submits() -> list[Submit]:
    return [
        Submit(kind, PROMPT[: 20 + at], **{"max_tokens": TOKENS, **fields}, sampling=sampling)
        for at, (kind, (sampling, fields)) in enumerate(KINDS.items())
    ]


def told(news: dict[str, list[Output]]) -> dict[str, Any]:
    """Returns all outputs of the requests, in the order and in the pieces in which they come, except the
    fields that depend on other requests."""
    return {
        name: [changed(o, device=None, preemptions=0, cached=0, speculated=None) for o in outputs]
        for name, outputs in news.items()
    }


def answered(driver: Driver, asked: Sequence[Submit]) -> dict[str, list[Output]]:
    for submit in asked:
        driver.handle(submit)
    return by_request(run(driver))


def played(
    asked: Sequence[Submit], drafter: Any = None, model: Path = TINY, **options: Any
) -> tuple[dict[str, list[Output]], list[Stats]]:
    """Returns the outputs of these requests, all at once, and the figures of their engine."""
    with closing(engine(drafter, model, **options)) as driver:
        return answered(driver, asked), driver.stats()


def tokens_in(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


@functools.cache
def plain(**options: Any) -> dict[str, Any]:
    """Runs each request alone, and without drafts; of the options only a cache's type changes answers."""
    own = {name: value for name, value in options.items() if name == "kv_cache_dtype"}
    with closing(engine(**own)) as driver:
        return {submit.id: told(answered(driver, [submit]))[submit.id] for submit in submits()}


def drafted(asked: Sequence[Submit], **options: Any) -> tuple[dict[str, Any], list[Knows], list[Stats]]:
    """Returns the outputs of these requests with drafts, the drafters, and the engine's figures."""
    wanted, guessers = plain(**options), list[Knows]()

    def drafter(request: SampledRequest) -> Drafter:
        guessers.append(Knows(tokens_in(wanted[request.id]), random.Random(request.id)))
        return guessers[-1]

    news, stats = played(asked, drafter, **options)
    return told(news), guessers, stats


@pytest.mark.parametrize(
    "options",
    [
        {},
        BESIDE,
        {"pipeline": 2, "max_num_batched_tokens": 33, "threads": 2},
        {"data": 2, "policy": "segregated"},
        {"kv_cache_dtype": "int8"},
    ],
    ids=["roomy", "preempted", "pipeline", "replicas", "int8 cache"],
)
def test_answers_are_those_without_drafts(options: dict[str, Any]) -> None:
    found, guessers, stats = drafted(submits(), **options)
    assert found == plain(**options)
    accepted, drafts = sum(g.accepted for g in guessers), sum(g.drafts for g in guessers)
    assert drafts > accepted + 20 > 60
    assert sum(s.blocks_held for s in stats) == 0
    assert "num_blocks" not in options or sum(s.preemptions for s in stats) > 0


def test_the_last_token_of_all_comes_with_an_error() -> None:
    assert plain()["nothing"][-1].error_kind == "contradiction"
    assert len(plain()["nothing"]) > 1


def test_tensor_parallel_answers_are_those_without_drafts() -> None:
    """Both run beside each other, as sums of several cores have their own order."""
    wanted, _ = played(submits(), tensor=2, threads=2)
    assert drafted(submits(), tensor=2, threads=2)[0] == told(wanted)


def windowed(name: str, folder: Path) -> tuple[list[Submit], dict[str, Any]]:
    """Returns requests to a model with windows, and its options."""
    small = expected.load(name)
    drawn = [TokenSampling(temperature=0.0), SEEDED]
    asked = [Submit(str(n), small.prompt[:n], 70, drawn[n % 2]) for n in (20, 61, 130)]
    return asked, {"model": small.write(folder), "format": "bf16", "block_size": 16, "cache_dir": folder}


@pytest.mark.parametrize("name", ["mistral", "gemma3_text", "llama4_text"])
def test_layers_with_windows(name: str, tmp_path: Path) -> None:
    """Windows have 40 positions, whose blocks are given back while drafts come and go."""
    asked, options = windowed(name, tmp_path)
    wanted, _ = played(asked, max_num_batched_tokens=48, **options)
    found, _ = played(
        asked,
        lambda r: Knows(tokens_in(wanted[r.id]), random.Random(r.id)),
        max_num_batched_tokens=48,
        **options,
    )
    assert told(found) == told(wanted)


def begun() -> tuple[list[Submit], dict[str, Any]]:
    """Returns requests that another engine goes on with after some tokens, and the rest of their answers."""
    rng, again, rest = random.Random(1), [], {}
    for submit in submits():
        if submit.id != "nothing":
            tokens = tokens_in(plain()[submit.id])
            cut = rng.randrange(1, len(tokens) - 1)
            sampling = changed(submit.sampling, prompt_logprobs=None)
            again.append(changed(submit, generated=tokens[:cut], replay=True, sampling=sampling))
            rest[submit.id] = plain()[submit.id][cut:]
    return again, rest


def test_an_answer_goes_on_in_another_engine() -> None:
    """The other engine goes on after some tokens, with drafts before and behind."""
    again, rest = begun()
    found, guessers, _ = drafted(again)
    assert found == rest
    assert sum(g.accepted for g in guessers) > 20


NGRAM: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 2}


def test_what_guesses_by_itself_changes_nothing() -> None:
    """Drafts come from n-grams, and from predictions: of the answer, of a part of it, and of something
    else."""
    wanted = plain()
    asked = []
    for at, submit in enumerate(submits()):
        tokens = tokens_in(wanted[submit.id])
        predicted = [tokens, tokens[9:] + tokens[:9], [], PROMPT][at % 4]
        asked.append(changed(submit, prediction=predicted))
    news, (stats,) = played(asked, speculative_config=NGRAM, clock="virtual")  # as many guesses as they like
    found = {name: [changed(o, predicted=None) for o in outputs] for name, outputs in told(news).items()}
    assert found == wanted
    assert 40 < stats.accepted_tokens < stats.draft_tokens
    assert stats.accepted_per_position[0] >= stats.accepted_per_position[1] > 0
    assert sum(stats.accepted_per_position) == stats.accepted_tokens
    for submit in asked:
        predicted = [output.predicted for output in news[submit.id] if output.tokens]
        assert all((one is not None) == bool(submit.prediction) for one in predicted)
    last = news["greedy"][-1].predicted
    assert last is not None
    assert last.accepted > TOKENS // 2 > last.rejected


def test_what_a_grammar_forces_comes_at_once() -> None:
    """No part of the text has occurred before: only the grammar drafts."""
    asked = [submit for submit in submits() if submit.id in ("json", "words")]
    found, (stats,) = played(asked, speculative_config={**NGRAM, "prompt_lookup_min": 60})
    assert told(found) == {name: plain()[name] for name in ("json", "words")}
    assert stats.accepted_tokens > stats.draft_tokens / 2 > 5


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    flags = ("--speculative-config", json.dumps(NGRAM), "--max-model-len", 256)
    with served(TINY, "--served-model-name", "tiny", *flags) as running:
        yield running


def guessed(server: Served) -> list[float]:
    """Returns the steps with drafts, the draft tokens, and those that were accepted."""
    names = ("drafts", "draft_tokens", "accepted_tokens")
    return [server.metric(f"vllm:spec_decode_num_{name}_total") for name in names]


def test_a_request_may_do_without_and_is_told_what_came_of_guesses(server: Served) -> None:
    """A server answers such a request, plain and streamed, beside others that have drafts."""
    before = guessed(server)
    body = {"model": "tiny", "prompt": "the", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    asked = {**body, "device_metrics": True, "allowed_token_ids": [70, 80]}  # it comes to repeat itself
    answer = server.post("/v1/completions", json=asked).json()
    told = answer["corepipe"]["speculative_decoding"]
    right, steps = told["acceptance_histogram"], told["num_spec_steps"]
    accepted = sum(number * count for number, count in enumerate(right))
    assert steps == sum(right) > 0 < accepted
    assert until(lambda: guessed(server)[0] - before[0] == steps)  # told now and then
    _, tokens, found = (now - then for now, then in zip(guessed(server), before, strict=True))
    assert accepted == found
    assert told["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
    assert told["draft_acceptance_rate"] == pytest.approx(accepted / tokens)
    assert told["assumed"] is False
    without = server.post("/v1/completions", json={**asked, "speculation": False}).json()
    assert without["choices"] == answer["choices"]
    assert "speculative_decoding" not in without["corepipe"]
    said = {"type": "content", "content": "a"}
    wrong = server.post("/v1/completions", json={**body, "speculation": False, "prediction": said})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "speculation")
    pair = server.post("/v1/completions", json={**asked, "n": 2, "temperature": 1, "seed": 1}).json()
    assert pair["corepipe"]["speculative_decoding"]["num_spec_steps"] > 0


def test_a_server_tells_what_became_of_a_prediction(server: Served) -> None:
    """It does so plain and streamed; the answer is the one without a prediction."""
    body = {"model": "tiny", "prompt": "the", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    alone = server.post("/v1/completions", json=body).json()
    assert "completion_tokens_details" not in alone["usage"]
    said = {"type": "content", "content": alone["choices"][0]["text"]}
    answer = server.post("/v1/completions", json={**body, "prediction": said}).json()
    assert answer["choices"] == alone["choices"]
    details = answer["usage"].pop("completion_tokens_details")
    assert answer["usage"]["completion_tokens"] == 60
    assert details.keys() == {"accepted_prediction_tokens", "rejected_prediction_tokens"}
    assert 0 < details["accepted_prediction_tokens"] <= 59
    parts = {"type": "content", "content": [{"type": "text", "text": "something else"}]}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "seed": 1}
    one, other = (
        server.post("/v1/chat/completions", json=chat | more).json() for more in ({}, {"prediction": parts})
    )
    assert one["choices"] == other["choices"]
    assert other["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] <= 8
    wrong = server.post("/v1/completions", json={**body, "prediction": {"type": "text", "content": ""}})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "prediction.type")
    tokens = server.metric("vllm:spec_decode_num_draft_tokens_total")
    accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert tokens >= accepted >= details["accepted_prediction_tokens"]
    first = server.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", 'position="0"')
    assert 0 < first <= server.metric("vllm:spec_decode_num_drafts_total")


def long_answers() -> tuple[list[Submit], dict[str, list[int]]]:
    """Requests whose engines have time to be killed, and their answers without drafts."""
    asked = [changed(s, max_tokens=150, stop_ids=[], min_tokens=0) for s in submits()[:4]]
    return asked, {name: tokens_in(outputs) for name, outputs in played(asked)[0].items()}


def tokens_of_killed(asked: Sequence[Submit], kills: int, guesses: dict[str, Any]) -> dict[str, list[int]]:
    """Returns the tokens of a server whose engine is killed each time that some more have come."""
    config = EngineConfig(
        model=str(TINY), threads=1, max_model_len=256, speculative_config=SpeculativeConfig(**guesses)
    )
    return {name: tokens_in(outputs) for name, outputs in killed(config, asked, kills).items()}


def test_engines_that_are_killed_change_no_answer() -> None:
    """Predictions are right but for some tokens: several come at a time, and the next engine goes on after
    any."""
    asked, wanted = long_answers()
    guesses = {name: [t if at % 7 else 3 for at, t in enumerate(tokens)] for name, tokens in wanted.items()}
    predicted = [changed(submit, prediction=guesses[submit.id]) for submit in asked]
    assert tokens_of_killed(predicted, 2, NGRAM) == wanted


def test_who_generates_nothing_guesses_nothing(tmp_path: Path) -> None:
    model = tiny_encoders.write_bert(tmp_path)
    with pytest.raises(UserError, match=r"--speculative-config: .* generates nothing"):
        engine(model=model, speculative_config=NGRAM, max_model_len=128)
