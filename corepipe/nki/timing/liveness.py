"""Memory over the time of a program: how many bytes a partition are alive, and where most of them are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.errors import Site
from corepipe.nki.core.instructions import Instruction
from corepipe.nki.timing.blocks import Block, Program
from corepipe.nki.timing.times import Peak

LARGEST = 5
"""Tensors that a peak names."""


def alive(blocks: Iterable[Block], length: int) -> list[float]:
    """Returns the bytes that are alive at each position of a stream.

    A block lives from its first use to its last.
    """
    changes = [0.0] * (length + 1)
    for block in blocks:
        changes[block.born] += block.size
        count = 1
        for at, now in block.multiples():
            changes[at] += (now - count) * block.size
            count = now
        changes[block.dies + 1] -= count * block.size
    return list(accumulate(changes))


def peak(program: Program, blocks: Sequence[Block]) -> tuple[int, Peak | None]:
    """Returns the most bytes a partition that are alive at a time, and the moment."""
    if not blocks:
        return 0, None
    over_time = alive(blocks, len(program.stream))
    most = max(over_time)
    at = over_time.index(most)
    sums: dict[int, tuple[Buffer, float]] = {}
    for block in blocks:
        if block.born <= at <= block.dies:
            buffer, size = sums.get(id(block.buffer), (block.buffer, 0.0))
            sums[id(block.buffer)] = buffer, size + block.size * count_at(block, at)
    largest = sorted(sums.values(), key=lambda pair: -pair[1])[:LARGEST]
    return round(most), Peak(_site(program, at), [(buffer, round(size)) for buffer, size in largest])


def count_at(block: Block, at: int) -> int:
    """Returns for how many blocks one stands at a position."""
    found = 1
    for since, count in block.multiples():
        if since <= at:
            found = count
    return found


def _site(program: Program, at: int) -> Site:
    while not isinstance(program.stream[at], Instruction):
        at -= 1
    return program.of(at).site


def together(blocks: Iterable[Block]) -> int:
    """Returns how many blocks are alive at a time, each counted as one."""
    moments = sorted((at, change) for b in blocks for at, change in ((b.born, -1), (b.dies, 1)))
    most = now = 0
    for _, change in moments:
        now -= change
        most = max(most, now)
    return most


def in_space(program: Program, space: Space) -> list[Block]:
    return [block for block in program.blocks if block.buffer.space is space]
