"""Costs of instructions against cycles that are published or were measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import Recorder, recording
from corepipe.nki.core.tensors import View, whole
from corepipe.nki.isa.statistics import bn_aggr
from corepipe.nki.isa.tensor import nc_matmul, nc_transpose
from corepipe.nki.isa.transfers import dma_copy
from corepipe.nki.isa.vector import reciprocal, tensor_copy, tensor_scalar, tensor_tensor
from corepipe.nki.timing.constants import DOCUMENTED, shipped
from corepipe.nki.timing.costs import CORES, RINGS, Costs

BF16 = np.dtype("float16")
"""Two bytes, as bfloat16 has."""


class Kernel:
    """Makes instructions on fresh tiles."""

    def __init__(self, generation: str = "v2") -> None:
        self.recorder = Recorder(generation, legacy=True, values=False)

    def tile(self, partitions: int, free: int, space: Space = Space.SBUF, dtype: Any = np.float32) -> View:
        return whole(self.recorder.allocate(space, (partitions, free), dtype))

    def make(self, instruction: Callable[..., Instruction], *operands: Any, **keywords: Any) -> Instruction:
        with recording(self.recorder):
            return instruction(*operands, **keywords)


def cycles(instruction: Instruction, engine: Engine, generation: str = "v2") -> float:
    costs = Costs(generation, DOCUMENTED[generation])
    return costs.of(instruction, engine).interval * CORES[generation].clocks[engine]


@pytest.mark.parametrize(
    ("spaces", "dtype", "expected"),
    [
        ((Space.SBUF, Space.SBUF), np.float32, 2 * 512),
        ((Space.SBUF, Space.PSUM), np.float32, 512),
        ((Space.PSUM, Space.SBUF), np.float32, 512),
        ((Space.SBUF, Space.SBUF), BF16, 512),
    ],
)
def test_tensor_tensor_takes_its_published_cycles(spaces: Any, dtype: Any, expected: float) -> None:
    kernel = Kernel()
    out = kernel.tile(128, 512, dtype=dtype)
    inputs = [kernel.tile(128, 512, space, dtype if space is Space.SBUF else np.float32) for space in spaces]
    made = kernel.make(tensor_tensor, out, *inputs, "add")
    assert cycles(made, Engine.VECTOR) == pytest.approx(expected + 106)


def test_an_iteration_of_adamw_takes_the_measured_cycles() -> None:
    """AccelOpt's counters: 5861 cycles of VectorE, of three sums with an input in PSUM, three without, and a
    reciprocal."""
    kernel = Kernel()
    sbuf = [kernel.tile(128, 512) for _ in range(3)]
    psum = kernel.tile(128, 512, Space.PSUM)
    made = [kernel.make(tensor_tensor, sbuf[0], sbuf[1], sbuf[2], "multiply") for _ in range(3)]
    made += [kernel.make(tensor_tensor, sbuf[0], sbuf[1], psum, "add") for _ in range(3)]
    made.append(kernel.make(reciprocal, sbuf[0], sbuf[1]))
    assert sum(cycles(m, Engine.VECTOR) for m in made) == pytest.approx(5861, rel=0.002)


def test_products_take_the_measured_cycles() -> None:
    """595 cycles of bf16 for 512 columns (matmul tutorial), 4 x (512 + 85) in fp32 (AccelOpt)."""
    kernel = Kernel()
    out = kernel.tile(128, 512, Space.PSUM)
    half = kernel.make(nc_matmul, out, kernel.tile(128, 128, dtype=BF16), kernel.tile(128, 512, dtype=BF16))
    full = kernel.make(nc_matmul, out, kernel.tile(128, 128), kernel.tile(128, 512))
    hinted = kernel.make(nc_matmul, out, kernel.tile(128, 128), kernel.tile(128, 512), onezero=True)
    assert cycles(half, Engine.TENSOR) == 595
    assert cycles(full, Engine.TENSOR) == pytest.approx(4 * (512 + 85), rel=0.005)
    assert cycles(hinted, Engine.TENSOR) == cycles(full, Engine.TENSOR) / 2


def test_a_product_with_few_columns_takes_as_long_as_its_weights_allow() -> None:
    kernel = Kernel()

    def one(columns: int) -> Instruction:
        out, moving = kernel.tile(128, columns, Space.PSUM), kernel.tile(128, columns, dtype=BF16)
        return kernel.make(nc_matmul, out, kernel.tile(128, 128, dtype=BF16), moving)

    assert cycles(one(1), Engine.TENSOR) == cycles(one(64), Engine.TENSOR) == 64 + 83
    assert cycles(one(128), Engine.TENSOR) == 128 + 83


def test_transposes_of_tensor_and_vector_engines() -> None:
    kernel = Kernel()
    out = kernel.tile(128, 64, Space.PSUM, BF16)
    wide = kernel.make(nc_transpose, out, kernel.tile(64, 128, dtype=BF16))
    assert cycles(wide, Engine.TENSOR) == 64 + 83  # max(P, min(64, F))
    small = kernel.make(nc_transpose, kernel.tile(32, 32), kernel.tile(32, 32))
    assert cycles(small, Engine.VECTOR) == 64 + 106


def test_instructions_on_several_psum_banks_are_split() -> None:
    kernel = Kernel()
    out, data = kernel.tile(128, 2048), kernel.tile(128, 2048, Space.PSUM)
    assert cycles(kernel.make(tensor_copy, out, data), Engine.VECTOR) == 2048 + 4 * 106


def test_bn_aggr() -> None:
    kernel = Kernel()
    made = kernel.make(bn_aggr, kernel.tile(128, 2), kernel.tile(128, 96))
    assert cycles(made, Engine.VECTOR) == pytest.approx(13 * 96 / 3 + 106)


def test_vector_modes_of_v3() -> None:
    """A quarter for 16-bit copies in SBUF (architecture guide), half for fp32 (traces)."""
    for dtype, expected in ((BF16, 1024 / 4), (np.float32, 1024 / 2)):
        kernel = Kernel("v3")
        out, data = kernel.tile(128, 1024, dtype=dtype), kernel.tile(128, 1024, dtype=dtype)
        made = kernel.make(tensor_scalar, out, data, "multiply", 2.0)
        assert cycles(made, Engine.VECTOR, "v3") == pytest.approx(expected + 60)


@pytest.mark.parametrize(
    ("row", "nanoseconds", "tolerance"),
    [
        (4096, 155, 0.02),
        (2048, 83, 0.02),
        (512, 25, 0.2),
        (256, 17, 0.2),
        (4, 9, 0.3),
    ],
)
def test_packets_of_v3_take_the_measured_time(row: int, nanoseconds: float, tolerance: float) -> None:
    kernel = Kernel("v3")
    chip = kernel.tile(128, row // 4)
    outside = whole(kernel.recorder.allocate(Space.HBM, (128, row), np.float32))[:, : row // 4]
    transfer = Costs("v3", DOCUMENTED["v3"]).transfer(kernel.make(dma_copy, chip, outside))
    assert transfer.work * RINGS / 128 == pytest.approx(nanoseconds, rel=tolerance)
    assert transfer.alone == pytest.approx(transfer.work)


def test_large_transfers_reach_the_measured_bandwidth() -> None:
    """250 to 263 GB/s on trn1, 412 to 415 on trn2."""
    for generation, low, high in (("v2", 250, 263), ("v3", 412, 426)):
        kernel = Kernel(generation)
        chip = kernel.tile(128, 4096)
        outside = whole(kernel.recorder.allocate(Space.HBM, (128, 4096), np.float32))
        work = Costs(generation, DOCUMENTED[generation]).transfer(kernel.make(dma_copy, chip, outside)).work
        assert low <= 128 * 4096 * 4 / work <= high


def test_a_transfer_of_one_row_occupies_one_of_the_dma_engines() -> None:
    kernel = Kernel()
    chip, outside = kernel.tile(1, 512), whole(kernel.recorder.allocate(Space.HBM, (1, 512), np.float32))
    transfer = Costs("v2", DOCUMENTED["v2"]).transfer(kernel.make(dma_copy, chip, outside))
    assert transfer.alone == pytest.approx(RINGS * transfer.work)


def test_constants_are_shipped_for_every_generation() -> None:
    assert set(shipped()) == set(CORES) == set(DOCUMENTED)
    for found in shipped().values():
        assert found.known
        for low, high in found.interval.values():
            assert 0 < low < 1 < high
