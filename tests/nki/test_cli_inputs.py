"""Inputs, entries and comparisons of `corepipe nki`, without a process."""

from __future__ import annotations

from inspect import signature

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.errors import UserError
from corepipe.nki.core.instructions import Engine
from corepipe.nki.run.advice import KernelRun, advice
from corepipe.nki.run.comparing import as_outputs, difference
from corepipe.nki.run.inputs import KernelInputs, called, of_shapes, taken_by
from corepipe.nki.run.loading import kernels_in
from corepipe.nki.timing.times import EngineTime, Memory, Times, Traffic


def kernel(x: object, y: object, *, eps: float = 0.0) -> None:
    """Stands for a kernel of two arrays and a number."""


def test_shapes_are_arrays_of_their_types_and_the_rest_are_numbers() -> None:
    found = of_shapes("4x8,128x512:bfloat16,7:int32,3,-1,True,eps=1e-5,w=2x2:bool")
    assert [(a.shape, a.dtype) for a in found.arguments[:3]] == [
        ((4, 8), np.float32),
        ((128, 512), ml_dtypes.bfloat16),
        ((7,), np.int32),
    ]
    assert found.arguments[3:] == [3, -1, True]
    assert found.keywords["eps"] == 1e-5
    assert found.keywords["w"].dtype == np.bool_


def test_shapes_give_the_same_values_each_time() -> None:
    text = "64x64:float16,5x5:int8,2"
    assert (
        of_shapes(text).digest() == of_shapes(text).digest() != of_shapes("64x64:float16,5x5:int8,3").digest()
    )


@pytest.mark.parametrize("text", ["", "3x", "x3", "4x4:float33", "128:", "a,b", "4x4:float32;3", "eps=1,4x4"])
def test_what_is_no_input_is_refused_by_its_flag(text: str) -> None:
    with pytest.raises(UserError, match="--inputs"):
        of_shapes(text)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from(["float32", "bfloat16", "uint8"]))
def test_a_shape_is_read_as_it_is_written(shape: list[int], dtype: str) -> None:
    (array,) = of_shapes(f"{'x'.join(map(str, shape))}:{dtype}").arguments
    assert (list(array.shape), array.dtype.name) == (shape, dtype)


@pytest.mark.parametrize(
    ("returned", "arguments", "keywords"),
    [
        ((1, 2), (1, 2), {}),
        ([1, 2], [1, 2], {}),
        ({"x": 1, "y": 2}, (), {"x": 1, "y": 2}),
        ((1, 2, {"eps": 3}), (1, 2), {"eps": 3}),
    ],
)
def test_a_function_returns_arguments_by_position_or_by_name(
    returned: object, arguments: object, keywords: object
) -> None:
    found = called(lambda: returned, "f.py:f")
    assert (found.arguments, found.keywords) == (arguments, keywords)
    taken_by([*signature(kernel).parameters.values()], found, "k.py: kernel")


def test_functions_draw_the_same_values_each_time() -> None:
    assert called(lambda: np.random.rand(3), "f").digest() == called(lambda: np.random.rand(3), "f").digest()


@pytest.mark.parametrize(
    "inputs", [KernelInputs((1,)), KernelInputs((1, 2, 3)), KernelInputs((1, 2), {"z": 1})]
)
def test_inputs_that_a_kernel_does_not_take_are_refused_with_its_parameters(inputs: KernelInputs) -> None:
    with pytest.raises(UserError, match=r"--inputs: k\.py: kernel\(x, y, eps=0\.0\): "):
        taken_by([*signature(kernel).parameters.values()], inputs, "k.py: kernel")


def test_kernels_of_a_source_are_found_in_either_spelling() -> None:
    source = """
@nki.jit
def a(x): ...
@nki.jit(mode="simulation")
def b(x): ...
@jit
def c(x): ...
@nki.benchmark(warmup=5)
@nki.jit
def d(x): ...
def helper(x): ...
@functools.cache
def get_inputs(): ...
e = nki.jit(helper)
f = nki.benchmark(warmup=5)(helper)
"""
    assert kernels_in(source) == ["a", "b", "c", "d", "e", "f"]


