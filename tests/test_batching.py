"""An answer does not depend on the other requests: SmolLM2, many requests at once, compared with each
alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.kernels import native
from corepipe.models.registry import Model
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from tests.parity import real
from tests.support import Answer, Bound, answers, default_model, prompt_logits

REQUESTS = [24, pytest.param(64, marks=pytest.mark.slow)]
QUICK = ["int8"]
"""The small models of `tests/test_families.py` are tested beside other requests in every format and type of
cache."""
ALL = [pytest.param(fmt, marks=[] if fmt in QUICK else pytest.mark.slow) for fmt in FORMATS]
KEPT = ["auto", pytest.param("int8", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def model() -> Model:
    return default_model()


@pytest.fixture(scope="module")
def text(model: Model) -> list[int]:
    return model.tokenizer().encode(real.PERPLEXITY_TEXT.read_text(encoding="utf-8"))


def engine(model: Model, fmt: str, **options: Any) -> Driver:
    """Makes an engine on one core, in this process."""
    one_core = {"pipeline": 1, "tensor": 1, "data": 1}
    config = EngineConfig(
        model=str(model.path), format=fmt, max_model_len=256, block_size=16, **one_core, **options
    )
    return Driver(assemble(config, lambda _what, _done: None))


def crowd(text: list[int], requests: int, longest: int) -> list[Submit]:
    """Prompts of 1 to `longest` tokens, half of them with a beginning that others share; half are greedy."""
    rng = np.random.default_rng(3)
    shared = [text[:40], text[500:575]]
    submits = []
    for i in range(requests):
        start, length = rng.integers(1000, 6000), int(rng.integers(1, longest))
        own = text[start : start + length]
        prompt = (shared[i % 4] + own[: length // 2 + 1]) if i % 4 < 2 else own
        hot = TokenSampling(temperature=1.2, top_p=0.95, top_k=200, seed=i, logprobs=5)
        sampling = hot if i % 2 else TokenSampling(temperature=0.0, logprobs=5)
        tokens = int(rng.integers(32, 48) if i % 4 == 3 else rng.integers(2, 6))
        submits.append(Submit(f"r{i}", prompt, tokens, sampling))
    return submits


def told(answer: Answer) -> tuple[Any, ...]:
    return answer.tokens, answer.logprobs, answer.finish_reason


@pytest.mark.parametrize("requests", REQUESTS)
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("fmt", ALL)
def test_a_crowd_gets_the_answers_of_each_alone(
    model: Model, text: list[int], fmt: str, kept: str, requests: int
) -> None:
    submits = crowd(text, requests, longest=60)
    limits = {"max_num_seqs": 16, "max_num_batched_tokens": 48, "num_blocks": 20}
    tight = engine(model, fmt, kv_cache_dtype=kept, **limits)
    found = answers(tight, submits)
    (stats,) = tight.stats()
    tight.close()
    solo = engine(model, fmt, prefix_cache=False, kv_cache_dtype=kept)
    for number, submit in enumerate(submits):
        answer = found[submit.id]
        assert len(answer.logprobs) == len(answer.tokens) == submit.max_tokens
        if requests > 24 or answer.preemptions or number % 3 == 0:
            assert told(answer) == told(answers(solo, [submit])[submit.id]), submit.id
    solo.close()
    assert stats.preemptions > 0
    assert any(a.preemptions for a in found.values())
    assert stats.prefix_hits > 0
    assert any(a.cached for a in found.values())
    assert max(stats.iteration_tokens) == 48
    assert (stats.blocks_held, stats.running, stats.waiting) == (0, 0, 0)


@pytest.mark.parametrize("fmt", ALL)
def test_chunks_of_any_size_give_the_same_logits(model: Model, text: list[int], pool: Any, fmt: str) -> None:
    executor = Bound.of(model, fmt).executor(Placement(), pool)
    prompt = text[:70]
    whole = prompt_logits(executor, prompt, len(prompt))
    for chunk in (1, 7, 64):
        np.testing.assert_array_equal(prompt_logits(executor, prompt, chunk), whole, f"chunks of {chunk}")


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    pool = native().Pool(2)
    yield pool
    pool.close()
