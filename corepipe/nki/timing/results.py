"""Results that are the same in all turns of a loop: the compiler computes them once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from corepipe.nki.core.buffers import Buffer, Region, Space
from corepipe.nki.core.instructions import Event, Instruction

LARGEST = 2 << 10
"""Bytes of a partition of a result that moves: a bank of PSUM.

The tutorial's mamba_v2 takes 6.8 cycles of VectorE an element for 512 elements of fp32 and 9.4 for 1024 and
more: the product of delta and u, 2 cycles an element and 106, is computed once for all states in the first
case alone.  mamba_v3, in pieces of 512 elements, takes 7.1 to 7.4 at every length."""


def without_repeats(stream: Sequence[Event]) -> list[Event]:
    """Returns a stream in which a tensor_tensor is executed once while its operands stay the same.

    Other instructions may depend on numbers that the stream does not have.
    """
    writes = Counter(id(r.buffer) for e in stream if isinstance(e, Instruction) for r in e.writes)
    version: Counter[int] = Counter()
    known: dict[object, Buffer] = {}
    same: dict[int, Buffer] = {}
    found: list[Event] = []
    for event in stream:
        if not isinstance(event, Instruction):
            found.append(event)
            continue
        instruction = _renamed(event, same) if same else event
        if _movable(instruction, writes):
            operands = tuple((id(r.buffer), r.box, version[id(r.buffer)]) for r in instruction.reads)
            result = instruction.writes[0].buffer
            kept = known.setdefault((instruction.site, operands), result)
            if kept is not result:
                same[id(result)] = kept
                continue
        found.append(instruction)
        version.update(id(r.buffer) for r in instruction.writes)
    return found


def _movable(instruction: Instruction, writes: Counter[int]) -> bool:
    """Tells whether an instruction alone fills a small tensor, from tiles."""
    if instruction.op != "tensor_tensor" or len(instruction.writes) != 1:
        return False
    (region,) = instruction.writes
    buffer = region.buffer
    return (
        writes[id(buffer)] == 1
        and buffer.space is Space.SBUF
        and buffer.address is None
        and not buffer.blocks
        and buffer.partition_bytes <= LARGEST
        and all(r.buffer is not buffer for r in instruction.reads)
        and region.box == tuple((0, n) for n in buffer.shape)
    )


def _renamed(instruction: Instruction, same: dict[int, Buffer]) -> Instruction:
    """Returns an instruction that reads what was computed before."""
    if not any(id(r.buffer) in same for r in instruction.reads):
        return instruction
    reads = tuple(Region(same.get(id(r.buffer), r.buffer), r.box) for r in instruction.reads)
    return replace(instruction, reads=reads)
