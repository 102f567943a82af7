"""The rules of docs/decisions/2026-11-22-prediction-rules.md, each against bytes that are computed by hand or
against the condition that its source names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from device_graphs import TINY, experts, llama
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.constants import IDEAL
from corepipe.neuron.chips.engines import Engines
from corepipe.neuron.chips.hardware import GIB, MIB
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.rates import core_rates
from corepipe.neuron.chips.runtime_profile import AttentionKernel, AttentionStyle, Buckets, pad
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import Attention
from corepipe.neuron.step import StepShape
from corepipe.planning.calibration.rows import RowDegrees
from corepipe.planning.calibration.stacks import profile_of

INF2 = instance("inf2.48xlarge")
MEMORY = 410 * GIB
"""Bytes per second of an inf2 core's memory, by its data sheet."""

TWO_HEADS = replace(TINY, heads=HeadLayout(2, 2, 128))
SEPARATE = AttentionStyle(kernel=AttentionKernel.SEPARATE, causal_from=(1 << 40, 1 << 40), gathers_kv=False)
FUSED = replace(SEPARATE, kernel=AttentionKernel.SQUARE)


def attention(graph: Graph, style: AttentionStyle, shape: StepShape, descriptor: float = 0.0) -> Engines:
    """Returns the engines' work in the first attention of a single inf2 core."""
    op = next(op for op in graph.ops if isinstance(op, Attention))
    constants = replace(IDEAL, descriptor_bytes=descriptor)
    rates = core_rates(INF2, graph.format, (0,), sharing=1, read_share=1.0, constants=constants)
    return op.cost(graph.format, replace(rates, style=style)).engines(shape)


def square(sequences: int, length: int) -> StepShape:
    """Returns prompts of this length with the full square of scores."""
    rows = sequences * length
    return StepShape((rows, sequences), sequences, rows, rows * length)


def test_scores_that_sbuf_cannot_hold_cross_memory_twelve_times():
    """2048 x 2048 fp32 scores of 2 heads are 32 MiB, and SBUF has 24: 5 times out and 7 times in, in rows of
    128 scores, each of which costs as much as 512 bytes more where a piece costs 512."""
    graph, shape = llama(TWO_HEADS), square(1, 2048)
    scores = 2 * 2048 * 2048 * 4
    assert scores > 24 * MIB
    plain, fused = (attention(graph, style, shape) for style in (SEPARATE, FUSED))
    assert plain.dma - fused.dma == pytest.approx(12 * scores / MEMORY)
    assert (plain.read - fused.read, plain.written - fused.written) == (7 * scores, 5 * scores)
    pieces = attention(graph, SEPARATE, shape, 512.0).dma - attention(graph, FUSED, shape, 512.0).dma
    assert pieces == pytest.approx(2 * 12 * scores / MEMORY)
    windowed = attention(llama(replace(TWO_HEADS, window=512)), replace(SEPARATE, masks_window=True), shape)
    assert windowed.dma - fused.dma == pytest.approx(14 * scores / MEMORY)


def test_scores_that_fit_and_those_of_a_token_stay_on_chip():
    graph = llama(TWO_HEADS)
    for shape in (square(1, 1024), square(2, 1024), StepShape.decode(64, 65536)):
        assert attention(graph, SEPARATE, shape) == attention(graph, FUSED, shape)
    assert attention(graph, SEPARATE, square(4, 1024)).dma > attention(graph, FUSED, square(4, 1024)).dma


def test_a_window_that_is_a_mask_spares_nothing():
    wide, narrow = llama(TWO_HEADS), llama(replace(TWO_HEADS, window=100))
    for shape in (StepShape.decode(3, 4000), square(1, 1024)):
        masks = attention(narrow, replace(FUSED, masks_window=True), shape)
        assert masks == attention(wide, FUSED, shape)
        assert attention(narrow, FUSED, shape).flops < masks.flops
    assert attention(narrow, FUSED, StepShape.decode(3, 4000)).read == 3 * 100 * 2 * 2 * 128 * 2


