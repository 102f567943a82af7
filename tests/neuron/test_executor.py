"""The native executor equals the reference executor: random models, all formats, any placement, every ISA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import (
    BLOCK_SIZE,
    BLOCKS,
    MAX_POSITIONS,
    Chunk,
    Features,
    build,
    decoders,
    read_weights,
    step_inputs,
)

from corepipe.kernels import native
from corepipe.models.fields import Fields
from corepipe.models.registry import Architecture
from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host import executor as executors
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.lowering import FusedAttention, FusedLinear, Plain, Step
from corepipe.neuron.host.reference import ReferenceExecutor
from corepipe.neuron.host.weights import InMemoryWeights
from corepipe.neuron.inputs import StepInputs
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.ops import Attention, Experts, Linear, Op
from tests.kernels.harness import elsewhere, in_formats

MAX_ROWS = 64
ONE_CORE = Placement()
PROMPTS = [Chunk(0, 0, 9), Chunk(3, 0, 4), Chunk(1, 0, 1)]
GOES_ON = [Chunk(1, 1, 7), Chunk(0, 9, 1), Chunk(3, 4, 30)]

BF16_ULP, INT8_STEPS = 2.0**-7, 8 / 127
BOUND = {
    "fp32": 128 * 2.0**-23,
    "bf16": 4 * BF16_ULP,
    "int8-weights": 4 * BF16_ULP,
    "int8": INT8_STEPS,
    "int4-weights": INT8_STEPS,
}
"""Largest difference of a logit, relative to the largest of its row.

