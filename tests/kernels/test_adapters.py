"""Adapters in the kernels: their products have the bits of numpy's, and a row's bits depend on it alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from corepipe.kernels import _native, packing
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.numerics.low_rank import LowRank
from tests.kernels.harness import elsewhere, i32
from tests.kernels.linears import Weights, random_weights, round_bf16
from tests.peft_adapters import pair
from tests.reference import arithmetic

F32 = np.ndarray
KINDS: tuple[packing.Kind, ...] = (*packing.DENSE_KINDS, "int4g32", "int4g64z")


@dataclass(frozen=True)
class Rig:
    """A Linear over several matrices, as Programs have it, and adapters in slots, over `x`."""

    x: F32
    weights: tuple[Weights, ...]
    adapters: tuple[tuple[LowRank | None, ...], ...]
    rounded: bool = False
    gain: F32 | None = None
    residual: F32 | None = None
    glu: bool = False
    bias: F32 | None = None

    def program(self, rows: slice | Sequence[int]) -> Any:
        x = np.ascontiguousarray(self.x[rows])
        widths = [x.shape[1], *(len(w.values) for w in self.weights), len(self.weights[0].values)]
        program = _native.Program(widths, len(x), self.rounded)
        program.embed(0, x)
        added = None
        if self.residual is not None:
            added = len(widths) - 1
            program.embed(added, np.ascontiguousarray(self.residual[rows]))
        segments = [(w.matrix(), self.bias, at + 1) for at, w in enumerate(self.weights)]
        norm = None if self.gain is None else (self.gain, 1e-5)
        function = "silu" if self.glu else None
        program.linear(0, segments, norm=norm, residual=added, glu=self.glu, function=function)
        return program

    def run(self, slots: Sequence[int], rows: Any = slice(None), threads: int = 2) -> list[F32]:
        """Returns the results of these rows, each with the adapter in its slot (-1: none)."""
        program, pool = self.program(rows), _native.Pool(threads)
        executor = _native.Executor(pool, [program], 1, len(self.weights[0].values))
        for slot, layers in enumerate(self.adapters):
            executor.set_adapter(slot, native_adapter(layers, bf16=self.rounded))
        every = np.arange(len(slots), dtype=np.int32)
        tables = np.zeros((1, 1), np.int32)
        given = (every, every, i32(0, len(slots)), tables, every, None)
        executor.wait(executor.submit(*given, adapters=np.array(slots, np.int32)))
        pool.close()
        outputs = 1 if self.glu else len(self.weights)
        return [program.memory()[1 + at].view(np.float32)[: len(slots)].copy() for at in range(outputs)]


def native_adapter(layers: Sequence[LowRank | None], *, bf16: bool) -> Any:
    parts = [
        (
            0,
            at,
            (len(own.b), own.a.shape[1], own.rank),
            own.scale,
            *packing.pack_adapter(own.a, own.b, bf16=bf16),
        )
        for at, own in enumerate(layers)
        if own is not None
    ]
    return _native.Adapter(parts, bf16)


def random_rig(kind: packing.Kind, rows: int, k: int, widths: Sequence[int], **options: Any) -> Rig:
    """Three adapters of different ranks; the second does not change the first matrix."""
    rng = np.random.default_rng(rows + k)
    weights = tuple(random_weights(rng, kind, n, k) for n in widths)
    adapters = [[LowRank(*pair(rng, rank, n, k), 0.5) for n in widths] for rank in (16, 5, 8)]
    adapters[1][0] = None
    x = rng.standard_normal((rows, k)).astype(np.float32)
    return Rig(
        round_bf16(x) if options.get("rounded") else x, weights, tuple(map(tuple, adapters)), **options
    )


@pytest.mark.parametrize("fmt", ["fp32", "bf16"])
@pytest.mark.parametrize("rank", [1, 3, 4, 8, 13, 16, 64])
@pytest.mark.parametrize(
    ("n", "k"), elsewhere([(1, 1), (32, 32), (50, 63), (65, 130), (192, 576)], [(50, 63)])
)
def test_products_have_the_bits_of_numpys(n: int, k: int, rank: int, fmt: str) -> None:
    """Without a matrix of its own (all 0) the result is what the adapter adds."""
    if _native.isa() == "portable":
        pytest.skip("it may round the product and the sum of a multiply-add")
    rng, rounded = np.random.default_rng(rank), fmt == "bf16"
    nothing = Weights("fp32", np.zeros((n, k), np.float32), None)
    adapter = LowRank(*pair(rng, rank, n, k), 0.75)
    x = rng.standard_normal((5, k)).astype(np.float32)
    x = round_bf16(x) if rounded else x
    (got,) = Rig(x, (nothing,), ((adapter,),), rounded).run([0] * 5)
    h = arithmetic.low_rank_products(x, adapter, FORMATS[fmt])
    want = arithmetic.expanded(h, round_bf16(adapter.b) if rounded else adapter.b)
    np.testing.assert_array_equal(got, round_bf16(want) if rounded else want)
    exact = 0.75 * (x.astype(np.float64) @ adapter.a.T) @ adapter.b.T
    np.testing.assert_allclose(got, exact, rtol=0.1 if rounded else 1e-5, atol=0.05 if rounded else 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_adds_comes_before_the_rounding(kind: packing.Kind) -> None:
    """The sum with the matrix's product and the bias is rounded once; a row without adapter is as it was."""
    rig = random_rig(kind, 9, 130, (70, 33), rounded=kind != "fp32")
    plain = Rig(rig.x, rig.weights, rig.adapters)
    base = plain.run([-1] * 9)
    got = rig.run([0, -1, 1, 2, 2, -1, 0, 1, 2])
    alone = rig.run([-1] * 9)
    for at, (changed, unchanged, sums) in enumerate(zip(got, alone, base, strict=True)):
        for row, slot in enumerate([0, -1, 1, 2, 2, -1, 0, 1, 2]):
            own = None if slot < 0 else rig.adapters[slot][at]
            if own is None:
                np.testing.assert_array_equal(changed[row], unchanged[row])
                continue
            exact = sums[row] + 0.5 * (rig.x[row].astype(np.float64) @ own.a.T) @ own.b.T
            np.testing.assert_allclose(changed[row], exact, rtol=0.02, atol=0.03 if rig.rounded else 1e-5)


