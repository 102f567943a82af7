"""How far the part of the KV cache that a draft model has is right, of each request and of each block.

A draft model keeps its keys and values in blocks of the same numbers as the model that it guesses for, so
that nobody has to share blocks out a second time.  It computes what it has not computed when it guesses next.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from corepipe.scheduler.request import Request
from corepipe.serving.engine.block_table import BlockTable


@dataclass(slots=True)
class Followed:
    """What the draft model has of a request: it has computed the first `right` positions, all of them known.

    noted: its first blocks, which can be found by their keys.  preemptions: so many the request had then.
    """

    right: int = 0
    noted: int = 0
    preemptions: int = -1
    blocks: BlockTable = field(default_factory=BlockTable)


class DraftCache:
    """Blocks of `block_size` positions.  shared: requests find blocks of others, as their prefix cache does;
    what the draft model has computed of them is found by the same keys."""

    def __init__(self, block_size: int, *, shared: bool) -> None:
        self._size = block_size
        self._shared = shared
        self._computed: dict[int, Hashable] = {}

    def follow(self, request: Request, has: Followed) -> None:
        """Brings up to date what is right of a request: what was verified, and of one that has other blocks
        than before what somebody has computed in them."""
        if has.preemptions != request.num_preemptions:
            has.preemptions = request.num_preemptions
            has.noted = self._found(request)
            has.right = has.noted * self._size
        has.right = min(has.right, request.num_done)
        if self._shared:
            for index in range(has.noted, has.right // self._size):
                self._computed[request.block_ids[index]] = request.block_key(index, self._size)
                has.noted = index + 1

    def write(self, request: Request, has: Followed, end: int) -> None:
        """The positions from the first that is not right up to `end` are written: what was in their blocks is
        gone."""
        if self._shared:
            for block in request.block_ids[has.right // self._size : -(-end // self._size)]:
                self._computed.pop(block, None)

    def _found(self, request: Request) -> int:
        """How many of its first blocks hold what the draft model has computed of the same tokens."""
        full = request.num_done // self._size if self._shared else 0
        for index in range(full):
            if self._computed.get(request.block_ids[index]) != request.block_key(index, self._size):
                return index
        return full