Both add in fp32, in another order, so their sums differ in the last bits.  In fp32 that is all: 24 units in
the last place were the most over 400 random models.  In other formats a sum that lies between two bf16
numbers may be rounded to either, one bf16 unit apart, and later Ops start from there: 1.1 units of the row's
largest logit were the most for up to four layers (most models have no such element at all).  In W8A8 an
activation that moved so may also be rounded to the next of its 127 steps: 3.5 steps were the most.  The same
holds for a key or a value in an int8 cache, in every format.
"""

some = settings(derandomize=True, deadline=None, max_examples=elsewhere([40, 8], [8])[0])


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    pool = native().Pool(2)
    yield pool
    pool.close()


def kernels(
    graph: Graph, placement: Placement, pool: Any, seed: int = 0, *, int8_cache: bool = False
) -> NativeExecutor:
    weights, programs = InMemoryWeights(graph, read_weights(graph, seed)), compile_graph(graph, placement)
    return NativeExecutor(programs, weights, BLOCKS, BLOCK_SIZE, MAX_ROWS, pool, int8_cache=int8_cache)


def run(executor: NativeExecutor, inputs: StepInputs) -> F32:
    found = executor.wait(executor.submit(inputs, None)).values
    assert found is not None
    return found


@given(decoders(), st.data())
@some
def test_kernels_agree_with_the_twin(pool, graph, data):
    tensor = data.draw(st.integers(1, min(graph.attention_heads, 4)))
    placement = Placement(pipeline=data.draw(st.integers(1, graph.num_layers)), tensor=tensor)
    int8_cache = data.draw(st.booleans())
    executor = kernels(graph, placement, pool, int8_cache=int8_cache)
    programs = compile_graph(graph, placement)
    reference = ReferenceExecutor(programs, read_weights(graph), BLOCKS, BLOCK_SIZE, int8_cache=int8_cache)
    for chunks in (PROMPTS, GOES_ON):
        inputs = step_inputs(graph, chunks)
        got, expected = run(executor, inputs), reference.values(inputs)
        error = np.abs(got - expected).max(1) / np.abs(expected).max(1)
        assert error.max() <= max(BOUND[graph.format.name], INT8_STEPS if int8_cache else 0)


def unfused(ops: tuple[Op, ...], _kind: object = None) -> list[Step]:
    """Returns each Op as a step of its own, in the order of the Program."""

    def alone(op: Op) -> Step:
        if isinstance(op, Linear):
            return FusedLinear(op.x, (op,))
        return FusedAttention(op, op.q, op.k) if isinstance(op, Attention) else Plain(op)

    return [alone(op) for op in ops]


@given(decoders(), st.data())
@some
def test_fusion_changes_no_bit(pool, graph, data):
    tensor = data.draw(st.integers(1, min(graph.attention_heads, 3)))
    placement = Placement(pipeline=data.draw(st.integers(1, graph.num_layers)), tensor=tensor)
    fused = kernels(graph, placement, pool)
    with patch.object(executors, "lower", unfused):
        plain = kernels(graph, placement, pool)
    for chunks in (PROMPTS, GOES_ON):
        inputs = step_inputs(graph, chunks)
        rows = data.draw(st.sets(st.sampled_from(inputs.logit_rows.tolist())) | st.just({*inputs.logit_rows}))
        inputs = replace(inputs, logit_rows=np.array(sorted(rows), np.int32))
        np.testing.assert_array_equal(run(fused, inputs), run(plain, inputs))


@pytest.mark.parametrize("fmt", [name for name in FORMATS if name != "fp32"])
def test_kernels_are_closer_to_the_twin_than_to_fp32(pool, fmt):
    """The bound covers single roundings that fall the other way; on average the two executors agree."""
    features = Features(layers=4, hidden=96, heads=HeadLayout(4, 2, 32), ffn=128)
    graph, exact = build(features, fmt), build(features, "fp32")
    to_twin, to_fp32 = [], []
    for seed in range(3):
        inputs, weights = step_inputs(graph, PROMPTS, seed), read_weights(graph, seed)
        got = run(kernels(graph, ONE_CORE, pool, seed), inputs)
        for like, found in ((graph, to_twin), (exact, to_fp32)):
            reference = ReferenceExecutor(compile_graph(like, ONE_CORE), weights, BLOCKS, BLOCK_SIZE)
            found.append(np.abs(got - reference.values(inputs)).mean())
    assert np.mean(to_twin) < np.mean(to_fp32) / 3


def test_a_cache_of_int8_is_the_twins(pool):
    """On average the numbers are those of a reference executor with an int8 cache, not of one without."""
    graph = build(Features(layers=4, hidden=96, heads=HeadLayout(4, 2, 32), ffn=128), "fp32")
    to_twin, to_plain = [], []
    for seed in range(3):
        inputs, weights = step_inputs(graph, PROMPTS, seed), read_weights(graph, seed)
        got = run(kernels(graph, ONE_CORE, pool, seed, int8_cache=True), inputs)
        for int8_cache, found in ((True, to_twin), (False, to_plain)):
            reference = ReferenceExecutor(
                compile_graph(graph, ONE_CORE), weights, BLOCKS, BLOCK_SIZE, int8_cache=int8_cache
            )
            found.append(np.abs(got - reference.values(inputs)).mean())
    assert np.mean(to_twin) < np.mean(to_plain) / 3


@given(decoders(cuttable=False), st.data())
@some
def test_a_pipeline_and_chunks_give_the_same_bits(pool, graph, data):
    stages = data.draw(st.integers(1, graph.num_layers))
    cut = data.draw(st.integers(1, 29))
    whole, piped = kernels(graph, ONE_CORE, pool), kernels(graph, Placement(pipeline=stages), pool)
    expected = run(whole, step_inputs(graph, [Chunk(2, 0, 30), Chunk(0, 0, 5)]))[:30]
    first = run(piped, step_inputs(graph, [Chunk(5, 0, 3), Chunk(2, 0, cut)]))[3:]
    rest = run(piped, step_inputs(graph, [Chunk(2, cut, 30 - cut)]))
    np.testing.assert_array_equal(np.concatenate([first, rest]), expected)


@pytest.mark.parametrize("fmt", FORMATS)
def test_odd_shards_are_packed_anew_with_the_same_numbers(pool, fmt):
    """Heads of 16 cut by 3: ranges that are no whole panels, and padding for the missing head."""
    graph = build(Features(heads=HeadLayout(4, 2, 16), ffn=40, vocab=33, qkv_bias=True), fmt)
    programs = compile_graph(graph, Placement(tensor=3))
    assert not all(part.contiguous for p in programs for part in p.axes.values())
    assert {p.axes[HeadLayout(4, 2, 16).queries()].width for p in programs} == {32}
    inputs = step_inputs(graph, PROMPTS)
    got = run(kernels(graph, Placement(tensor=3), pool), inputs)
    expected = ReferenceExecutor(programs, read_weights(graph), BLOCKS, BLOCK_SIZE).values(inputs)
    assert np.abs(got - expected).max() <= BOUND[fmt] * np.abs(expected).max()


@pytest.mark.parametrize(
    ("placement", "fmt"),
    in_formats([ONE_CORE, Placement(pipeline=2), Placement(tensor=2), Placement(tensor=3)]),
)
def test_layers_may_differ_in_heads(pool, fmt, placement):
    """Each kind of heads has a KV cache of its own."""
    layouts = (HeadLayout(6, 2, 16), HeadLayout(4, 4, 32), HeadLayout(8, 1, 8), HeadLayout(6, 2, 16))
    graph = build(Features(layers=4, layer_heads=layouts, head_norm=True), fmt)
    programs, inputs = compile_graph(graph, placement), step_inputs(graph, PROMPTS)
    got = run(kernels(graph, placement, pool), inputs)
    expected = ReferenceExecutor(programs, read_weights(graph), BLOCKS, BLOCK_SIZE).values(inputs)
    assert np.abs(got - expected).max() <= BOUND[fmt] * np.abs(expected).max()


def test_batches_in_flight_come_back_in_order(pool):
    graph = build(Features(layers=3), "bf16")
    executor = kernels(graph, Placement(pipeline=3), pool)
    chunks = [[Chunk(s, 0, 5 + s)] for s in range(6)]
    alone = [run(executor, step_inputs(graph, chunk)) for chunk in chunks]
    tickets = [executor.submit(step_inputs(graph, chunk), None) for chunk in chunks]
    for ticket, expected in zip(tickets, alone, strict=True):
        np.testing.assert_array_equal(executor.wait(ticket).values, expected)


MIXTURE = {
    "model_type": "olmoe",
    "vocab_size": 96,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "intermediate_size": 128,
    "max_position_embeddings": MAX_POSITIONS,
}


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_stream_reads_the_weights_of_the_experts_that_it_takes(pool, fmt):
    """Native code counts each panel once, and of a mixture the panels of `top_k` experts."""
    graph = Architecture("mixture", Fields(Path("config.json"), MIXTURE)).graph(FORMATS[fmt], MAX_POSITIONS)
    weights = InMemoryWeights(graph, read_weights(graph))
    executor = NativeExecutor(compile_graph(graph, ONE_CORE), weights, BLOCKS, BLOCK_SIZE, MAX_ROWS, pool)
    of_all = sum(weights[op.weight.name].data.nbytes for op in graph.ops if isinstance(op, Linear))
    stacks = [spec for op in graph.ops if isinstance(op, Experts) for spec in (op.gate, op.up, op.down)]
    experts = sum(weights[spec.name].data.nbytes for spec in stacks)

    def read(*chunks: Chunk) -> int:
        return executor.wait(executor.submit(step_inputs(graph, chunks), None)).weight_bytes

    least, most = (of_all + experts * taken // 16 for taken in (2, 12))
    assert read(Chunk(0, 0, 1)) == least
    assert least <= read(*[Chunk(s, 0, 1) for s in range(6)]) <= most