@pytest.mark.parametrize(
    ("profile", "bucket", "lnc", "causal"),
    [
        ("nxdi", 2048, 1, False),
        ("nxdi", 4096, 1, True),
        ("nxdi", 128, 2, False),
        ("nxdi", 256, 2, True),
        ("vllm-neuron", 2048, 1, False),
        ("optimum-nxdi", 4096, 1, True),
        ("transformers-neuronx", 8192, 1, False),
        ("transformers-neuronx-hsb", 8192, 1, False),
        ("transformers-neuronx-flash", 2048, 1, False),
        ("transformers-neuronx-flash", 4096, 1, True),
        ("ideal", 1, 1, True),
    ],
)
def test_the_causal_kernel_begins_at_a_bucket(profile, bucket, lnc, causal):
    """From that bucket on the scores above the diagonal are left out."""
    longest = 4096 if profile.startswith("optimum") else 16384
    padded = pad(StepShape.of([(0, bucket)], 1), PROFILES[profile], longest, None, lnc=lnc)
    assert padded.rows == bucket
    assert padded.attended == (bucket * (bucket + 1) // 2 if causal else bucket * bucket)


@pytest.mark.parametrize(
    ("sdk", "name"),
    [
        ("2.9.0", "transformers-neuronx-hsb"),
        ("2.18.0", "transformers-neuronx-hsb"),
        ("2.18", "transformers-neuronx-hsb"),
        ("2.18.1", "transformers-neuronx"),
        ("2.18.2", "transformers-neuronx"),
        ("2.19.0", "transformers-neuronx-flash"),
        ("2.20.1", "transformers-neuronx-flash"),
        ("2.21.0", "nxdi"),
    ],
)
def test_the_release_says_how_transformers_neuronx_attends(sdk, name):
    assert profile_of({"task": "text-generation", "sdk": sdk}, 1, RowDegrees()).name == name


def test_what_comes_over_a_link_is_then_added():
    """Both of a chip's cores share its links; after the link's time, a rank adds and passes on at its own
    speed."""
    speed, way = 100e9, 192 * GIB / 2
    rates = core_rates(
        INF2,
        FORMATS["bf16"],
        range(24),
        sharing=1,
        read_share=1.0,
        constants=replace(IDEAL, collective_bytes_per_second=speed),
    )
    assert 1 / rates.group.bytes_per_second == pytest.approx(1 / way + 1 / speed)


def test_several_prompts_with_the_batch_innermost_are_kept_element_by_element():
    """Keys and values of 2 heads of 128: one piece per head, or one for each of their 512 elements."""
    graph, style = llama(TWO_HEADS), replace(FUSED, batch_innermost=True)
    token = 2 * 2 * 128 * 2
    for shape, pieces in ((square(1, 512), 4), (square(8, 512), 512), (StepShape.decode(8, 1), 4)):
        seconds = attention(graph, style, shape, 256.0).dma
        assert seconds == pytest.approx(shape.rows * (token + pieces * 256) / MEMORY)
        assert attention(graph, FUSED, shape, 256.0).dma <= seconds


def test_beams_keys_and_values_are_picked_element_by_element():
    """512 elements of a token are read one by one, each at the cost of 64 more bytes; then they are written,
    read, and twice read and written again.  For each of them an index of 16 bytes is written and read."""
    graph, style = llama(TWO_HEADS), replace(FUSED, rewrites_kv=True)
    short, long = (attention(graph, style, StepShape.decode(4, n), 64.0) for n in (100, 228))
    elements = 4 * 128 * 2 * 2 * 128
    assert long.dma - short.dma == pytest.approx(elements * (7 * 2 + 2 * 16 + 64) / MEMORY)
    assert long.read - short.read == (7 * 2 + 2 * 16) * elements


@pytest.mark.parametrize(
    ("length", "longest", "bucket"),
    [
        (9, 128, 64),
        (64, 4096, 64),
        (65, 4096, 128),
        (1024, 2048, 1024),
        (2000, 2500, 2048),
        (2049, 2500, 2500),
    ],
)
def test_prompt_buckets_are_halves_of_those_for_tokens(length, longest, bucket):
    assert Buckets.HALVES.pad(length, longest) == bucket


def test_the_sum_over_experts_goes_through_memory():
    """For each expert these cross memory out and in: the results of its first two products, its result, that
    times its weight, and the sum."""
    rates = core_rates(INF2, FORMATS["bf16"], (0,), sharing=1, read_share=1.0)
    cost = experts(count=4, top_k=1, width=256, ffn=64).cost(FORMATS["bf16"], rates)
    rows = 1000
    engines = cost.engines(StepShape.of([(0, rows)], 1))
    middle, result, weights = rows * 2 * 64 * 2, rows * 256 * 2, 3 * 64 * 256 * 2
    assert engines.written == 4 * (middle + 3 * result)
    assert engines.read == 4 * (weights + middle + 3 * result)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(PROFILES)), st.integers(1, 9000), st.integers(1, 9000), st.sampled_from([1, 2]))
def test_a_longer_prompt_never_attends_to_less(name, a, b, lnc):
    """Also at the length from which on a kernel leaves out half of the scores."""
    short, long = sorted((a, b))
    padded = [pad(StepShape.of([(0, n)], 1), PROFILES[name], 16384, None, lnc=lnc) for n in (short, long)]
    assert padded[0].rows <= padded[1].rows
    assert padded[0].attended <= padded[1].attended