def test_a_difference_is_a_share_of_the_largest_value() -> None:
    found = difference(as_outputs(np.array([1.0, 8.5])), as_outputs(np.array([1.0, 8.0])))
    assert (found.max_abs_error, found.max_rel_error) == (0.5, 0.0625)
    assert found.within(0.0625)
    assert not found.within(0.06)


def test_nan_equals_nan_and_nothing_else() -> None:
    nan, one = np.array([np.nan, 1.0]), np.array([1.0, 1.0])
    assert difference([nan], [nan]).within(0)
    assert difference([nan], [one]).problem == "output 0 has NaN or infinity where the reference has none"
    assert not difference([nan], [one]).within(1e9)


def test_outputs_in_tiles_are_compared_in_their_order() -> None:
    matrix = np.arange(12.0).reshape(4, 3)
    assert difference([matrix.reshape(2, 2, 3)], [matrix]).within(0)
    assert difference([matrix], [matrix[:2]]).problem == "output 0 has the shape [4, 3], not [2, 3]"
    assert difference([matrix, matrix], [matrix]).problem == "2 outputs, where the reference has 1"


def test_low_precision_is_compared_in_full() -> None:
    one = np.ones(3, ml_dtypes.bfloat16)
    assert difference([one], [np.full(3, 1.001)]).max_abs_error == pytest.approx(0.001)


def times(bound: str, traffic: Traffic, **busy: float) -> Times:
    engines = {Engine(name): EngineTime(seconds, 100) for name, seconds in busy.items()}
    memory = Memory(0, 0, 1, 1)
    return Times(1e-3, 1e-3, 1e-3, "", engines, {}, traffic, memory, bound)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (
            KernelRun(times("dma", Traffic(9_000_000, 1_000_000, 0, 0), dma=9e-4), 1_000_000, wide=False),
            "moving each input and output once (2.00 MB) would make it at most 5.6 times as fast",
        ),
        (
            KernelRun(
                times("dma", Traffic(6_000_000, 6_000_000, 4_000_000, 4_000_000), dma=1e-3),
                2 << 20,
                wide=True,
            ),
            "4.00 MB are spilled to HBM and 4.00 MB read again; tiles that fit into SBUF would make it",
        ),
        (
            KernelRun(times("tensor", Traffic(1, 1, 0, 0), tensor=9e-4, dma=3e-4), 1, wide=True),
            "bf16 instead of fp32 would make it at most 3.3 times as fast",
        ),
        (
            KernelRun(times("vector", Traffic(1, 1, 0, 0), vector=9e-4, scalar=1e-4), 1, wide=False),
            "moving work to ScalarE, which is busy 10 %, would make it at most 2.0 times as fast",
        ),
        (
            KernelRun(times("vector", Traffic(1, 1, 0, 0), vector=9e-4, scalar=8e-4), 1, wide=False),
            "fewer or fused instructions would help, and not moving them to ScalarE, which is busy 80 %",
        ),
        (
            KernelRun(times("scalar", Traffic(1, 1, 0, 0), scalar=9e-6 + 9e-4), 1, wide=False),
            "moving work to VectorE, which is busy 0 %, would make it at most 2.2 times as fast",
        ),
        (
            KernelRun(times("waits: vector waits for dma", Traffic(1, 1, 0, 0), vector=5e-4), 1, wide=False),
            "waits: vector waits for dma; an end of all waits would make it at most 2.0 times as fast",
        ),
    ],
)
def test_advice_names_a_change_and_the_most_that_it_could_gain(run: KernelRun, says: str) -> None:
    assert says in "\n".join(advice(run))


def test_a_kernel_that_executes_nothing_gets_no_advice_to_change() -> None:
    assert advice(KernelRun(times("nothing", Traffic(0, 0, 0, 0)), 0, wide=False)) == ["nothing"]
