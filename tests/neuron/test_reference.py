"""The reference executor equals other forward passes, and gives the same results however a graph is cut."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import (
    BLOCK_SIZE,
    BLOCKS,
    Chunk,
    Features,
    build,
    decoders,
    read_weights,
    step_inputs,
)

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.neuron.axes import HeadLayout, cut
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement, local_heads
from corepipe.neuron.compile.placement import whole as all_of
from corepipe.neuron.compile.program import WeightShard
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import Attention, Receive
from corepipe.neuron.step import StepInputs
from tests.kernels.harness import in_formats
from tests.reference.core import ReferenceCore
from tests.reference.executor import ReferenceExecutor, read_tied, tensor_parallel_bound

ONE_CORE = Placement()
PROMPTS = [Chunk(0, 0, 9), Chunk(3, 0, 4), Chunk(1, 0, 1)]
TINY_MODELS = sorted((Path(__file__).parents[1] / "data" / "tiny").glob("*/config.json"))
exact = settings(derandomize=True, deadline=None, max_examples=30)


def executor(graph: Graph, placement: Placement = ONE_CORE, seed: int = 0) -> ReferenceExecutor:
    return ReferenceExecutor(compile_graph(graph, placement), read_weights(graph, seed), BLOCKS, BLOCK_SIZE)


@pytest.mark.parametrize(
    ("fmt", "near"), [("bf16", 0.03), ("int8-weights", 0.05), ("int8", 0.06), ("int4-weights", 0.3)]
)
def test_a_format_rounds_and_stays_near_fp32(fmt, near):
    features = Features(layers=3, hidden=64, heads=HeadLayout(6, 3, 16), ffn=128, tied=True)
    graph, exact = build(features, fmt), build(features, "fp32")
    inputs = step_inputs(graph, [Chunk(0, 0, 40), Chunk(5, 0, 3)])
    got, expected = executor(graph).values(inputs), executor(exact).values(inputs)
    assert near / 30 < np.abs(got - expected).max() / np.abs(expected).max() < near


@pytest.mark.parametrize("config", TINY_MODELS, ids=lambda path: path.parent.name)
def test_against_transformers(config):
    model = registry.load(config.parent)
    graph = model.graph(FORMATS["fp32"])
    prompt = np.array(json.loads((config.parent / "golden.json").read_text())["prompts"][-1], np.int32)
    rows = np.arange(len(prompt), dtype=np.int32)
    inputs = StepInputs(prompt, rows, np.int32([0, len(prompt)]), np.int32([[2, 0, 1]]), rows)
    reference = ReferenceExecutor(
        compile_graph(graph, Placement()), read_tied(graph, model.checkpoint.read), 3, 16
    )
    expected = np.load(config.parent / "golden.npz")["logits"]
    np.testing.assert_allclose(reference.values(inputs), expected, atol=2e-4, rtol=2e-4)


@given(decoders(cuttable=False), st.data())
@exact
def test_a_pipeline_gives_the_same_bits(graph, data):
    stages = data.draw(st.integers(1, graph.num_layers))
    inputs = step_inputs(graph, PROMPTS)
    whole = executor(graph).values(inputs)
    assert np.isfinite(whole).all()
    np.testing.assert_array_equal(executor(graph, Placement(pipeline=stages)).values(inputs), whole)


@given(decoders(), st.data())
@exact
def test_tensor_parallelism_stays_within_its_bound(graph, data):
    tensor = data.draw(st.integers(1, min(graph.attention_heads, 8)))
    placement = Placement(pipeline=data.draw(st.integers(1, graph.num_layers)), tensor=tensor)
    inputs = step_inputs(graph, PROMPTS)
    whole = executor(graph).values(inputs)
    split = executor(graph, placement).values(inputs)
    assert np.abs(split - whole).max() <= tensor_parallel_bound(compile_graph(graph, placement), whole)


UNEQUAL = (HeadLayout(6, 2, 16), HeadLayout(4, 4, 32), HeadLayout(8, 1, 8), HeadLayout(6, 3, 16))
"""Layers with different heads: other groups with as many bytes; other sizes."""


@pytest.mark.parametrize(("tensor", "fmt"), in_formats([1, 2, 3, 4]))
def test_layers_may_differ_in_heads(tensor, fmt):
    """Equal bit for bit on a pipeline, within their bound on tensor ranks; a rank keeps only its heads'
    data."""
    graph = build(Features(layers=4, layer_heads=UNEQUAL, head_norm=True, qkv_bias=True), fmt)
    inputs = step_inputs(graph, PROMPTS)
    whole = executor(graph).values(inputs)
    np.testing.assert_array_equal(executor(graph, Placement(pipeline=3)).values(inputs), whole)
    programs = compile_graph(graph, Placement(tensor=tensor))
    assert [op.heads for op in programs[-1].ops if isinstance(op, Attention)] == [
        local_heads(layout, tensor) for layout in UNEQUAL
    ]
    split = executor(graph, Placement(tensor=tensor)).values(inputs)
    assert np.abs(split - whole).max() <= tensor_parallel_bound(programs, whole)


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_bound_is_not_absurdly_loose(fmt):
    graph = build(Features(layers=8, hidden=96, heads=HeadLayout(6, 3, 32), ffn=200), fmt)
    placement = Placement(tensor=4)
    moved, bounds = [], []
    for seed in range(2):
        inputs = step_inputs(graph, PROMPTS, seed)
        whole = executor(graph, seed=seed).values(inputs)
        moved.append(np.abs(executor(graph, placement, seed).values(inputs) - whole).max())
        bounds.append(tensor_parallel_bound(compile_graph(graph, placement), whole))
    assert np.mean(moved) < np.mean(bounds) < 20 * np.mean(moved)


@given(decoders(["fp32"], cuttable=False), st.integers(1, 8), st.integers(0, 8))
@exact
def test_chunks_give_what_the_whole_prompt_gives(graph, first, second):
    """Up to fp32's rounding, because numpy's products depend on the number of rows."""
    whole = executor(graph).values(step_inputs(graph, [Chunk(2, 0, 20), Chunk(0, 0, 5)]))[:20]
    reference = executor(graph)
    chunks = [Chunk(2, a, b - a) for a, b in pairwise([0, first, first + second, 20]) if b > a]
    parts = np.vstack([reference.values(step_inputs(graph, [chunk])) for chunk in chunks])
    np.testing.assert_allclose(parts, whole, atol=2e-5 * np.abs(whole).max())


@given(decoders(["bf16", "fp32"]), st.data())
@settings(derandomize=True, deadline=None, max_examples=15)
def test_a_core_reads_nothing_outside_its_shards(graph, data):
    tensor = data.draw(st.integers(1, min(graph.attention_heads, 6)))
    programs = compile_graph(graph, Placement(graph.num_layers, tensor))
    read, inputs = read_weights(graph), step_inputs(graph, PROMPTS)
    plain, poisoned = (ReferenceExecutor(programs, read, BLOCKS, BLOCK_SIZE) for _ in range(2))
    poisoned.cores = [
        ReferenceCore(p, lambda name, p=p: only(p.shards[name], read(name)), BLOCKS, BLOCK_SIZE, tensor)
        for p in programs
    ]
    for core in plain.cores:
        assert core.weights.keys() == core.program.shards.keys()
        for name, shard in core.program.shards.items():
            assert core.weights[name].shape == shard.shape
    np.testing.assert_array_equal(poisoned.values(inputs), plain.values(inputs))


def only(shard: WeightShard, weight: np.ndarray) -> np.ndarray:
    """Returns the weight with NaN outside the shard."""
    numbers = np.arange(weight.size).reshape(weight.shape) + 1
    held = cut(numbers, shard.axes)
    out = np.full(weight.size, np.nan, np.float32)
    kept = held[held > 0] - 1
    out[kept] = weight.reshape(-1)[kept]
    return out.reshape(weight.shape)


def test_int8_shards_have_the_integers_and_scales_of_the_whole():
    graph = build(Features(heads=HeadLayout(5, 1, 16)), "int8")
    whole = executor(graph).cores[0].weights["layers.0.o.weight"]
    for core in executor(graph, Placement(tensor=2)).cores:
        part, own = core.weights["layers.0.o.weight"], core.program.axes[HeadLayout(5, 1, 16).queries()]
        np.testing.assert_array_equal(part.scale, whole.scale)
        np.testing.assert_array_equal(part.values, cut(whole.values, [all_of(32), own]))


def test_only_the_wanted_rows_have_logits():
    graph = build(Features())
    inputs = step_inputs(graph, PROMPTS)
    wanted = np.int32([8, 12])
    some = executor(graph).values(replace(inputs, logit_rows=wanted))
    np.testing.assert_allclose(some, executor(graph).values(inputs)[wanted], atol=0.1)
    assert executor(graph).values(replace(inputs, logit_rows=wanted[:0])).shape == (0, graph.vocab_size)


def test_programs_that_wait_for_each_other_are_found_out():
    graph = build(Features())
    first, second = compile_graph(graph, Placement(pipeline=2))
    stuck = replace(first, ops=(Receive(0, first.values[0], 1), *first.ops[1:]))
    reference = ReferenceExecutor((stuck, second), read_weights(graph), BLOCKS, BLOCK_SIZE)
    with pytest.raises(RuntimeError, match="wait for each other"):
        reference.values(step_inputs(graph, PROMPTS))


def test_a_weight_of_another_shape_is_refused():
    graph = build(Features())
    with pytest.raises(ValueError, match=r"embed\.weight has shape \(2, 2\), not \(100, 32\)"):
        ReferenceExecutor(compile_graph(graph, Placement()), lambda _: np.ones((2, 2), np.float32), 1, 16)


def test_what_is_not_computed_is_refused_by_name():
    programs = compile_graph(registry.architecture("t5-small").graph(FORMATS["bf16"]), ONE_CORE)
    with pytest.raises(UserError, match=r"timed, not computed yet: Attention of layer -?\d+ "):
        ReferenceExecutor(programs, lambda name: pytest.fail(f"{name} was read"), 1, 16)
