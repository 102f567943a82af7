"""Parallel blocks: their partial sums are added before one all-reduce, and the result stays the same."""

from __future__ import annotations

import numpy as np
import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.families.blocks import gated_mlp, output
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.families.llama import attention
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.host.reference import ReferenceExecutor, tensor_parallel_bound
from corepipe.neuron.inputs import StepInputs
from corepipe.neuron.ops import AllReduce
from tests.parity.families import TINY

WHOLE = Placement()


def side_by_side(fmt: str) -> Graph:
    """Returns a Llama whose feed-forward has the same input as its attention."""
    config = registry.load(TINY / "llama2").config
    b = GraphBuilder(config)
    x = b.embed()
    for layer in b.layers():
        normed = b.norm(x, f"model.layers.{layer}.input_layernorm")
        attended = output(b, attention(b, normed), f"model.layers.{layer}.self_attn.o_proj")
        x = b.add(x, b.add(attended, gated_mlp(b, normed, f"model.layers.{layer}.mlp")))
    b.head(b.select_rows(b.norm(x, "model.norm")))
    return b.finish("side by side", FORMATS[fmt], 32)


def logits(graph: Graph, placement: Placement) -> np.ndarray:
    read = registry.load(TINY / "llama2").checkpoint.read
    rows = np.arange(9, dtype=np.int32)
    inputs = StepInputs(rows + 3, rows, np.array([0, 9], np.int32), np.zeros((1, 1), np.int32), rows)
    return ReferenceExecutor(compile_graph(graph, placement), read, 1, 16).values(inputs)


@pytest.mark.parametrize("fmt", ["fp32", "bf16"])
def test_a_shared_all_reduce_gives_the_same_result(fmt: str) -> None:
    graph, placement = side_by_side(fmt), Placement(tensor=2)
    programs = compile_graph(graph, placement)
    assert sum(isinstance(op, AllReduce) for op in programs[1].ops) == graph.num_layers
    whole, split = logits(graph, WHOLE), logits(graph, placement)
    assert np.abs(whole).max() > 0.1
    assert np.abs(split - whole).max() <= tensor_parallel_bound(programs, whole)


def test_executors_refuse_by_name_what_they_do_not_compute() -> None:
    programs = compile_graph(registry.architecture("t5-small").graph(FORMATS["bf16"]), WHOLE)

    def read(name: str) -> np.ndarray:
        raise AssertionError(f"{name} was read")

    with pytest.raises(UserError, match=r"timed, not computed yet: Attention of layer -?\d+ "):
        ReferenceExecutor(programs, read, 1, 16)
