"""Elementwise instructions against float64, Python's own mathematics and integers."""

from __future__ import annotations

import math
import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.instructions import Engine
from corepipe.nki.isa import scalar, vector
from corepipe.nki.isa.base import ReduceCommand
from corepipe.nki.isa.operations import cast
from tests.nki.bench import bench

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float32), np.dtype(np.float16), BF16]
STEP = {"float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Relative distance of neighbours; two for fp32, whose operations round too."""

PAIRS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "maximum": max,
    "minimum": min,
    "abs_max": lambda x, y: max(abs(x), abs(y)),
    "greater": operator.gt,
    "less_equal": operator.le,
    "equal": operator.eq,
    "logical_and": lambda x, y: bool(x) and bool(y),
    "logical_xor": lambda x, y: bool(x) != bool(y),
}

seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    return np.random.default_rng(seed).integers(-40, 40, shape).astype(np.float32).astype(dtype) / 8


def near(found: Any, wanted: Any) -> None:
    step = STEP[found.dtype.name]
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=step, atol=1e-30)


@settings(max_examples=60, deadline=None)
@given(
    seeds, st.integers(1, 128), st.integers(1, 40), st.sampled_from(sorted(PAIRS)),
    st.sampled_from(FLOATS), st.sampled_from(FLOATS), st.sampled_from(FLOATS),
)  # fmt: skip
def test_two_tiles(seed: int, p: int, n: int, op: str, a: Any, b: Any, out: Any) -> None:
    x, y = drawn(seed, (p, n), a), drawn(seed + 1, (p, n), b)
    if op == "divide":
        y = np.where(y == 0, 1, y).astype(b)
    with bench() as core:
        dst = core.new((p, n), out)
        vector.tensor_tensor(dst, core.put(x), core.put(y), op)
        wanted = [
            [PAIRS[op](float(u), float(v)) for u, v in zip(r, s, strict=True)]
            for r, s in zip(x, y, strict=True)
        ]
        near(dst.array(), np.array(wanted, np.float64))


@settings(max_examples=40, deadline=None)
@given(
    seeds, st.integers(1, 64), st.sampled_from(["add", "subtract", "multiply"]), st.booleans(), st.booleans()
)
def test_a_tile_with_numbers_and_numbers_of_partitions(
    seed: int, p: int, op: str, first: bool, second: bool
) -> None:
    x, column = drawn(seed, (p, 3, 5), np.float32), drawn(seed + 1, (p, 1), np.float32)
    with bench() as core:
        dst = core.new((p, 15))
        vector.tensor_scalar(dst, core.put(x), op, core.put(column), first, "subtract", 2.5, second)
        flat, wide = x.reshape(p, 15).astype(np.float64), np.repeat(column, 15, 1).astype(np.float64)
        inner = np.vectorize(PAIRS[op])(*((wide, flat) if first else (flat, wide)))
        near(dst.array(), 2.5 - inner if second else inner - 2.5)


def test_both_operands_of_scalar_tensor_tensor_may_come_first() -> None:
    x, column, z = drawn(1, (8, 6), BF16), drawn(2, (8, 1), np.float32), drawn(3, (8, 6), BF16)
    with bench() as core:
        dst = core.new((8, 6))
        vector.scalar_tensor_tensor(
            dst,
            core.put(x),
            np.subtract,
            core.put(column),
            np.subtract,
            core.put(z),
            reverse0=True,
            reverse1=True,
        )
        near(dst.array(), z.astype(np.float64) - (column - x.astype(np.float64)))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
