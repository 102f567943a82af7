"""An Op defines its inputs, state, cost and refusals; rules that it does not define are refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

import pytest

from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron import ops
from corepipe.neuron.axes import columns, fixed, hidden
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS, DType
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import Add, AllReduce, LayerNorm, Linear, Op, RMSNorm, TokenEmbedding
from corepipe.neuron.ops.base import SameWidthOp, _values_of, _weights_of
from corepipe.neuron.timing.tables import PROBE
from corepipe.neuron.values import (
    TOKENS,
    GraphInput,
    GraphOutput,
    InputKind,
    OutputKind,
    Value,
    WeightRole,
    WeightSpec,
    stored_bytes,
    weight_bytes,
)
from tests.reference.ops import compute

STREAM = hidden(64)
KINDS = sorted((kind for kind in vars(ops).values() if isinstance(kind, type) and kind is not Op), key=str)
KINDS = [kind for kind in KINDS if issubclass(kind, Op)]


@dataclass(frozen=True, slots=True)
class Concat(SameWidthOp):
    """An Op that reads any number of values, as a new one may."""

    xs: tuple[Value, ...]
    by: Value | None = None


def graph(*inner: Op, out: Value | None = None) -> Graph:
    """Returns a graph of one layer that starts with an embedding, value 0."""
    table = WeightSpec("embed", (fixed("tokens", 8), STREAM), WeightRole.EMBEDDING)
    made = (TokenEmbedding(-1, Value(0, STREAM), table), *inner)
    return Graph(
        name="some",
        format=FORMATS["bf16"],
        ops=made,
        inputs=(GraphInput(InputKind.TOKENS, TOKENS),),
        outputs=(GraphOutput(out or made[-1].out, OutputKind.HIDDEN),),
        num_layers=1,
        vocab_size=8,
        max_positions=8,
    )


def linear(number: int, x: Value, axis: object) -> Linear:
    weight = WeightSpec(f"w{number}", (axis, x.axis), WeightRole.MATRIX)
    return Linear(0, Value(number, axis), x, weight)


def test_values_in_tuples_are_made_local_too() -> None:
    """The compiler gives each rank's Op the rank's Values, in whichever fields they are."""
    start = Value(0, STREAM)
    halves = [linear(n, start, columns("ffn", 256)) for n in (1, 2)]
    both = Concat(0, Value(3, columns("ffn", 256)), (halves[0].out, halves[1].out), halves[0].out)
    assert both.inputs == (halves[0].out, halves[1].out, halves[0].out)
    (_, rank) = compile_graph(graph(*halves, both), Placement(tensor=2))
    (own,) = (op for op in rank.ops if isinstance(op, Concat))
    assert {value.width for value in own.inputs} == {128}
    assert [value.id for value in own.xs] == [op.out.id for op in rank.ops if isinstance(op, Linear)]
    assert replace(own, **own._mapped(lambda _value: start)).inputs == (start,) * 3


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_an_op_reads_follows_from_its_fields(kind: type[Op]) -> None:
    """Every field whose annotation names Values or weights is read."""
    for what, found in (("Value", _values_of(kind)), ("WeightSpec", _weights_of(kind))):
        named = [f.name for f in fields(kind) if re.search(rf"\b{what}\b", str(f.type)) and f.name != "out"]
        assert list(found) == named


def test_what_a_kind_of_op_does_not_say_is_refused() -> None:
    """An Op without a cost, a rule for ranks or a kernel fails by name, never with a default."""
    op, fmt = Concat(0, Value(1, STREAM), (Value(0, STREAM),)), FORMATS["bf16"]
    plain = Op(0, Value(1, STREAM))
    assert plain.refuses(fmt) == "has no kernel"
    assert graph(op).refusal() == "Concat of layer 0 has no kernel"
    for call in (lambda: op.cost(fmt, PROBE), lambda: compute(op, None), lambda: op.emit(None, None)):
        with pytest.raises(NotImplementedError, match="Concat has no "):
            call()
    with pytest.raises(NotImplementedError, match="Op has no rule for tensor parallelism"):
        compile_graph(graph(plain), Placement())


def cut_norm(kind: str) -> Graph:
    up = linear(1, Value(0, STREAM), columns("ffn", 256))
    gain = WeightSpec("gain", (up.out.axis,), WeightRole.VECTOR)
    norms = {
        "rms": RMSNorm(0, Value(2, up.out.axis), up.out, gain, 1e-5),
        "layer": LayerNorm(0, Value(2, up.out.axis), up.out, gain, None, 1e-5),
        "layer without gain": LayerNorm(0, Value(2, up.out.axis), up.out, None, None, 1e-5),
    }
    return graph(up, norms[kind])


@pytest.mark.parametrize("kind", ["rms", "layer", "layer without gain"])
def test_no_norm_is_cut_across_what_it_norms(kind: str) -> None:
    compile_graph(cut_norm(kind), Placement())
    with pytest.raises(UserError, match="normalises over all of ffn; use --pipeline"):
        compile_graph(cut_norm(kind), Placement(tensor=2))


def test_an_op_that_loses_a_cut_axis_must_say_that_it_sums() -> None:
    up = linear(1, Value(0, STREAM), columns("ffn", 256))
    lost = Concat(0, Value(2, STREAM), (up.out,))
    with pytest.raises(UserError, match="Concat needs all of ffn"):
        compile_graph(graph(up, lost), Placement(tensor=2))
    down = linear(2, up.out, STREAM)
    ranks = compile_graph(graph(up, down, Add(0, Value(3, STREAM), down.out, down.out)), Placement(tensor=2))
    assert [type(op) for op in ranks[1].ops[-3:]] == [Linear, AllReduce, Add]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_bytes_of_weights(fmt) -> None:
    """A matrix has the bytes of its format, in int8 with a scale per row; tables, and formats that no core
    holds, have those of the compute dtype."""
    scales = 3 * 4 if fmt.weights is DType.INT8 else 0
    each = fmt.compute.bytes if fmt.weights is DType.INT4 else fmt.weights.bytes
    assert weight_bytes((3, 4), WeightRole.MATRIX, fmt) == 12 * each + scales
    assert sum(stored_bytes((2, 3, 4), WeightRole.MATRIX, fmt).values()) == 24 * each + 2 * scales
    assert weight_bytes((3, 4), WeightRole.EMBEDDING, fmt) == 12 * fmt.compute.bytes
    assert weight_bytes((5,), WeightRole.VECTOR, fmt) == 20


def test_a_layer_reads_its_chosen_experts_alone() -> None:
    """Mixtral uses 2 of 8 experts."""
    for op in architecture("mixtral-8x7b").graph(FORMATS["bf16"]).ops:
        if type(op).__name__ == "Experts":
            assert op.read_bytes(FORMATS["bf16"]) == 2 * 3 * 4096 * 14336 * 2
            assert replace(op, top_k=8).read_bytes(FORMATS["bf16"]) == 8 * 3 * 4096 * 14336 * 2
            return
