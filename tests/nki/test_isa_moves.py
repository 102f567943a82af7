"""Indices, selections, shuffles, gathers and transfers against loops in Python."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.errors import KernelError
from corepipe.nki.isa import partitions, select, transfers
from corepipe.nki.isa.base import ReduceCommand
from tests.nki.bench import bench

BF16 = np.dtype(ml_dtypes.bfloat16)


def normal(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 5)), min_size=1, max_size=3),
    st.integers(-50, 50), st.integers(-3, 3), st.integers(1, 20),
)  # fmt: skip
def test_iota_counts_as_its_loops_do(pattern: Any, offset: int, channel: int, p: int) -> None:
    wanted: list[list[int]] = []
    for row in range(p):
        values = [offset + row * channel]
        for step, count in pattern:
            values = [v + step * i for v in values for i in range(count)]
        wanted.append(values)
    with bench() as core:
        dst = core.new((p, len(wanted[0])), np.int32)
        select.iota(dst, pattern, offset=offset, channel_multiplier=channel)
        assert dst.array().tolist() == wanted


def test_affine_select_keeps_where_its_predicate_holds() -> None:
    x = normal(1, (16, 24))
    causal = np.arange(16)[:, None] >= np.arange(24)[None]
    with bench() as core:
        dst = core.new((16, 24))
        select.affine_select(dst, causal, core.put(x), -1e9)
        np.testing.assert_array_equal(dst.array(), np.where(causal, x, np.float32(-1e9)))


def test_range_select_and_its_maximum_over_several_instructions() -> None:
    x, low, high = (
        normal(2, (8, 40)),
        np.full((8, 1), 5, np.float32),
        np.arange(8, 48, 5, dtype=np.float32)[:, None],
    )
    with bench() as core:
        out, best, source = core.new((8, 40)), core.new((8, 1)), core.put(x)
        args = ("greater_equal", "less", core.put(low), core.put(high))
        select.range_select(out[:, 0:16], source[:, 0:16], *args)
        select.range_select(
            out[:, 16:40],
            source[:, 16:40],
            *args,
            reduce_cmd=ReduceCommand.reduce,
            reduce_res=best,
            range_start=16,
        )
        at = np.arange(40)[None]
        wanted = np.where((at >= low) & (at < high), x, np.finfo(np.float32).min)
        np.testing.assert_array_equal(out.array(), wanted)
        np.testing.assert_array_equal(best.array()[:, 0], wanted.max(1))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_predicated_copy_leaves_the_rest(reverse: bool) -> None:
    x, y, p = (
        normal(3, (8, 9)),
        normal(4, (8, 9)),
        np.random.default_rng(5).integers(0, 2, (8, 9)).astype(np.uint8),
    )
    taken = (p == 0) if reverse else (p != 0)
    with bench() as core:
        dst, both = core.put(y), core.new((8, 9))
        done = select.tensor_copy_predicated(dst, core.put(x), core.put(p), reverse)
        assert done.accumulates
        np.testing.assert_array_equal(dst.array(), np.where(taken, x, y))
        select.select_reduce(both, core.put(p), core.put(x), 3.0, reverse_pred=reverse)
        np.testing.assert_array_equal(both.array(), np.where(taken, x, 3))
        empty = core.new((8, 9))
        select.tensor_copy_predicated(empty, 1.5, core.put(p), reverse)
        assert (empty.written() == taken).all()


def test_a_shuffle_stays_in_its_quadrant() -> None:
    x, mask = normal(6, (64, 5)), [31 - i if i % 3 else 255 for i in range(32)]
    with bench() as core:
        dst = core.put(np.zeros((64, 5), np.float32))
        partitions.nc_stream_shuffle(dst, core.put(x), mask)
        for i in range(64):
            source = mask[i % 32]
            wanted = np.zeros(5) if source == 255 else x[i // 32 * 32 + source]
            np.testing.assert_array_equal(dst.array()[i], wanted)
        with pytest.raises(KernelError, match=r"32 of 0"):
            partitions.nc_stream_shuffle(dst, core.put(x), [0] * 31)


def test_gathers_within_a_partition_and_within_sixteen() -> None:
    rng = np.random.default_rng(7)
    x, own = normal(8, (32, 20)), rng.integers(0, 20, (32, 6)).astype(np.uint32)
    shared = rng.integers(0, 18, (32, 2)).astype(np.uint16)
    with bench() as core:
        dst = core.new((32, 6))
        partitions.nc_n_gather(dst, core.put(x), core.put(own))
        assert dst.array().tolist() == [[x[p, i] for i in own[p]] for p in range(32)]
        runs = core.new((32, 30, 2))
        partitions.local_gather(runs, core.put(x), core.put(shared), 2, 30)
        for p in range(32):
            core_indices = [int(shared[p // 16 * 16 + j, i]) for i in range(2) for j in range(16)][:30]
            assert runs.array()[p].tolist() == [[x[p, i], x[p, i + 1]] for i in core_indices]
        own[3, 2] = 20
        with pytest.raises(KernelError, match=r"index 20 is outside of the 20"):
            partitions.nc_n_gather(dst, core.put(x), core.put(own))


def test_places_of_elements_that_are_not_zero() -> None:
    x = np.random.default_rng(15).integers(0, 2, (32, 9)).astype(np.float32)
    with bench() as core:
        dst = core.put(np.full((32, 10), 99, np.int32))
        partitions.nonzero_with_count(dst, core.put(x), 100, -7)
        for p in range(32):
            places = [100 + i for i in range(9) if x[p, i]]
            wanted = [*places, *[-7] * (9 - len(places)), len(places)] if p % 16 == 0 else [99] * 10
            assert dst.array()[p].tolist() == wanted


def test_bounds_of_sequences() -> None:
    ids = np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], np.float32)
    with bench() as core:
        dst = core.new((1, 2, 9))
        partitions.sequence_bounds(dst, core.put(ids))
        # The example of the API's reference.
        assert dst.array().tolist() == [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]


@pytest.mark.parametrize(
    ("columns", "row", "rows"), [((0, 64), 64 * 4, 16), ((0, 32), 32 * 4, 16), ((0, 1), 4, 16)]
)
def test_a_transfer_counts_bytes_and_rows(columns: tuple[int, int], row: int, rows: int) -> None:
    x = normal(9, (16, 64))
    with bench() as core:
        source, dst = core.put(x, Space.HBM), core.new((16, columns[1]))
        done = transfers.dma_copy(dst, source[:, columns[0] : columns[1]])
        np.testing.assert_array_equal(dst.array(), x[:, : columns[1]])
        assert (done.details["row_bytes"], done.details["rows"]) == (row, rows)
        assert done.details["bytes"] == row * rows


def test_a_transfer_casts_adds_and_reshapes() -> None:
    x, y = normal(10, (16, 8)), normal(11, (4, 32), BF16)
    with bench() as core:
        dst = core.put(y, Space.HBM)
        assert transfers.dma_copy(dst, core.put(x), add=True).accumulates
        wanted = (y.astype(np.float32) + x.reshape(4, 32)).astype(BF16)
        assert (dst.array().view(np.uint16) == wanted.view(np.uint16)).all()
        total = core.new((16, 8), BF16, Space.HBM)
        transfers.dma_compute(total, [core.put(x)] * 3, [1.0, 1.0, 2.0])
        np.testing.assert_allclose(total.array().astype(np.float64), 4 * x, rtol=2**-7)


def test_transposing_transfers() -> None:
    with bench() as core:
        for shape, axes in (((16, 24), (1, 0)), ((4, 3, 8), (2, 1, 0)), ((4, 3, 2, 8), (3, 1, 2, 0))):
            x = normal(12, shape, BF16)
            dst = core.new(tuple(shape[a] for a in axes), BF16)
            transfers.dma_transpose(dst, core.put(x, Space.HBM))
            assert (dst.array().view(np.uint16) == x.transpose(axes).view(np.uint16)).all()
        with pytest.raises(KernelError, match=r"axes \(0, 1\)"):
            transfers.dma_transpose(core.new((16, 24), BF16), core.new((16, 24), BF16, Space.HBM), (0, 1))


@pytest.mark.parametrize("add", [False, True])
def test_rows_by_index(add: bool) -> None:
    table, x = normal(13, (50, 6)), normal(14, (8, 6))
    index = np.array([4, 9, 49, 0, 7, 3, 50, 1], np.int32)[:, None]
    with bench() as core:
        rows, tile = core.put(table, Space.HBM), core.put(x)
        with pytest.raises(KernelError, match=r"row 50 is outside of the 50 rows"):
            transfers.dma_gather(tile, rows, core.put(index))
        transfers.dma_gather(tile, rows, core.put(index), skip=True, add=add)
        inside = index[:, 0] < 50
        wanted = np.where(inside[:, None], table[index[:, 0] % 50] + (x if add else 0), x)
        np.testing.assert_array_equal(tile.array(), wanted)
        transfers.dma_scatter(rows, core.put(x), core.put(index), skip=True, add=add)
        after = table.copy()
        for p in np.flatnonzero(inside):
            after[index[p, 0]] = after[index[p, 0]] * add + x[p]
        np.testing.assert_array_equal(rows.array(), after)
