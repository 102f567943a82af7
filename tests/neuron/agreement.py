"""The agreement of the two executors, and their results for one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import InMemoryWeights
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.step import StepInputs
from tests.reference.executor import ReferenceExecutor

Read = Callable[[str], Any]
ONE_CORE = Placement()
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


def kernels(
    graph: Graph,
    read: Read,
    pool: Any,
    placement: Placement = ONE_CORE,
    *,
    blocks: int,
    rows: int,
    **more: bool,
) -> NativeExecutor:
    """Returns the native executor of a graph, with blocks of 16 positions."""
    weights = InMemoryWeights(graph, read)
    return NativeExecutor(compile_graph(graph, placement), weights, blocks, 16, rows, pool, **more)


def twin(
    graph: Graph, read: Read, placement: Placement = ONE_CORE, *, blocks: int, **more: bool
) -> ReferenceExecutor:
    """Returns the reference executor of a graph, with blocks of 16 positions."""
    return ReferenceExecutor(compile_graph(graph, placement), read, blocks, 16, **more)


def run(executor: NativeExecutor, inputs: StepInputs) -> F32:
    """Returns the values of one batch."""
    found = executor.wait(executor.submit(inputs, None)).values
    assert found is not None
    return found


def assert_near(got: F32, expected: F32, fmt: str) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= BOUND[fmt] * np.abs(expected).max()
