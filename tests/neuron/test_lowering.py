"""Fusions that the host does and must not do, and the buffers of values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Features, build, decoders

from corepipe.neuron.axes import HeadLayout, fixed, hidden
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.host.lowering import FusedAttention, FusedLinear, Plain, Step, assign_buffers, lower
from corepipe.neuron.ops import (
    Add,
    AllReduce,
    Attention,
    ElementwiseActivation,
    Function,
    GatedActivation,
    LayerNorm,
    Linear,
    Op,
    RMSNorm,
    Rope,
    ScaleRows,
    SelectRows,
    TokenEmbedding,
)
from corepipe.neuron.values import RopeSpec, Value, WeightRole, WeightSpec

some = settings(derandomize=True, deadline=None, max_examples=40)


def one_program(features: Features) -> Program:
    return compile_graph(build(features), Placement())[0]


def kinds(steps: list[Step]) -> list[type]:
    return [type(s.op) if isinstance(s, Plain) else type(s) for s in steps]


def parts(step: Step, program: Program) -> list[Op]:
    """Returns the Ops that a step computes."""
    if isinstance(step, Plain):
        return [step.op]
    if isinstance(step, FusedLinear):
        return [*step.linears, *followers(step, program), *([step.norm] if step.norm else [])]
    attention = step.op
    wanted = [step.wanted] if step.wanted else []
    turns = [op for op in program.ops if isinstance(op, Rope) and op.out in attention.inputs]
    norms = [n for n in (step.q_norm, step.k_norm) if n]
    return [attention, *(turns if step.rope else []), *norms, *wanted]


def followers(step: FusedLinear, program: Program) -> list[Op]:
    """Returns the Ops from the Linear's result to the step's."""
    found: list[Op] = []
    value = step.linears[0].out
    while step.out is not None and value != step.out:
        found.append(next(op for op in program.ops if value in op.inputs))
        value = found[-1].out
    return found


@pytest.mark.parametrize("head_norm", [False, True])
def test_a_llama_layer_is_five_steps(head_norm):
    steps = lower(one_program(Features(layers=3, head_norm=head_norm)).ops)
    assert kinds(steps) == [
        TokenEmbedding,
        *[FusedLinear, FusedAttention, FusedLinear, FusedLinear, FusedLinear] * 3,
        SelectRows,
        FusedLinear,
    ]
    qkv, attention, out, gate_up, down = steps[1:6]
    assert [len(s.linears) for s in (qkv, out, gate_up, down)] == [3, 1, 2, 1]
    assert [s.norm is not None for s in (qkv, out, gate_up, down)] == [True, False, True, False]
    assert [s.gated for s in (qkv, out, gate_up, down)] == [False, False, True, False]
    assert [s.residual is not None for s in (qkv, out, gate_up, down)] == [False, True, False, True]
    assert [attention.rope is not None, attention.q_norm is not None] == [True, head_norm]
    assert steps[-1].norm is not None


def test_a_reduced_sum_is_not_added_early():
    """Under tensor parallelism the residual is added after the AllReduce, not to each rank's part."""
    program = compile_graph(build(Features(layers=1)), Placement(tensor=2))[0]
    steps = lower(program.ops)
    assert kinds(steps)[1:-3] == [
        *[FusedLinear, FusedAttention, FusedLinear, AllReduce, Add],
        *[FusedLinear, FusedLinear, AllReduce, Add],
    ]
    assert all(s.residual is None for s in steps if isinstance(s, FusedLinear))


HIDDEN = 8


def value(i: int, width: int = HIDDEN) -> Value:
    return Value(i, hidden(width))


def linear(i: int, x: Value) -> Linear:
    weight = WeightSpec(f"w{i}", (hidden(HIDDEN), x.axis), WeightRole.MATRIX)
    return Linear(0, value(i), x, weight)


def norm(i: int, x: Value, width: int = HIDDEN) -> RMSNorm:
    return RMSNorm(0, value(i), x, WeightSpec(f"g{i}", (hidden(width),), WeightRole.VECTOR), 1e-5)


