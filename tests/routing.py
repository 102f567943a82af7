"""Mixtures in rounded numbers against their twin: both take the same experts.

Where two scores are nearly equal, the order of a sum decides which expert a row takes, and what follows is
as far from the other result as two experts are.  So the twin goes by the scores that the kernels made, once
its own have been seen to be as near to them as rounding leaves them: experts differ nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.graph import Graph
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.ops import Experts, Linear, Op
from corepipe.neuron.step import Executor, StepInputs
from corepipe.neuron.values import GraphOutput, OutputKind, Value
from tests.reference.core import Run
from tests.reference.ops import compute
from tests.support import logits


class Routers:
    """The choices of a graph's routers by the kernels, which a reference executor follows.

    executor: of a graph, that the scores are read of.  bound: how far scores may be from the twin's, as a
    share of the largest of the batch: what they are sums of is as large in every row.
    """

    def __init__(self, graph: Graph, executor: Callable[[Graph], Executor], bound: float) -> None:
        routings = [op.routing for op in graph.ops if isinstance(op, Experts)]
        self._executors = {name_of(graph.ops, value): executor(up_to(graph, value)) for value in routings}
        self._scores: dict[str, F32] = {}
        self._bound = bound

    def run(self, inputs: StepInputs) -> None:
        """The batch that the twin computes next."""
        self._scores = {name: logits(one, inputs) for name, one in self._executors.items()}

    def programs(self, graph: Graph) -> list[Program]:
        """For a twin of the whole graph on one core, that goes by these scores."""
        return [replace(p, ops=tuple(map(self._followed, p.ops))) for p in compile_graph(graph, Placement())]

    def take(self, name: str, own: F32) -> F32:
        """The kernels' scores; fails where the twin's are not as near."""
        given = self._scores[name]
        assert np.abs(given - own).max() <= self._bound * np.abs(own).max(), name
        return given

    def _followed(self, op: Op) -> Op:
        if not isinstance(op, Linear) or op.weight.name not in self._executors:
            return op
        return Followed(op.layer, op.out, op.x, op.weight, op.bias, self)


@dataclass(frozen=True, slots=True)
class Followed(Linear):
    """A router whose scores are the kernels'."""

    routers: Routers | None = None


@compute.register
def _(op: Followed, at: Run) -> F32:
    assert op.routers is not None
    return op.routers.take(op.weight.name, compute.dispatch(Linear)(op, at))


def up_to(graph: Graph, value: Value) -> Graph:
    """The part of a graph that ends with the Op that makes a value, and gives that."""
    end = next(number for number, op in enumerate(graph.ops) if op.out == value)
    ops, output = graph.ops[: end + 1], GraphOutput(value, OutputKind.HIDDEN)
    return replace(graph, ops=ops, outputs=(output,), num_layers=ops[-1].layer + 1)


def name_of(ops: tuple[Op, ...], value: Value) -> str:
    """The weight of the matrix that makes a value."""
    (maker,) = (op for op in ops if op.out == value)
    assert isinstance(maker, Linear)
    return maker.weight.name
