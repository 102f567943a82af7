"""Every head and column is on exactly one rank, every layer in one stage, and impossible degrees are
refused."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import heads

from corepipe.errors import UserError
from corepipe.kernels.packing import PANEL
from corepipe.neuron.axes import (
    PAD,
    VOCABULARY_PANEL,
    Axis,
    AxisShard,
    HeadLayout,
    columns,
    experts,
    hidden,
    vocabulary,
)
from corepipe.neuron.compile.placement import Placement, cut_layers, local_heads, shard_axes


def axes_of(layout: HeadLayout, ffn: int = 1536, vocab: int = 49152) -> list[Axis]:
    return [hidden(576), layout.queries(), layout.keys(), columns("ffn", ffn), vocabulary(vocab)]


def head_numbers(shard: AxisShard, head_dim: int) -> list[int]:
    """Returns the model's number of each local head, PAD for zeros."""
    numbers = []
    for start, length in shard.ranges:
        for i in range(length // head_dim):
            numbers.append(PAD if start == PAD else start // head_dim + i)
    return numbers


@pytest.mark.parametrize("flag", ["pipeline", "tensor", "data", "expert"])
def test_degrees_below_one_name_their_flag(flag):
    with pytest.raises(UserError, match=f"--{flag} must be at least 1, not 0") as error:
        Placement(**{flag: 0})
    assert error.value.param == flag


@pytest.mark.parametrize(("tensor", "expert", "cores"), [(1, 3, 3), (2, 2, 2), (2, 6, 6), (4, 1, 4)])
def test_experts_are_divided_among_the_cores_of_a_stage(tensor, expert, cores):
    placement = Placement(pipeline=2, tensor=tensor, data=2, expert=expert)
    assert (placement.cores_per_stage, placement.cores) == (cores, 4 * cores)
    numbers = [placement.core(stage, rank) for stage in range(2) for rank in range(cores)]
    assert numbers == list(range(placement.cores_per_replica))


@pytest.mark.parametrize(("tensor", "expert"), [(2, 3), (4, 2), (3, 4)])
def test_ranks_that_cannot_all_have_experts_are_refused(tensor, expert):
    with pytest.raises(UserError, match=f"--expert {expert}: .* choose a multiple of it") as error:
        Placement(tensor=tensor, expert=expert)
    assert error.value.param == "expert"


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 4), st.integers(1, 64))
def test_each_expert_has_one_core_and_the_rest_is_cut_as_without(count, tensor, groups):
    """Shares are contiguous and differ by one; further groups of ranks have the parts of the first."""
    expert = tensor * groups
    assume(1 < expert <= count)
    layout = HeadLayout(8, 4, 16)
    axes = axes_of(layout)
    shards = shard_axes([experts(count), *axes], tensor, expert=expert)
    parts = [shard[experts(count)].ranges for shard in shards]
    starts = [start for ((start, _),) in parts]
    sizes = [size for ((_, size),) in parts]
    assert len(shards) == expert
    assert starts == [sum(sizes[:core]) for core in range(expert)]
    assert (sum(sizes), max(sizes) - min(sizes) <= 1, min(sizes) >= 1) == (count, True, True)
    plain = shard_axes(axes, tensor)
    assert [{axis: shard[axis] for axis in axes} for shard in shards] == list(plain) * groups


def test_kv_heads_are_copied_where_ranks_outnumber_them():
    layout = HeadLayout(10, 2, 16)
    shards = shard_axes(axes_of(layout), 4)
    assert [head_numbers(s[layout.queries()], 16) for s in shards] == [
        [0, 1, PAD],
        [2, 3, 4],
        [5, 6, PAD],
        [7, 8, 9],
    ]
    assert [head_numbers(s[layout.keys()], 16) for s in shards] == [[0], [0], [1], [1]]
    assert local_heads(layout, 4) == HeadLayout(3, 1, 16, copied=True)


def test_each_query_head_gets_a_kv_head_where_nothing_divides():
    layout = HeadLayout(9, 3, 64)
    shards = shard_axes(axes_of(layout), 4)
    assert [head_numbers(s[layout.queries()], 64) for s in shards] == [
        [0, 1, PAD],
        [2, 3, PAD],
        [4, 5, PAD],
        [6, 7, 8],
    ]
    assert [head_numbers(s[layout.keys()], 64) for s in shards] == [
        [0, 0, PAD],
        [0, 1, PAD],
        [1, 1, PAD],
        [2, 2, 2],
    ]
    assert shards[0][layout.queries()].ranges == ((0, 128), (PAD, 64))


