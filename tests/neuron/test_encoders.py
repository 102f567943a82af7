"""Encoders in both executors: whole sequences, nothing kept, an output row per sequence or per token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from encoder_graphs import Encoder, Text, build, step_inputs
from strategies import read_weights

from corepipe.kernels import native
from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.compile.compiler import compile_graph, kv_bytes_per_token
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.reference import ReferenceExecutor, tensor_parallel_bound
from corepipe.neuron.host.weights import InMemoryWeights
from corepipe.neuron.inputs import StepInputs
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.numerics.attention import distance_buckets
from corepipe.neuron.ops import Function, PoolingMode
from corepipe.neuron.ops.pooling import pooled
from tests.kernels.harness import elsewhere, in_formats, in_turn

MAX_ROWS = 1100
ONE_CORE = Placement()
BOUND = {
    "fp32": 128 * 2.0**-23,
    "bf16": 4 * 2.0**-7,
    "int8-weights": 4 * 2.0**-7,
    "int8": 8 / 127,
    "int4-weights": 8 / 127,
}
"""Largest allowed difference between the two executors, relative to the largest value; as for decoders."""

LENGTHS = (1, 2, 63, 64, 65, 300, 512)
TEXTS = [Text(seed, length) for seed, length in enumerate(LENGTHS)]
SHAPES = {
    "minilm": Encoder(HeadLayout(4, 4, 32), hidden=128, normalized=True),
    "heads of 24": Encoder(HeadLayout(3, 3, 24), hidden=72, offset=2, types=0),
    "heads of 64": Encoder(HeadLayout(2, 2, 64), hidden=96, embedding=40, function=Function.GELU_TANH),
    "heads of 80": Encoder(HeadLayout(4, 2, 80), hidden=64, norm_first=True, pooling=None),
    "windows": Encoder(HeadLayout(2, 2, 32), window=66, rotary=True, pooling=None, types=0),
    "distances": Encoder(HeadLayout(4, 4, 16), buckets=32, offset=2, types=0),
    "early": Encoder(HeadLayout(4, 4, 16), early=True, types=3),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    pool = native().Pool(2)
    yield pool
    pool.close()


def kernels(graph: Graph, pool: Any, placement: Placement = ONE_CORE) -> NativeExecutor:
    weights = InMemoryWeights(graph, read_weights(graph))
    return NativeExecutor(compile_graph(graph, placement), weights, 0, 16, MAX_ROWS, pool)


def reference(graph: Graph, placement: Placement = ONE_CORE) -> ReferenceExecutor:
    return ReferenceExecutor(compile_graph(graph, placement), read_weights(graph), 0, 16)


def run(executor: NativeExecutor, inputs: StepInputs) -> F32:
    found = executor.wait(executor.submit(inputs, None)).values
    assert found is not None
    return found


def by_text(found: F32, texts: Sequence[Text], graph: Graph) -> list[F32]:
    """Returns the rows of each text: one, or one per token."""
    rows = [1 if len(found) == len(texts) else text.length for text in texts]
    return np.split(found, np.cumsum(rows)[:-1])


@pytest.mark.parametrize(
    ("shape", "fmt"), in_formats(elsewhere(list(SHAPES), ["minilm", "heads of 24", "windows", "distances"]))
)
def test_kernels_agree_with_the_twin(pool, shape, fmt):
    graph = build(SHAPES[shape], fmt)
    inputs = step_inputs(graph, TEXTS)
    got, expected = run(kernels(graph, pool), inputs), reference(graph).values(inputs)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= BOUND[fmt] * np.abs(expected).max()


@pytest.mark.parametrize(("shape", "fmt"), in_formats(elsewhere(list(SHAPES), ["heads of 24", "windows"])))
def test_a_text_has_the_same_bits_alone_and_in_any_company(pool, shape, fmt):
    graph = build(SHAPES[shape], fmt)
    executor, single = kernels(graph, pool), kernels(graph, native().Pool(1))
    alone = [run(executor, step_inputs(graph, [text])) for text in TEXTS]
    for others in (TEXTS, TEXTS[::-1], [TEXTS[2]] * 7 + TEXTS[3:6]):
        for runner in (executor, single):
            found = by_text(run(runner, step_inputs(graph, others)), others, graph)
            for text, rows in zip(others, found, strict=True):
                np.testing.assert_array_equal(rows, alone[text.seed])


@pytest.mark.parametrize(("shape", "fmt"), in_turn(list(SHAPES), list(FORMATS)))
def test_a_pipeline_gives_the_same_bits(pool, shape, fmt):
    graph = build(SHAPES[shape], fmt)
    inputs = step_inputs(graph, TEXTS[1:5])
    expected = run(kernels(graph, pool), inputs)
    np.testing.assert_array_equal(run(kernels(graph, pool, Placement(pipeline=2)), inputs), expected)


@pytest.mark.parametrize(("shape", "fmt"), in_formats(list(SHAPES)))
def test_two_tensor_ranks_stay_within_the_bound(pool, shape, fmt):
    graph, placement = build(SHAPES[shape], fmt), Placement(tensor=2)
    inputs = step_inputs(graph, TEXTS[1:5])
    whole, cut = run(kernels(graph, pool), inputs), run(kernels(graph, pool, placement), inputs)
    programs = compile_graph(graph, placement)
    assert np.abs(cut - whole).max() <= tensor_parallel_bound(programs, whole)
    expected = reference(graph, placement).values(inputs)
    assert np.abs(cut - expected).max() <= BOUND[fmt] * np.abs(expected).max()


@pytest.mark.parametrize(("mode", "fmt"), in_formats(list(PoolingMode)))
def test_every_way_of_pooling(pool, mode, fmt):
    graph = build(Encoder(HeadLayout(2, 2, 32), pooling=mode, layers=1), fmt)
    inputs = step_inputs(graph, TEXTS[:5])
    got, expected = run(kernels(graph, pool), inputs), reference(graph).values(inputs)
    assert np.all(np.abs(got - expected).max(1) <= BOUND[fmt] * np.abs(expected).max(1))


def test_what_pooling_makes_of_three_rows() -> None:
    """The results equal the definitions, computed by hand."""
    rows = np.float32([[1, -2], [3, 4], [8, 1]])
    found = {mode.value: pooled(rows, mode).tolist() for mode in PoolingMode}
    assert found == {
        "first": [1, -2],
        "second": [3, 4],
        "last": [8, 1],
        "mean": [4, 1],
        "max": [8, 4],
        "mean_sqrt_len": pytest.approx([12 / 3**0.5, 3 / 3**0.5]),
        "weighted_mean": pytest.approx([(1 + 6 + 24) / 6, (-2 + 8 + 3) / 6]),
    }


@pytest.mark.parametrize("fmt", FORMATS)
def test_normalized_rows_have_length_one(pool, fmt):
    graph = build(Encoder(HeadLayout(2, 2, 32), normalized=True), fmt)
    length = np.linalg.norm(run(kernels(graph, pool), step_inputs(graph, TEXTS)), axis=1)
    assert np.abs(length - 1).max() <= (1e-6 if fmt == "fp32" else 2.0**-8)


def test_distances_fall_into_buckets() -> None:
    """The buckets are those of transformers' MPNetEncoder.relative_position_bucket: 16 behind a row, 16 ahead
    of it."""
    ahead = np.array([0, -1, -7, -8, -15, -16, -32, -64, -127, -128, -500, 1, 7, 8, 500])
    found = distance_buckets(ahead, 32).tolist()
    assert found == [0, 1, 7, 8, 9, 10, 12, 14, 15, 15, 15, 17, 23, 24, 31]


def test_types_reach_the_result(pool) -> None:
    graph = build(SHAPES["minilm"], "fp32")
    inputs, executor = step_inputs(graph, TEXTS), kernels(graph, pool)
    other = replace(inputs, types=np.zeros_like(inputs.types))
    assert np.any(run(executor, inputs)[1:] != run(executor, other)[1:], axis=1).all()
    np.testing.assert_allclose(run(executor, other), reference(graph).values(other), atol=1e-5)


def test_a_poisoned_text_leaves_its_neighbours_alone(pool) -> None:
    """A NaN row affects only its own sequence, whose memory the next batch uses again."""
    graph = build(Encoder(HeadLayout(2, 2, 32), types=2), "bf16")
    read = read_weights(graph)
    poison = read("types.weight").copy()
    poison[1] = np.nan
    weights = InMemoryWeights(graph, lambda name: poison if name == "types.weight" else read(name))
    executor = NativeExecutor(compile_graph(graph, ONE_CORE), weights, 0, 16, MAX_ROWS, pool)
    inputs = step_inputs(graph, [Text(0, 5), Text(1, 70), Text(2, 33)])
    clean = replace(inputs, types=np.zeros_like(inputs.types))
    expected = run(executor, clean)
    second = np.arange(len(inputs.tokens)) // 5 == 1
    got = run(executor, replace(inputs, types=np.where(second, 1, 0).astype(np.int32)))
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], expected[[0, 2]])
    np.testing.assert_array_equal(run(executor, clean), expected)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"positions": np.arange(1, 6, dtype=np.int32)}, "must be whole"),
        ({"types": np.empty(0, np.int32)}, "tokens and types differ"),
        ({"types": np.full(5, 2, np.int32)}, "type 2 is outside 0 .. 1"),
        ({"logit_rows": np.array([0, 4], np.int32)}, "one logit row of each sequence"),
    ],
)
def test_what_is_no_whole_text_is_refused(pool, change, why):
    graph = build(SHAPES["minilm"], "bf16")
    inputs = step_inputs(graph, [Text(0, 5)])
    with pytest.raises(ValueError, match=why):
        kernels(graph, pool).submit(replace(inputs, **change), None)


def test_encoders_keep_nothing() -> None:
    programs = compile_graph(build(SHAPES["minilm"], "bf16"), ONE_CORE)
    assert kv_bytes_per_token(programs[0]) == 0
