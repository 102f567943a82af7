"""Long loops: turns that are alike are extrapolated, turns that differ are all recorded."""

from __future__ import annotations

import numpy as np
import pytest

import corepipe.nki as nki_simulator
from corepipe.nki.core.instructions import Instruction, Skip
from corepipe.nki.run.calls import Call, run

with nki_simulator.installed():
    from neuronxcc import nki
    from neuronxcc.nki import language as nl

TURNS = 24


@nki.jit
def alike(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(TURNS):
        nl.store(out[i], nl.exp(nl.load(x[i])))
    return out


@nki.jit
def triangular(x):  # as many instructions as causal attention has: more in each turn
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(TURNS):
        total = nl.load(x[i])
        for j in nl.static_range(i):
            total = nl.add(total, nl.load(x[j]))
        nl.store(out[i], total)
    return out


@nki.jit
def late(x):  # the branch is not taken in the first turns
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(TURNS):
        tile = nl.load(x[i])
        nl.store(out[i], nl.exp(tile) if i > 8 else nl.copy(tile))
    return out


@nki.jit
def once(x):  # one turn in the middle of those that are not recorded differs
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(TURNS):
        tile = nl.load(x[i])
        nl.store(out[i], nl.exp(tile) if i == 13 else nl.copy(tile))
    return out


@nki.jit
def nested(x):  # an inner loop that grows makes the outer turns differ too
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(TURNS):
        total = nl.load(x[i])
        for j in nl.sequential_range(16 + i):
            total = nl.add(total, nl.load(x[j % TURNS]))
        nl.store(out[i], total)
    return out


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((TURNS, 8, 16)).astype(np.float32)


def counts(kernel, x, *, values: bool) -> tuple[int, int]:
    """Returns the instructions that were recorded, and those turns that were skipped."""
    recorder = run(Call(kernel, (x,), {}), "v2", values).recorder
    instructions = sum(isinstance(e, Instruction) for e in recorder.stream)
    return instructions, sum(e.turns for e in recorder.stream if isinstance(e, Skip))


@pytest.mark.parametrize("values", [True, False])
def test_turns_that_are_alike_are_skipped(x, values):
    assert counts(alike, x, values=values) == (5 * 3, TURNS - 5)


@pytest.mark.parametrize("values", [True, False])
def test_turns_that_grow_are_all_recorded(x, values):
    inner = sum(i if i < 16 else 5 for i in range(TURNS))  # but for inner loops that are long themselves
    assert counts(triangular, x, values=values) == (
        2 * TURNS + 2 * inner,
        sum(i - 5 for i in range(16, TURNS)),
    )


@pytest.mark.parametrize("values", [True, False])
def test_a_branch_that_later_turns_take_is_recorded(x, values):
    assert counts(late, x, values=values) == (3 * TURNS, 0)


def test_with_values_every_turn_is_compared(x):
    assert counts(once, x, values=True) == (3 * TURNS, 0)


@pytest.mark.parametrize("values", [True, False])
def test_an_outer_loop_differs_where_an_inner_one_grows(x, values):
    recorder = run(Call(nested, (x,), {}), "v2", values).recorder
    skipped = {e.loop.count: e.turns for e in recorder.stream if isinstance(e, Skip)}
    assert skipped == {16 + i: 16 + i - 5 for i in range(TURNS)}  # the inner loops alone


@pytest.mark.parametrize("kernel", [alike, triangular, late, once, nested])
def test_values_and_time_do_not_depend_on_what_is_recorded(x, kernel):
    result = nki_simulator.simulate(kernel, x)
    want = {
        "alike": lambda: np.exp(x),
        "triangular": lambda: np.cumsum(x, axis=0),
        "late": lambda: np.where(np.arange(TURNS)[:, None, None] > 8, np.exp(x), x),
        "once": lambda: np.where(np.arange(TURNS)[:, None, None] == 13, np.exp(x), x),
        "nested": lambda: np.stack([x[i] + x[np.arange(16 + i) % TURNS].sum(axis=0) for i in range(TURNS)]),
    }[kernel.__name__]()
    np.testing.assert_allclose(result.outputs[0], want, rtol=2e-5, atol=1e-5)
    if kernel is not once:
        assert nki_simulator.simulate(kernel, x, values=False).latency_us == result.latency_us
