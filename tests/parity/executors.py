"""Executors of a model's graph: the kernels, or their numpy twin."""

from __future__ import annotations

from dataclasses import replace

from corepipe.kernels import native
from corepipe.models.registry import Model
from corepipe.neuron.compiler import compile_graph
from corepipe.neuron.executor import NativeExecutor
from corepipe.neuron.graph import Graph
from corepipe.neuron.placement import Placement
from corepipe.neuron.program import Executor
from corepipe.neuron.reference import ReferenceExecutor
from corepipe.neuron.weights import InMemoryWeights, reader

BLOCK = 32
KINDS = ("reference", "native")


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


def executor(
    kind: str, model: Model, graph: Graph, placement: Placement, tokens: int, max_rows: int
) -> Executor:
    """One of KINDS, with room for so many tokens in its cache."""
    programs, blocks = compile_graph(graph, placement), blocks_for(tokens)
    if kind == "native":
        weights = InMemoryWeights(replace(graph, tied={}), reader(graph, model.checkpoint))
        return NativeExecutor(programs, weights, blocks, BLOCK, max_rows, native().Pool(2))
    return ReferenceExecutor(programs, reader(graph, model.checkpoint), blocks, BLOCK)
