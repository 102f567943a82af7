"""Encoders in both executors: whole texts and images, nothing kept, a row of each or of each token.

They are those that tests/parity compares with transformers in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import BOUND, ONE_CORE, assert_near
from agreement import kernels as native_kernels
from agreement import run as run_one
from agreement import twin as reference

from corepipe.kernels import native
from corepipe.models.fields import Fields
from corepipe.models.registry import Architecture
from corepipe.models.tasks import Head, TextVectors, UnitLength
from corepipe.neuron.compile.compiler import compile_graph, kv_bytes_per_token
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.numerics.attention import distance_buckets
from corepipe.neuron.ops import AddEmbedding, PoolingMode, RowIndex, patches_of
from corepipe.neuron.values import GraphInput, InputKind, image_shape
from tests.kernels.harness import elsewhere, in_formats, in_turn
from tests.parity import formula
from tests.parity.encode import Picture, Text, step_of
from tests.parity.encoder_cases import CASES, VOCAB
from tests.parity.encoder_expected import load_expected
from tests.reference.executor import tensor_parallel_bound
from tests.reference.ops import pooled

MAX_ROWS, POSITIONS = 1100, 560
LENGTHS = (1, 2, 63, 64, 65, 300, 512)
TEXTS = [Text(formula.prompt(f"text {n}", n, VOCAB), n // 2) for n in LENGTHS]
PLAIN = [Text(text.ids) for text in TEXTS]
PICTURES = {case.name: case.pictures() for case in CASES}
SHAPES = [
    "bert-base",  # heads of 80, the mean of all rows
    "roberta-base",  # heads of 24, positions that start behind others, no types
    "electra-tokens",  # narrow embeddings, a row a token
    "modernbert-tokens",  # windows, rotations, norms first
    "mpnet-base",  # learned biases by distance
    "camembert-classes",  # only the first row of each text is computed after the last attention
    "vit-odd",
    "deit-taught",
]


@cache
def graph_of(shape: str, fmt: str, head: Head | None = None) -> Graph:
    config = dict(load_expected(shape).config)
    if "max_position_embeddings" in config:
        config["max_position_embeddings"] = POSITIONS
    model = Architecture(shape, Fields(Path("config.json"), config))
    task = model.task("embed" if shape.endswith("base") else "classify")
    return model.graph(FORMATS[fmt], None, replace(task, head=head or task.head))


def inputs_of(shape: str) -> Sequence[Text | Picture]:
    """Returns texts of the types that a shape has, or images."""
    return PICTURES[shape] or (PLAIN if shape == "roberta-base" else TEXTS)


def read(graph: Graph) -> Any:
    shapes = {spec.name: spec.shape for spec in graph.weights()}
    return lambda name: formula.weight(name, shapes[name])


def kernels(graph: Graph, pool: Any, placement: Placement = ONE_CORE, reads: Any = None) -> NativeExecutor:
    return native_kernels(graph, reads or read(graph), pool, placement, blocks=0, rows=MAX_ROWS)


def twin(graph: Graph, given: Sequence[Text | Picture], placement: Placement = ONE_CORE) -> F32:
    return reference(graph, read(graph), placement, blocks=0).values(step_of(given, graph))


def run(executor: NativeExecutor, given: Sequence[Text | Picture], graph: Graph) -> F32:
    return run_one(executor, step_of(given, graph))


@pytest.mark.parametrize(
    ("shape", "fmt"),
    in_formats(elsewhere(SHAPES, ["bert-base", "roberta-base", "modernbert-tokens", "mpnet-base"])),
)
def test_kernels_agree_with_the_twin(pool: Any, shape: str, fmt: str) -> None:
    graph, given = graph_of(shape, fmt), inputs_of(shape)
    expected = twin(graph, given)
    assert np.abs(expected).max() > 0.1
    assert_near(run(kernels(graph, pool), given, graph), expected, fmt)


@pytest.mark.parametrize(
    ("shape", "fmt"), in_formats(elsewhere(SHAPES, ["roberta-base", "modernbert-tokens"]))
)
def test_a_text_has_the_same_bits_alone_and_in_any_company(pool: Any, shape: str, fmt: str) -> None:
    """Images have the same bits alone, too."""
    graph, given = graph_of(shape, fmt), list(inputs_of(shape))
    executor, single = kernels(graph, pool), kernels(graph, native().Pool(1))
    alone = {id(one): run(executor, [one], graph) for one in given}
    assert len({rows.tobytes() for rows in alone.values()}) == len(given)
    for others in (given, given[::-1], [given[2]] * 7 + given[3:6]):
        for runner in (executor, single):
            wanted = np.concatenate([alone[id(one)] for one in others])
            np.testing.assert_array_equal(run(runner, others, graph), wanted)


@pytest.mark.parametrize(("shape", "fmt"), in_turn(SHAPES, list(FORMATS)))
def test_a_pipeline_gives_the_same_bits(pool: Any, shape: str, fmt: str) -> None:
    graph, given = graph_of(shape, fmt), inputs_of(shape)[:5]
    expected = run(kernels(graph, pool), given, graph)
    np.testing.assert_array_equal(run(kernels(graph, pool, Placement(pipeline=2)), given, graph), expected)


@pytest.mark.parametrize(("shape", "fmt"), in_formats(SHAPES))
def test_two_tensor_ranks_stay_within_the_bound(pool: Any, shape: str, fmt: str) -> None:
    graph, placement, given = graph_of(shape, fmt), Placement(tensor=2), inputs_of(shape)[:5]
    whole, cut = (run(kernels(graph, pool, place), given, graph) for place in (ONE_CORE, placement))
    assert np.abs(cut - whole).max() <= tensor_parallel_bound(compile_graph(graph, placement), whole)
    assert_near(cut, twin(graph, given, placement), fmt)


@pytest.mark.parametrize(("mode", "fmt"), in_formats(list(PoolingMode)))
def test_every_way_of_pooling(pool: Any, mode: PoolingMode, fmt: str) -> None:
    graph = graph_of("bert-base", fmt, TextVectors(mode))
    got, expected = run(kernels(graph, pool), TEXTS[:5], graph), twin(graph, TEXTS[:5])
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
def test_normalized_rows_have_length_one(pool: Any, fmt: str) -> None:
    graph = graph_of("bert-base", fmt, TextVectors(PoolingMode.MEAN, (UnitLength(),)))
    got = run(kernels(graph, pool), TEXTS, graph)
    assert np.abs(np.linalg.norm(got, axis=1) - 1).max() <= (1e-6 if fmt == "fp32" else 2.0**-8)
    assert_near(got, twin(graph, TEXTS), fmt)


def test_distances_fall_into_buckets() -> None:
    """The buckets are those of transformers' MPNetEncoder.relative_position_bucket: 16 behind a row, 16 ahead
    of it."""
    ahead = np.array([0, -1, -7, -8, -15, -16, -32, -64, -127, -128, -500, 1, 7, 8, 500])
    found = distance_buckets(ahead, 32).tolist()
    assert found == [0, 1, 7, 8, 9, 10, 12, 14, 15, 15, 15, 17, 23, 24, 31]


def test_types_reach_the_result(pool: Any) -> None:
    graph = graph_of("bert-base", "fp32")
    executor = kernels(graph, pool)
    typed, plain = (run(executor, given, graph) for given in (TEXTS, PLAIN))
    assert np.any(typed[1:] != plain[1:], axis=1).all()
    np.testing.assert_allclose(plain, twin(graph, PLAIN), atol=1e-5)


def test_a_poisoned_text_leaves_its_neighbours_alone(pool: Any) -> None:
    """A NaN row affects only its own sequence, whose memory the next batch uses again."""
    graph = graph_of("bert-base", "bf16")
    table = next(op.table for op in graph.ops if isinstance(op, AddEmbedding) and op.by is RowIndex.TYPE)
    poison = read(graph)(table.name).copy()
    poison[1] = np.nan
    executor = kernels(graph, pool, reads=lambda n: poison if n == table.name else read(graph)(n))
    clean = [PLAIN[1], PLAIN[4], PLAIN[2]]
    expected = run(executor, clean, graph)
    got = run(executor, [clean[0], Text(clean[1].ids, 5), clean[2]], graph)
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], expected[[0, 2]])
    np.testing.assert_array_equal(run(executor, clean, graph), expected)


@pytest.mark.parametrize(
    ("shape", "change", "why"),
    [
        ("bert-base", {"positions": np.arange(1, 6, dtype=np.int32)}, "must be whole"),
        ("bert-base", {"types": np.empty(0, np.int32)}, "tokens and types differ"),
        ("bert-base", {"types": np.full(5, 2, np.int32)}, "type 2 is outside 0 .. 1"),
        ("bert-base", {"logit_rows": np.array([0, 4], np.int32)}, "one logit row of each sequence"),
        ("vit-odd", {"patches": np.zeros((25, 196), np.float32)}, "there must be a patch for each row"),
        ("vit-odd", {"patches": np.empty((0, 0), np.float32)}, "there must be a patch for each row"),
    ],
)
def test_what_is_no_whole_text_is_refused(pool: Any, shape: str, change: dict[str, Any], why: str) -> None:
    """Parts of an image are refused, too."""
    graph = graph_of(shape, "bf16")
    inputs = step_of(PICTURES[shape][:1] or [Text(range(5))], graph)
    with pytest.raises(ValueError, match=why):
        kernels(graph, pool).submit(replace(inputs, **change), None)


def test_patches_are_cut_as_a_convolution_reads_them() -> None:
    """Row by row of the image; in each patch channel by channel, row by row."""
    given = GraphInput(InputKind.PATCHES, graph_of("vit-odd", "fp32").inputs[0].rows, (2, 2, 2), 1)
    image = np.arange(2 * 4 * 4, dtype=np.float32).reshape(2, 4, 4)
    assert patches_of(image, given).astype(int).tolist() == [
        [0] * 8,
        [0, 1, 4, 5, 16, 17, 20, 21],
        [2, 3, 6, 7, 18, 19, 22, 23],
        [8, 9, 12, 13, 24, 25, 28, 29],
        [10, 11, 14, 15, 26, 27, 30, 31],
    ]
    assert image_shape(given, 5) == (2, 4, 4)


def test_encoders_keep_nothing() -> None:
    assert kv_bytes_per_token(compile_graph(graph_of("bert-base", "bf16"), ONE_CORE)[0]) == 0
