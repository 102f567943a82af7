"""Products, sums in PSUM and transposes against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.tensors import View
from corepipe.nki.isa import tensor, vector
from tests.nki.bench import Bench, bench

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = np.dtype(ml_dtypes.float8_e4m3)


def normal(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def product(a: Any, b: Any) -> Any:
    return a.astype(np.float64).T @ b.astype(np.float64)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 128), st.integers(1, 128), st.integers(1, 512),
    st.sampled_from([np.dtype(np.float32), BF16, np.dtype(np.float16), FP8]),
)  # fmt: skip
def test_a_product(seed: int, k: int, m: int, n: int, dtype: Any) -> None:
    a, b = normal(seed, (k, m), dtype), normal(seed + 1, (k, n), dtype)
    with bench() as core:
        dst = core.new((m, n), space=Space.PSUM)
        done = tensor.nc_matmul(dst, core.put(a), core.put(b))
        np.testing.assert_allclose(dst.array(), product(a, b), rtol=2e-6, atol=2e-5 * k**0.5)
        assert (done.partitions, done.free) == (k, n)
        assert (done.details["k"], done.details["m"], done.details["n"]) == (k, m, n)
        assert done.details["dtypes"] == (dtype.name, dtype.name, "float32")


def operands(core: Bench, count: int) -> tuple[list[Any], list[tuple[View, View]]]:
    pairs = [(normal(i, (64, 32)), normal(i + 9, (64, 48))) for i in range(count)]
    return [product(a, b) for a, b in pairs], [(core.put(a), core.put(b)) for a, b in pairs]


def test_the_first_product_overwrites_and_the_others_add() -> None:
    with bench() as core:
        wanted, views = operands(core, 4)
        dst = core.new((32, 48), space=Space.PSUM)
        adds = [tensor.nc_matmul(dst, a, b, accumulate=None).accumulates for a, b in views]
        assert adds == [False, True, True, True]
        np.testing.assert_allclose(dst.array(), sum(wanted), rtol=1e-5, atol=1e-4)
        assert not core.findings


def test_parts_of_a_tile_begin_sums_of_their_own() -> None:
    with bench() as core:
        wanted, views = operands(core, 3)
        dst = core.new((32, 96), space=Space.PSUM)
        left, right = dst[:, 0:48], dst[:, 48:96]
        adds = [
            tensor.nc_matmul(part, *views[i], accumulate=None).accumulates
            for i, part in enumerate((left, right, left))
        ]
        assert adds == [False, False, True]
        np.testing.assert_allclose(left.array(), wanted[0] + wanted[2], rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(right.array(), wanted[1], rtol=1e-5, atol=1e-4)


def test_explicit_flags_overwrite_and_add() -> None:
    with bench() as core:
        wanted, views = operands(core, 3)
        dst = core.new((32, 48), space=Space.PSUM)
        for (a, b), adds in zip(views, (False, True, False), strict=True):
            assert tensor.nc_matmul(dst, a, b, accumulate=adds).accumulates is adds
        np.testing.assert_allclose(dst.array(), wanted[2], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("generation", "found"), [("v2", True), ("v3", True), ("v4", False)])
def test_a_sum_on_memset_memory_is_found(generation: str, found: bool) -> None:
    with bench(generation) as core:
        wanted, views = operands(core, 1)
        dst = core.new((32, 48), space=Space.PSUM)
        vector.memset(dst, 1.0)
        tensor.nc_matmul(dst, *views[0], accumulate=True)
        np.testing.assert_allclose(dst.array(), wanted[0] + 1, rtol=1e-5, atol=1e-4)
        assert core.findings == ({"accumulation"} if found else set())


def test_what_accumulates_is_known_without_values() -> None:
    with bench(values=False) as core:
        a, b = core.new((64, 32)), core.new((64, 48))
        dst = core.new((32, 48), space=Space.PSUM)
        assert [tensor.nc_matmul(dst, a, b, accumulate=None).accumulates for _ in range(2)] == [False, True]


def test_two_rows_of_fp8_in_a_partition() -> None:
    a, b = normal(1, (128, 2, 16), FP8), normal(2, (128, 2, 32), FP8)
    with bench() as core:
        dst = core.new((16, 32), space=Space.PSUM)
        done = tensor.nc_matmul(dst, core.put(a), core.put(b), double_row=True)
        wanted = np.einsum("kjm,kjn->mn", a.astype(np.float64), b.astype(np.float64))
        np.testing.assert_allclose(dst.array(), wanted, rtol=1e-5, atol=1e-4)
        assert done.details["k"] == 256


@pytest.mark.parametrize(("generation", "exact"), [("v2", False), ("v3", True)])
def test_a_product_that_transposes_keeps_nan_apart_from_v3_on(generation: str, exact: bool) -> None:
    x = normal(3, (32, 32))
    x[3, 4] = np.nan
    with bench(generation) as core:
        dst = core.new((32, 32), space=Space.PSUM)
        tensor.nc_matmul(dst, core.put(x), core.put(np.eye(32, dtype=np.float32)), is_transpose=True)
        assert np.isnan(dst.array()).sum() == (1 if exact else 32)


@pytest.mark.parametrize(("shape", "space", "engines"), [
    ((128, 100), Space.PSUM, (Engine.TENSOR,)),
    ((32, 20), Space.PSUM, (Engine.TENSOR, Engine.VECTOR)),
    ((32, 20), Space.SBUF, (Engine.VECTOR,)),
])  # fmt: skip
def test_a_transpose(shape: tuple[int, int], space: Space, engines: tuple[Engine, ...]) -> None:
    x = normal(4, shape, BF16)
    with bench() as core:
        dst = core.new(shape[::-1], BF16, space)
        assert tensor.nc_transpose(dst, core.put(x)).engines == engines
        assert (dst.array().view(np.uint16) == x.T.view(np.uint16)).all()


def test_a_large_transpose_needs_psum() -> None:
    with bench() as core, pytest.raises(KernelError, match=r"VectorE transposes at most 32 x 32"):
        tensor.nc_transpose(core.new((64, 64)), core.put(normal(5, (64, 64))))
