"""Graphs and Programs of Llama-like models for the tests of the device model, in the sizes of real ones."""

from __future__ import annotations

from dataclasses import replace

from strategies import Features, build

from corepipe.neuron.axes import HeadLayout, columns, fixed, hidden
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.memory import DeploymentLimits
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import AllReduce, Experts
from corepipe.neuron.values import Value, WeightRole, WeightSpec

LIMITS = DeploymentLimits(
    max_model_len=2048, max_num_seqs=32, max_num_batched_tokens=512, block_size=32, max_blocks=2048
)
SMOLLM2 = Features(30, 576, HeadLayout(9, 3, 64), 1536, 49152)
"""The sizes of SmolLM2-135M."""
TINY = Features(8, 64, HeadLayout(4, 2, 16), 128, 256)
LLAMA_70B = Features(80, 8192, HeadLayout(64, 8, 128), 28672, 128256)


def llama(sizes: Features = SMOLLM2, fmt: str = "bf16") -> Graph:
    """Returns the Graph of a Llama with 2048 positions."""
    return replace(build(sizes, fmt), max_positions=2048)


def whole(graph: Graph) -> tuple[Program, ...]:
    """Returns the Program of a single core."""
    return compile_graph(graph, Placement())


def pipeline(graph: Graph, stages: int) -> tuple[Program, ...]:
    """Returns the Programs of stages with equally many layers each."""
    return compile_graph(graph, Placement(stages), weights_of_layers=[0, *[1] * graph.num_layers, 0])


def with_all_reduce(programs: tuple[Program, ...], width: int, degree: int) -> tuple[Program, ...]:
    """Returns the Programs of `degree` ranks that each run the single Program with an all-reduce appended."""
    (program,) = programs
    x = Value(10_000, hidden(width))
    ops = (*program.ops, AllReduce(0, x, x))
    return tuple(replace(program, core=rank, rank=rank, ops=ops) for rank in range(degree))


def experts(count: int, top_k: int, width: int, ffn: int) -> Experts:
    """Returns a mixture of experts of these sizes."""
    each, stream, middle = fixed("experts", count), hidden(width), columns("expert_ffn", ffn)
    x, routing = Value(0, stream), Value(1, each)
    axes = {"gate": (each, middle, stream), "up": (each, middle, stream), "down": (each, stream, middle)}
    weights = {name: WeightSpec(name, of, WeightRole.MATRIX) for name, of in axes.items()}
    return Experts(0, Value(2, stream), x, routing, **weights, top_k=top_k, ffn=ffn)
