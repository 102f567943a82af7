"""Programs are consistent: values are made before they are read, transfers match, shards cover the
weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from device_graphs import LLAMA_70B, SMOLLM2, TINY, llama
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Features, build, graphs

from corepipe.errors import UserError
from corepipe.neuron.axes import AxisKind, columns, cut
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import AllGather, AllReduce, Linear, Receive, Send
from corepipe.neuron.timing.description import describe
from corepipe.neuron.values import TOKENS, WeightSpec


def placements(graph: Graph) -> st.SearchStrategy[Placement]:
    limit = min(graph.attention_heads, 8)
    return st.builds(Placement, pipeline=st.integers(1, graph.num_layers), tensor=st.integers(1, limit))


CASES = graphs().flatmap(lambda graph: st.tuples(st.just(graph), placements(graph)))


@given(CASES)
@settings(derandomize=True, deadline=None, max_examples=25)
def test_programs_hold_together(case):
    graph, placement = case
    programs = compile_graph(graph, placement)
    assert [p.core for p in programs] == list(range(placement.cores_per_replica))
    for program in programs:
        assert program.core == placement.core(program.stage, program.rank)
        assert [v.id for v in program.values] == list(range(len(program.values)))
        made = set()
        for op in program.ops:
            assert set(op.inputs) <= made
            made.add(op.out)
        assert made == set(program.values)
        used = {spec.name for op in program.ops for spec in op.weights}
        assert used == set(program.shards)
    assert [layer for p in programs[:: placement.tensor] for layer in p.layers] == list(
        range(graph.num_layers)
    )
    assert programs[-1].ops[-1].out.width == graph.vocab_size


@given(CASES)
@settings(derandomize=True, deadline=None, max_examples=25)
def test_transfers_and_collectives_match(case):
    graph, placement = case
    programs = compile_graph(graph, placement)
    for program in programs:
        for op in program.ops:
            if isinstance(op, (Send, Receive)):
                step = 1 if isinstance(op, Send) else -1
                assert op.peer == placement.core(program.stage + step, program.rank)
    for source, target in zip(programs, programs[placement.tensor :], strict=False):
        assert carried(source, Send) == carried(target, Receive)
    for stage in range(placement.pipeline):
        ranks = programs[placement.core(stage, 0) : placement.core(stage + 1, 0)]
        assert len({tuple(collectives(rank)) for rank in ranks}) == 1


def carried(program: Program, kind: type) -> list[tuple]:
    return [(op.out.axis, op.out.width, op.out.rows) for op in program.ops if isinstance(op, kind)]


def collectives(program: Program) -> list[tuple]:
    kinds = (AllReduce, AllGather)
    return [(type(op), op.layer, op.out.width) for op in program.ops if isinstance(op, kinds)]


@given(CASES)
@settings(derandomize=True, deadline=None, max_examples=25)
def test_shards_cover_every_weight(case):
    """Weights with a split axis occur once over the ranks, others on every rank, KV heads where they are
    used."""
    graph, placement = case
    programs = compile_graph(graph, placement)
    for spec in graph.weights():
        stages = {p.stage for p in programs if spec.name in p.shards}
        assert stages
        for stage in stages:
            ranks = [p for p in programs if p.stage == stage and spec.name in p.shards]
            check_cover(spec, ranks, placement.tensor)


def check_cover(spec: WeightSpec, ranks: list[Program], tensor: int) -> None:
    numbers = np.arange(1, 1 + np.prod(spec.shape)).reshape(spec.shape)
    seen = Counter()
    for program in ranks:
        part = cut(numbers, program.shards[spec.name].axes)
        assert part.shape == program.shards[spec.name].shape
        seen.update(part[part > 0].tolist())
    copies = set(seen.values())
    assert len(seen) == numbers.size
    if any(axis.kind is AxisKind.KV_HEADS for axis in spec.axes):
        assert max(copies) <= ranks[0].head_layouts[0].kv_heads * tensor
    elif any(axis.is_cut for axis in spec.axes):
        assert copies == {1}
    else:
        assert copies == {len(ranks)}


def test_ranks_with_parts_as_wide_share_their_ops():
    ranks = compile_graph(llama(LLAMA_70B), Placement(tensor=8))
    assert all(rank.ops is ranks[1].ops for rank in ranks[1:])
    up = next(op for op in ranks[0].ops if op.out.axis.name == "ffn")
    starts = [rank.shards[up.weight.name].axes[0].ranges for rank in ranks]
    assert starts == [((3584 * rank, 3584),) for rank in range(8)]


def test_a_value_read_later_is_forwarded_hop_by_hop():
    programs = compile_graph(build(Features(layers=3, skip=True)), Placement(pipeline=3))
    assert [len(carried(p, Receive)) for p in programs] == [0, 2, 2]
    assert [len(carried(p, Send)) for p in programs] == [2, 2, 0]


def test_the_head_weighs_on_the_last_stage():
    programs = compile_graph(llama(SMOLLM2), Placement(pipeline=2))
    assert [len(p.layers) for p in programs] == [19, 11]
    by_hand = compile_graph(llama(SMOLLM2), Placement(pipeline=2), weights_of_layers=[0, *[1] * 30, 0])
    assert [len(p.layers) for p in by_hand] == [15, 15]


def test_description_of_smollm2_in_int8():
    graph = llama(SMOLLM2, "int8")
    (core,) = describe(compile_graph(graph, Placement()))
    matrices = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576) + 49152 * 576
    scales = 30 * (576 + 192 + 192 + 576 + 1536 + 1536 + 576) + 49152
    assert core == {
        "core": 0,
        "stage": 0,
        "rank": 0,
        "layers": [0, 29],
        "heads": 9,
        "kv_heads": 3,
        "weight_bytes": {"bf16": 49152 * 576 * 2, "fp32": 4 * (scales + 61 * 576), "int8": matrices},
        "kv_bytes_per_token": 30 * 2 * 3 * 64 * 2,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ops: (*ops[:-1], replace(ops[-1], layer=0)), "order of their layers"),
        (lambda ops: ops[1:], "no op has made"),
        (lambda ops: tuple(replace(op, layer=op.layer - (op.layer == 1)) for op in ops), "layer 0 has more"),
    ],
)
def test_broken_graphs(change, message):
    graph = llama(TINY)
    with pytest.raises(ValueError, match=message):
        compile_graph(replace(graph, ops=change(graph.ops)), Placement())


def test_a_matrix_with_other_axes_than_its_values_is_refused():
    graph = llama(TINY)
    ops = tuple(
        replace(op, out=op.out._replace(axis=columns("ffn", 7)))
        if op.layer == 1 and op.out.axis.name == "ffn"
        else op
        for op in graph.ops
    )
    with pytest.raises(ValueError, match="weight has other axes than what it reads and makes"):
        compile_graph(replace(graph, ops=ops), Placement())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": ()}, "an op of layer -1 reads tokens, not declared"),
        ({"rows": (TOKENS,)}, "an op of layer 8 has rows logits, not declared"),
        ({"outputs": ()}, "declares no output"),
        ({"num_layers": TINY.layers + 2}, "logits is not made in the last layer or after it"),
    ],
)
def test_a_graph_declares_what_its_ops_have(changes, message):
    with pytest.raises(ValueError, match=message):
        compile_graph(replace(llama(TINY), **changes), Placement())


def test_a_linear_between_split_axes_is_refused():
    graph = llama(TINY)

    def relabel(op):
        if isinstance(op, Linear) and op.out.axis.kind is AxisKind.HIDDEN:
            ffn = columns("ffn", 128)
            weight = replace(op.weight, axes=(ffn, op.x.axis))
            return replace(op, out=op.out._replace(axis=ffn), weight=weight)
        return op

    with pytest.raises(UserError, match="cut along both"):
        compile_graph(replace(graph, ops=tuple(relabel(op) for op in graph.ops)), Placement(tensor=2))
