"""Heads of tasks on a model's hidden states: pooled vectors, or the scores of classes."""

from __future__ import annotations

from dataclasses import dataclass

from corepipe.models.config import ModelConfig
from corepipe.models.families.layers import GraphBuilder
from corepipe.models.tasks import ClassScores, Dense, Head, TextVectors
from corepipe.neuron.axes import Axis, AxisKind, fixed, hidden
from corepipe.neuron.formats import Function
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import L2Norm, Linear, PoolingMode, ScaleRows, SequencePooling
from corepipe.neuron.values import WANTED, OutputKind, Value

EACH = "classifier"
"""The matrix that gives each token its classes, in every family."""


@dataclass(frozen=True, slots=True)
class HeadStep:
    """A matrix on the way to a result, its function, and a norm if it has one."""

    matrix: str
    function: Function
    bias: bool = True
    norm: str | None = None

    def put_on(self, b: GraphBuilder, x: Value) -> Value:
        """Appends the step to x."""
        made = b.activation(b.linear(x, self.matrix, hidden(x.width), self.bias), self.function)
        return made if self.norm is None else b.norm(made, self.norm)


@dataclass(frozen=True, slots=True)
class ClassHead:
    """A family's head of classes for a text or an image: one row of it, by `pooling`; steps on that row; then
    the classes' own matrix.

    token_steps: on every row, where tokens are classified. taught: for a model that was distilled from a
    teacher, the matrices of its first and second row.
    """

    steps: tuple[HeadStep, ...]
    classes: str
    pooling: PoolingMode = PoolingMode.FIRST
    token_steps: tuple[HeadStep, ...] = ()
    taught: tuple[str, str] | None = None


def put_on(b: GraphBuilder, x: Value, head: Head, classes: ClassHead | None) -> None:
    """Appends the Ops from the hidden states x, of all rows or the wanted ones, to the task's output.

    classes: the family's own head (None: it has none, and only vectors are possible).
    """
    if isinstance(head, TextVectors):
        b.give(_vectors(b, x, head), OutputKind.VECTOR)
    elif classes is None:
        raise ValueError("the family has no head of classes")
    else:
        b.give(_scores(b, x, head, classes), OutputKind.SCORES)


def vectors_of(graph: Graph, config: ModelConfig, head: Head) -> Graph:
    """Returns a decoder's graph with vectors of the wanted rows in place of its logits."""
    last = _before_logits(graph)
    kept = [op for op in graph.ops if op.out.id <= last.id]
    b = GraphBuilder(config, graph.max_positions, graph.ops[: len(kept)])
    b.layer = graph.num_layers
    put_on(b, last, head, None)
    return b.finish(graph.name, graph.format)


def hidden_width(graph: Graph) -> int:
    """Returns the width of the input of a decoder's logits, or of the first output where there are none."""
    return _before_logits(graph).width if graph.is_decoder else graph.outputs[0].value.width


def _before_logits(graph: Graph) -> Value:
    """Returns the input of the vocabulary's matrix, before a factor that belongs to the logits."""
    made = {op.out.id: op for op in graph.ops}
    head = next(op for op in graph.ops if isinstance(op, Linear) and op.out.axis.kind is AxisKind.VOCABULARY)
    before = made[head.x.id]
    return before.x if isinstance(before, ScaleRows) else head.x


def _scores(b: GraphBuilder, x: Value, head: ClassScores, classes: ClassHead) -> Value:
    labels = fixed("labels", head.labels)
    if head.taught:
        return _both(b, x, labels, classes)
    x = x if head.per_token else _pooled(b, x, classes.pooling)
    for step in classes.token_steps if head.per_token else classes.steps:
        x = step.put_on(b, x)
    return b.linear(x, EACH if head.per_token else classes.classes, labels, bias=True)


def _both(b: GraphBuilder, x: Value, labels: Axis, classes: ClassHead) -> Value:
    """Appends the mean of the scores of the class token and of the distillation token."""
    if classes.taught is None:
        raise ValueError("the family has no distillation token")
    of_class, of_teacher = classes.taught
    second = b.append(SequencePooling(b.layer, b.value(x.axis, WANTED), x, PoolingMode.SECOND))
    taught = b.linear(second, of_teacher, labels, bias=True)
    return b.scale(b.add(b.linear(b.select_rows(x), of_class, labels, bias=True), taught), 0.5)


def _vectors(b: GraphBuilder, x: Value, head: TextVectors) -> Value:
    pooled = _pooled(b, x, head.pooling)
    for step in head.steps:
        if isinstance(step, Dense):
            pooled = b.linear(pooled, f"{step.name}.linear", hidden(step.width), step.bias)
            pooled = pooled if step.function is None else b.activation(pooled, step.function)
        else:
            pooled = b.append(L2Norm(b.layer, b.like(pooled), pooled))
    return pooled


def _pooled(b: GraphBuilder, x: Value, mode: PoolingMode) -> Value:
    """Appends the pooled rows; the wanted row of an encoder's text is the first, of a decoder's the last."""
    if x.rows == WANTED:
        return x
    if mode is PoolingMode.FIRST:
        return b.select_rows(x)
    return b.append(SequencePooling(b.layer, b.value(x.axis, WANTED), x, mode))
