"""Experts that are divided among cores: the bits of one core, in every family of mixtures and format."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from corepipe.kernels import native
from corepipe.models import registry
from corepipe.neuron.graph import FORMATS
from corepipe.neuron.placement import Placement
from tests.parity import expected
from tests.support import answers, chunk_inputs, logits
from tests.test_families import BLOCK, POSITIONS, PROMPT, chosen, engine, executor, submits

MIXTURES = [
    *("dbrx", "deepseek_v2", "deepseek_v2-groups", "deepseek_v3", "deepseek_v3-plain", "gpt_oss"),
    *("gpt_oss-clamped", "granitemoe", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"),
]
"""With 4 to 21 experts, biases, shared experts, latents, groups and sinks among them."""
EVERYWHERE = {
    "expert": {"expert": 3},
    "crowded": {"expert": 2, "max_num_batched_tokens": 48, "num_blocks": 14},
    "pipeline": {"expert": 2, "pipeline": 2},
    "replicas": {"expert": 2, "data": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The directory of a model."""
    root = tmp_path_factory.mktemp("mixtures")
    return cache(lambda name: expected.load(name).write(root / name))


@pytest.fixture(scope="module")
def pool() -> Any:
    pool = native().Pool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", MIXTURES)
def test_experts_on_several_cores_have_the_bits_of_one(name: str, fmt: str, folder: Any, pool: Any) -> None:
    """In one batch and in chunks, on two, three, four cores and on one for each expert."""
    model, prompt = registry.load(folder(name)), expected.load(name).prompt[:PROMPT]
    graph = model.graph(FORMATS[fmt], POSITIONS)
    blocks = range(POSITIONS // BLOCK)
    chunks = [chunk_inputs(prompt[a:b], a, blocks=blocks) for a, b in ((0, 37), (37, 38), (38, PROMPT))]
    whole = chunk_inputs(prompt, 0, blocks=blocks)
    wanted = logits(executor(model, graph, Placement(), pool), whole)
    for expert in sorted({2, 3, 4, graph.experts} & set(range(graph.experts + 1))):
        several = executor(model, graph, Placement(expert=expert), pool)
        np.testing.assert_array_equal(logits(several, whole), wanted)
        parts = [logits(several, chunk) for chunk in chunks]
        np.testing.assert_array_equal(np.concatenate(parts), wanted)


@pytest.mark.parametrize("name", MIXTURES)
def test_an_answer_is_the_same_wherever_its_experts_are(name: str, folder: Any) -> None:
    """With others in the batch, preempted, after a prefix that was found, in a pipeline, of two replicas."""
    fmt, kept = chosen(name)
    asked = submits(expected.load(name).prompt)
    alone = engine(folder(name), fmt, prefix_cache=False, kv_cache_dtype=kept)
    wanted = {s.id: answers(alone, [s])[s.id] for s in asked}
    alone.close()
    for where, options in EVERYWHERE.items():
        driver = engine(folder(name), fmt, kv_cache_dtype=kept, instance="inf2.24xlarge", **options)
        found = answers(driver, asked)
        stats = driver.stats()
        driver.close()
        for s in asked:
            assert found[s.id].tokens == wanted[s.id].tokens, (where, s.id)
            assert found[s.id].logprobs == wanted[s.id].logprobs, (where, s.id)
        if where == "crowded":
            assert stats[0].preemptions > 0
            assert stats[0].prefix_hits > 0
