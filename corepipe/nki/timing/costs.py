"""Costs of instructions by generation of NeuronCores: how long one occupies its engine, and when its result
is there.

Rows are data, with the source of each number.  `isa` stands for the cost tables of AWS's documentation (SDK
2.26, general/nki/api/nki/isa), `arch` for the architecture guides, `dma` for the guide to DMA bandwidth.
`counters` are derived from the profile counters that AccelOpt publishes for trn1 (zhang677/AccelOpt 47e29a7);
`traces` from instruction traces of kernels on trn2, which are not independent of measured times of kernels
like them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from corepipe.nki.core.buffers import Region, Space
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.timing.constants import Constants

MIN_CYCLES = 64.0
"""Cycles of the shortest instruction (isa: MIN_II; arch: MM_INIT_LATENCY)."""


class Cost(NamedTuple):
    """Nanoseconds that an instruction occupies its engine, and until another engine can use its result."""

    interval: float
    latency: float


@dataclass(frozen=True, slots=True)
class Core:
    """A generation of NeuronCores.

    clocks: GHz of the engines.  ring_rate: bytes a nanosecond of a DMA engine.  issue: nanoseconds that a
    queue of loads, and one of stores, needs for a transfer.
    """

    clocks: Mapping[Engine, float]
    ring_rate: float
    issue: tuple[float, float]


def _clocks(tensor: float, vector: float, scalar: float, gpsimd: float) -> dict[Engine, float]:
    return {Engine.TENSOR: tensor, Engine.VECTOR: vector, Engine.SCALAR: scalar, Engine.GPSIMD: gpsimd}


TAILS = _clocks(tensor=163.0, vector=80.0, scalar=108.0, gpsimd=80.0)
"""Nanoseconds from the end of an interval until another engine can use the result.

traces: a latency of N + 163 ns of products at intervals of N + 4 cycles, N + 137 of VectorE at N + 60, N +
190 of ScalarE at N + 60.  No time from engine to engine is published, and none for v2: the same is
assumed."""

CORES: Mapping[str, Core] = {
    # Clocks: arch.  Rates: dma.  A static queue's issue is assumed.
    "v2": Core(_clocks(2.8, 1.12, 1.4, 1.4), 17.0, (60.0, 60.0)),
    # traces: 28.4 bytes a nanosecond, more than the guide's 23; a software queue (loads) needs 31 to 75 ns
    # for a transfer, a hardware queue (stores) 517 to 620.
    "v3": Core(_clocks(2.4, 0.96, 1.2, 1.2), 28.4, (53.0, 568.0)),
    "v4": Core(_clocks(2.4, 1.2, 1.2, 1.2), 33.0, (53.0, 568.0)),
}

RINGS = 16
"""DMA engines of a NeuronCore (dma)."""

PACKET = 11.0
"""Nanoseconds that a packet costs besides its bytes (traces: 155 ns for 4096 bytes, 83 for 2048, 9 for 4; the
250 to 263 GB/s that counters show on trn1)."""

DMA_START = 1300.0
"""Nanoseconds from a transfer's trigger until its data move (dma: semaphore to start)."""

DMA_END = 700.0
"""Nanoseconds from the last byte until an engine sees it; both together are the 2 us of small transfers."""

PIECE = 4096
"""Bytes from which a row is split over several DMA engines (dma: full speed from there)."""

TRANSPOSE_SHARE = {Space.HBM: 0.9, Space.SBUF: 0.5, Space.PSUM: 0.5}
"""Share of the bandwidth that a transposing transfer reaches, by its source (dma)."""

TABLE_LOAD = 1283.0
"""Nanoseconds to load the tables of an activation function that ScalarE does not hold (traces)."""

IN_EVERY_TABLE = frozenset({"", "copy", "identity", "square", "abs", "add", "subtract", "multiply", "relu"})
"""Functions without a table of their own."""

