"""A thousand requests of all kinds, with drafts and without: the same tokens and logprobs everywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace as changed

from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.messages import Submit
from corepipe.scheduler.request import Drafter
from tests.drafting import guesses_of
from tests.servers import TINY
from tests.test_speculation import BESIDE, KINDS, NGRAM, PROMPT, Knows, played, tokens_in, told

pytestmark = pytest.mark.slow

REQUESTS = 1000
ROOM = {"max_queued_requests": REQUESTS}


def submits() -> list[Submit]:
    """Returns each kind again and again, with other prompts, lengths and seeds; parts of prompts come twice,
    so that n-grams find something."""
    rng, found = random.Random(20), []
    for number in range(REQUESTS):
        kind = rng.choice(list(KINDS))
        sampling, fields = KINDS[kind]
        begin, length = rng.randrange(20), rng.randrange(4, 30)
        prompt = PROMPT[begin : begin + length] * rng.randint(1, 3)
        tokens = max(rng.randrange(4, 48), fields.get("min_tokens", 0))
        more = {"max_tokens": tokens, **fields}
        found.append(Submit(f"{kind} {number}", prompt, **more, sampling=changed(sampling, seed=number)))
    return found


def answers(asked: Sequence[Submit], drafter: Any = None, **options: Any) -> tuple[dict[str, Any], Any]:
    """Returns the outputs of the requests, and the engine's figures."""
    news, stats = played(asked, drafter, **ROOM, **options)
    heard = {name: [changed(o, predicted=None) for o in outputs] for name, outputs in told(news).items()}
    return heard, stats


def tokens_of(found: dict[str, Any]) -> dict[str, list[int]]:
    return {name: tokens_in(outputs) for name, outputs in found.items()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        BESIDE,
        {"pipeline": 2, "max_num_batched_tokens": 33, "threads": 2},
        {"tensor": 2, "threads": 2},
        {"data": 2, "policy": "segregated"},
        {"kv_cache_dtype": "int8"},
    ],
    ids=["roomy", "preempted", "pipeline", "tensor", "replicas", "int8 cache"],
)
def test_a_thousand_answers_are_those_without_drafts(options: dict[str, Any]) -> None:
    """The drafter knows most of each answer; then it has n-grams, and predictions of some; then the model
    itself as its own draft model."""
    asked = submits()
    own = {name: value for name, value in options.items() if name in ("tensor", "kv_cache_dtype")}
    wanted, _ = answers(asked, **own)  # of a sum that is cut, and of another cache, the bits are others
    known = tokens_of(wanted)

    def drafter(request: SampledRequest) -> Drafter:
        return Knows(known[request.id], random.Random(request.id))

    found, stats = answers(asked, drafter, **options)
    assert found == wanted
    assert sum(one.blocks_held for one in stats) == 0
    predicting = [
        changed(submit, prediction=known[submit.id][at % 5 :] if at % 3 else [])
        for at, submit in enumerate(asked)
    ]
    found, stats = answers(predicting, speculative_config=NGRAM, clock="virtual", **options)
    assert found == wanted
    assert sum(one.accepted_tokens for one in stats) > REQUESTS / 10  # a batch with prompts has none
    assert ("num_blocks" not in options) or sum(one.preemptions for one in stats) > REQUESTS / 10
    found, stats = answers(asked, speculative_config=guesses_of(TINY), clock="virtual", **options)
    assert found == wanted
    assert sum(one.accepted_tokens for one in stats) > REQUESTS / 10
