"""The stream of a run: instructions, the regions that they touch, and turns of loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from corepipe.nki.core.buffers import Region
from corepipe.nki.core.errors import Site


class Engine(StrEnum):
    """An engine of a NeuronCore, or its DMA queues."""

    TENSOR = "tensor"
    VECTOR = "vector"
    SCALAR = "scalar"
    GPSIMD = "gpsimd"
    DMA = "dma"


class LoopKind(StrEnum):
    """The promise that a kernel makes of a loop's turns."""

    AFFINE = "affine"  # no turn needs the result of another, but for sums
    SEQUENTIAL = "sequential"
    STATIC = "static"  # unrolled


@dataclass(slots=True)
class Instruction:
    """One instruction of an engine, or one transfer.

    op: name in the table of costs (`nc_matmul`, `tensor_tensor`, `dma_copy`).
    engines: engines that can execute it, in the order of preference; one, unless the compiler may choose.
    partitions, free: partitions, and elements of a partition, of its largest operand on chip.
    reads, writes: regions, in the order of the operands.  An instruction that accumulates also reads what
    it writes, but `reads` does not repeat it.
    details: numbers that its cost needs besides: `k`, `m`, `n`, `is_transpose` and `onezero` of a product;
    `bytes`, `rows` and `row_bytes` of a transfer; the `function` of an activation; `dtypes` of operands.
    """

    op: str
    engines: tuple[Engine, ...]
    partitions: int
    free: int
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    site: Site
    accumulates: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Loop:
    """One execution of a loop: `count` turns, of which the last `skipped` but one are not in the stream."""

    number: int
    kind: LoopKind
    count: int
    site: Site
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class LoopBegin:
    loop: Loop


@dataclass(frozen=True, slots=True)
class Turn:
    """The beginning of a turn."""

    loop: Loop
    index: int


@dataclass(frozen=True, slots=True)
class Skip:
    """The turns that are left out here: they were like the turn before, and the loop's last turn follows."""

    loop: Loop
    turns: int


@dataclass(frozen=True, slots=True)
class LoopEnd:
    loop: Loop


Event = Instruction | LoopBegin | Turn | Skip | LoopEnd
"""An entry of the stream."""
