"""The memory that a kernel takes, and the addresses that it gives."""

from __future__ import annotations

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.rules.breaking import broken, broken_at, found
from corepipe.nki.rules.table import RULES

PSUM_BYTES = 16 << 10


def limit_of(space: Space, generation: str) -> int:
    """Returns the bytes of a partition that a kernel can use."""
    return PSUM_BYTES if space is Space.PSUM else RULES["capacity"].limits[generation]


def check_memory(recorder: Recorder, space: Space, used: int, limit: int) -> None:
    """Compares the bytes of a partition that are alive at a time with those there are.

    Raises KernelError in the current dialect; in the legacy one the compiler spills, which is a finding.
    The line is that of the largest tensor.
    """
    if used <= limit:
        return
    largest = max((b for b in recorder.buffers if b.space is space), key=lambda b: b.partition_bytes)
    fields = {
        "memory": space.upper(),
        "operand": largest.name or "the largest tensor",
        "found": used,
        "size": largest.partition_bytes,
        "limit": limit,
    }
    if not recorder.legacy:
        raise broken_at(recorder, "capacity", largest.site, **fields)
    found(recorder, "spill", largest.site, **fields)


def check_address(recorder: Recorder, buffer: Buffer, address: int) -> None:
    """Raises KernelError where a block that lies at an address leaves the memory."""
    limit, end = limit_of(buffer.space, recorder.generation), address + buffer.partition_bytes
    if address < 0 or end > limit:
        raise broken(recorder, "address", buffer.name or "the tensor", found=end, limit=limit)
