"""The cost model equals hand-computed times, and keeps its laws whatever its numbers are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from device_graphs import LLAMA_70B, SMOLLM2, TINY, experts, llama, pipeline, whole, with_all_reduce
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Features

from corepipe.models.registry import architecture
from corepipe.neuron.axes import HeadLayout, hidden
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.constants import IDEAL, Constants
from corepipe.neuron.chips.engines import Cost
from corepipe.neuron.chips.hardware import ENGINES, GIB
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.rates import Mesh, core_rates, ring_steps, sharing_of
from corepipe.neuron.compile.compiler import compile_for_timing, compile_graph
from corepipe.neuron.compile.placement import Placement, cut_layers
from corepipe.neuron.formats import FORMATS, DType
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import AllReduce, Attention, ExpertRange, GatherSlots, Linear
from corepipe.neuron.ops.costs import matrix_cost
from corepipe.neuron.step import AdapterKind, AdapterRows
from corepipe.neuron.timing.balance import stage_weights
from corepipe.neuron.timing.cost import CostModel, LimitingResource, StepShape
from corepipe.neuron.values import TOKENS

INF2 = instance("inf2.48xlarge")
ASYNC = PROFILES["async"]
SHARE = 410 * GIB
"""Bytes per second of an inf2 core's memory, by its data sheet."""

SHAPES = st.builds(
    StepShape.of,
    st.lists(st.tuples(st.integers(0, 2048), st.integers(1, 600)), min_size=1, max_size=8),
    st.integers(0, 40),
)


def test_shape_of_chunks():
    shape = StepShape.of([(10, 1), (0, 4)], 2)
    assert shape == StepShape(counts=(5, 2), sequences=2, kv_tokens=15, attended=11 + 1 + 2 + 3 + 4)
    assert StepShape.of([(99, 1)] * 3, 3) == StepShape.decode(3, 100)


@pytest.mark.parametrize(
    ("shape", "bound", "least"),
    [
        (StepShape.decode(1, 1), LimitingResource.WEIGHTS, 2 * (30 * 3_538_944 + 49152 * 576) / SHARE),
        (StepShape.of([(0, 2048)], 1), LimitingResource.COMPUTE, 2 * 30 * 3_538_944 * 2048 / 92e12),
        (StepShape.decode(64, 8000), LimitingResource.KV, 64 * 8000 * 23_040 / SHARE),
    ],
    ids=["one token", "a long prompt", "many long contexts"],
)
def test_what_bounds_a_step(shape, bound, least):
    """135M weights of bf16 at the memory's speed, the arithmetic, or keys and values; and little else."""
    model = CostModel(whole(llama()), instance("inf2.xlarge"), ASYNC, constants=IDEAL)
    assert model.explain(0, shape).bottleneck is bound
    assert model.seconds(0, shape) > least
    assert bound is not LimitingResource.WEIGHTS or model.seconds(0, shape) < 1.1 * least


def test_collectives_can_be_the_bottleneck():
    far = replace(INF2.chip, hop_seconds=1e-2)
    ranks = with_all_reduce(whole(llama(TINY)), 64, 8)
    model = CostModel(ranks, replace(INF2, chip=far), ASYNC)
    assert model.explain(0, StepShape.decode(1, 10)).bottleneck is LimitingResource.COLLECTIVES


def test_all_reduce_is_two_exchanges_over_the_longest_way():
    """8 cores on 4 chips of the ring: 3 hops; each chip's link is shared by its two cores.

    12.8 kB of payload are 1/82 of what goes around the ring, in 7 steps of one hop each.
    """
    alone = CostModel(whole(llama(TINY)), INF2, ASYNC, constants=IDEAL)
    ranks = CostModel(with_all_reduce(whole(llama(TINY)), 64, 8), INF2, ASYNC, constants=IDEAL)
    shape = StepShape.decode(100, 10)
    moved = 2 * 7 / 8 * 100 * 64 * 2 / (192 * GIB / 2)
    ring = 2 * 7 * 1.5e-6 * 100 * 64 * 2 / 2**20
    extra = ranks.seconds(0, shape) - alone.seconds(0, shape)
    assert extra == pytest.approx(2 * 3 * 1.5e-6 + moved + ring)