Mode = Callable[[Instruction, str], bool]


def _spaces(regions: tuple[Region, ...]) -> list[Space]:
    return [r.buffer.space for r in regions]


def mixed(instruction: Instruction, _: str) -> bool:
    """Tells whether one of two inputs is in PSUM and the other in SBUF."""
    spaces = _spaces(instruction.reads[:2])
    return Space.PSUM in spaces and Space.SBUF in spaces


def half(instruction: Instruction, _: str) -> bool:
    """Tells whether all operands have two bytes and are in SBUF."""
    return all(
        r.buffer.dtype.itemsize == 2 and r.buffer.space is Space.SBUF
        for r in (*instruction.reads, *instruction.writes)
    )


def late_half(instruction: Instruction, generation: str) -> bool:
    """Tells whether, from v3 on, all operands have two bytes and are in SBUF."""
    return generation != "v2" and half(instruction, generation)


def late(instruction: Instruction, generation: str) -> bool:
    """Tells whether, from v3 on, all operands are in SBUF."""
    return generation != "v2" and Space.PSUM not in _spaces((*instruction.reads, *instruction.writes))


def v4_half(instruction: Instruction, generation: str) -> bool:
    return generation == "v4" and half(instruction, generation)


@dataclass(frozen=True, slots=True)
class Row:
    """Cycles of an instruction: `fixed` + `each` for an element of a partition.

    fast: cycles for an element where a mode applies; the first that does counts.
    """

    each: float
    source: str
    fixed: float = 0.0
    fast: tuple[tuple[Mode, float], ...] = ()

    def cycles(self, instruction: Instruction, generation: str) -> float:
        each = next((e for mode, e in self.fast if mode(instruction, generation)), self.each)
        return max(MIN_CYCLES, each * instruction.free) + self.fixed


ONE = Row(1, "isa: max(MIN_II, N)", fast=((late_half, 0.25), (late, 0.5)))
"""VectorE with one input.  From v3: four times as fast for two bytes in SBUF (arch), twice for fp32 (traces:
N/2 + 123 for tensor_scalar)."""
TWO = Row(2, "isa: 2N; N with one input in PSUM, or for bf16", fast=((mixed, 1), (late_half, 0.5), (half, 1)))
"""VectorE with two inputs."""

VECTOR: Mapping[str, Row] = {
    "tensor_copy": ONE,
    "tensor_scalar": ONE,
    "activation": ONE,
    "tensor_tensor": TWO,
    "scalar_tensor_tensor": TWO,
    "tensor_copy_predicated": TWO,
    "copy_predicated": TWO,
    "select": TWO,
    "tensor_reduce": Row(1, "isa: N; N/2 for bf16", fast=((half, 0.5),)),
    "tensor_partition_reduce": Row(1, "isa: as tensor_reduce"),
    "tensor_scalar_reduce": Row(1, "isa: N + 64", fixed=64),
    "reciprocal": Row(1, "counters: N in adamw and silu, not the 8N of isa"),
    "tensor_tensor_scan": Row(2, "isa: 2N"),
    "bn_stats": Row(1, "isa: N"),
    "bn_aggr": Row(13 / 3, "isa: 13N/3"),
    "max8": Row(1, "isa: N"),
    "nc_find_index8": Row(1, "isa: N"),
    "nc_match_replace8": Row(1, "isa: min(MIN_II, N)"),
    "memset": Row(1, "isa: N; N/2 for bf16", fast=((half, 0.5),)),
    "nc_transpose": Row(1, "isa: max(MIN_II, N)"),
    "tensor_copy_dynamic_src": Row(1, "isa: max(600, N)", fixed=536),
    "tensor_copy_dynamic_dst": Row(1, "isa: max(600, N)", fixed=536),
}

