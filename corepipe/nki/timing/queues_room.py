"""SBUF as blocks share it: memory that one block leaves is what the next one waits for.

Only kernels whose tensors do not fit beside one another share memory.  All times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.instructions import Engine, Event, Instruction
from corepipe.nki.timing.compiled import Compiled, place_of

Key = tuple[int, ...]


@dataclass(order=True, slots=True)
class Left:
    """Bytes of a partition that a block has left: when, and after a use by which engine."""

    at: float
    size: float = field(compare=False)
    user: Engine | None = field(compare=False)


@dataclass(slots=True, eq=False)
class Room:
    """The memory: bytes that no block had yet, and those that blocks left, the earliest first."""

    unused: float
    left: list[Left] = field(default_factory=list)

    def take(self, size: float) -> float:
        """Gives memory to a block and returns when all of it is free."""
        new = min(size, max(0.0, self.unused))
        self.unused -= new
        size, at = size - new, 0.0
        while size > 0 and self.left:
            found = heappop(self.left)
            if found.size > size:
                heappush(self.left, Left(found.at, found.size - size, found.user))
            size, at = size - found.size, found.at
        return at

    def leave(self, size: float, at: float, user: Engine | None) -> None:
        """Takes memory back from a block that was used last at a time."""
        heappush(self.left, Left(at, size, user))

    def repeat(self, since: float, passed: Mapping[Engine, float]) -> None:
        """Moves what was left from `since` on by what passed on the engines meanwhile."""
        for found in self.left:
            if found.at >= since and found.user is not None:
                found.at += passed[found.user]
        heapify(self.left)


def crowded(found: Compiled, buffers: Iterable[Buffer]) -> bool:
    """Tells whether a kernel's tensors share SBUF: all of their copies together do not fit."""
    sizes = {place_of(b): float(b.partition_bytes) for b in buffers if b.space is Space.SBUF}
    return sum(size * found.copies.get(place, 1) for place, size in sizes.items()) > found.memory.sbuf_limit


def last_uses(stream: Iterable[Event]) -> dict[int, list[tuple[Buffer, Key | None]]]:
    """Returns the blocks that each instruction, by its id, is the last to use; None: the buffer as a
    whole."""
    last: dict[tuple[int, Key | None], tuple[int, Buffer]] = {}
    for event in stream:
        if isinstance(event, Instruction):
            for region in (*event.reads, *event.writes):
                buffer = region.buffer
                if buffer.space is Space.SBUF:
                    key = tuple([low for low, _ in region.box[: buffer.blocks]])
                    last[id(buffer), key] = last[id(buffer), None] = id(event), buffer
    ends: dict[int, list[tuple[Buffer, Key | None]]] = {}
    for (_, block), (instruction, buffer) in last.items():
        ends.setdefault(instruction, []).append((buffer, block))
    return ends
