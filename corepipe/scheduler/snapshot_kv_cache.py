"""States of recurrent models' sequences: each has one, and what it was at some places stays to be found."""

from __future__ import annotations

from collections.abc import Hashable

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.kv_cache import BlockPool, CacheListener, KVCache
from corepipe.scheduler.prefix_index import PrefixIndex
from corepipe.scheduler.request import Request
from corepipe.scheduler.windowed_kv_cache import EMPTY


class States:
    """`blocks` of one state each, in tables with a place for each `span` positions of a sequence.

    A sequence's block has its state after the latest position of the place, or after the last one: from then
    on it is a snapshot, which is never written to, and the sequence goes on in another block.  Where there is
    none, neither free nor one of a snapshot that is not held, it takes its own along, which is then in both
    places, and leaves no snapshot: one block is all that a sequence ever needs.
    """

    def __init__(self, blocks: int, span: int, max_cached: int | None) -> None:
        self.pool = BlockPool(blocks, max_cached)
        self.span = span

    def has_room(self, table: list[int]) -> bool:
        """Returns whether a sequence can enter its next place."""
        return self.pool.available > 0 or (bool(table) and not self.pool.is_shared(table[-1]))

    def enter(self, table: list[int]) -> None:
        """Gives the next place a block; there must be room."""
        if self.pool.available > 0:
            table += self.pool.allocate(1)
        else:
            self.pool.forget(table[-1])
            table.append(table[-1])

    def publish(self, table: list[int], place: int, key: Hashable) -> None:
        """Lets the state after all of a place be found, unless the block has been taken along."""
        if table[place] not in table[place + 1 : place + 2]:
            self.pool.publish(table[place], key)

    def settle(self, table: list[int], done: int) -> None:
        """Gives back what is read no more once so many tokens have come back."""
        latest = (done - 1) // self.span
        for place, block in enumerate(table[:latest]):
            if block != EMPTY:
                table[place] = EMPTY
                if block != table[place + 1]:
                    self.pool.release([block])

    def take(self, places: int, block: int) -> list[int]:
        """The table of a sequence that goes on after so many places, from the snapshot there."""
        self.pool.share([block])
        return [EMPTY] * (places - 1) + [block]

    def release(self, table: list[int]) -> None:
        self.pool.release(held(table))


def held(table: list[int]) -> list[int]:
    """The blocks of a table, each once."""
    return [block for block in dict.fromkeys(table) if block != EMPTY]


class SnapshotKVCache(KVCache):
    """The cache of a model all of whose layers are recurrent: its blocks are states.

    A prefix ends where there is a snapshot, whatever there is before it.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._states = States(config.num_blocks, config.block_size, config.max_cached_blocks)
        self.pool = self._states.pool

    def announce(self, index: PrefixIndex, bit: int) -> bool:  # noqa: ARG002 -- the last is enough
        return False

    def listen(self, listener: CacheListener) -> None:
        """Reports nothing: a listener takes a prefix for all blocks from the first on, and here the last
        alone counts."""

    def blocks_for(self, tokens: int) -> int:
        return min(1, tokens)

    def missing(self, request: Request, tokens: int) -> int:
        return max(0, -(-tokens // self.block_size) - len(request.block_ids))

    def has_room(self, request: Request, tokens: int) -> bool:
        return self.missing(request, tokens) == 0 or self._states.has_room(request.block_ids)

    def has_room_to_start(self, request: Request) -> bool:
        return self._states.has_room(request.block_ids)

    def blocks_of(self, request: Request) -> list[int]:
        return held(request.block_ids)

    def find_prefix(self, request: Request) -> list[int]:
        """Its table, with the last block alone."""
        if not self._prefix_cache:
            return []
        keys = [*request.keys_of(range((request.num_tokens - 1) // self.block_size), self.block_size)]
        for places in range(len(keys), 0, -1):
            if (block := self.pool.find(keys[places - 1])) is not None:
                return [EMPTY] * (places - 1) + [block]
        return []

    def grow(self, request: Request, blocks: int) -> None:
        for _ in range(blocks):
            self._states.enter(request.block_ids)
        request.room += blocks * self.block_size

    def is_due(self, request: Request, count: int) -> bool:
        """Returns whether the tokens have filled a place, or begun one: then the state before is read no
        more."""
        return request.num_done % self.block_size <= count

    def commit(self, request: Request, count: int) -> None:
        """Publishes the state after a place that is full, and gives back the one before where it has been
        read."""
        super().commit(request, count)
        self._states.settle(request.block_ids, request.num_done)

    def _publish(self, request: Request, index: int) -> None:
        self._states.publish(request.block_ids, index, request.block_key(index, self.block_size))
