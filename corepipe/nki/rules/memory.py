"""The memory that a kernel takes, and the addresses that it gives."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.instructions import Event, Instruction
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.rules.breaking import broken, broken_at, found
from corepipe.nki.rules.table import RULES

PSUM_BYTES = 16 << 10


def limit_of(space: Space, generation: str) -> int:
    """Returns the bytes of a partition that a kernel can use."""
    return PSUM_BYTES if space is Space.PSUM else RULES["capacity"].limits[generation]


def check_memory(recorder: Recorder, space: Space, used: int) -> None:
    """Raises KernelError where more bytes of a partition are alive at a time than there are.

    The line is that of the largest tensor.  Kernels of the legacy dialect are spilled.
    """
    if recorder.legacy or used <= limit_of(space, recorder.generation):
        return
    largest = max((b for b in recorder.buffers if b.space is space), key=lambda b: b.partition_bytes)
    raise broken_at(
        recorder,
        "capacity",
        largest.site,
        memory=space.upper(),
        operand=largest.name or "the largest tensor",
        found=used,
        size=largest.partition_bytes,
        limit=limit_of(space, recorder.generation),
    )


def note_spills(recorder: Recorder, stream: Sequence[Event], used: int, spilled: int) -> None:
    """Notes that the compiler moves `spilled` bytes to HBM, at the line of the first tensor that it moves."""
    for event in stream if spilled else ():
        if isinstance(event, Instruction) and event.details.get("kind") == "spilled":
            operand = event.reads[0].buffer.name or "a tensor of this line"
            found(recorder, "spill", event.site, operand=operand, found=used, size=spilled)
            return


def check_address(recorder: Recorder, buffer: Buffer, address: int) -> None:
    """Raises KernelError where a block that lies at an address leaves the memory."""
    limit, end = limit_of(buffer.space, recorder.generation), address + buffer.partition_bytes
    if address < 0 or end > limit:
        raise broken(recorder, "address", buffer.name or "the tensor", found=end, limit=limit)
