"""The KV blocks of requests, and the prefix cache over them.

A full block is known by a key, which stands for its tokens and all before them.  A block can be found
once it is computed, not before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Protocol

from corepipe.scheduler.block_pool import BlockPool
from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.prefix_index import PrefixIndex
from corepipe.scheduler.request import Request


class CacheListener(Protocol):
    """Receives every change of the set of full blocks that the prefix cache finds."""

    def stored(self, request: Request, index: int) -> None:
        """Notes that full block number `index` of the request is found from now on; it was not before."""

    def removed(self, key: Hashable) -> None:
        """Notes that nothing is found by this block key from now on."""


class KVCache:
    """The `config.num_blocks` KV blocks of `config.block_size` tokens of a replica, and its prefix cache.

    The config also says whether full blocks are found again, and how many unheld blocks are kept."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.pool = BlockPool(config.num_blocks, config.max_cached_blocks)
        self.block_size = config.block_size
        self._prefix_cache = config.prefix_cache
        self._listener: CacheListener | None = None
        self.prefix_queries = 0
        self.prefix_hits = 0

    def announce(self, index: PrefixIndex, bit: int) -> bool:
        """Keeps `index` up to date with the blocks that can be found; returns False where a prefix needs more
        than its blocks."""
        self.pool.announce(index, bit)
        return True

    def listen(self, listener: CacheListener) -> None:
        """Reports from now on to `listener` which blocks can be found."""
        self._listener = listener
        self.pool.on_evicted = listener.removed

    def blocks_for(self, tokens: int) -> int:
        """Returns the number of blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def missing(self, request: Request, tokens: int) -> int:
        """Returns how many blocks the request lacks for its first `tokens` tokens."""
        return max(0, self.blocks_for(tokens) - len(request.block_ids))

    def has_room(self, request: Request, tokens: int) -> bool:
        """Returns whether the pool has the blocks that the request lacks for its first `tokens` tokens."""
        return self.missing(request, tokens) <= self.pool.available

    def lacking(self, request: Request) -> int:
        """Returns how many blocks a waiting request would lack for all of its known tokens."""
        return max(0, self.blocks_for(request.num_tokens) - len(request.block_ids))

    def has_room_to_start(self, request: Request) -> bool:
        """Returns whether the pool has the blocks that a waiting request would lack for its known tokens."""
        return self.lacking(request) <= self.pool.available

    def blocks_of(self, request: Request) -> list[int]:
        """Returns the blocks that the request holds."""
        return request.block_ids

    def find_prefix(self, request: Request) -> list[int]:
        """Returns the longest chain of cached blocks that leaves a token to compute; takes no reference."""
        if not self._prefix_cache:
            return []
        full = range((request.num_tokens - 1) // self.block_size)
        return self.pool.find_chain(request.keys_of(full, self.block_size))

    def cached_prefix(self, request: Request) -> int:
        """Returns how many tokens the request would find in the cache; at least one is left to compute."""
        return len(self.find_prefix(request)) * self.block_size

    def take_prefix(self, request: Request) -> int:
        """Gives a request without blocks the longest chain of full blocks in the cache; returns its tokens.

        At least one token is left to compute.  A request with `prompt_logits` takes none.
        """
        if request.prompt_logits:
            return 0
        blocks = self.find_prefix(request)
        if blocks:
            self.pool.share(blocks)
        request.block_ids = blocks
        request.room = len(blocks) * self.block_size
        return request.room

    def count_prefix(self, request: Request, hits: int) -> None:
        """Counts a prompt that was looked up, and the tokens of it that were found."""
        if self._prefix_cache and not request.prompt_logits:
            self.prefix_queries += request.num_tokens
            self.prefix_hits += hits

    def grow(self, request: Request, blocks: int) -> None:
        """Gives the request so many more blocks; the pool must have them."""
        request.block_ids += self.pool.allocate(blocks)
        request.room += blocks * self.block_size

    def is_due(self, request: Request, count: int) -> bool:
        """Returns whether the last `count` tokens up to `num_done` must be committed: they have filled a
        block."""
        return request.num_done % self.block_size < count

    def commit(self, request: Request, count: int) -> None:
        """Lets the blocks be found that the last `count` tokens up to `num_done` have filled."""
        if not self._prefix_cache:
            return
        size = self.block_size
        full = range((request.num_done - count) // size, request.num_done // size)
        if self._listener is None:
            self._publish_all(request, full)
        else:
            for index in full:
                self.publish(request, index)

    def _publish_all(self, request: Request, full: range) -> None:
        """Publishes these full blocks, as `publish` does, where there is no listener."""
        blocks = request.block_ids[full.start : full.stop]
        for block, key in zip(blocks, request.keys_of(full, self.block_size), strict=True):
            self.pool.publish(block, key)

    def publish(self, request: Request, index: int) -> None:
        """Lets block number `index` of the request be found, which is full and computed."""
        if self._prefix_cache:
            new = self.pool.publish(request.block_ids[index], request.block_key(index, self.block_size))
            if new and self._listener is not None:
                self._listener.stored(request, index)

    def release(self, request: Request) -> None:
        """Takes the request's blocks; those that can be found stay in the cache."""
        self.pool.release(request.block_ids)
        request.block_ids, request.room = [], 0

    def check(self, holders: Iterable[Request]) -> None:
        """Raises RuntimeError unless these requests hold all that is held."""
        self.pool.check([self.blocks_of(request) for request in holders])


class NothingKept(KVCache):
    """The cache of a model that keeps nothing from batch to batch: no request needs a block."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(replace(config, num_blocks=0, prefix_cache=False))

    def blocks_for(self, tokens: int) -> int:  # noqa: ARG002 -- however many
        return 0
