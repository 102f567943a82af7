"""The current dialect: kernels that import `nki`, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from corepipe.nki import installed, simulate
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.instructions import Instruction
from corepipe.nki.dialects.current.tensor import NkiTensor
from corepipe.nki.dialects.current.types import MemoryRegion
from tests.nki.bench import bench

# ruff: noqa: PLC0415  (a kernel imports its modules in its body, where simulate has them)

BF16 = np.dtype(ml_dtypes.bfloat16)


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def matmul(lhs_t: Any, rhs: Any) -> Any:
    import nki.isa as nisa
    import nki.language as nl

    (k, m), n = lhs_t.shape, rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for j in nl.affine_range(n // 512):
        product = nl.ndarray((m, 512), dtype=nl.float32, buffer=nl.psum)
        for i in nl.affine_range(k // 128):
            a = nl.ndarray((128, m), dtype=lhs_t.dtype)
            b = nl.ndarray((128, 512), dtype=rhs.dtype)
            nisa.dma_copy(dst=a, src=lhs_t[i * 128 : (i + 1) * 128, :])
            nisa.dma_copy(dst=b, src=rhs[nl.ds(i * 128, 128), nl.ds(j * 512, 512)])
            nisa.nc_matmul(product, a, b)
        tile = nl.ndarray((m, 512), dtype=lhs_t.dtype)
        nisa.tensor_copy(dst=tile, src=product, engine=nisa.scalar_engine)
        nisa.dma_copy(dst=out[:, nl.ds(j * 512, 512)], src=tile)
    return out


def test_a_tiled_product_is_summed_in_psum_and_takes_the_same_time_without_values() -> None:
    a, b = normal(1, 384, 96, dtype=BF16), normal(2, 384, 1024, dtype=BF16)
    result = simulate(matmul, a, b, target="trn2")
    wanted = a.astype(np.float64).T @ b.astype(np.float64)
    np.testing.assert_allclose(result.outputs[0].astype(np.float64), wanted, rtol=2**-7, atol=0.1)
    assert not result.findings
    assert simulate(matmul, a, b, target="trn2", values=False).latency_us == result.latency_us
    assert result.traffic.read == 2 * 384 * 96 * 2 + 384 * 1024 * 2


def test_kernels_are_decorated_and_called_on_arrays() -> None:
    with installed():
        import nki

        kernel = nki.jit(platform_target="trn2")(matmul)
        a, b = normal(3, 128, 64), normal(4, 128, 512)
        for called in (kernel, nki.simulate(kernel), kernel[1]):
            np.testing.assert_allclose(called(a, b), a.T @ b, rtol=1e-4, atol=1e-4)


def tensor(core: Any, array: Any, region: MemoryRegion = MemoryRegion.sbuf) -> NkiTensor:
    return NkiTensor(core.put(array, region.space), region)


VIEWS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda t: t[:, 3], lambda a: a[:, 3]),
    (lambda t: t[5], lambda a: a[5:6]),
    (lambda t: t[2:10:2, ..., -1], lambda a: a[2:10:2, :, -1]),
    (lambda t: t[5, 3, 2], lambda a: a[5:6, 3, 2:3]),
    (lambda t: t.slice(1, 1, 6, 2), lambda a: a[:, 1:6:2]),
    (lambda t: t.select(2, 4), lambda a: a[:, :, 4]),
    (lambda t: t.permute((0, 2, 1)), lambda a: a.transpose(0, 2, 1)),
    (lambda t: t.expand_dim(1).broadcast(1, 4), lambda a: np.repeat(a[:, None], 4, 1)),
    (lambda t: t[:, 2:3].squeeze_dim(1), lambda a: a[:, 2]),
    (lambda t: t.reshape((16, -1, 4)), lambda a: a.reshape(16, -1, 4)),
    (lambda t: t.reshape_dim(2, (2, -1)), lambda a: a.reshape(16, 6, 2, 4)),
    (lambda t: t[:, 1:3].flatten_dims(1, 2), lambda a: a[:, 1:3].reshape(16, 16)),
    (
        lambda t: t.rearrange(("p", ("h", "w"), "c"), ("p", "w", "h", "c"), {"h": 2}),
        lambda a: a.reshape(16, 2, 3, 8).transpose(0, 2, 1, 3),
    ),
    (lambda t: t[4:8].ap([[48, 4], [8, 6], [1, 3]], offset=2), lambda a: a[4:8, :, 2:5]),
]


@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_views(number: int) -> None:
    mine, theirs = VIEWS[number]
    x = normal(5, 16, 6, 8)
    with bench() as core:
        found = mine(tensor(core, x))
        np.testing.assert_array_equal(found.part.array(), theirs(x))
        assert found.shape == theirs(x).shape


def test_an_integer_removes_an_axis_of_hbm() -> None:
    x = normal(6, 4, 6, 8)
    with bench() as core:
        t = tensor(core, x, MemoryRegion.shared_hbm)
        assert t[1].shape == (6, 8)
        assert t[1, 2].shape == (8,)
        assert t[1, 2, 3].shape == (1,)
        np.testing.assert_array_equal(t[-1, 2].part.array(), x[-1, 2])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), min_size=1, max_size=4))
def test_an_access_pattern_is_strides(offset: int, pattern: Any) -> None:
    x = np.arange(600, dtype=np.float32).reshape(4, 15, 10)
    with bench() as core:
        t = tensor(core, x, MemoryRegion.hbm).ap(pattern, offset)
        wanted = as_strided(x.reshape(-1)[offset:], [n for _, n in pattern], [4 * s for s, _ in pattern])
        np.testing.assert_array_equal(t.part.array(), wanted)
        inside = [np.unravel_index(int(v), x.shape) for v in wanted.reshape(-1)]
        box = t.part.region().box
        assert all(a <= i < b for index in inside for i, (a, b) in zip(index, box, strict=True))


def test_parts_of_a_pattern_that_share_nothing_do_not_wait_for_each_other() -> None:
    with bench() as core:
        t = tensor(core, normal(7, 128, 4, 64))
        left, right = (t.ap([[256, 128], [64, 4], [1, 32]], start).part.region() for start in (0, 32))
        assert not left.overlaps(right)
        halves = [t.reshape((128, 256))[:, start : start + 64].part.region() for start in (0, 64)]
        assert not halves[0].overlaps(halves[1])


def test_bytes_in_another_type() -> None:
    x = normal(8, 8, 4, 6)
    with bench() as core:
        t = tensor(core, x)
        np.testing.assert_array_equal(t.view(np.uint8).part.array(), x.view(np.uint8))
        np.testing.assert_array_equal(
            t[:, 2].view(BF16).part.array().view(np.uint16), x[:, 2].view(np.uint16)
        )
        back = t.view(np.uint16)[:, 1, 4:8].view(np.float32)
        np.testing.assert_array_equal(back.part.array(), x[:, 1, 2:4])
        assert back.part.region().box[0] == (0, 8)
        assert back.part.region().overlaps(t[:, 1, 2:3].part.region())
        assert not back.part.region().overlaps(t[:, 0].part.region())


def indexed(table: Any, index: Any, count: Any) -> Any:
    import nki.isa as nisa
    import nki.language as nl

    n = table.shape[1]
    rows, sums = nl.ndarray((8, n), nl.float32, nl.shared_hbm), nl.ndarray((1, n), nl.float32, nl.shared_hbm)
    at, tile = nl.load(index), nl.ndarray((8, n), nl.float32)
    nisa.dma_copy(dst=tile, src=table.ap([[n, 8], [1, n]], vector_offset=at, indirect_dim=0))
    nisa.dma_copy(dst=rows, src=tile)
    total, row = nl.zeros((1, n), nl.float32), nl.ndarray((1, n), nl.float32)
    here, one = nl.zeros((1, 1), nl.int32), nl.full((1, 1), 1, nl.int32)
    turns = nisa.register_alloc()
    nisa.register_load(turns, nl.load(count))
    for _ in nl.dynamic_range(turns):
        nisa.dma_copy(dst=row, src=table.ap([[n, 1], [1, n]], scalar_offset=here, indirect_dim=0))
        nisa.tensor_tensor(total, total, row, nl.add)
        nisa.tensor_tensor(here, here, one, op=nl.add)
    nl.fori_loop(
        0, 2, lambda i: nisa.tensor_tensor(total, total, nl.load(table.select(0, i).reshape((1, n))), nl.add)
    )
    nisa.dma_copy(dst=sums, src=total)
    return rows, sums


def test_rows_and_loops_by_values_of_the_run() -> None:
    table, index = normal(9, 40, 16), np.array([[3], [39], [0], [7], [7], [12], [30], [1]], np.int32)
    result = simulate(indexed, table, index, np.array([[5]], np.int32), target="trn2")
    np.testing.assert_array_equal(result.outputs[0], table[index[:, 0]])
    np.testing.assert_allclose(
        result.outputs[1][0], table[:5].sum(0) + table[:2].sum(0), rtol=1e-5, atol=1e-6
    )
    assert not result.findings
    with pytest.raises(KernelError, match=r"row 40 is outside"):
        simulate(indexed, table, index + 1, np.array([[5]], np.int32), target="trn2")
    with pytest.raises(KernelError, match=r"register_load needs values"):
        simulate(indexed, table, index, np.array([[5]], np.int32), target="trn2", values=False)


def composed(x: Any, y: Any) -> Any:
    import nki.language as nl

    a, b = nl.load(x), nl.load(y)
    outs = [
        nl.add(a, b),
        nl.subtract(1.0, a),
        nl.multiply(a, nl.mean(a, axis=1)),
        nl.broadcast_to(b[0:1], (32, 24)),
        nl.copy(nl.transpose(a)),
        nl.copy(nl.matmul(a, b, transpose_x=True)),
        nl.where(nl.greater(a, b), a, 0.0),
        nl.exp(nl.maximum(a, b), dtype=nl.bfloat16),
        nl.copy(nl.shared_identity_matrix(16)),
    ]
    results = []
    for tile in outs:
        out = nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm)
        nl.store(out, tile)
        results.append(out)
    return (*results, nl.full((3, 5), 7, nl.float32, nl.shared_hbm))


def test_functions_that_return_tiles() -> None:
    x, y = normal(10, 32, 24), normal(11, 32, 24)
    outputs = simulate(composed, x, y, target="trn2").outputs
    wanted = [
        x + y, 1 - x, x * x.mean(1, keepdims=True), np.repeat(y[:1], 32, 0), x.T, x.T @ y,
        np.where(x > y, x, 0), np.exp(np.maximum(x, y)), np.eye(16), np.full((3, 5), 7),
    ]  # fmt: skip
    for found, want in zip(outputs, wanted, strict=True):
        rtol = 2**-7 if found.dtype == BF16 else 1e-5
        np.testing.assert_allclose(found.astype(np.float64), want, rtol=rtol, atol=1e-5)


def halves(x: Any) -> Any:
    import nki.isa as nisa
    import nki.language as nl

    out, n = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), x.shape[0] // nl.num_programs(0)
    rows = nl.ds(nl.program_id(0) * n, n)
    tile = nl.load(x[rows])
    nisa.activation(dst=tile, op=nl.square, data=tile)
    nisa.dma_copy(dst=out[rows], src=tile)
    return out


def test_programs_of_a_grid_share_what_they_return() -> None:
    x = normal(12, 64, 40)
    np.testing.assert_array_equal(simulate(halves, x, target="trn2", grid=2).outputs[0], x * x)


def collectives() -> Any:
    import nki.collectives as ncc

    return ncc


def refusals() -> dict[str, tuple[Callable[[Any, Any, Any, Any], Any], str]]:
    return {
        "lnc2": (lambda nl, nisa, x, t: nisa.sendrecv(src=t, dst=t), r"nisa\.sendrecv is not simulated"),
        "unknown": (lambda nl, nisa, x, t: nl.frobnicate(t), r"nl\.frobnicate is not supported"),
        "assignment": (lambda nl, nisa, x, t: t.__setitem__(0, 1), r"tensors are not assigned to"),
        "no tensor": (lambda nl, nisa, x, t: nisa.tensor_copy(t, 3.0), r"src is a tensor, not 3\.0"),
        "mask": (lambda nl, nisa, x, t: nisa.tensor_copy(t, t, mask=1), r"keyword argument 'mask'"),
        "type": (lambda nl, nisa, x, t: nl.ndarray((4, 4), nl.float8_e4m3fn_x4), r"float8_e4m3fn_x4"),
        "collective": (lambda nl, nisa, x, t: collectives().all_reduce(), r"ncc\.all_reduce"),
        "indices": (lambda nl, nisa, x, t: t[0, 0, 0], r"3 indices for a tensor of shape \(4, 8\)"),
        "bounds": (lambda nl, nisa, x, t: nisa.memset(t[:, 4:9], 0), r"axis 1, whose length is 8"),
        "reshape": (lambda nl, nisa, x, t: t.permute((1, 0)), r"permute\(\(1, 0\)\)"),
        "memory": (lambda nl, nisa, x, t: nisa.tensor_copy(t, x), r"is in HBM"),
        "random": (lambda nl, nisa, x, t: nisa.dropout(t, t, 0.5), r"random numbers"),
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(refusals()))
def test_what_is_not_simulated_is_refused_by_name_and_line(name: str) -> None:
    act, message = refusals()[name]

    def kernel(x: Any) -> None:
        import nki.isa as nisa
        import nki.language as nl

        act(nl, nisa, x, nl.load(x))

    with pytest.raises(KernelError, match=message) as error:
        simulate(kernel, normal(13, 4, 8), target="trn2")
    assert error.value.site is not None
    assert error.value.site.file == __file__


def typed(x: Any, kind: Any) -> Any:
    import nki.isa as nisa
    import nki.language as nl

    out = nl.ndarray(x.shape, kind, nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out


@pytest.mark.parametrize("kind", [np.float16, np.dtype(np.float16), "float16"])
def test_types_are_arguments(kind: Any) -> None:
    x = normal(16, 4, 8)
    (found,) = simulate(typed, x, kind, target="trn2").outputs
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, x.astype(np.float16))


def test_objects_of_kernels_may_leave_annotations_out() -> None:
    with installed():
        from dataclasses import dataclass

        import nki.language as nl

        @dataclass
        class Config(nl.NKIObject):
            size: int
            step = None

        assert Config(3, step=4).step == 4


def test_fresh_psum_in_a_loop_begins_a_new_sum_each_turn() -> None:
    with bench() as core, installed():
        import nki.isa as nisa
        import nki.language as nl

        a, b = tensor(core, normal(14, 64, 32)), tensor(core, normal(15, 64, 48))
        for _ in range(2):
            product = nl.ndarray((32, 48), nl.float32, nl.psum)
            nisa.nc_matmul(product, a, b)
            nisa.nc_matmul(product, a, b)
        adds = [e.accumulates for e in core.recorder.stream if isinstance(e, Instruction)]
        assert adds == [False, True, False, True]
        assert not core.findings
