"""Patches of images in both executors: an input of its own, multiplied as any other matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe.kernels import native
from corepipe.models.fields import Fields
from corepipe.models.registry import Architecture
from corepipe.models.tasks import ClassScores, Task, TaskInfo
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.reference import ReferenceExecutor, tensor_parallel_bound
from corepipe.neuron.host.weights import InMemoryWeights
from corepipe.neuron.inputs import StepInputs
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.ops import patches_of
from corepipe.neuron.values import GraphInput, InputKind, image_shape
from tests.parity import formula

BOUND = {
    "fp32": 128 * 2.0**-23,
    "bf16": 4 * 2.0**-7,
    "int8-weights": 4 * 2.0**-7,
    "int8": 8 / 127,
    "int4-weights": 8 / 127,
}
"""Largest allowed difference between the two executors, relative to the largest value; as for decoders."""
WHOLE = Placement()
IMAGES = 4
CLASSES = 10
SHAPES: dict[str, dict[str, object]] = {
    "vit": {"model_type": "vit", "image_size": 32, "patch_size": 8, "hidden_size": 64},
    "odd": {"model_type": "vit", "image_size": 35, "patch_size": 7, "num_channels": 1, "hidden_size": 96},
    "deit": {"model_type": "deit", "image_size": 48, "patch_size": 16, "hidden_size": 128},
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    pool = native().Pool(2)
    yield pool
    pool.close()


def graph_of(shape: str, fmt: str) -> Graph:
    """Returns a graph with classes; DeiT's are the mean of two heads."""
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80, **SHAPES[shape]}
    task = TaskInfo(Task.CLASSIFY, 0, CLASSES, head=ClassScores(CLASSES, taught=shape == "deit"))
    return Architecture(shape, Fields(Path("config.json"), config)).graph(FORMATS[fmt], None, task)


def inputs_of(graph: Graph, images: int = IMAGES, first: int = 0) -> StepInputs:
    (given,) = graph.inputs
    rows = graph.max_positions
    rng = np.random.default_rng(0)
    shape = image_shape(given, rows)
    drawn = rng.standard_normal((IMAGES, *shape)).astype(np.float32)[first : first + images]
    starts = np.arange(images + 1, dtype=np.int32) * rows
    return StepInputs(
        tokens=np.zeros(images * rows, np.int32),
        positions=np.tile(np.arange(rows, dtype=np.int32), images),
        sequence_starts=starts,
        block_tables=np.empty((images, 0), np.int32),
        logit_rows=starts[:-1].copy(),
        patches=np.concatenate([patches_of(image, given) for image in drawn]),
    )


def read(graph: Graph) -> Any:
    shapes = {spec.name: spec.shape for spec in graph.weights()}
    return lambda name: formula.weight(name, shapes[name])


def kernels(graph: Graph, pool: Any, placement: Placement = WHOLE) -> NativeExecutor:
    weights = InMemoryWeights(graph, read(graph))
    return NativeExecutor(compile_graph(graph, placement), weights, 0, 16, IMAGES * graph.max_positions, pool)


def run(executor: NativeExecutor, inputs: StepInputs) -> F32:
    found = executor.wait(executor.submit(inputs, None)).values
    assert found is not None
    return found


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_agree_with_the_twin(pool, shape: str, fmt: str) -> None:
    graph = graph_of(shape, fmt)
    inputs = inputs_of(graph)
    got = run(kernels(graph, pool), inputs)
    expected = ReferenceExecutor(compile_graph(graph, WHOLE), read(graph), 0, 16).values(inputs)
    assert np.abs(expected).max() > 0.1
    assert np.abs(got - expected).max() <= BOUND[fmt] * np.abs(expected).max()


@pytest.mark.parametrize("fmt", FORMATS)
def test_an_image_has_the_same_bits_alone_and_in_a_pipeline(pool, fmt: str) -> None:
    graph = graph_of("deit", fmt)
    executor = kernels(graph, pool)
    together = run(executor, inputs_of(graph))
    alone = [run(executor, inputs_of(graph, 1, at)) for at in range(IMAGES)]
    np.testing.assert_array_equal(np.concatenate(alone), together)
    np.testing.assert_array_equal(
        run(kernels(graph, pool, Placement(pipeline=2)), inputs_of(graph)), together
    )
    assert len({row.tobytes() for row in together}) == IMAGES


@pytest.mark.parametrize("fmt", FORMATS)
def test_two_tensor_ranks_stay_within_the_bound(pool, fmt: str) -> None:
    graph, placement = graph_of("vit", fmt), Placement(tensor=2)
    whole, cut = (
        run(kernels(graph, pool), inputs_of(graph)),
        run(kernels(graph, pool, placement), inputs_of(graph)),
    )
    assert np.abs(cut - whole).max() <= tensor_parallel_bound(compile_graph(graph, placement), whole)


def test_patches_are_cut_as_a_convolution_reads_them() -> None:
    """Row by row of the image; in each patch channel by channel, row by row."""
    given = GraphInput(InputKind.PATCHES, graph_of("vit", "fp32").inputs[0].rows, (2, 2, 2), 1)
    image = np.arange(2 * 4 * 4, dtype=np.float32).reshape(2, 4, 4)
    assert patches_of(image, given).astype(int).tolist() == [
        [0] * 8,
        [0, 1, 4, 5, 16, 17, 20, 21],
        [2, 3, 6, 7, 18, 19, 22, 23],
        [8, 9, 12, 13, 24, 25, 28, 29],
        [10, 11, 14, 15, 26, 27, 30, 31],
    ]
    assert image_shape(given, 5) == (2, 4, 4)


def test_a_batch_without_its_patches_is_refused(pool) -> None:
    graph = graph_of("vit", "fp32")
    inputs, executor = inputs_of(graph), kernels(graph, pool)
    for wrong in (inputs.patches[:-1], np.empty((0, 0), np.float32)):
        with pytest.raises(ValueError, match="there must be a patch for each row"):
            executor.submit(replace(inputs, patches=np.ascontiguousarray(wrong)), None)
