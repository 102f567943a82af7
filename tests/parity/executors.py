"""Executors of a model's graph: the kernels, or the reference executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from corepipe.kernels import native
from corepipe.models.registry import Model
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.executor import NativeExecutor
from corepipe.neuron.host.weights import InMemoryWeights, reader
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.step import StepInputs
from tests.reference.executor import ReferenceExecutor

BLOCK = 32
KINDS = ("reference", "native")
Executor = NativeExecutor | ReferenceExecutor


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


def executor(
    kind: str, model: Model, graph: Graph, placement: Placement, tokens: int, max_rows: int
) -> Executor:
    """Returns an executor of KINDS, with room for so many tokens in its cache."""
    programs, blocks = compile_graph(graph, placement), blocks_for(tokens)
    if kind == "native":
        weights = InMemoryWeights(replace(graph, tied={}), reader(graph, model.checkpoint))
        return NativeExecutor(programs, weights, blocks, BLOCK, max_rows, native().Pool(2))
    return ReferenceExecutor(programs, reader(graph, model.checkpoint), blocks, BLOCK)


def values_of(executor: Executor, inputs: StepInputs) -> F32:
    """Returns the values of a batch."""
    if isinstance(executor, ReferenceExecutor):
        return executor.values(inputs)
    return np.array(executor.wait(executor.submit(inputs, None)).values)