X = value(0)
TABLE = WeightSpec("table", (fixed("tokens", 4), hidden(HIDDEN)), WeightRole.EMBEDDING)
START = TokenEmbedding(0, X, TABLE)
LAST = SelectRows(0, value(99), value(9))
ROPE = RopeSpec((1.0,))
HALF_ROPE = RopeSpec((0.5,))


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        pytest.param(
            [norm(1, X), linear(2, value(1)), GatedActivation(0, value(9), value(1), value(2))],
            [RMSNorm, FusedLinear, GatedActivation],
            id="a norm that others read too",
        ),
        pytest.param([norm(1, X, 4), linear(9, value(1))], [RMSNorm, FusedLinear], id="a norm of heads"),
        pytest.param(
            [linear(1, X), Add(0, value(2), value(1), X), Add(0, value(9), value(1), value(2))],
            [FusedLinear, Add, Add],
            id="a product that others read too",
        ),
        pytest.param(
            [linear(1, X), Add(0, value(9), value(1), value(1))],
            [FusedLinear, Add],
            id="a product added to itself",
        ),
        pytest.param(
            [linear(1, X), norm(2, X, 4), Add(0, value(9), value(1), value(2))],
            [FusedLinear, RMSNorm, Add],
            id="a residual that is made later",
        ),
        pytest.param(
            [linear(1, X), GatedActivation(0, value(9), value(1), value(1))],
            [FusedLinear, GatedActivation],
            id="a value that gates itself",
        ),
        pytest.param(
            [linear(1, X), linear(2, X), GatedActivation(0, value(9), value(1), X)],
            [FusedLinear, GatedActivation],
            id="a gate beside a product that nobody reads",
        ),
        pytest.param(
            [linear(1, X), linear(2, X), GatedActivation(0, value(3), value(1), value(2)),
             Add(0, value(9), value(1), value(3))],
            [FusedLinear, GatedActivation, Add],
            id="a gate that others read too",
        ),
        pytest.param(
            [linear(1, X), linear(2, value(1)), GatedActivation(0, value(9), value(1), value(2))],
            [FusedLinear, FusedLinear, GatedActivation],
            id="a gate that makes its own partner",
        ),
        pytest.param(
            [linear(1, X), ElementwiseActivation(0, value(2), value(1), Function.GELU),
             Add(0, value(9), value(1), value(2))],
            [FusedLinear, ElementwiseActivation, Add],
            id="a function of what others read too",
        ),
        pytest.param(
            [linear(1, X), ScaleRows(0, value(2), value(1), 2.0), Add(0, value(9), value(1), value(2))],
            [FusedLinear, ScaleRows, Add],
            id="a factor of what others read too",
        ),
        pytest.param(
            [LayerNorm(0, value(1), X, None, None, 1e-5), linear(2, value(1)),
             Add(0, value(9), value(1), value(2))],
            [LayerNorm, FusedLinear],
            id="a layer norm that others read too",
        ),
    ],
)  # fmt: skip
def test_what_must_not_be_fused(ops, expected):
    steps = lower((START, *ops, LAST))
    assert kinds(steps) == [TokenEmbedding, *expected, SelectRows]
    linears = [s for s in steps if isinstance(s, FusedLinear)]
    assert all(s.norm is None and s.outer is None and not s.gated and s.function is None for s in linears)


