"""Addresses that a kernel gives: `nki.compiler.sbuf` and `.psum`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from corepipe.nki.core.buffers import Space
from corepipe.nki.dialects.legacy.memory import Memory, Place

BANK_BYTES = 2048


def allocator(memory: Memory) -> Any:
    """Returns the functions that place blocks in a memory."""

    def alloc(func: Place) -> Memory:
        """Places each block where a function says."""
        return replace(memory, place=func)

    def auto_alloc() -> Memory:
        """Leaves the places to the compiler."""
        return memory

    def mod_alloc(
        *,
        base_addr: int = 0,
        base_bank: int = 0,
        base_partition: int = 0,
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
        num_bank_tiles: Sequence[int] = (),
    ) -> Memory:
        """Places blocks that rotate through some tiles, from an address on."""
        tiles = tuple(num_bank_tiles or num_free_tiles)
        base = base_addr + (base_bank * BANK_BYTES if memory.space is Space.PSUM else 0)

        def place(index: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
            number = 0
            for i, n in zip(index, tiles, strict=False):
                number = number * n + i % n
            step = BANK_BYTES if memory.space is Space.PSUM else size
            return base_partition, base + number * step

        return replace(memory, place=place, blocks=tiles)

    return SimpleNamespace(alloc=alloc, auto_alloc=auto_alloc, mod_alloc=mod_alloc)