CASES: dict[str, dict[str, Any]] = {
    "norm": {"gain": np.linspace(0.5, 2, 200).astype(np.float32), "rounded": True},
    "bias": {"bias": np.linspace(-1, 1, 70).astype(np.float32)},
    "residual": {
        "residual": np.linspace(-1, 1, 283 * 70).astype(np.float32).reshape(283, 70),
        "rounded": True,
    },
    "glu": {"glu": True, "gain": np.linspace(0.5, 2, 200).astype(np.float32)},
}
WIDTHS = {"residual": (70,), "bias": (70, 70), "glu": (70, 70)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_a_row_depends_on_itself_and_its_adapter_alone(kind: packing.Kind, case: str) -> None:
    """In batches of any size, on any number of threads, whatever adapters its neighbours have; with many rows
    each thread takes some of them."""
    rng = np.random.default_rng(5)
    rig = random_rig(kind, 283, 200, WIDTHS.get(case, (70, 33)), **CASES[case])
    slots = rng.integers(-1, 3, 283)
    whole = rig.run(slots.tolist())
    for rows in elsewhere((1, 2, 3, 7, 17, 33, 64, 150), (1, 7, 33)):
        chosen = np.sort(rng.choice(283, rows, replace=False))
        for threads in (1, 3):
            part = rig.run(slots[chosen].tolist(), chosen, threads)
            for got, want in zip(part, whole, strict=True):
                np.testing.assert_array_equal(got, want[chosen])
    alone = rig.run([-1] * 283)
    for got, want in zip(alone, whole, strict=True):
        np.testing.assert_array_equal(got[slots < 0], want[slots < 0])
        assert (got[slots == 0] != want[slots == 0]).any(axis=1).all()


def test_a_batch_keeps_the_adapters_that_it_was_submitted_with() -> None:
    rig = random_rig("fp32", 40, 96, (64,))
    program, pool = rig.program(slice(None)), _native.Pool(1)
    executor = _native.Executor(pool, [program], 1, 64)
    first, _, other = (native_adapter(layers, bf16=False) for layers in rig.adapters)
    every, tables = np.arange(40, dtype=np.int32), np.zeros((1, 1), np.int32)
    given = (every, every, i32(0, 40), tables, every, None)
    slots = np.zeros(40, np.int32)
    executor.set_adapter(0, first)
    ticket = executor.submit(*given, adapters=slots)
    executor.set_adapter(0, other)
    later = executor.submit(*given, adapters=slots)
    executor.set_adapter(0, None)
    with pytest.raises(ValueError, match="no adapter in slot 0"):
        executor.submit(*given, adapters=slots)
    found = [executor.wait(one)["values"] for one in (ticket, later)]
    pool.close()
    for got, slot in zip(found, (0, 2), strict=True):
        np.testing.assert_array_equal(got, rig.run([slot] * 40)[0])


def test_what_does_not_fit_is_refused() -> None:
    rig = random_rig("fp32", 4, 96, (64,))
    pool = _native.Pool(1)
    executor = _native.Executor(pool, [rig.program(slice(None))], 1, 64)
    (own,) = rig.adapters[0]
    a, b = packing.pack_adapter(own.a, own.b, bf16=False)
    with pytest.raises(ValueError, match="a must have rank"):
        _native.Adapter([(0, 0, (64, 96, 15), 1.0, a, b)], bf16=False)
    with pytest.raises(ValueError, match="b must have n"):
        _native.Adapter([(0, 0, (65, 96, 16), 1.0, a, b)], bf16=False)
    with pytest.raises(ValueError, match="rows and columns"):
        _native.Adapter([(0, 0, (64, 96, 0), 1.0, a[:0], b[:0])], bf16=False)
    for place, error in (((1, 0), "more cores"), ((0, 1), "more Linears")):
        with pytest.raises(ValueError, match=error):
            executor.set_adapter(0, _native.Adapter([(*place, (64, 96, 16), 1.0, a, b)], bf16=False))
    with pytest.raises(ValueError, match="the sizes of its Linear"):
        executor.set_adapter(0, _native.Adapter([(0, 0, (63, 96, 16), 1.0, a, b)], bf16=False))
    with pytest.raises(ValueError, match="slots of adapters are"):
        executor.set_adapter(-1, None)
    every, tables = np.arange(4, dtype=np.int32), np.zeros((1, 1), np.int32)
    executor.set_adapter(0, native_adapter((own,), bf16=False))
    for slots, error in (
        (i32(0, 0, 0), "differ in length"),
        (i32(0, 0, 0, -2), "slot -2"),
        (i32(9, 0, 0, 0), "slot 9"),
    ):
        with pytest.raises(ValueError, match=error):
            executor.submit(every, every, i32(0, 4), tables, every, None, adapters=slots)
    pool.close()
