"""Reductions, scans and statistics against float64 and Python."""

from __future__ import annotations

import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.nki.core.errors import KernelError
from corepipe.nki.isa import reductions, statistics
from corepipe.nki.isa.base import ReduceCommand
from tests.nki.bench import bench

BF16 = np.dtype(ml_dtypes.bfloat16)
PYTHON: dict[str, Any] = {
    "add": operator.add,
    "multiply": operator.mul,
    "subtract": operator.sub,
    "maximum": max,
}
seeds = st.integers(0, 2**32 - 1)


def normal(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


@settings(max_examples=40, deadline=None)
@given(
    seeds, st.integers(1, 128), st.integers(1, 9), st.integers(1, 30),
    st.sampled_from([np.add, np.max, np.min]),
    st.sampled_from([-1, 2, (1, 2), [2, 1]]), st.booleans(), st.sampled_from([np.dtype(np.float32), BF16]),
)  # fmt: skip
def test_a_reduction(seed: int, p: int, n: int, m: int, op: Any, axis: Any, negate: bool, dtype: Any) -> None:
    x = normal(seed, (p, n, m), dtype)
    both = not isinstance(axis, int)
    with bench() as core:
        dst = core.new((p, 1) if both else (p, n))
        reductions.tensor_reduce(dst, op, core.put(x), axis, negate)
        reduce = {"add": np.sum, "amax": np.max, "max": np.max, "amin": np.min, "min": np.min}[op.__name__]
        wanted = reduce(x.astype(np.float64), axis=(1, 2) if both else 2)
        wanted = (-wanted if negate else wanted).reshape(dst.shape)
        np.testing.assert_allclose(dst.array(), wanted, rtol=1e-5, atol=1e-4)


def test_only_the_last_free_axes_are_reduced() -> None:
    with bench() as core:
        x = core.put(normal(0, (8, 4, 6)))
        for axis in (0, 1, (0, 2)):
            with pytest.raises(KernelError, match=r"reduces the last free axes"):
                reductions.tensor_reduce(core.new((8, 6)), "add", x, axis)


@settings(max_examples=25, deadline=None)
@given(
    seeds, st.integers(1, 64), st.integers(1, 40), st.sampled_from(sorted(PYTHON)),
    st.sampled_from(sorted(PYTHON)), st.booleans(), st.booleans(),
)  # fmt: skip
def test_a_scan_is_its_recurrence(
    seed: int, p: int, n: int, op0: str, op1: str, flip0: bool, flip1: bool
) -> None:
    a, b, start = normal(seed, (p, n)) / 2, normal(seed + 1, (p, n)) / 2, normal(seed + 2, (p, 1))
    f, g = PYTHON[op0], PYTHON[op1]
    with bench() as core:
        dst = core.new((p, n))
        reductions.tensor_tensor_scan(
            dst, core.put(a), core.put(b), core.put(start), op0, op1, reverse0=flip0, reverse1=flip1
        )
        for row in range(min(p, 3)):
            state, scale = float(start[row, 0]), 1.0
            for i in range(n):
                x, y = float(a[row, i]), float(b[row, i])
                state = f(state, x) if flip0 else f(x, state)
                state = g(y, state) if flip1 else g(state, y)
                scale = max(scale, abs(state))
                assert abs(float(dst.array()[row, i]) - state) <= 1e-5 * scale * (i + 1)


def test_a_cumulative_sum_goes_on_where_the_last_one_ended() -> None:
    x = normal(3, (16, 50))
    with bench() as core:
        first, second = core.new((16, 30)), core.new((16, 20))
        source = core.put(x)
        reductions.tensor_scalar_cumulative(first, source[:, 0:30], "multiply", "add", 2.0)
        reductions.tensor_scalar_cumulative(
            second, source[:, 30:50], "multiply", "add", 2.0, reduce_cmd=ReduceCommand.reduce
        )
        wanted = np.cumsum(2.0 * x.astype(np.float64), axis=1)
        np.testing.assert_allclose(np.hstack([first.array(), second.array()]), wanted, atol=1e-4)


def test_a_reduction_beside_a_tile_and_a_value_loaded_before_it() -> None:
    x = normal(4, (16, 12))
    with bench() as core:
        dst, total, start = core.new((16, 12)), core.new((16, 1)), core.put(normal(5, (16, 1)) + 4)
        reductions.tensor_scalar_reduce(dst, core.put(x), "subtract", 1.0, np.max, total)
        np.testing.assert_array_equal(total.array()[:, 0], (x - 1).max(1))
        reductions.tensor_scalar_reduce(
            dst, core.put(x), "add", 0.0, "maximum", total, reduce_cmd=ReduceCommand.load_reduce,
            reduce_init=start, reduce_res_negate=True,
        )  # fmt: skip
        np.testing.assert_array_equal(total.array()[:, 0], -np.maximum(x.max(1), start.array()[:, 0]))


@pytest.mark.parametrize(("op", "python"), [("add", np.sum), ("maximum", np.max), ("average", np.mean)])
def test_a_reduction_over_partitions(op: str, python: Any) -> None:
    x = normal(6, (100, 7))
    with bench() as core:
        dst = core.new((1, 7))
        reductions.tensor_partition_reduce(dst, op, core.put(x))
        np.testing.assert_allclose(dst.array()[0], python(x.astype(np.float64), axis=0), rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 64), st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_statistics_of_parts_join_to_those_of_the_whole(seed: int, p: int, parts: list[int]) -> None:
    x = normal(seed, (p, sum(parts))) * 3 + 2
    with bench() as core:
        source, stats, out = core.put(x), core.new((p, 6 * len(parts))), core.new((p, 2))
        start = 0
        for i, n in enumerate(parts):
            statistics.bn_stats(stats[:, 6 * i : 6 * i + 6], source[:, start : start + n])
            start += n
        statistics.bn_aggr(out, stats)
        wide = x.astype(np.float64)
        np.testing.assert_allclose(out.array()[:, 0], wide.mean(1), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(out.array()[:, 1], wide.var(1), rtol=1e-4, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 16), st.integers(8, 60), st.booleans())
def test_the_eight_largest_are_found_where_they_stand(seed: int, p: int, n: int, equal: bool) -> None:
    x = np.random.default_rng(seed).integers(0, 9 if equal else 10**6, (p, n)).astype(np.float32)
    with bench() as core:
        source, best = core.put(x), core.new((p, 8))
        statistics.max8(best, source)
        assert best.array().tolist() == [sorted(row, reverse=True)[:8] for row in x.tolist()]
        at, rest, again = core.new((p, 8), np.uint32), core.new((p, n)), core.new((p, 8), np.uint32)
        statistics.nc_find_index8(at, source, best)
        statistics.nc_match_replace8(rest, source, best, -1.0, again)
        for row in range(p):
            found, marked = at.array()[row].tolist(), again.array()[row].tolist()
            assert x[row, found].tolist() == best.array()[row].tolist()
            assert len(set(found)) == 8
            assert sorted(marked) == sorted(found)
            left = [v for i, v in enumerate(x[row].tolist()) if i not in found]
            assert sorted(v for v in rest.array()[row].tolist() if v >= 0) == sorted(left)


def test_values_that_are_not_there_and_values_given_twice() -> None:
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    vals = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    with bench() as core:
        at, rest = core.new((1, 8), np.uint32), core.new(data.shape)
        # The example of the API's reference: ascending places in one, descending ones in the other.
        statistics.nc_find_index8(at, core.put(data), core.put(vals))
        assert at.array().tolist() == [[2, 4, 5, 6, 7, 8, 9, 10]]
        statistics.nc_match_replace8(rest, core.put(data), core.put(vals), 0.0, at)
        assert at.array().tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
        assert rest.array().tolist() == [[1, 2, 0, 4] + [0] * 7]
        statistics.nc_find_index8(at, core.put(data), core.put(vals + 90))
        assert (at.array() == 0xFFFFFFFF).all()
