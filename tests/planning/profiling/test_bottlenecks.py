"""Tests of bottlenecks and remedies: the model gives every reported number again."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.formats import FORMATS
from corepipe.planning.profiling.bottlenecks import WORTH, StepBottleneck, bottlenecks
from corepipe.planning.profiling.profile import Phase, ProfileRun
from corepipe.planning.profiling.step_summary import Cause, measure
from tests.planning.profiles import run


@cache
def of(found: ProfileRun) -> list[StepBottleneck]:
    return bottlenecks(found, [measure(found, phase) for phase in found.phases])


def changed(found: ProfileRun, flag: str) -> ProfileRun:
    """Returns the run with a flag's setting."""
    name, value = flag.removeprefix("--").split()
    setup = found.setup
    match name:
        case "batch":
            return ProfileRun(replace(setup, batch=int(value)))
        case "dtype":
            return ProfileRun(replace(setup, format=FORMATS[value]))
        case "profile":
            return ProfileRun(replace(setup, profile=PROFILES[value]))
        case _:
            return ProfileRun(replace(setup, placement=replace(setup.placement, **{name: int(value)})))


CASES = [
    {"model": "llama-3.2-1b"},
    {"model": "llama-3.2-1b", "tensor": 2, "profile": "sync"},
    {"model": "llama-3.2-1b", "pipeline": 4, "batch": 16},
    {"where": "inf1.6xlarge", "fmt": "int8"},
    {"model": "smollm2-135m", "tensor": 8, "batch": 1},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_change_is_worth_what_it_says(case):
    found = run(**case)
    for bottleneck in of(found):
        before = found.seconds(bottleneck.phase)
        for change in bottleneck.changes:
            if not change.flag:
                continue
            after = changed(found, change.flag)
            more = after.setup.batch / found.setup.batch
            assert change.gain == pytest.approx(more * before / after.seconds(bottleneck.phase))
            assert change.gain >= WORTH
            assert change.flag in str(bottleneck)
        for flag in bottleneck.tried:
            after = changed(found, flag)
            more = after.setup.batch / found.setup.batch
            assert more * before / after.seconds(bottleneck.phase) < WORTH


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_largest_cause_comes_first_and_shares_are_of_the_step(case):
    found = run(**case)
    said = of(found)
    for phase in Phase:
        measured = measure(found, phase)
        first = next(b for b in said if b.phase is phase)
        assert first.cause is max(Cause, key=lambda cause: measured.seconds[cause])
        for bottleneck in said:
            if bottleneck.phase is phase and bottleneck.cause is not None:
                share = measured.seconds[bottleneck.cause] / found.seconds(phase)
                assert bottleneck.share == pytest.approx(share)
                assert f"{100 * share:.0f} %" in bottleneck.text


def test_a_lone_decode_reads_its_weights_and_a_larger_batch_is_nearly_free():
    (said,) = (b for b in of(run("llama-2-7b", batch=1)) if b.phase is Phase.DECODE)
    assert said.cause is Cause.WEIGHTS
    assert re.search(r"reading weights: 13\.\d GB for 1 tokens of 1 sequences, HBM at \d+ %", said.text)
    batch = next(change for change in said.changes if change.flag.startswith("--batch"))
    assert batch.gain > 4
    assert re.search(r"--batch \d+ would cost \d+ % more time for \d+ times the tokens", batch.text)


def test_a_slow_host_is_named_with_its_profile():
    host = next(b for b in of(run("smollm2-135m", profile="sync", batch=1)) if b.cause is Cause.HOST)
    assert "437 us with profile sync" in host.text
    assert any(change.flag in {"--profile async", "--profile ideal"} for change in host.changes)


def test_too_much_tensor_parallelism_is_latency_of_collectives():
    said = next(b for b in of(run(**CASES[-1])) if b.phase is Phase.DECODE)
    assert said.cause is Cause.COLLECTIVES
    assert "bound by latency" in said.text
    assert any(change.flag == "--tensor 1" and change.gain > 1.5 for change in said.changes)


def test_a_pipeline_with_one_batch_is_mostly_idle():
    found = run("llama-3.2-1b", pipeline=4, batch=1)
    bubble = next(b for b in of(found) if b.cause is None and b.phase is Phase.DECODE)
    assert bubble.share == pytest.approx(0.75, abs=0.02)
    assert 2 < bubble.changes[0].gain <= 4


def test_what_the_instance_cannot_hold_is_not_proposed():
    """A 7B model's weights leave room for few sequences on one core of 16 GiB."""
    found = run("llama-2-7b", "inf2.xlarge", batch=1, input_len=2000)
    flags = [change.flag for b in of(found) for change in b.changes]
    assert "--batch 16" not in flags
    assert all(changed(found, flag).memory.num_blocks for flag in flags if flag)
