"""Answers that are held to a grammar, by a whole engine: what they are, and what changes them."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from msgspec.structs import replace as changed

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Output, Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.models import registry
from corepipe.models.text.tokenizer import Tokenizer
from tests.engine.engine_support import by_request, deployment, run, tokens_of
from tests.servers import TINY
from tests.support import killed

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "n": {"type": "integer", "minimum": -9, "maximum": 99},
        "kinds": {"type": "array", "items": {"enum": ["one", "two", None]}, "maxItems": 2},
    },
    "required": ["name", "n", "kinds"],
    "additionalProperties": False,
}
JSON = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA), overrides={"whitespace_pattern": r"[ \n]{1,2}"})
WORDS = r"(yes|no|maybe)( (so|not)){0,9}"
"""A regex that may end early, or go on."""
GRAMMARS = {"json": JSON, "words": LLMatcher.grammar_from_regex(WORDS)}
EOS = [2, 3]
PROMPT = [7 + 11 * i % 200 for i in range(40)]
KINDS = {
    "greedy": TokenSampling(temperature=0.0, logprobs=3),
    "seeded": TokenSampling(temperature=1.3, seed=11, top_p=0.9, logprobs=1),
    "hot": TokenSampling(temperature=1.5, seed=4),
    "few": TokenSampling(temperature=1.0, seed=2, top_k=3, min_p=0.05),
    "penalties": TokenSampling(temperature=0.8, seed=5, repetition_penalty=1.3, presence_penalty=0.7),
    "biased": TokenSampling(temperature=1.0, seed=3, logit_bias={5: 3.0, 60: -100.0}, prompt_logprobs=1),
}


@functools.cache
def tokenizer() -> Tokenizer:
    return registry.load(TINY).tokenizer()


@functools.cache
def engine(**options: Any) -> Driver:
    config = EngineConfig(
        model=str(TINY), **{"format": "int8", "threads": 1, "max_model_len": 256, **options}
    )
    return Driver(assemble(config, lambda _what, _done: None))


def constrained(name: str, grammar: str, sampling: TokenSampling, **fields: Any) -> Submit:
    return Submit(
        name,
        PROMPT,
        **{"max_tokens": 150, "stop_ids": EOS, "grammar": GRAMMARS[grammar], **fields},
        sampling=sampling,
    )


def answers(driver: Driver, *submits: Submit) -> dict[str, list[Output]]:
    for submit in submits:
        driver.handle(submit)
    return by_request(run(driver))


def everyone(**fields: Any) -> list[Submit]:
    return [
        constrained(f"{grammar} {kind}", grammar, sampling, **fields)
        for grammar in GRAMMARS
        for kind, sampling in KINDS.items()
    ]


@functools.cache
def undisturbed() -> dict[str, list[Output]]:
    """Each alone."""
    return {submit.id: answers(engine(), submit)[submit.id] for submit in everyone()}


def text_of(news: list[Output]) -> str:
    return tokenizer().decode([token for output in news for token in output.tokens])


def check(name: str, text: str) -> None:
    if name.startswith("json"):
        jsonschema.validate(json.loads(text), SCHEMA)
    else:
        assert re.fullmatch(WORDS, text)


def told(outputs: dict[str, list[Output]]) -> dict[str, Any]:
    """Tokens, their logprobs and the end of each, in however many pieces they came."""
    tokens = tokens_of([output for news in outputs.values() for output in news])
    return {
        name: (tokens[name], [entry for o in news for entry in o.logprobs], news[-1].finish_reason)
        for name, news in outputs.items()
    }


def test_every_answer_is_what_its_grammar_wants() -> None:
    for name, news in undisturbed().items():
        assert news[-1].finish_reason == "stop", news[-1]
        check(name, text_of(news))


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 16, "max_num_batched_tokens": 48, "num_blocks": 24, "block_size": 16},
        {"pipeline": 2, "max_num_batched_tokens": 33, "threads": 2},
        {"data": 2},
    ],
    ids=["preempted", "pipeline", "replicas"],
)
def test_company_chunks_preemption_and_placement_change_nothing(options: dict[str, Any]) -> None:
    """Beside each other and beside free ones, whose answers do not change either."""
    free = [
        changed(submit, id=f"free {submit.id}", grammar="", stop_ids=[], max_tokens=30)
        for submit in everyone()[:4]
    ]
    expected = undisturbed() | {submit.id: answers(engine(), submit)[submit.id] for submit in free}
    driver = engine(**options)
    found = answers(driver, *free[:2], *everyone(), *free[2:])
    assert told(found) == told(expected)
    if "num_blocks" in options:
        assert sum(stats.preemptions for stats in driver.stats()) > 0
        assert any(news[-1].preemptions for name, news in found.items() if not name.startswith("free"))


def test_logprobs_are_those_of_the_models_logits() -> None:
    """The logprobs of the same tokens in a prompt, without a grammar."""
    news = undisturbed()["json greedy"]
    tokens = [token for output in news for token in output.tokens]
    sampling = TokenSampling(temperature=0.0, prompt_logprobs=3)
    (free, *_) = answers(engine(), Submit("free", PROMPT + tokens, 1, sampling))["free"]
    known = [changed(entry, rank=0) for entry in free.prompt_logprobs[-len(tokens) :]]
    assert [entry for output in news for entry in output.logprobs] == known


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_it_goes_on_after_any_token(data: st.DataObject) -> None:
    """Continues an answer as another engine does: the grammar takes the generated tokens first."""
    submit = data.draw(st.sampled_from(everyone()))
    news = undisturbed()[submit.id]
    tokens = [token for output in news for token in output.tokens]
    cut = data.draw(st.integers(1, len(tokens) - 1))
    sampling = changed(submit.sampling, prompt_logprobs=None)
    again = changed(submit, generated=tokens[:cut], replay=True, sampling=sampling)
    rest = answers(engine(), again)[submit.id]
    assert [token for output in rest for token in output.tokens] == tokens[cut:]
    assert [o.logprobs for o in rest] == [o.logprobs for o in news][cut:]
    assert rest[-1].finish_reason == "stop"


def test_the_end_of_a_grammar_is_the_answers_end() -> None:
    """Without stop tokens, and before `min_tokens`; what may go on goes on as long as these want it to."""
    schema, words = everyone()[0], everyone()[len(KINDS)]
    early = {"stop_ids": [], "min_tokens": 140}
    for submit in (changed(schema, stop_ids=[]), changed(schema, min_tokens=140), changed(schema, **early)):
        found = answers(engine(), submit)
        assert tokens_of(found[submit.id]) == tokens_of(undisturbed()[submit.id])
        assert found[submit.id][-1].finish_reason == "stop"
    lone = answers(engine(), changed(words, sampling=TokenSampling(temperature=0.0, logit_bias={2: 100.0})))[
        words.id
    ]
    assert len(text_of(lone).split()) == 1
    longer = changed(words, sampling=TokenSampling(temperature=0.0, logit_bias={2: 100.0}), min_tokens=20)
    (news,) = answers(engine(), longer).values()
    assert news[-1].finish_reason == "stop"
    assert 20 < sum(len(output.tokens) for output in news) < 40
    check("words", text_of(news))


def test_the_times_of_grammars_and_masks_are_told_once() -> None:
    """A time for each grammar that was not known, and one for each token that was drawn under one."""
    driver = engine(seed=1)  # its own
    words = everyone()[len(KINDS)]
    drawn = sum(map(len, tokens_of(answers(driver, words)[words.id]).values()))
    (stats,) = driver.stats()
    assert (len(stats.compile_seconds), len(stats.mask_seconds)) == (1, drawn)
    answers(driver, words, changed(words, id="free", grammar="", max_tokens=3))
    (stats,) = driver.stats()
    assert (len(stats.compile_seconds), len(stats.mask_seconds)) == (0, drawn)
    assert all(seconds > 0 for seconds in stats.mask_seconds)


def test_an_answer_that_is_cut_is_told_as_cut() -> None:
    submit = changed(everyone()[0], max_tokens=5)
    assert answers(engine(), submit)[submit.id][-1].finish_reason == "length"


def test_who_can_draw_nothing_ends_with_an_error_and_nobody_else() -> None:
    """A bias forbids what the grammar allows alone."""
    yes = LLMatcher.grammar_from_regex("yes")
    banned = {token: float("-inf") for token in range(320) if tokenizer().token_bytes(token)[:1] == b"y"}
    stuck = Submit(
        "stuck", PROMPT, 9, TokenSampling(temperature=0.0, logit_bias=banned), stop_ids=EOS, grammar=yes
    )
    before = sum(stats.constraint_failures for stats in engine().stats())
    good = everyone()[1]
    found = answers(engine(), stuck, good)
    (last,) = found["stuck"]
    assert (last.finish_reason, last.error_kind, last.tokens) == ("error", "constraint", [])
    assert "satisfy the grammar" in (last.error or "")
    assert told({good.id: found[good.id]}) == told({good.id: undisturbed()[good.id]})
    assert sum(stats.constraint_failures for stats in engine().stats()) == before + 1


def test_a_limit_of_the_library_ends_the_answer_with_an_error() -> None:
    """A token whose step costs more than a mask may: the rest of the answer is never made up."""
    costly = LLMatcher.grammar_from_lark(r"start: /(.*a.{0,40}){20}b/")
    submit = Submit(
        "costly", PROMPT, 200, TokenSampling(temperature=1.0, seed=1), stop_ids=EOS, grammar=costly
    )
    last = answers(engine(), submit)["costly"][-1]
    assert last.finish_reason in ("error", "length"), "never a stop that the grammar does not allow"
    assert last.finish_reason == "length" or last.error_kind in ("invalid", "constraint")


@pytest.mark.parametrize(
    ("grammar", "message"),
    [("start: /(/", "invalid regex"), ("{", "cannot be compiled"), ("start: nothing", "cannot be compiled")],
)
def test_what_does_not_compile_is_refused(grammar: str, message: str) -> None:
    submit = Submit("bad", PROMPT, 9, TokenSampling(), grammar=grammar)
    (last,) = answers(engine(), submit)["bad"]
    assert (last.finish_reason, last.error_kind) == ("error", "invalid")
    assert message in (last.error or "")
    assert "\n" not in (last.error or "")


def test_generated_tokens_that_the_grammar_forbids_are_refused() -> None:
    submit = changed(everyone()[0], generated=[100, 101], replay=True)
    (last,) = answers(engine(), submit)[submit.id]
    assert last.error_kind == "invalid"


def test_an_engine_without_a_tokenizer_refuses_by_name() -> None:
    driver = Driver(deployment())
    found = answers(driver, Submit("a", [1], 2, grammar=GRAMMARS["words"]), Submit("b", [1], 2))
    assert "cannot be constrained: there is no tokenizer" in (found["a"][-1].error or "")
    assert found["b"][-1].finish_reason == "length"


def test_engines_that_are_killed_change_no_answer() -> None:
    """Some had begun, some waited, for a seat or until their grammar was compiled."""
    config = EngineConfig(model=str(TINY), threads=1, max_model_len=256, max_num_seqs=4)
    assert told(killed(config, everyone(), 2, apart=30)) == told(undisturbed())


def test_allowed_tokens_and_a_grammar_hold_together() -> None:
    """A token must be of both; where none is, the answer ends with an error, and nobody else's does."""
    spelled = {
        token for text in ("n", "o", "no") for token in tokenizer().encode(text, add_special_tokens=False)
    }
    both = TokenSampling(temperature=1.0, seed=1, allowed_token_ids=[*spelled, *EOS])
    none = TokenSampling(temperature=1.0, allowed_token_ids=tokenizer().encode("x", add_special_tokens=False))
    found = answers(
        engine(),
        constrained("both", "words", both),
        constrained("none", "words", none),
        constrained("json greedy", "json", KINDS["greedy"]),
    )
    assert text_of(found["both"]) == "no"
    assert found["both"][-1].finish_reason == "stop"
    (failed,) = found["none"]
    assert (failed.error_kind, failed.tokens) == ("contradiction", [])
    assert "allowed_token_ids" in (failed.error or "")
    assert tokens_of(found["json greedy"]) == tokens_of(undisturbed()["json greedy"])
