"""The memory plan equals the sizes of SmolLM2-135M computed by hand, and refuses with advice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from device_graphs import LIMITS, LLAMA_70B, SMOLLM2, llama, pipeline, whole
from hypothesis import given
from hypothesis import strategies as st

from corepipe.errors import UserError
from corepipe.neuron.chips.catalog import INSTANCES, instance
from corepipe.neuron.chips.hardware import GIB
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.memory import CoreMemory, blocks_that_fit, measure, plan_memory
from corepipe.neuron.compile.placement import Placement

LAYER = 2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576
HEAD = EMBEDDING = 49152 * 576
NORMS = 61 * 576 * 4
SCALES = 4 * (30 * (576 + 192 + 192 + 576 + 1536 + 1536 + 576) + 49152)


@pytest.mark.parametrize(
    ("fmt", "weights", "token"),
    [
        ("fp32", 4 * (30 * LAYER + HEAD + EMBEDDING) + NORMS, 4),
        ("bf16", 2 * (30 * LAYER + HEAD + EMBEDDING) + NORMS, 2),
        ("int8", 30 * LAYER + HEAD + SCALES + 2 * EMBEDDING + NORMS, 2),
        ("int4-weights", 2 * (30 * LAYER + HEAD + EMBEDDING) + NORMS, 2),
        ("int8-weights", 30 * LAYER + HEAD + SCALES + 2 * EMBEDDING + NORMS, 2),
    ],
)
def test_smollm2_on_one_core(fmt, weights, token):
    (core,) = measure(whole(llama(SMOLLM2, fmt)), LIMITS)
    assert core.weights == weights
    assert core.block == 32 * 30 * 2 * 3 * 64 * token
    gate_and_up, x = 2 * 1536, 576
    assert core.buffers == 512 * (gate_and_up + 1536 + x) * token


def test_blocks_fill_what_is_left():
    (core,) = measure(whole(llama()), LIMITS)
    left = 16 * GIB - core.weights - core.buffers
    plan = plan_memory(
        whole(llama()), Placement(), instance("inf2.xlarge"), replace(LIMITS, max_blocks=10**9)
    )
    assert plan.num_blocks == left // core.block
    assert plan.block_bytes == core.block
    bounded = plan_memory(whole(llama()), Placement(), instance("inf2.xlarge"), LIMITS)
    assert bounded.num_blocks == LIMITS.max_blocks


def test_a_pipeline_divides_weights_and_kv():
    """Values that cross cores have two buffers."""
    (one,) = measure(whole(llama()), LIMITS)
    stages = measure(pipeline(llama(), 3), LIMITS)
    payload = 512 * 576 * 2
    assert sum(core.weights for core in stages) == one.weights
    assert [core.block for core in stages] == [one.block // 3] * 3
    assert [core.buffers for core in stages] == [one.buffers + 2 * payload] * 3


def test_tensor_ranks_divide_the_matrices():
    """9 heads on 3 ranks divide evenly; the embedding and the norms are whole on each."""
    ranks = measure(compile_graph(llama(), Placement(tensor=3)), LIMITS)
    kept = 2 * EMBEDDING + NORMS
    assert sum(core.weights - kept for core in ranks) == 2 * (30 * LAYER + HEAD)
    assert [core.block for core in ranks] == [32 * 30 * 2 * 64 * 2] * 3


def test_inf1_cores_share_their_chips_memory():
    gib = CoreMemory(weights=GIB, block=GIB // 8, buffers=0)
    assert blocks_that_fit([gib], 1, instance("inf1.xlarge")) == 7 * 8
    assert blocks_that_fit([gib], 4, instance("inf1.xlarge")) == 8
    assert blocks_that_fit([gib], 5, instance("inf1.6xlarge")) == 8
    assert blocks_that_fit([gib] * 4, 1, instance("inf1.xlarge")) == 8
    assert blocks_that_fit([gib], 2, instance("inf2.xlarge")) == 15 * 8


@given(st.integers(1, 8), st.integers(1, 6), st.sampled_from(INSTANCES))
def test_what_is_planned_fits_every_bank(stages, data, machine):
    cores = [CoreMemory(weights=(s + 1) << 28, block=(s + 1) << 20, buffers=1 << 20) for s in range(stages)]
    if stages * data > machine.cores:
        return
    blocks = blocks_that_fit(cores, data, machine)
    used: dict[int, list[int]] = {}
    for i in range(stages * data):
        core = cores[i % stages]
        used.setdefault(machine.bank_of(i), []).append(core.weights + core.buffers + blocks * core.block)
    more = {b: sum(u) + sum(cores[i % stages].block for i in range(stages * data) if machine.bank_of(i) == b)
            for b, u in used.items()}  # fmt: skip
    assert all(sum(u) <= machine.bank_bytes for u in used.values())
    assert any(size > machine.bank_bytes for size in more.values())


def test_too_many_cores_name_an_instance_that_has_them():
    programs = pipeline(llama(), 4)
    with pytest.raises(UserError, match=r"needs 4 NeuronCores, inf2\.xlarge has 2") as caught:
        plan_memory(programs, Placement(pipeline=4), instance("inf2.xlarge"), LIMITS)
    assert "use --instance inf1.xlarge --pipeline 4" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_refusal_is_a_line_and_a_table():
    programs = pipeline(llama(LLAMA_70B), 4)
    with pytest.raises(UserError, match=r"does not fit") as caught:
        plan_memory(programs, Placement(pipeline=4), instance("inf2.48xlarge"), LIMITS)
    line, empty, header, *rows = caught.value.message.splitlines()
    assert "inf2.48xlarge" in line
    assert empty == ""
    assert header.split()[0] == "core"
    assert "KV of 2048 tokens" in header
    assert [row.split()[0] for row in rows] == ["0", "1-2", "3"]
    assert all("16.00 GiB" in row for row in rows)
    assert len({len(row) for row in rows}) == 1


def test_the_suggestion_is_the_cheapest_that_fits():
    """16 stages of 9 GB: too much for an inf1 chip's four cores, enough for inf2.48xlarge and no smaller."""
    programs = pipeline(llama(LLAMA_70B), 16)
    with pytest.raises(UserError) as caught:
        plan_memory(programs, Placement(pipeline=16), instance("inf1.24xlarge"), LIMITS)
    assert "use --instance inf2.48xlarge --pipeline 16" in caught.value.message


def test_a_context_that_is_too_long_names_one_that_fits():
    limits = replace(LIMITS, max_model_len=10**7)
    with pytest.raises(UserError) as caught:
        plan_memory(whole(llama()), Placement(), instance("inf2.xlarge"), limits)
    shorter = int(caught.value.message.split("--max-model-len ")[1].split()[0])
    plan = plan_memory(
        whole(llama()), Placement(), instance("inf2.xlarge"), replace(limits, max_model_len=shorter)
    )
    assert plan.num_blocks * limits.block_size == shorter or plan.num_blocks == limits.max_blocks


def test_nothing_large_enough():
    limits = replace(LIMITS, max_model_len=10**9)
    with pytest.raises(UserError, match="no instance of the catalogue"):
        plan_memory(whole(llama()), Placement(), instance("inf2.xlarge"), limits)