SCALAR: Mapping[str, Row] = {
    "activation": Row(1, "isa: max(MIN_II, N)", fast=((v4_half, 0.5),)),
    "activation_reduce": Row(1, "isa: N + 64", fixed=64, fast=((v4_half, 0.5),)),
    "tensor_copy_dynamic_src": Row(1, "isa: max(600, N)", fixed=536),
}

GPSIMD: Mapping[str, Row] = {
    "iota": Row(1, "isa: 150 + N"),
    "affine_select": Row(1, "isa: 150 + N"),
    "local_gather": Row(1, "isa: 150 + N"),
    "tensor_tensor": Row(2, "assumed as VectorE's: isa gives no cycles for GpSimd"),
}

OTHERWISE = Row(1, "isa: max(MIN_II, N), as most instructions with one input")
TABLES = {Engine.VECTOR: VECTOR, Engine.SCALAR: SCALAR, Engine.GPSIMD: GPSIMD}

GPSIMD_START = 150.0
"""Cycles (isa)."""

PSUM_BANK = 2048
"""Bytes of a bank in one partition; an instruction on more than one is split (counters: mamba)."""


class Transfer(NamedTuple):
    """Nanoseconds: work shared by all DMA engines, and the time from its first to its last byte alone."""

    work: float
    alone: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a generation with its constants."""

    generation: str
    constants: Constants

    @property
    def core(self) -> Core:
        return CORES[self.generation]

    def overhead(self, engine: Engine) -> float:
        """Returns the cycles that every instruction of an engine adds."""
        match engine:
            case Engine.VECTOR:
                return self.constants.vector_overhead
            case Engine.SCALAR:
                return self.constants.scalar_overhead
            case Engine.GPSIMD:
                return GPSIMD_START
            case _:
                return self.constants.tensor_overhead

    def of(self, instruction: Instruction, engine: Engine) -> Cost:
        """Returns the cost of an instruction on one of the engines that can execute it."""
        core = self.core
        if engine is Engine.TENSOR:
            cycles = self._tensor(instruction)
        else:
            row = TABLES[engine].get(instruction.op, OTHERWISE)
            cycles = row.cycles(instruction, self.generation)
            cycles += pieces(instruction) * self.overhead(engine)
        interval = cycles / core.clocks[engine]
        return Cost(interval, interval + TAILS[engine])

    def _tensor(self, instruction: Instruction) -> float:
        """Returns cycles of a product or a transpose; weights are loaded in the background (arch)."""
        details = instruction.details
        length = max(min(MIN_CYCLES, float(details["m"])), float(details["n"]))
        if instruction.reads[0].buffer.dtype.itemsize != 4:
            passes = 1
        else:  # isa, and its hints of ones and zeros
            passes = 2 if details.get("onezero") or details["is_transpose"] else 4
        return passes * (length + self.constants.tensor_overhead)

    def transfer(self, instruction: Instruction) -> Transfer:
        """Returns the cost of a transfer, apart from its start and end."""
        details = instruction.details
        size, row = details.get("bytes", 0), max(1, details.get("row_bytes", PIECE))
        rate = self.core.ring_rate * self.constants.dma_efficiency
        if "transpose" in instruction.op and instruction.reads:
            rate, row = rate * TRANSPOSE_SHARE[instruction.reads[0].buffer.space], PIECE
        packets = max(1, -(-size // row) * -(-row // PIECE))
        each = PACKET + size / packets / rate
        return Transfer(packets * each / RINGS, -(-packets // RINGS) * each)


def pieces(instruction: Instruction) -> int:
    """Returns the number of PSUM banks that the largest operand there spans, which are instructions each."""
    if all(r.buffer.space is not Space.PSUM for r in (*instruction.reads, *instruction.writes)):
        return 1
    return max(1, -(-instruction.free * 4 // PSUM_BANK))


def table(instruction: Instruction) -> str:
    """Returns the activation function whose table ScalarE must hold, or nothing."""
    function = str(instruction.details.get("function", ""))
    return "" if function in IN_EVERY_TABLE else function