def test_what_follows_a_linear_is_its_steps():
    """Beside queries, keys and values of one norm: a gated pair; and a Linear with a function, as in Phi."""
    normed = LayerNorm(0, value(1), X, None, None, 1e-5)
    q, gate, up, mlp, down = (linear(i, value(1)) for i in (2, 3, 4, 5, 8))
    pair = GatedActivation(0, value(6), gate.out, up.out, Function.GELU_TANH)
    function = ElementwiseActivation(0, value(7), mlp.out, Function.RELU)
    scaled = ScaleRows(0, value(10), down.out, 0.5)
    inner, outer = Add(0, value(11), value(7), scaled.out), Add(0, value(9), X, value(11))
    steps = lower((START, normed, q, gate, up, pair, mlp, function, down, scaled, inner, outer, LAST))
    assert kinds(steps) == [TokenEmbedding, FusedLinear, FusedLinear, FusedLinear, FusedLinear, SelectRows]
    lone, gated, with_function, added = (s for s in steps if isinstance(s, FusedLinear))
    assert all(s.norm is normed and s.x == X for s in (lone, gated, with_function, added))
    assert (lone.linears, lone.function, lone.out) == ((q,), None, None)
    assert (gated.linears, gated.function, gated.gated) == ((gate, up), Function.GELU_TANH, True)
    assert (with_function.linears, with_function.function, with_function.gated) == (
        (mlp,),
        Function.RELU,
        False,
    )
    assert (added.factor, added.residual, added.outer, added.out) == (0.5, value(7), X, value(9))


@pytest.mark.parametrize("two_norms", [False, True])
def test_a_layer_of_parallel_blocks_is_five_steps(two_norms):
    """In Phi and GPT-NeoX none of their Ops runs alone, and x is added with the last sum."""
    features = Features(layers=3, norms="layer", gated=False, function=Function.GELU, side_by_side=True)
    steps = lower(one_program(replace(features, two_norms=two_norms)).ops)
    assert kinds(steps) == [
        TokenEmbedding,
        *[FusedLinear, FusedAttention, FusedLinear, FusedLinear, FusedLinear] * 3,
        SelectRows,
        FusedLinear,
    ]
    last = [s for s in steps if isinstance(s, FusedLinear)][3::4][:3]
    assert all(s.residual is not None and s.outer is not None for s in last)


def test_constants_go_with_the_linears():
    """In Granite factors cost no pass over the values, except for the embedding's."""
    steps = lower(one_program(Features(layers=2, scales=(2.0, 0.5, 0.25))).ops)
    assert kinds(steps) == [
        *[TokenEmbedding, ScaleRows],
        *[FusedLinear, FusedAttention, FusedLinear, FusedLinear, FusedLinear] * 2,
        *[SelectRows, FusedLinear],
    ]
    factors = [s.factor for s in steps if isinstance(s, FusedLinear)]
    assert factors == [*[1.0, 0.5, 1.0, 0.5] * 2, 0.25]


def attention_ops(**changes: object) -> list[Op]:
    """Returns q, k, v from x; q and k rotated; attention."""
    heads = HeadLayout(2, 2, 4)
    q, k, v = (linear(i, X) for i in (1, 2, 3))
    turned_q, turned_k = (Rope(0, value(i), op.out, 4, ROPE) for i, op in ((4, q), (5, k)))
    attention = Attention(0, value(9), turned_q.out, turned_k.out, v.out, heads, 0.5)
    named = {"q": turned_q, "k": turned_k, "attention": attention} | changes
    return [q, k, v, named["q"], named["k"], named["attention"]]  # type: ignore[list-item]