def test_a_collective_has_a_floor():
    constants = replace(IDEAL, collective_seconds=1.0)
    ranks = CostModel(with_all_reduce(whole(llama(TINY)), 64, 2), INF2, ASYNC, constants=constants)
    assert ranks.explain(0, StepShape.decode(1, 1)).seconds[LimitingResource.COLLECTIVES] == pytest.approx(
        2.0, rel=1e-3
    )


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    "name", ["inf1.xlarge", "inf2.48xlarge", "trn1.2xlarge", "trn2.3xlarge", "trn3.48xlarge"]
)
def test_the_table_agrees_with_the_ops(name, fmt):
    """`explain` adds the Ops one by one, `seconds` looks them up."""
    model = CostModel(
        whole(llama(Features(3, 576, SMOLLM2.heads, 1536, 49152, window=100), fmt)), instance(name), ASYNC
    )
    for shape in (
        StepShape.decode(1, 300),
        StepShape.decode(32, 50),
        StepShape.of([(0, 63)], 0),
        StepShape.of([(0, 64), (5, 1)], 2),
        StepShape.of([(512, 512)], 1),
        StepShape.of([(0, 4096)], 4096),
    ):
        assert model.seconds(0, shape) == pytest.approx(model.explain(0, shape).total, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(SHAPES, SHAPES)
def test_more_work_is_never_faster(a, b):
    model = CostModel(whole(llama(TINY)), instance("inf2.xlarge"), ASYNC)
    both = StepShape(
        (a.rows + b.rows, a.logit_rows + b.logit_rows),
        a.sequences + b.sequences,
        a.kv_tokens + b.kv_tokens,
        a.attended + b.attended,
    )
    assert model.seconds(0, both) >= max(model.seconds(0, a), model.seconds(0, b)) > 0
    assert model.seconds(0, both) == pytest.approx(model.explain(0, both).total, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(SHAPES)
def test_more_stages_never_slow_the_slowest(shape):
    """Each inf2 core has its own memory, so the work of one core does not slow another."""
    graph = llama(TINY)
    slowest = [max(CostModel(pipeline(graph, n), INF2, ASYNC).stage_seconds(shape)) for n in (1, 2, 4, 8)]
    assert slowest == sorted(slowest, reverse=True)


def test_replicas_share_the_memory_of_an_inf1_chip():
    """One core alone reads less than the whole bank's bandwidth; four share it evenly, and so do eight on two
    chips."""
    programs, machine = whole(llama(LLAMA_70B)), instance("inf1.6xlarge")
    bank, core = 0.9 * machine.bank_bytes_per_second, 20e9
    shape = StepShape.decode(1, 1)
    constants = replace(IDEAL, memory_efficiency=0.9, core_bytes_per_second=core)

    def seconds(**placed: int) -> float:
        return CostModel(programs, machine, ASYNC, constants=constants, **placed).seconds(0, shape)

    assert seconds(data=4) == pytest.approx(seconds() * core / (bank / 4), rel=0.01)
    assert seconds(data=3) == pytest.approx(seconds(data=4) * 3 / 4, rel=0.01)
    assert seconds(data=8) == pytest.approx(seconds(data=4))
    assert seconds(data=5, replica=4) == pytest.approx(seconds())


def test_a_lone_batch_shares_a_bank_with_the_largest_stage_of_another_replica():
    """Two replicas of two stages on an inf1 chip; the stages of one take turns, and the first reads more."""
    graph, machine = llama(replace(LLAMA_70B, layers=8)), instance("inf1.xlarge")
    programs = compile_graph(graph, Placement(2), [0.0, *[1.0] * 8, 4.0])
    both = CostModel(programs, machine, ASYNC, data=2, constants=IDEAL)
    one = CostModel(programs, machine, ASYNC, constants=IDEAL)
    shape = StepShape.decode(1, 1)
    assert [len(program.layers) for program in programs] == [6, 2]
    assert both.lone.seconds(0, shape) == pytest.approx(2 * one.lone.seconds(0, shape), rel=0.01)


def test_inf1_reads_what_does_not_stay_on_chip():
    """A layer of SmolLM2-135M has 3.5M weights: one stays on chip; of two in bf16 three tenths do not."""
    machine, shape = instance("inf1.24xlarge"), StepShape.decode(1, 1)
    sizes = replace(SMOLLM2, layers=32)

    def weights_read(fmt: str, stages: int) -> int:
        model = CostModel(pipeline(llama(sizes, fmt), stages), machine, ASYNC)
        return sum(t.hbm_read_bytes for t in model.op_times(1, shape) if isinstance(t.op, Linear))

    layer = 2 * 3_538_944
    assert weights_read("bf16", 32) == 0
    assert weights_read("bf16", 16) == pytest.approx(2 * layer - 10e6, rel=1e-3)
    assert weights_read("bf16", 8) == pytest.approx(4 * layer - 10e6, rel=1e-3)
    assert weights_read("int8", 16) == 0


def test_bandwidth_is_shared_by_those_that_still_read():
    """Beside a core that reads a quarter as much: a quarter of the bytes at half the speed, the rest at full
    speed."""
    assert sharing_of(4.0, []) == 1
    assert sharing_of(4.0, [4.0, 4.0]) == 3
    assert sharing_of(4.0, [1.0, 0.0]) == pytest.approx(1.25)
    assert sharing_of(1.0, [4.0]) == 2
    assert sharing_of(0.0, [4.0, 0.0]) == 2


def test_stages_and_transfers():
    programs = pipeline(llama(), 3)
    model = CostModel(programs, INF2, ASYNC, constants=IDEAL)
    shape = StepShape.decode(7, 100)
    assert model.stages == 3
    assert model.tensor == 1
    assert model.stage_seconds(shape) == [model.seconds(core, shape) for core in range(3)]
    assert model.transfer_seconds(0, shape) == 0
    assert model.transfer_seconds(1, shape) == pytest.approx(1.5e-6 + 7 * 576 * 2 / SHARE)
    assert model.transfer_seconds(2, shape) == pytest.approx(1.5e-6 + 7 * 576 * 2 / (192 * GIB))
    moved = model.transfer_seconds(1, shape) + model.transfer_seconds(2, shape)
    assert model.latency(shape) == pytest.approx(sum(model.stage_seconds(shape)) + moved)


def test_rows_without_logits_skip_the_head():
    model = CostModel(whole(llama()), instance("inf2.xlarge"), ASYNC, constants=IDEAL)
    with_logits, without = StepShape.of([(0, 64)], 1), StepShape.of([(0, 64)], 0)
    head = 49152 * 576 * 2 / SHARE
    assert model.seconds(0, with_logits) - model.seconds(0, without) == pytest.approx(head, rel=0.01)


def test_a_window_bounds_attention():
    narrow = llama(replace(TINY, window=64))
    wide, machine = llama(TINY), instance("inf2.xlarge")
    a, b = (
        CostModel(whole(narrow), machine, ASYNC),
        CostModel(whole(wide), machine, ASYNC),
    )
    assert a.seconds(0, StepShape.decode(4, 60)) == b.seconds(0, StepShape.decode(4, 60))
    assert a.seconds(0, StepShape.decode(4, 6000)) < b.seconds(0, StepShape.decode(4, 6000))
    assert a.seconds(0, StepShape.decode(4, 6000)) == a.seconds(0, StepShape.decode(4, 9000))


def test_a_stage_is_as_slow_as_its_slowest_rank():
    """24 groups of feed-forward columns on 5 ranks: one rank has a group less than the others."""
    model = CostModel(compile_graph(llama(), Placement(tensor=5)), INF2, ASYNC)
    shape = StepShape.decode(1, 10)
    ranks = [model.seconds(core, shape) for core in range(5)]
    assert min(ranks) < max(ranks)
    assert model.stage_seconds(shape) == [max(ranks)]


def test_few_rows_take_as_long_as_the_array_needs_at_least():
    """Weights on chip: only arithmetic remains, and the array processes at least 64 rows."""
    programs = pipeline(llama(replace(SMOLLM2, layers=32)), 32)
    model = CostModel(programs, instance("inf1.24xlarge"), ASYNC, constants=IDEAL)
    one, full = (model.seconds(1, StepShape.of([(0, rows)], 0)) for rows in (1, 64))
    passes = 2 * 3_538_944 * 64 / 16e12
    assert one == pytest.approx(passes, rel=0.05)
    assert full >= passes


def _attention_cost(graph: Graph, constants: Constants = IDEAL) -> Cost:
    op = next(op for op in graph.ops if isinstance(op, Attention))
    rates = core_rates(INF2, graph.format, (0,), sharing=1, read_share=1.0, constants=constants)
    return op.cost(graph.format, rates)


def test_attention_by_hand():
    """2 key/value heads of 256, each for 4 query heads; a window of 100 positions."""
    heads = HeadLayout(heads=8, kv_heads=2, head_dim=256)
    cost = _attention_cost(llama(replace(TINY, heads=heads, window=100)))
    wide, narrow = (cost.engines(StepShape((300, 3), 3, 600, n)) for n in (25_000, 90_000))
    assert wide.tensor == pytest.approx(25_000 * 8 * 4 * 256 / 92e12)
    assert narrow.tensor == pytest.approx(300 * 100 * 8 * 4 * 256 / 92e12)
    token = 2 * 2 * 256 * 2
    decode = cost.engines(StepShape.decode(3, 50))
    assert decode.read == 3 * 49 * token
    assert decode.written == 3 * token
    assert decode.dma == pytest.approx(3 * 50 * token / SHARE)
    assert cost.engines(StepShape.decode(3, 999)).read == 300 * token


def test_keys_and_values_move_in_pieces_of_a_head():
    constants = replace(IDEAL, descriptor_bytes=128.0)
    graph = llama(replace(TINY, heads=HeadLayout(4, 2, 64)))
    plain, pieces = _attention_cost(graph), _attention_cost(graph, constants)
    shape = StepShape.decode(1, 4000)
    assert pieces.engines(shape).dma == pytest.approx(2 * plain.engines(shape).dma)


def test_softmax_of_small_heads_is_bound_by_the_vector_engine():
    """3 passes over the scores of 9 heads."""
    engines = _attention_cost(llama()).engines(StepShape.of([(0, 1024)], 1))
    attended = 1024 * 1025 / 2
    assert engines.vector == pytest.approx(3 * 9 * attended / (128 * 1.12e9))
    assert engines.vector == max(engines.tensor, engines.vector, engines.scalar, engines.dma)


def test_more_tensor_ranks_never_slow_a_cores_own_work():
    """4 query heads on 2 key/value heads divide evenly; time in collectives is left out."""
    graph, shape = llama(replace(TINY, hidden=512, ffn=2048)), StepShape.decode(4, 200)
    own = []
    for tensor in (1, 2, 4):
        programs = compile_graph(graph, Placement(tensor=tensor))
        parts = CostModel(programs, INF2, ASYNC, constants=IDEAL).explain(0, shape)
        own.append(parts.total - parts.seconds[LimitingResource.COLLECTIVES])
    assert own == sorted(own, reverse=True)
    assert own[2] < own[0] / 2


def test_stage_weights_suit_the_placement():
    graph = llama()
    weights = stage_weights(graph, INF2, ASYNC)
    assert len(weights) == graph.num_layers + 2
    assert len(set(weights[1:-1])) == 1
    total = CostModel(whole(graph), INF2, ASYNC).seconds(0, StepShape.decode(1, 256))
    assert sum(weights) == pytest.approx(total)
    assert weights[-1] > 5 * weights[1] > weights[0] > 0
    stages = cut_layers(weights, 4)
    assert len(stages[-1]) < len(stages[0])


def test_too_many_cores_are_refused():
    with pytest.raises(ValueError, match="4 cores are needed"):
        CostModel(pipeline(llama(TINY), 4), instance("inf2.xlarge"), ASYNC)


def test_matrices_are_cut_into_whole_tiles():
    """129 columns need as many tiles as 256."""
    rates = core_rates(INF2, FORMATS["bf16"], (0,), sharing=1, read_share=1.0)
    seconds = [matrix_cost(TOKENS, (n, 128), FORMATS["bf16"], rates).tensor for n in (128, 129, 256)]
    assert seconds[0] * 2 == seconds[1] == seconds[2]


def test_fp32_takes_four_passes():
    rates = [core_rates(INF2, FORMATS[f], (0,), sharing=1, read_share=1.0) for f in ("bf16", "fp32")]
    assert rates[0].matmul == 4 * rates[1].matmul


def test_experts_are_loaded_for_few_rows_and_all_used_for_many():
    rates = core_rates(INF2, FORMATS["bf16"], (0,), sharing=1, read_share=1.0)
    op = experts(count=8, top_k=2, width=256, ffn=128)
    cost = op.cost(FORMATS["bf16"], rates)
    one, results, total = 3 * 256 * 128 * 2, (2 * 128 + 256) * 2, 256 * 2
    steps = [cost.engines(StepShape.decode(rows, 10)) for rows in (1, 3, 4, 64)]
    crossing = results + 2 * total  # the experts' results, weighted, and their sum so far
    assert [s.read for s in steps] == [2 * one, 6 * one, 8 * (one + 4 * crossing), 8 * (one + 64 * crossing)]
    assert [s.written for s in steps] == [0, 0, 8 * 4 * crossing, 8 * 64 * crossing]
    for engine in ("tensor", "vector", "scalar", "dma"):
        assert getattr(steps[0], engine) > 0.0
        assert getattr(steps[1], engine) == pytest.approx(3 * getattr(steps[0], engine))


def test_steps_of_all_experts_wait_for_one_another():
    """A prompt therefore takes longer than its busiest engine: the products, then the sums."""
    rates = core_rates(INF2, FORMATS["bf16"], (0,), sharing=1, read_share=1.0)
    cost = experts(count=8, top_k=2, width=4096, ffn=768).cost(FORMATS["bf16"], rates)
    shape = StepShape.of([(0, 4096)], 1)
    steps, whole_op = [8 * step.engines(shape).seconds for step in cost.steps], cost.engines(shape)
    assert whole_op.seconds == pytest.approx(sum(steps), rel=1e-3)
    assert max(whole_op.tensor, whole_op.vector, whole_op.dma) < 0.9 * whole_op.seconds


def divided(op, first, size):
    """Returns the Op of a core that has some of the experts."""
    wide = op.out._replace(axis=hidden(op.top_k * op.x.width))
    return replace(op, own=ExpertRange(first, size), out=wide)


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_a_core_takes_all_rows_through_its_own_experts_however_few_there_are(rows):
    """NxD's forward_all_experts_EP: bytes of its experts, and of their results for every row."""
    rates = core_rates(INF2, FORMATS["bf16"], (0, 1), sharing=1, read_share=1.0)
    own = divided(experts(count=8, top_k=2, width=256, ffn=128), 3, 3)
    engines = own.cost(FORMATS["bf16"], rates).engines(StepShape.decode(rows, 10))
    one, crossing = 3 * 256 * 128 * 2, (2 * 128 + 256) * 2 + 2 * 256 * 2
    assert (engines.read, engines.written) == (3 * (one + rows * crossing), 3 * rows * crossing)


def test_results_of_experts_are_added_up_as_those_of_ranks_are():
    """Two exchanges of sums; a stage with more cores than tensor ranks exchanges among all of them."""
    op = experts(count=8, top_k=2, width=256, ffn=128)
    own, shape = divided(op, 0, 4), StepShape.decode(4, 10)
    gather = GatherSlots(0, op.x, own.out, op.routing, op, (0, 4, 8))
    rates = core_rates(INF2, FORMATS["bf16"], (0, 1), sharing=1, read_share=1.0)
    reduce_ = AllReduce(0, op.x, op.x)
    alone, among = (o.cost(FORMATS["bf16"], rates).engines(shape).seconds for o in (reduce_, gather))
    assert among == alone > 0
    stage = Mesh(6, rates.group, 5 * rates.ring)
    wider = gather.cost(FORMATS["bf16"], replace(rates, stage=stage)).engines(shape).seconds
    assert wider > among


@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("tensor", [1, 2])
def test_more_cores_for_experts_never_slow_a_cores_own_work(tensor, pipeline):
    """Without the exchanges: each core has fewer experts, and the same share of all else."""
    graph = architecture("mixtral-8x7b").graph(FORMATS["bf16"], 4096)
    machine = instance("trn2.48xlarge")
    placements = [Placement(pipeline, tensor, expert=expert) for expert in (2, 4, 8)]
    costs = [CostModel(compile_graph(graph, placement), machine, ASYNC) for placement in placements]
    for shape in (StepShape.decode(1, 100), StepShape.decode(64, 1000), StepShape.of([(0, 2048)], 1)):
        times = []
        for cost, placement in zip(costs, placements, strict=True):
            explained = (cost.explain(core, shape).seconds for core in range(placement.cores_per_replica))
            own = [
                sum(s for what, s in e.items() if what is not LimitingResource.COLLECTIVES) for e in explained
            ]
            times.append(max(own))
        assert times[0] > times[1] > times[2]


WIDE = Features(4, 4100, HeadLayout(32, 8, 128), 11030, 50000)
"""A width that can grow by a hundredth without a further tile."""


@pytest.mark.parametrize("width", ["hidden", "ffn", "vocab"])
@pytest.mark.parametrize("shape", [StepShape.decode(4, 700), StepShape.of([(0, 512)], 1)], ids=str)
def test_one_percent_of_a_width_is_at_most_three_percent_of_time(width, shape):
    wider = replace(WIDE, **{width: getattr(WIDE, width) * 101 // 100})
    seconds = [CostModel(whole(llama(sizes)), INF2, ASYNC).seconds(0, shape) for sizes in (WIDE, wider)]
    assert seconds[0] <= seconds[1] <= 1.03 * seconds[0]


@settings(max_examples=30, deadline=None)
@given(st.integers(100, 4000), st.integers(1, 64), st.sampled_from(["async", "ideal"]))
def test_one_percent_of_a_context_is_at_most_three_percent_of_time(context, sequences, profile):
    model = CostModel(whole(llama()), INF2, profile=PROFILES[profile])
    short, long = (model.seconds(0, StepShape.decode(sequences, n)) for n in (context, context * 101 // 100))
    assert short <= long <= 1.03 * short


@pytest.mark.parametrize("name", sorted(PROFILES))
@pytest.mark.parametrize("batch", [None, 16])
def test_decode_seconds_are_stage_seconds_to_the_last_bit(name, batch):
    graph = llama(replace(TINY, window=300))
    model = CostModel(pipeline(graph, 2), INF2, profile=PROFILES[name], batch=batch)
    tokens = np.array([8, 9, 500, 1024, 1025, 4097, 16_000, 20_000], np.int64)
    times = model.decode_seconds(8, tokens)
    assert times.shape == (2, len(tokens))
    for i, kv_tokens in enumerate(tokens.tolist()):
        assert times[:, i].tolist() == model.stage_seconds(StepShape.decoding(8, kv_tokens))


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.sampled_from(sorted(PROFILES)))
def test_engines_never_overlap_themselves(shape, profile):
    """The Ops of a core add up to its time; an engine works for one Op after the other, within it."""
    model = CostModel(compile_graph(llama(TINY), Placement(tensor=2)), INF2, profile=PROFILES[profile])
    times = model.op_times(1, shape)
    assert times[0].start == 0
    assert times[-1].end == pytest.approx(model.seconds(1, shape), rel=1e-9)
    busy = dict.fromkeys(ENGINES, 0.0)
    for before, after in pairwise(times):
        assert before.end == after.start
    for time in times:
        assert (time.bound_by is None) == (not time.engines)
        for engine, (start, end) in time.engines.items():
            assert busy[engine] <= start <= end <= time.end
            assert start >= time.start
            busy[engine] = end


def test_op_times_count_what_is_read_and_computed():
    model = CostModel(whole(llama()), INF2, profile=PROFILES["ideal"])
    times = model.op_times(0, StepShape.decode(1, 1))
    assert sum(time.hbm_read_bytes for time in times) == 2 * (30 * 3_538_944 + 49152 * 576 + 576)
    matrices = [time for time in times if isinstance(time.op, Linear)]
    assert sum(time.flops for time in matrices) == 2 * (30 * 3_538_944 + 49152 * 576)
    assert {time.bound_by for time in matrices} == {"dma"}


def test_other_constants_are_another_model():
    model = CostModel(pipeline(llama(TINY), 2), INF2, ASYNC)
    other = model.with_constants(IDEAL)
    shape = StepShape.decode(4, 100)
    assert other.stage_seconds(shape) == CostModel(
        pipeline(llama(TINY), 2), INF2, ASYNC, constants=IDEAL
    ).stage_seconds(shape)
    assert sum(other.stage_seconds(shape)) < sum(model.stage_seconds(shape))


def test_logits_go_to_the_host_where_tokens_are_drawn_there():
    programs, shape = whole(llama()), StepShape.decode(3, 10)
    host, device = (CostModel(programs, INF2, profile=PROFILES[n]) for n in ("transformers-neuronx", "nxdi"))
    assert host.sampling_seconds(shape) == pytest.approx(3 * 49152 * 4 / 3.4e9)
    assert device.sampling_seconds(shape) == 0
    assert host.sampling_seconds(StepShape.of([(0, 5)], 0)) == 0


def test_copied_heads_are_read_once_a_query_head():
    """2 key/value heads on 4 ranks: transformers-neuronx keeps a copy for each of the 2 query heads."""
    graph = llama(replace(TINY, heads=HeadLayout(8, 2, 64)))
    programs = compile_graph(graph, Placement(tensor=4))
    shape = StepShape.decode(1, 4096)

    def read(profile: str) -> int:
        times = CostModel(programs, INF2, profile=PROFILES[profile]).op_times(0, shape)
        return sum(time.hbm_read_bytes for time in times if isinstance(time.op, Attention))

    assert read("transformers-neuronx") == 2 * read("nxdi")


def test_timing_needs_one_program_of_each_width():
    """The Programs of `compile_for_timing` cost the same as those of `compile_graph`."""
    graph, shape = llama(), StepShape.decode(3, 100)
    for tensor in (1, 3, 5):
        placement = Placement(tensor=tensor)
        quick, slow = compile_for_timing(graph, placement), compile_graph(graph, placement)
        assert CostModel(quick, INF2, ASYNC).stage_seconds(shape) == CostModel(
            slow, INF2, ASYNC
        ).stage_seconds(shape)
    assert len(compile_for_timing(graph, Placement(tensor=12))) == 12


@pytest.mark.parametrize(("name", "cores", "steps"), [("inf2.48xlarge", 24, 23), ("trn1.32xlarge", 32, 7)])
def test_steps_around_a_ring_and_a_torus(name, cores, steps):
    assert ring_steps(instance(name), range(cores)) == steps


@pytest.mark.parametrize("profile", ["async", "vllm-neuron", "nxdi"])
@pytest.mark.parametrize("context", [200, 4000])
def test_guesses_are_rows_of_a_decode_step_and_no_prompt(profile, context):
    """Weights, and the keys and values of each context, are read once for all rows of a sequence: four drafts
    cost more than none, and far less than four steps."""
    model = CostModel(
        compile_graph(llama(LLAMA_70B), Placement(tensor=8)), INF2, PROFILES[profile], batch=8, longest=8192
    )
    plain = model.seconds(0, StepShape.decode(8, context))
    guessed = StepShape.of([(context - 1, 5)] * 8, 40, each=5)
    some = StepShape.of([(context - 1, 5)] * 2 + [(context - 1, 1)] * 6, 16, each=5)
    assert guessed.decodes
    assert (
        model.padded(guessed).rows
        == model.padded(some).rows
        == 5 * model.padded(StepShape.decode(8, 100)).rows
    )
    assert model.padded(guessed).kv_tokens < 1.1 * model.padded(StepShape.decode(8, context + 4)).kv_tokens
    assert plain <= model.seconds(0, guessed) < 2.5 * plain
    assert StepShape.of([(context - 1, 1)] * 8, 8, each=1) == StepShape.decode(8, context)


def test_adapters_are_two_products_of_each_linear_over_their_rows() -> None:
    """The matrices of each adapter are read once, or go through the array once, however few rows have it."""
    cost = CostModel(whole(llama()), INF2, ASYNC, constants=IDEAL)
    shape = StepShape.decode(16, 128)

    def more(*adapters: AdapterRows) -> float:
        adapted = shape._replace(adapters=adapters)
        return cost.stage_seconds(adapted)[0] - cost.stage_seconds(shape)[0]

    def product(n: int, k: int) -> float:
        tiles = 2 * 128 * -(-n // 128) * 128 * -(-k // 128) * 64 / INF2.peak(DType.BF16)
        return max(2 * n * k / SHARE, tiles)

    def adapter(rank: int) -> float:
        sizes = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)]
        layers = sum(product(rank, k) + product(n, rank) for n, k in sizes)
        return 30 * layers + product(rank, 576) + product(49152, rank)

    one = AdapterRows(AdapterKind(16), (2, 2))
    assert more(one) == pytest.approx(adapter(16))
    assert more(AdapterRows(AdapterKind(200), (2, 2))) == pytest.approx(adapter(200))
    assert more(one, one) == pytest.approx(2 * more(one))
    assert more(one._replace(counts=(16, 16))) == pytest.approx(more(one))
    assert more(one._replace(counts=(2048, 1))) > 3 * more(one)
    queries = AdapterRows(AdapterKind(16, ("q",)), (2, 2))
    assert more(queries) == pytest.approx(30 * (product(16, 576) + product(576, 16)))
    assert more() == 0


def test_ranks_have_parts_of_an_adapter() -> None:
    """A rank has all of one matrix of an adapter, and its part of the other."""
    one = AdapterRows(AdapterKind(128, ("q",)), (1, 1))
    shape, seconds = StepShape.decode(1, 128), []
    for tensor in (1, 8):
        cost = CostModel(
            compile_for_timing(llama(LLAMA_70B), Placement(tensor=tensor)), INF2, ASYNC, constants=IDEAL
        )
        seconds.append(cost.stage_seconds(shape._replace(adapters=(one,)))[0] - cost.stage_seconds(shape)[0])
    assert seconds[1] / seconds[0] == pytest.approx((1 + 1 / 8) / 2)