def test_bits_of_integers(op: str, dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(5).integers(info.min, info.max, (4, 16), dtype, endpoint=True)
    bits, keep = info.bits, (1 << info.bits) - 1
    python = {
        "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
        "left_shift": operator.lshift, "right_shift": operator.rshift,
    }  # fmt: skip
    wanted = [[python[op](int(v) & keep, 3) & keep for v in row] for row in x]
    signed = [[v - (1 << bits) if info.min < 0 and v >> (bits - 1) else v for v in row] for row in wanted]
    with bench() as core:
        dst = core.new((4, 16), dtype)
        vector.tensor_scalar(dst, core.put(x), op, 3)
        assert dst.array().tolist() == signed


def test_gpsimd_computes_with_32_bit_integers_exactly_and_vector_in_fp32() -> None:
    x, y = np.full((2, 3), 2**30 + 1, np.int32), np.full((2, 3), 7, np.int32)
    with bench() as core:
        exact, rounded = core.new((2, 3), np.int32), core.new((2, 3), np.int32)
        assert vector.tensor_tensor(exact, core.put(x), core.put(y), "add").engines == (Engine.GPSIMD,)
        vector.tensor_tensor(rounded, core.put(x), core.put(y), "add", engine=Engine.VECTOR)
        assert (exact.array() == 2**30 + 8).all()
        assert (rounded.array() == 2**30).all()


def test_engines_that_may_run_an_instruction() -> None:
    with bench() as core:
        a, psum = core.put(np.ones((4, 4), np.float32)), core.put(np.ones((4, 4), np.float32), Space.PSUM)
        dst = core.new((4, 4))
        assert vector.tensor_copy(dst, a).engines == (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
        assert vector.tensor_copy(dst, psum).engines == (Engine.VECTOR, Engine.SCALAR)
        scaled = vector.tensor_scalar(dst, a, "multiply", 2.0, op1="add", operand1=1.0)
        assert Engine.SCALAR in scaled.engines
        assert Engine.SCALAR not in vector.tensor_scalar(dst, a, "maximum", 2.0).engines
        with pytest.raises(KernelError, match=r"runs on vector, gpsimd, not on scalar"):
            vector.tensor_tensor(dst, a, a, "add", engine=Engine.SCALAR)


SIGMOID = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
NORMAL = lambda x: (1 + math.erf(x / math.sqrt(2))) / 2  # noqa: E731
FUNCTIONS = {
    "exp": math.exp,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": SIGMOID,
    "silu": lambda x: x * SIGMOID(x),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "gelu": lambda x: x * NORMAL(x),
    "gelu_dx": lambda x: NORMAL(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * SIGMOID(1.702 * x),
    "relu": lambda x: max(x, 0.0),
    "square": lambda x: x * x,
    "sign": lambda x: math.copysign(1, x) if x else 0.0,
    "abs": abs,
    "copy": float,
}
DERIVATIVES = {"silu_dx": "silu", "gelu_apprx_sigmoid_dx": "gelu_apprx_sigmoid", "erf_dx": "erf"}
INPUTS = np.linspace(-8, 8, 64 * 33, dtype=np.float32).reshape(64, 33)


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_activation_functions(function: str) -> None:
    with bench() as core:
        dst = core.new(INPUTS.shape)
        scalar.activation(dst, function, core.put(INPUTS))
        wanted = [[FUNCTIONS[function](float(x)) for x in row] for row in INPUTS]
        np.testing.assert_allclose(dst.array(), wanted, rtol=1e-5, atol=3e-7)


@pytest.mark.parametrize("function", sorted(DERIVATIVES))
def test_derivatives(function: str) -> None:
    f, h = FUNCTIONS[DERIVATIVES[function]], 1e-5
    with bench() as core:
        dst = core.new(INPUTS.shape)
        scalar.activation(dst, function, core.put(INPUTS))
        wanted = [[(f(float(x) + h) - f(float(x) - h)) / (2 * h) for x in row] for row in INPUTS]
        np.testing.assert_allclose(dst.array(), wanted, atol=2e-6)


@pytest.mark.parametrize(
    ("function", "python", "low", "high"),
    [
        ("log", math.log, 1e-6, 1e6),
        ("sqrt", math.sqrt, 0, 1e6),
        ("rsqrt", lambda x: 1 / math.sqrt(x), 1e-6, 1e6),
        ("reciprocal", lambda x: 1 / x, 1e-3, 10),
        ("sin", math.sin, -3.1, 3.1),
        ("arctan", math.atan, -1.5, 1.5),
    ],
)
def test_functions_hold_on_their_range_and_are_found_outside(
    function: str, python: Any, low: float, high: float
) -> None:
    x = np.linspace(low, high, 96, dtype=np.float32).reshape(2, 48)
    with bench() as core:
        dst = core.new(x.shape)
        scalar.activation(dst, function, core.put(x))
        np.testing.assert_allclose(dst.array(), [[python(float(v)) for v in row] for row in x], rtol=1e-6)
        assert not core.findings
        if function in ("sin", "arctan", "log"):
            scalar.activation(dst, function, core.put(-np.abs(x) - 4))
            assert core.findings == {"activation_range"}


def test_scale_and_bias_are_numbers_or_a_column() -> None:
    x, column = drawn(1, (16, 9), BF16), drawn(2, (16, 1), np.float32)
    with bench() as core:
        a, b = core.new((16, 9)), core.new((16, 9))
        scalar.activation(a, "square", core.put(x), bias=core.put(column), scale=0.5)
        scalar.activation(b, "square", core.put(x), bias=1.5, scale=core.put(column))
        near(a.array(), (x.astype(np.float64) * 0.5 + column) ** 2)
        near(b.array(), (x.astype(np.float64) * column + 1.5) ** 2)
        with pytest.raises(KernelError, match=r"bias has the shape \(16, 9\)"):
            scalar.activation(a, "exp", core.put(x), bias=core.put(x.astype(np.float32)))
        with pytest.raises(KernelError, match=r"op: add is not one of"):
            scalar.activation(a, np.add, core.put(x))


def test_registers_are_reset_added_to_and_read() -> None:
    x, y = drawn(3, (8, 10), np.float32), drawn(4, (8, 6), np.float32)
    with bench() as core:
        total, dx, dy = core.new((8, 1)), core.new((8, 10)), core.new((8, 6))
        scalar.activation(dx, "copy", core.put(x), reduce_cmd=ReduceCommand.reset_reduce)
        scalar.activation(dy, "square", core.put(y), reduce_cmd=ReduceCommand.reduce, reduce_res=total)
        np.testing.assert_allclose(
            total.array()[:, 0], x.sum(1) + (y.astype(np.float64) ** 2).sum(1), rtol=1e-6
        )
        scalar.activation_reduce(dx, "exp", core.put(x), np.add, total)
        np.testing.assert_allclose(total.array()[:, 0], np.exp(x.astype(np.float64)).sum(1), rtol=1e-6)
        assert not core.findings
        scalar.activation(dx, "copy", core.put(x), reduce_res=total)
        assert core.findings == {"registers"}


def test_floats_are_rounded_to_nearest_even_as_an_integer_of_bits_rounds() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4000).astype(np.float32) * np.float32(2.0) ** rng.integers(-20, 20, 4000)
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    assert (cast(x.astype(np.float32), BF16).view(np.uint16) == rounded).all()


@pytest.mark.parametrize("kind", [ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2])
def test_fp8_takes_the_nearest_of_all_its_values(kind: Any) -> None:
    table = np.arange(256, dtype=np.uint8).view(kind).astype(np.float64)
    table = table[np.isfinite(table)]
    x = np.random.default_rng(1).standard_normal(500).astype(np.float32) * 20
    found = cast(x, np.dtype(kind)).astype(np.float64)
    best = np.abs(table[None, :] - x.astype(np.float64)[:, None]).min(1)
    np.testing.assert_array_equal(np.abs(found - x), best)


@pytest.mark.parametrize(
    "kind", [ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu]
)
def test_tiles_of_fp8_are_copied_and_read(kind: Any) -> None:
    x = np.arange(1, 65, dtype=np.uint8).reshape(8, 8).view(kind)
    with bench() as core:
        dst, wider = core.new((8, 4), kind), core.new((8, 4))
        vector.tensor_copy(dst, core.put(x)[:, 0:8:2])
        vector.tensor_copy(wider, dst)
        assert (dst.array().view(np.uint8) == x.view(np.uint8)[:, ::2]).all()
        np.testing.assert_array_equal(wider.array(), x[:, ::2].astype(np.float32))


def test_integers_saturate_round_to_even_and_take_nan_as_zero() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, 126.6, 300, -300, np.nan, np.inf, 3e9], np.float32)
    assert cast(x, np.dtype(np.int8)).tolist() == [0, 2, 2, 0, 127, 127, -128, 0, 127, 127]
    assert cast(x, np.dtype(np.uint8)).tolist() == [0, 2, 2, 0, 127, 255, 0, 0, 255, 255]
    assert cast(x, np.dtype(np.int32)).tolist()[5:] == [300, -300, 0, 2**31 - 1, 2**31 - 1]
    assert cast(np.array([70000, -5], np.int32), np.dtype(np.uint16)).tolist() == [65535, 0]


def test_what_was_never_written_is_found_where_it_is_read() -> None:
    with bench() as core:
        a, dst = core.new((4, 8)), core.new((4, 4))
        vector.memset(a[:, 0:3], 1.0)
        vector.tensor_copy(dst, a[:, 0:4])
        (finding,) = core.recorder.findings.values()
        assert finding.rule == "uninitialised"
        assert "4 of the 16 elements" in finding.message
        assert np.isnan(dst.array()[:, 3]).all()


@pytest.mark.parametrize("values", [True, False])
def test_operands_of_other_sizes_are_refused_with_and_without_values(values: bool) -> None:
    with bench(values=values) as core:
        a, b = core.new((4, 8)), core.new((4, 9))
        with pytest.raises(KernelError, match=r"\(4, 8\) and \(4, 9\) differ"):
            vector.tensor_tensor(b, a, b, "add")
        with pytest.raises(KernelError, match=r"op: lambda is not one of|<lambda>"):
            vector.tensor_tensor(a, a, a, lambda x, y: x)