def test_of_the_last_attention_wanted_rows_alone_are_computed():
    """In all families only the selection of rows reads its result and x."""
    first = norm(20, X)
    q, k, v, *rest = attention_ops()
    projections = [replace(op, x=first.out) for op in (q, k, v)]
    early = SelectRows(0, value(98), X)
    steps = lower((START, first, *projections, *rest, LAST, early, linear(97, LAST.out)))
    kv, made, attention, after = steps[1], steps[3], steps[4], steps[5]
    assert kinds(steps) == [TokenEmbedding, FusedLinear, SelectRows, FusedLinear, FusedAttention, FusedLinear]
    assert (kv.x, kv.linears, kv.norm) == (X, tuple(projections[1:]), first)
    assert (made.x, made.linears, made.norm) == (early.out, (projections[0],), first)
    assert (attention.wanted, attention.q, attention.writes) == (LAST, q.out, (LAST.out,))
    assert after.x == LAST.out


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="what the queries are made of is never selected"),
        pytest.param([SelectRows(0, value(98), X), linear(97, value(9))], id="others read all rows"),
        pytest.param([SelectRows(0, value(98), X), linear(97, value(1))], id="others read the queries"),
    ],
)
def test_an_attention_that_needs_all_rows(more):
    steps = lower((START, *attention_ops(), LAST, *more))
    assert all(step.wanted is None for step in steps if isinstance(step, FusedAttention))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"k": Rope(0, value(5), value(2), 4, HALF_ROPE)}, id="another rotation"),
        pytest.param({"k": Rope(0, value(5), value(2), 8, ROPE)}, id="another head size"),
        pytest.param(
            {n: Rope(0, value(at), value(x), 8, ROPE) for n, at, x in (("q", 4, 1), ("k", 5, 2))},
            id="another head size than the attention's",
        ),
        pytest.param({"k": Rope(0, value(5), value(4), 4, ROPE)}, id="a query that others read too"),
        pytest.param({"k": norm(5, value(2), 4)}, id="keys without a rotation"),
    ],
)
def test_rotations_that_must_stay(changes):
    steps = lower((START, *attention_ops(**changes), LAST))
    stay = RMSNorm if isinstance(changes["k"], RMSNorm) else Rope
    assert kinds(steps) == [TokenEmbedding, FusedLinear, Rope, stay, FusedAttention, SelectRows]
    assert steps[-2].rope is None


def test_an_attention_that_reads_one_value_twice():
    ops = attention_ops()
    same = replace(ops[-1], k=ops[3].out)
    assert Rope in kinds(lower((START, *ops[:4], same, LAST)))


def programs_of(graph, data) -> tuple[Program, ...]:
    tensor = data.draw(st.integers(1, min(graph.attention_heads, 4)))
    return compile_graph(graph, Placement(data.draw(st.integers(1, graph.num_layers)), tensor))


@given(decoders(), st.data())
@some
def test_every_op_is_computed_and_nothing_is_read_before_it_is_made(graph, data):
    for program in programs_of(graph, data):
        steps = lower(program.ops)
        done = [op for step in steps for op in parts(step, program)]
        assert {id(op) for op in done} == {id(op) for op in program.ops}
        again = [op for op in done if not isinstance(op, (RMSNorm, LayerNorm))]
        assert len({id(op) for op in again}) == len(again)
        made: set[int] = set()
        for step in steps:
            assert {v.id for v in step.reads} <= made
            made |= {v.id for v in step.writes}


@given(decoders(), st.data())
@some
def test_buffers_never_alias_a_live_value(graph, data):
    for program in programs_of(graph, data):
        steps = lower(program.ops)
        widths, buffers = assign_buffers(steps)
        holds: dict[int, int] = {}
        for step in steps:
            added = step.added if isinstance(step, FusedLinear) else ()  # the sum may overwrite one of them
            read = {buffers[v.id] for v in step.reads if v not in added or v == step.x}
            written = [buffers[v.id] for v in step.writes]
            assert all(holds[buffers[v.id]] == v.id for v in step.reads)
            assert len(set(written)) == len(written)
            assert not read & set(written)
            assert all(widths[buffers[v.id]] == v.width for v in (*step.reads, *step.writes))
            holds |= {buffers[v.id]: v.id for v in step.writes}
        end = program.ops[-1].out
        assert end.id not in buffers or holds[buffers[end.id]] == end.id


def test_a_residual_that_nobody_reads_again_gives_its_buffer_to_the_sum():
    steps = lower(one_program(Features(layers=2)).ops)
    _, buffers = assign_buffers(steps)
    sums = [step for step in steps if isinstance(step, FusedLinear) and step.residual is not None]
    assert sums
    assert all(buffers[step.out.id] == buffers[step.residual.id] for step in sums)


def test_memory_does_not_grow_with_the_layers():
    few, many = (assign_buffers(lower(one_program(Features(layers=n)).ops))[0] for n in (2, 20))
    assert few == many
