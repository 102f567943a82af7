"""Experts that are divided among cores: the bits of one core, in every family of mixtures and format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import AllReduce, Experts, GatherSlots
from corepipe.neuron.timing.description import describe
from tests.computed import (
    BLOCK,
    POSITIONS,
    PROMPT,
    answered,
    check_same,
    chosen,
    each_alone,
    engine,
    executor,
    in_formats,
    submits,
    two_threads,
)
from tests.parity import expected
from tests.reference.executor import ReferenceExecutor, read_tied, tensor_parallel_bound
from tests.support import chunk_inputs, logits
from tests.test_tiny import AGREEMENT

MIXTURES = [
    "dbrx", "deepseek_v2", "deepseek_v2-groups", "deepseek_v3", "deepseek_v3-plain", "gpt_oss",
    "gpt_oss-clamped", "granitemoe", "granitemoehybrid", "llama4_text", "llama4_text-plain", "mixtral",
    "olmoe", "phimoe", "qwen2_moe", "qwen3_moe",
]  # fmt: skip
"""Families with 4 to 21 experts, some with biases, shared experts, latents, groups and sinks."""
CROWDED = {"max_num_batched_tokens": 48, "num_blocks": 14}
EVERYWHERE = [
    {"crowded": {"expert": 3, **CROWDED}, "pipelines": {"expert": 2, "pipeline": 2, "data": 2}},
    pytest.param(
        {
            "expert": {"expert": 3},
            "crowded": {"expert": 2, **CROWDED},
            "pipeline": {"expert": 2, "pipeline": 2},
            "replicas": {"expert": 2, "data": 2},
        },
        marks=pytest.mark.slow,
    ),
]


UNSHARED = 13
"""KV blocks of a hybrid, whose prompts are too short to share any."""


@pytest.fixture(scope="module")
def pool() -> Any:
    with two_threads() as pool:
        yield pool


EACH = 0
"""Stands for as many cores as there are experts."""


@pytest.mark.parametrize("cores", [(3, EACH), pytest.param((2, 4), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(("name", "fmt"), in_formats(MIXTURES))
def test_experts_on_several_cores_have_the_bits_of_one(
    name: str, fmt: str, cores: tuple[int, ...], folder: Any, pool: Any
) -> None:
    """The bits are equal in one batch and in chunks."""
    model, prompt = registry.load(folder(name)), expected.load(name).prompt[:PROMPT]
    graph = model.graph(FORMATS[fmt], POSITIONS)
    blocks = range(POSITIONS // BLOCK)
    chunks = [chunk_inputs(prompt[a:b], a, blocks=blocks) for a, b in ((0, 37), (37, 38), (38, PROMPT))]
    whole = chunk_inputs(prompt, 0, blocks=blocks)
    wanted = logits(executor(model, graph, Placement(), pool), whole)
    for expert in {count or graph.experts for count in cores if count <= graph.experts}:
        several = executor(model, graph, Placement(expert=expert), pool)
        np.testing.assert_array_equal(logits(several, whole), wanted)
        parts = [logits(several, chunk) for chunk in chunks]
        np.testing.assert_array_equal(np.concatenate(parts), wanted)


@pytest.mark.parametrize("fmt", ["fp32", "int8"])
@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss", "llama4_text", "qwen2_moe", "mixtral"])
def test_tensor_ranks_divide_experts_within_their_bound(name: str, fmt: str, folder: Any, pool: Any) -> None:
    """The reference executor and the kernels agree; more groups of ranks have the bits of one group."""
    model, prompt = registry.load(folder(name)), expected.load(name).prompt[:PROMPT]
    graph = model.graph(FORMATS[fmt], POSITIONS)
    whole = chunk_inputs(prompt, 0, blocks=range(POSITIONS // BLOCK))
    wanted = logits(executor(model, graph, Placement(), pool), whole)
    programs = compile_graph(graph, Placement(tensor=2, expert=2))
    found = logits(executor(model, graph, Placement(tensor=2, expert=2), pool), whole)
    if fmt == "fp32":  # in other formats a different rounding may select another expert
        assert np.abs(found - wanted).max() <= tensor_parallel_bound(programs, wanted)
        read = read_tied(graph, model.checkpoint.read)
        twin = ReferenceExecutor(programs, read, POSITIONS // BLOCK, BLOCK)
        assert np.abs(found - twin.values(whole)).max() <= AGREEMENT[fmt] * np.abs(found).max()
    wider = logits(executor(model, graph, Placement(tensor=2, expert=4), pool), whole)
    np.testing.assert_array_equal(wider, found)


def test_a_core_has_its_share_of_experts_and_no_more(folder: Any) -> None:
    """Uneven shares have the weights of one core together; shared experts are cut by tensor ranks."""
    graph = registry.load(folder("qwen2_moe")).graph(FORMATS["bf16"], POSITIONS)
    programs = compile_graph(graph, Placement(tensor=2, expert=4))
    mixtures = [[op for op in p.ops if isinstance(op, Experts)] for p in programs]
    sizes = [ops[0].own.size for ops in mixtures if ops[0].own is not None]
    assert sum(sizes) == graph.experts
    assert len(set(sizes)) == 2
    for program, ops in zip(programs, mixtures, strict=True):
        assert program.shards[ops[0].gate.name].shape[0] == ops[0].own.size  # type: ignore[union-attr]
        kinds = [type(op) for op in program.ops]
        assert kinds.count(GatherSlots) == len(ops)
        assert kinds.count(AllReduce) == 2 * graph.num_layers  # of attention, and of the shared experts
    told = [core["experts"] for core in describe(programs)]
    assert [last - first + 1 for first, last in told] == sizes


def test_the_twin_has_the_bits_of_one_core_too(folder: Any) -> None:
    model = registry.load(folder("deepseek_v3"))
    graph = model.graph(FORMATS["bf16"], POSITIONS)
    inputs = chunk_inputs(expected.load("deepseek_v3").prompt[:20], 0, blocks=range(POSITIONS // BLOCK))
    read = read_tied(graph, model.checkpoint.read)
    one, several = (
        ReferenceExecutor(compile_graph(graph, place), read, POSITIONS // BLOCK, BLOCK).values(inputs)
        for place in (Placement(), Placement(pipeline=2, expert=3))
    )
    np.testing.assert_array_equal(several, one)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llama", {"expert": 2}, "--expert 2: .* has no experts; leave it out"),
        ("mixtral-one", {"expert": 2}, "--expert 2: the model has 1 experts; choose at most 1"),
        ("mixtral", {"expert": 3}, "expert 3 needs 3 NeuronCores, inf2.xlarge has 2; use --instance"),
        ("mixtral", {"expert": 2, "data": 2}, "data 2 x expert 2 needs 4 NeuronCores"),
        ("mixtral", {"expert": 3, "tensor": 2}, "in groups of --tensor 2; choose a multiple of it"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_a_line(
    name: str, options: dict[str, int], message: str, folder: Any
) -> None:
    with pytest.raises(UserError, match=message) as refused:
        engine(folder(name), "bf16", **options)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("places", EVERYWHERE, ids=" ".join)
@pytest.mark.parametrize("name", MIXTURES)
def test_an_answer_is_the_same_wherever_its_experts_are(
    name: str, places: dict[str, dict[str, Any]], folder: Any
) -> None:
    """The answer is the same in a batch, preempted, after a cached prefix, in a pipeline and replicas."""
    fmt, kept = chosen(name)
    asked = submits(expected.load(name).prompt)
    hybrid = registry.load(folder(name)).graph(FORMATS[fmt]).is_hybrid
    wanted = each_alone(folder(name), asked, fmt, kv_cache_dtype=kept)
    for where, options in places.items():
        few = {"num_blocks": UNSHARED} if hybrid and "num_blocks" in options else {}
        placed = {"kv_cache_dtype": kept, "instance": "inf2.24xlarge", **options, **few}
        found, stats = answered(folder(name), asked, fmt, **placed)
        check_same(found, wanted)
        if where == "crowded":
            assert stats[0].preemptions > 0
            assert (stats[0].prefix_hits > 0) is not hybrid
