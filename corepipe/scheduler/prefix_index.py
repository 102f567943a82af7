"""Which of several prefix caches have a block, so that nobody has to ask each of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a request's blocks are in pools, which tell an index of them
    from corepipe.scheduler.request import Request


class PrefixIndex:
    """A set of caches for each key of a full block: bit n stands for cache number n."""

    def __init__(self) -> None:
        self._holders: dict[Hashable, int] = {}

    def add(self, key: Hashable, bit: int) -> None:
        """The cache with this bit has the block."""
        self._holders[key] = self._holders.get(key, 0) | bit

    def drop(self, key: Hashable, bit: int) -> None:
        """The cache with this bit has it no more."""
        holders = self._holders.pop(key) & ~bit
        if holders:
            self._holders[key] = holders

    def chain(self, request: Request, block_size: int) -> Iterator[int]:
        """Of each full block of a request from the first on, who has it, as long as anybody does; a token is
        left to compute."""
        for index in range((request.num_tokens - 1) // block_size):
            holders = self._holders.get(request.block_key(index, block_size), 0)
            if not holders:
                return
            yield holders
