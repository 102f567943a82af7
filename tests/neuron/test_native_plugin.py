"""The native vLLM plugin's rules, as its documentation states them (see native_plugin)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from device_graphs import LLAMA_70B, SMOLLM2, llama, whole
from hypothesis import given
from hypothesis import strategies as st

from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.hardware import GIB
from corepipe.neuron.chips.native_plugin import (
    KvBudget,
    batch_buckets,
    decode_batch,
    prefill,
    prefill_buckets,
    takes_flash,
)
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.runtime_profile import RuntimeProfile, pad
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.memory import CoreMemory, blocks_that_fit
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.timeline import Timeline

NATIVE = PROFILES["vllm-neuron-native"]
TRN2 = instance("trn2.48xlarge")


def chunked(tokens: int) -> RuntimeProfile:
    """Returns the profile with so many tokens per prefill step."""
    return replace(NATIVE, chunk=tokens)


@pytest.mark.parametrize(
    ("longest", "chunk", "tensor", "buckets"),
    [
        (4096, 2048, 1, (2048,)),
        (131_072, 8192, 64, (8192,)),
        (2048, 2048, 1, (128, 256, 512, 1024, 2048)),
        (2500, 8192, 1, (128, 256, 512, 1024, 2048, 2500)),
        (2048, 2048, 64, (128, 256, 512, 1024, 2048)),
        (1000, 2048, 128, (256, 512)),
    ],
)
def test_prefill_graphs(longest, chunk, tensor, buckets):
    """One bucket where prompts come in chunks; otherwise powers of two and the longest, above the tensor
    degree and divisible by it."""
    assert prefill_buckets(longest, chunk, tensor) == buckets


def test_decode_graphs():
    assert batch_buckets(32) == (1, 2, 4, 8, 16, 32)
    assert batch_buckets(12) == (1, 2, 4, 8, 12)
    assert batch_buckets(1) == (1,)
    assert [decode_batch(n, 12) for n in (1, 3, 5, 9, 12)] == [1, 4, 8, 12, 12]


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_step_runs_the_smallest_graph_that_holds_it(sequences, most):
    if sequences <= most:
        assert decode_batch(sequences, most) == min(b for b in batch_buckets(most) if b >= sequences)


@pytest.mark.parametrize(
    ("shape", "profile", "longest", "padded"),
    [
        pytest.param([(2048, 52)], chunked(2048), 8192, [(2048, 2048)], id="the last chunk of 2100 tokens"),
        pytest.param([(1000, 100)], chunked(512), 8192, [(1024, 512)], id="a chunk after whole segments"),
        pytest.param([(0, 1100)], chunked(4096), 4096, [(0, 2048)], id="a whole prompt in the next bucket"),
        pytest.param(
            [(0, 3000)], chunked(4096), 3500, [(0, 3500)], id="a whole prompt in the longest bucket"
        ),
        pytest.param([(0, 10)], NATIVE, 8192, [(0, 2048)], id="vllm's 2048 tokens where nobody says"),
    ],
)
def test_a_prefill_step_fills_its_graph(shape, profile, longest, padded):
    assert pad(StepShape.of(shape, 1), profile, longest, 8) == StepShape.of(padded, 1)


def test_a_decode_step_covers_the_longest_sequence_whatever_its_length():
    assert pad(StepShape.decode(3, 100), NATIVE, 8192, 8) == StepShape.decode(4, 8192)


@given(st.integers(0, 9000), st.integers(2, 4096), st.sampled_from([512, 1024, 2048, 4096]), st.booleans())
def test_padding_takes_nothing_away(before, count, chunk, square):
    shape = StepShape.of([(before, min(count, chunk))], 1)
    padded = prefill(shape, 16_384, chunk, square=square)
    assert (padded.rows, padded.kv_tokens % chunk) == (chunk, 0)
    assert padded.kv_tokens >= shape.kv_tokens
    assert padded.attended >= shape.attended


def test_the_flash_kernel_takes_what_it_takes():
    assert takes_flash(64, 128, 131_072)
    assert not takes_flash(64, 256, 4096)
    assert not takes_flash(8, 128, 131_073)
    assert not takes_flash(8, 128, 4096, batch=65)


def test_plain_attention_computes_the_whole_square():
    """The flash kernel does not support heads of 256 elements."""
    wide = replace(SMOLLM2, heads=replace(SMOLLM2.heads, head_dim=256))
    shape = StepShape.of([(0, 512)], 1)
    models = [CostModel(whole(llama(sizes)), TRN2, NATIVE, longest=512) for sizes in (SMOLLM2, wide)]
    assert [model.padded(shape).attended for model in models] == [512 * 513 // 2, 512 * 512]


@pytest.mark.parametrize(
    ("weights", "budget"),
    [(0.0, 0.27 * 24), (0.7 * 24, 0.2 * 24), (0.85 * 24, 0.05 * 24), (0.89 * 24, 1.0)],
)
def test_memory_for_keys_and_values(weights, budget):
    """The smaller of 90 % of the memory less the weights and 27 % of all, and never less than 1 GiB."""
    found = KvBudget().bytes(24 * GIB, int(weights * GIB))
    assert found == pytest.approx(budget * GIB, rel=1e-6)


def test_the_budget_bounds_the_blocks():
    core = (CoreMemory(weights=GIB, block=GIB // 8, buffers=0),)
    assert blocks_that_fit(core, 1, TRN2) == 23 * 8
    assert blocks_that_fit(core, 1, TRN2, KvBudget()) == int(0.27 * 24 * 8)
    full = (CoreMemory(weights=23 * GIB + GIB // 2, block=GIB // 8, buffers=0),)
    assert blocks_that_fit(full, 1, TRN2, KvBudget()) == 4  # less is left than the minimum of 1 GiB


def test_a_rotation_is_part_of_the_attention_kernel():
    plain = replace(NATIVE, attention=replace(NATIVE.attention, fuses_rope=False))
    shape = StepShape.decode(1, 512)
    fused, apart = (CostModel(whole(llama()), TRN2, p).seconds(0, shape) for p in (NATIVE, plain))
    assert apart - fused == pytest.approx(2 * SMOLLM2.layers * 1.3e-6, rel=1e-3)


def test_ranks_share_the_rows_of_a_prefill_and_not_of_a_decode_step():
    plain = replace(NATIVE, sequence_parallel=False)
    programs = compile_graph(llama(replace(LLAMA_70B, layers=2)), Placement(1, 8))
    shared, whole_rows = (CostModel(programs, TRN2, p, longest=8192) for p in (NATIVE, plain))
    prompt, step = StepShape.of([(0, 2048)], 1), StepShape.decode(8, 4096)
    assert shared.seconds(0, prompt) < whole_rows.seconds(0, prompt)
    assert shared.seconds(0, step) == whole_rows.seconds(0, step)
    assert shared.seconds(0, prompt) == pytest.approx(shared.explain(0, prompt).total, rel=1e-9)


def test_a_step_is_synchronous_where_its_sequences_change():
    """After a prompt, and after a sequence has ended: 437 us of the host instead of 28."""
    timeline = Timeline(CostModel(whole(llama()), TRN2, NATIVE, batch=8, longest=2048))
    now, host = 0.0, []
    for shape in (
        StepShape.of([(0, 100)], 1),
        StepShape.decode(3, 200),
        StepShape.decode(3, 201),
        StepShape.decode(2, 202),
        StepShape.decode(2, 203),
    ):
        timing = timeline.submit(shape, now)
        host.append(round((timing.starts_at - now) * 1e6))
        now = timing.ready_at
    assert host == [437, 437, 28, 437, 28]
