"""The native executor equals the reference executor: random models, all formats, any placement, every ISA."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from agreement import BOUND, INT8_STEPS, ONE_CORE, assert_near, run
from agreement import kernels as native_kernels
from agreement import twin as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import (
    BLOCKS,
    MAX_POSITIONS,
    Chunk,
    Features,
    build,
    decoders,
    read_weights,
    step_inputs,
)

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
from corepipe.neuron.host.weights import InMemoryWeights
from corepipe.neuron.ops import Attention, Experts, Linear, Op
from tests.kernels.harness import elsewhere, in_formats
from tests.reference.executor import ReferenceExecutor

MAX_ROWS = 64
PROMPTS = [Chunk(0, 0, 9), Chunk(3, 0, 4), Chunk(1, 0, 1)]
GOES_ON = [Chunk(1, 1, 7), Chunk(0, 9, 1), Chunk(3, 4, 30)]

some = settings(derandomize=True, deadline=None, max_examples=elsewhere([40, 8], [8])[0])


def kernels(
    graph: Graph, placement: Placement, pool: Any, seed: int = 0, *, int8_cache: bool = False
) -> NativeExecutor:
    read = read_weights(graph, seed)
    return native_kernels(graph, read, pool, placement, blocks=BLOCKS, rows=MAX_ROWS, int8_cache=int8_cache)


def twin(graph: Graph, placement: Placement = ONE_CORE, seed: int = 0, **more: bool) -> ReferenceExecutor:
    return reference(graph, read_weights(graph, seed), placement, blocks=BLOCKS, **more)


@given(decoders(), st.data())
@some
def test_kernels_agree_with_the_twin(pool, graph, data):
    tensor = data.draw(st.integers(1, min(graph.attention_heads, 4)))
    placement = Placement(pipeline=data.draw(st.integers(1, graph.num_layers)), tensor=tensor)
    int8_cache = data.draw(st.booleans())
    executor = kernels(graph, placement, pool, int8_cache=int8_cache)
    expects = twin(graph, placement, int8_cache=int8_cache)
    for chunks in (PROMPTS, GOES_ON):
        inputs = step_inputs(graph, chunks)
        got, expected = run(executor, inputs), expects.values(inputs)
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


CLOSER = [*((name, "fp32", False) for name in FORMATS if name != "fp32"), ("fp32", "fp32", True)]


@pytest.mark.parametrize(("fmt", "plain", "int8_cache"), CLOSER)
def test_kernels_are_closer_to_the_twin_than_to_fp32(pool, fmt, plain, int8_cache):
    """The bound covers single roundings that fall the other way; on average the two executors agree.  The
    same holds for an int8 cache, compared with an executor without one."""
    features = Features(layers=4, hidden=96, heads=HeadLayout(4, 2, 32), ffn=128)
    graph, exact = build(features, fmt), build(features, plain)
    to_twin, to_fp32 = [], []
    for seed in range(3):
        inputs = step_inputs(graph, PROMPTS, seed)
        got = run(kernels(graph, ONE_CORE, pool, seed, int8_cache=int8_cache), inputs)
        for like, kept, found in ((graph, int8_cache, to_twin), (exact, False, to_fp32)):
            expected = twin(like, seed=seed, int8_cache=kept).values(inputs)
            found.append(np.abs(got - expected).mean())
    assert np.mean(to_twin) < np.mean(to_fp32) / 3


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
    assert_near(got, twin(graph, Placement(tensor=3)).values(inputs), fmt)


@pytest.mark.parametrize(
    ("placement", "fmt"),
    in_formats([ONE_CORE, Placement(pipeline=2), Placement(tensor=2), Placement(tensor=3)]),
)
def test_layers_may_differ_in_heads(pool, fmt, placement):
    """Each kind of heads has a KV cache of its own."""
    layouts = (HeadLayout(6, 2, 16), HeadLayout(4, 4, 32), HeadLayout(8, 1, 8), HeadLayout(6, 2, 16))
    graph = build(Features(layers=4, layer_heads=layouts, head_norm=True), fmt)
    inputs = step_inputs(graph, PROMPTS)
    got = run(kernels(graph, placement, pool), inputs)
    assert_near(got, twin(graph, placement).values(inputs), fmt)


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
    weights, executor = InMemoryWeights(graph, read_weights(graph)), kernels(graph, ONE_CORE, pool)
    of_all = sum(weights[op.weight.name].data.nbytes for op in graph.ops if isinstance(op, Linear))
    stacks = [spec for op in graph.ops if isinstance(op, Experts) for spec in (op.gate, op.up, op.down)]
    experts = sum(weights[spec.name].data.nbytes for spec in stacks)

    def read(*chunks: Chunk) -> int:
        return executor.wait(executor.submit(step_inputs(graph, chunks), None)).weight_bytes

    least, most = (of_all + experts * taken // 16 for taken in (2, 12))
    assert read(Chunk(0, 0, 1)) == least
    assert least <= read(*[Chunk(s, 0, 1) for s in range(6)]) <= most
