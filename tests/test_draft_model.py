"""A draft model changes how soon tokens come, and nothing else; its cache is right everywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

from corepipe.engine.messages import Submit
from corepipe.engine.params import SamplingParams
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.engine.speculative_config import read_speculation
from corepipe.errors import UserError
from corepipe.library.llm import LLM
from tests.drafting import guesses_of, write_twin
from tests.engine.engine_support import run
from tests.servers import TINY, served, until
from tests.servers import run as corepipe
from tests.test_speculation import (
    BESIDE,
    begun,
    engine,
    long_answers,
    plain,
    played,
    submits,
    tokens_in,
    tokens_of_killed,
    told,
    windowed,
)

PLACES: dict[str, dict[str, Any]] = {
    "roomy": {},
    "device's pace": {"clock": "virtual"},
    "preempted": BESIDE | {"num_blocks": 16},  # whichever grammars are ready late
    "chunks": {"max_num_batched_tokens": 16, "clock": "virtual"},
    "pipeline": {"pipeline": 2, "max_num_batched_tokens": 33, "threads": 2},
    "tensor": {"tensor": 2, "threads": 2},
    "replicas": {"data": 2, "policy": "segregated"},
    "int8 cache": {"kv_cache_dtype": "int8"},
    "no prefixes": {"prefix_cache": False, "clock": "virtual"},
    "another timed": {"clock": "virtual", "timing_model": "llama-3.1-8b", "instance": "inf2.24xlarge"},
}

ITSELF = ("roomy", "preempted", "pipeline")
"""The configs in which the model drafts for itself; `test_a_model_knows_what_it_would_answer_itself` has it
everywhere."""


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_twin(tmp_path_factory.mktemp("twin"))


@pytest.mark.parametrize(
    ("who", "place"),
    [
        *(("another", place) for place in PLACES),
        *(("itself", place) for place in ITSELF),
        *(pytest.param("itself", place, marks=pytest.mark.slow) for place in PLACES if place not in ITSELF),
    ],
)
def test_answers_are_those_without(who: str, place: str, twin: Path) -> None:
    """Answers are greedy, drawn, with penalties, biases, logprobs and grammars; one ends with an error."""
    options = PLACES[place]
    guesses = guesses_of(TINY if who == "itself" else twin)
    found, stats = played(submits(), speculative_config=guesses, **options)
    if place == "tensor":  # sums of several cores have their own order
        wanted = told(played(submits(), **options)[0])
    else:
        wanted = plain(**{name: options[name] for name in ("kv_cache_dtype",) if name in options})
    assert told(found) == wanted
    tokens, accepted = (sum(getattr(s, f"{name}_tokens") for s in stats) for name in ("draft", "accepted"))
    assert tokens - 10 > accepted > 10  # of the random one's guesses few; a grammar's forced ones are right
    assert sum(s.blocks_held for s in stats) == 0
    assert place != "preempted" or sum(s.preemptions for s in stats) > 0


SHARED = [7 + 11 * i % 200 for i in range(200)]


def greedy() -> list[Submit]:
    """Prompts of which some begin alike, each twice: blocks of the first are found again."""
    found = []
    for number in range(12):
        alike = SHARED[:64] + SHARED[number : number + 10 + 5 * number]
        prompt = alike if number % 2 else SHARED[number : 30 + number * 7]
        found.append(Submit(str(number), prompt, 40, TokenSampling(temperature=0.0)))
    return found


@pytest.mark.parametrize("place", PLACES)
def test_a_model_knows_what_it_would_answer_itself(place: str) -> None:
    """Greedy answers are drafted by the same model: with one wrong key in its cache a draft is rejected.
    Blocks are shared, given back, found again, and filled in parts."""
    roomy = {"num_blocks": 40} if place == "preempted" else {}
    driver = engine(speculative_config=guesses_of(TINY), **{**PLACES[place], **roomy})
    for again in ("", "again "):
        for submit in greedy():
            driver.handle(changed(submit, id=again + submit.id))
        run(driver)
    stats = driver.stats()
    driver.close()
    tokens, accepted = (sum(getattr(s, f"{name}_tokens") for s in stats) for name in ("draft", "accepted"))
    assert tokens == accepted > 50
    assert place == "no prefixes" or sum(s.prefix_hits for s in stats) > 200
    assert place != "preempted" or sum(s.preemptions for s in stats) > 0


@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_layers_with_windows(name: str, tmp_path: Path) -> None:
    """Such layers keep whole sequences beside a draft model, which has the same blocks: answers are the
    same."""
    asked, options = windowed(name, tmp_path)
    wanted, _ = played(asked, **options)
    found, stats = played(asked, speculative_config=guesses_of(options["model"]), **options)
    assert told(found) == told(wanted)
    assert stats[0].accepted_tokens > 20


def test_an_answer_goes_on_in_another_engine() -> None:
    """The other engine goes on after some tokens, of which its draft model knows nothing."""
    again, rest = begun()
    found, stats = played(again, speculative_config=guesses_of(TINY))
    assert told(found) == rest
    assert stats[0].accepted_tokens > 20


def test_engines_that_are_killed_change_no_answer() -> None:
    asked, wanted = long_answers()
    assert tokens_of_killed(asked, 1, guesses_of(TINY)) == wanted


def test_others_have_an_idea_first_and_some_want_none(twin: Path) -> None:
    """A prediction is accepted where the draft model is not; a request that forbids drafts has none."""
    wanted = plain()
    asked = {submit.id: submit for submit in submits()}
    tokens = tokens_in(wanted["greedy"])
    predicted = changed(asked["greedy"], prediction=tokens)
    without = changed(asked["seeded"], speculation=False)
    news, _ = played([predicted, without], speculative_config=guesses_of(twin), clock="virtual")
    last = news["greedy"][-1].predicted
    assert last is not None
    assert last.accepted > len(tokens) // 2
    assert news["seeded"][-1].speculated is None
    found = {name: [changed(o, predicted=None) for o in outputs] for name, outputs in told(news).items()}
    assert found == {name: wanted[name] for name in ("greedy", "seeded")}


def test_a_server_counts_its_guesses_and_tells_a_request(tmp_path: Path) -> None:
    flags = ("--speculative-config", json.dumps(guesses_of(TINY)), "--max-model-len", 256)
    with served(TINY, "--served-model-name", "tiny", *flags) as server:
        body = {"model": "tiny", "prompt": "the", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
        answer = server.post("/v1/completions", json={**body, "device_metrics": True}).json()
        told_ = answer["corepipe"]["speculative_decoding"]
        assert told_["draft_acceptance_rate"] == 1
        assert told_["assumed"] is False
        steps = told_["num_spec_steps"]
        assert until(lambda: server.metric("vllm:spec_decode_num_drafts_total") == steps > 5)
        tokens = server.metric("vllm:spec_decode_num_draft_tokens_total")
        assert tokens == server.metric("vllm:spec_decode_num_accepted_tokens_total") > steps
        placed = server.get("/v1/placement").json()
        assert placed["draft_model"]["model"] == TINY.name
        without = server.post("/v1/completions", json={**body, "speculation": False}).json()
        assert without["choices"] == answer["choices"]


def test_the_library_has_the_option() -> None:
    """It takes the fields or their JSON; an error names the option."""
    options: dict[str, Any] = {"format": "int8", "threads": 1, "max_model_len": 256}
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    with LLM(TINY, **options) as llm:
        (wanted,) = llm.generate("the", params)
    for given in (guesses_of(TINY), json.dumps(guesses_of(TINY))):
        with LLM(TINY, **options, speculative_config=given) as llm:
            found, without = llm.generate(["the"] * 2, [params, changed(params, speculation=False)])
        assert found.token_ids == without.token_ids == wanted.token_ids
        assert found.speculated is not None
        assert sum(at * steps for at, steps in enumerate(found.speculated.histogram)) > 0
        assert without.speculated is None
    with pytest.raises(UserError, match=r"speculative_config: model: .*nowhere"):
        LLM(TINY, **options, speculative_config=guesses_of("nowhere/at/all"))


def refused(guesses: dict[str, Any], named: str) -> None:
    """Returns the last message of a server."""
    result = corepipe("serve", TINY, "--port", "0", "--speculative-config", json.dumps(guesses))
    assert result.returncode == 2
    said = [line for line in result.stderr.strip().splitlines() if "--speculative-config" in line]
    assert len(said) == 1
    assert named in said[0]


REFUSED = {
    "vocabulary": ({"vocabulary": 300}, "has a vocabulary of 300 tokens, llama3 one of 320"),
    "positions": ({"max_position_embeddings": 128}, "takes 128 tokens, llama3 is asked to take 256"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_who_cannot_guess_is_refused_in_a_line(case: str, tmp_path: Path) -> None:
    fields, named = REFUSED[case]
    with pytest.raises(UserError, match=f"--speculative-config: .*{named}"):
        engine(speculative_config=guesses_of(write_twin(tmp_path / "draft", **fields)))


def test_other_tokens_are_refused(tmp_path: Path) -> None:
    """A server refuses them with one line."""
    draft = write_twin(tmp_path / "draft")
    told_ = json.loads((draft / "tokenizer.json").read_text())
    words = told_["model"]["vocab"]
    one, other = sorted(words, key=words.__getitem__)[40:42]
    words[one], words[other] = words[other], words[one]
    (draft / "tokenizer.json").write_text(json.dumps(told_))
    refused(guesses_of(draft), "has other tokens than llama3")


def test_what_says_too_little_is_refused_by_a_server() -> None:
    refused({**guesses_of(TINY), "model": "no/such/model"}, "model: ")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": None}, "draft_model needs model"),
        ({"model": ""}, "model: "),
        ({"prompt_lookup_min": 2}, "prompt_lookup_min and prompt_lookup_max belong to ngram"),
        ({"method": "ngram"}, "model belongs to draft_model, not to ngram"),
        ({"method": "eagle"}, "method must be ngram or draft_model"),
        ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size: "),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens: "),
        ({"num_speculative_tokens": 65}, "num_speculative_tokens: "),
        ({"model": "mamba2-130m", "rejection_sample_method": "synthetic"}, "needs one of"),
    ],
)
def test_what_says_too_little_or_too_much_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)) as caught:
        read_speculation({**guesses_of(TINY), **changes})
    assert "\n" not in str(caught.value)


def test_blocks_are_paid_for_both() -> None:
    """The draft model's keys take their part of the host's memory, and of the device's."""
    half: dict[str, Any] = {"kv_cache_bytes": 2**21, "prefix_cache": False}
    counts = []
    for more in ({}, {"speculative_config": guesses_of(TINY)}):
        driver = engine(**half, **more)
        counts.append(driver.replicas[0].scheduler.blocks_total)
        cores = driver._deployment.ready.placement["cores"]
        driver.close()
        assert isinstance(cores, list)
        counts.append(cores[0]["memory_bytes"]["weights"])
    assert counts[2] == counts[0] // 2
    assert counts[3] == 2 * counts[1]


def test_time_of_guesses_is_the_first_stages() -> None:
    """The other stages of a pipeline hold nothing of the draft model."""
    driver = engine(speculative_config=guesses_of(TINY), pipeline=2, clock="virtual")
    timeline = driver._deployment.replicas[0].timeline
    for submit in submits():
        driver.handle(submit)
    run(driver)
    placed = driver._deployment.ready.placement
    driver.close()
    assert 0 < timeline.draft_seconds < timeline.busy_seconds[0]
    assert placed["draft_model"] == {"model": TINY.name, "cores": [0]}