@given(heads(), st.integers(1, 16))
@settings(derandomize=True)
def test_each_query_head_has_one_rank_and_its_own_keys(layout, tensor):
    assume(tensor <= layout.heads)
    local = local_heads(layout, tensor)
    owners = []
    for shard in shard_axes(axes_of(layout), tensor):
        q = head_numbers(shard[layout.queries()], layout.head_dim)
        kv = head_numbers(shard[layout.keys()], layout.head_dim)
        assert (len(q), len(kv)) == (local.heads, local.kv_heads)
        assert any(head != PAD for head in q)
        if layout.kv_heads % tensor == 0:
            assert local == HeadLayout(layout.heads // tensor, layout.kv_heads // tensor, layout.head_dim)
        for i, head in enumerate(q):
            if head != PAD:
                assert kv[i // (local.heads // local.kv_heads)] == head // (layout.heads // layout.kv_heads)
                owners.append(head)
    assert sorted(owners) == list(range(layout.heads))


@given(st.integers(8, 5000), st.integers(1, 8))
@settings(derandomize=True)
def test_columns_are_cut_into_even_contiguous_parts(width, tensor):
    layout = HeadLayout(8, 8, 8)
    parts = [s[columns("ffn", width)] for s in shard_axes(axes_of(layout, ffn=width), tensor)]
    assert all(part.contiguous and part.width > 0 for part in parts)
    end = 0
    for part in parts:
        assert part.ranges[0][0] == end
        end += part.width
    assert end == width
    if width >= 64 * tensor:
        assert all(part.width % 64 == 0 for part in parts[:-1])
        assert max(part.width for part in parts) - min(part.width for part in parts) < 128


@pytest.mark.parametrize(("width", "tensor", "widest"), [(768, 8, 96), (11008, 32, 344), (11008, 24, 464)])
def test_columns_without_int8_groups_are_cut_more_evenly(width, tensor, widest):
    layout = HeadLayout(32, 32, 8)
    parts = [s[columns("ffn", width)] for s in shard_axes(axes_of(layout, ffn=width), tensor, grouped=False)]
    assert max(part.width for part in parts) == widest
    assert sum(part.width for part in parts) == width


def test_vocabulary_is_cut_between_panels():
    layout = HeadLayout(8, 8, 8)
    parts = [s[vocabulary(100)].ranges for s in shard_axes(axes_of(layout, vocab=100), 3)]
    assert parts == [((0, 32),), ((32, 32),), ((64, 36),)]


HEADS = HeadLayout(9, 3, 64)


@pytest.mark.parametrize(
    ("flag", "degree", "limit", "cut"),
    [
        ("tensor", 10, "9 attention heads", lambda: shard_axes(axes_of(HEADS), 10)),
        ("tensor", 6, "5 ffn", lambda: shard_axes(axes_of(HEADS, ffn=5, vocab=100), 6)),
        ("tensor", 8, "4 vocab", lambda: shard_axes(axes_of(HEADS, ffn=100, vocab=4), 8)),
        ("expert", 9, "8 experts; choose at most 8", lambda: shard_axes([experts(8)], 1, expert=9)),
        ("pipeline", 3, "2 layers; choose at most 2", lambda: cut_layers([0, 1, 1, 0], 3)),
    ],
)
def test_too_large_degrees_are_refused_with_the_limit(flag, degree, limit, cut):
    with pytest.raises(UserError, match=f"--{flag} {degree}: the model has {limit}") as error:
        cut()
    assert error.value.param == flag


@given(
    st.lists(st.integers(0, 20), min_size=3, max_size=10).flatmap(
        lambda weights: st.tuples(st.just(weights), st.integers(1, len(weights) - 2))
    )
)
@settings(derandomize=True)
def test_the_heaviest_stage_is_as_light_as_can_be(case):
    weights, stages = case
    layers = len(weights) - 2

    def heaviest(bounds):
        edges = [0, *bounds, layers]
        sums = [sum(weights[1:-1][a:b]) for a, b in pairwise(edges)]
        sums[0] += weights[0]
        sums[-1] += weights[-1]
        return max(sums)

    cut = cut_layers(weights, stages)
    assert [layer for stage in cut for layer in stage] == list(range(layers))
    assert all(len(stage) > 0 for stage in cut)
    best = min(heaviest(bounds) for bounds in combinations(range(1, layers), stages - 1))
    assert heaviest([stage.start for stage in cut[1:]]) == best


def test_a_rank_has_whole_packed_panels_of_the_head() -> None:
    """The graph's constant does not import the kernels': the two must stay equal."""
    assert VOCABULARY_PANEL % PANEL == 0
