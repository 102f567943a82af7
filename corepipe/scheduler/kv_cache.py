"""The KV blocks of requests, and the prefix cache over them.

A full block is known by a key, which stands for its tokens and all before them.  A block can be found
once it is computed, not before.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.prefix_index import PrefixIndex
from corepipe.scheduler.request import Request


class BlockPool:
    """Blocks 0 .. total - 1; each is free, cached or held, always.

    Held: its reference count is above 0.  Cached: no sequence holds it, but it is still found by its key
    until it is evicted, the least recently held first.  Free: neither.  At most `max_cached` blocks are
    cached (None: no limit); as the free block that was used last is taken first, it bounds the memory
    touched. `on_evicted` is called with each key that finds nothing from now on.
    """

    def __init__(self, total: int, max_cached: int | None = None) -> None:
        self.total = total
        self._max_cached = total if max_cached is None else max_cached
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently held first
        self._block_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}
        self._index: PrefixIndex | None = None
        self._bit = 0
        self.on_evicted: Callable[[Hashable], None] | None = None

    def announce(self, index: PrefixIndex, bit: int) -> None:
        """Keeps `index` up to date from now on with the keys that can be found here, under this bit; the pool
        must be empty."""
        self._index, self._bit = index, bit

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def held(self) -> int:
        return self.total - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give: free, or cached and evicted for it."""
        return len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Gives `count` blocks with one reference each; `count` is at most `available`."""
        free, references = self._free, self._references
        if len(free) < count:
            self._evict(count - len(free))
        if count == 1:  # as mostly, where answers grow
            block = free.pop()
            references[block] = 1
            return [block]
        blocks = [free.pop() for _ in range(count)]
        for block in blocks:
            references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each of these, which are cached or held."""
        references = self._references
        for block in blocks:
            if references[block] == 0:
                del self._cached[block]
            references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Takes a reference from each.  Of a sequence's blocks the last are evicted first: a block can be
        found only through those before it."""
        references, keys, cached = self._references, self._key_of, self._cached
        bounded = self._max_cached < self.total
        for block in reversed(blocks):
            references[block] -= 1
            if references[block]:
                continue
            if block in keys:
                cached[block] = None
                if bounded and len(cached) > self._max_cached:
                    self._evict(1)
            else:
                self._free.append(block)

    def find(self, key: Hashable) -> int | None:
        """The block of this key, held or cached."""
        return self._block_of.get(key)

    def find_chain(self, keys: Iterable[Hashable]) -> list[int]:
        """The blocks of these keys, up to the first that has none."""
        blocks: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def publish(self, block: int, key: Hashable) -> bool:
        """Lets a held block be found by its key; where another has the key, that one stays.

        Whether nothing was found by this key before.
        """
        if key in self._block_of:
            return False
        self._block_of[key] = block
        self._key_of[block] = key
        if self._index is not None:
            self._index.add(key, self._bit)
        return True

    def is_shared(self, block: int) -> bool:
        """Returns whether more than one sequence holds the block."""
        return self._references[block] > 1

    def forget(self, block: int) -> None:
        """Has a held block be found no more, as it will be written over."""
        if block in self._key_of:
            self._drop(block)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises RuntimeError unless the pool is sound and `tables` are all that is held."""
        references = Counter(block for table in tables for block in table)
        if any(references[block] != count for block, count in enumerate(self._references)):
            raise RuntimeError("the reference counts of KV blocks differ from the tables of the requests")
        if len(references) != self.held:
            raise RuntimeError(
                f"KV blocks: {self.free} free + {self.cached} cached + {len(references)} held != {self.total}"
            )
        if len({*references, *self._free, *self._cached}) != self.total:
            raise RuntimeError("a KV block is in two places, or in none")
        if {block: key for key, block in self._block_of.items()} != self._key_of:
            raise RuntimeError("keys and KV blocks do not match one to one")
        if not self._cached.keys() <= self._key_of.keys() or not self._key_of.keys().isdisjoint(self._free):
            raise RuntimeError("a cached KV block has no key, or a free one has")

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block, _ = self._cached.popitem(last=False)
            self._free.append(block)
            self._drop(block)

    def _drop(self, block: int) -> None:
        """Nothing is found by the block's key from now on."""
        key = self._key_of.pop(block)
        del self._block_of[key]
        if self._index is not None:
            self._index.drop(key, self._bit)
        if self.on_evicted is not None:
            self.on_evicted(key)


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
        self._groups = len(config.windows)
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
        return self.missing(request, request.num_tokens)

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
        return self._positions(self.find_prefix(request))

    def take_prefix(self, request: Request) -> int:
        """Gives a request without blocks the longest chain of full blocks in the cache; returns its tokens.

        At least one token is left to compute.  A request with `prompt_logits` takes none.
        """
        if request.prompt_logits:
            return 0
        request.block_ids = self.find_prefix(request)
        self.pool.share(self.blocks_of(request))
        request.room = self._positions(request.block_ids)
        return request.room

    def _positions(self, table: Sequence[int]) -> int:
        """Returns the positions of a sequence that a table has room for: each group of layers has a block."""
        return len(table) // self._groups * self.block_size

    def count_prefix(self, request: Request, hits: int) -> None:
        """Counts a prompt that was looked up, and the tokens of it that were found."""
        if self._prefix_cache and not request.prompt_logits:
            self.prefix_queries += request.num_tokens
            self.prefix_hits += hits

    def grow(self, request: Request, blocks: int) -> None:
        """Gives the request so many more blocks; the pool must have them."""
        request.block_ids += self.pool.allocate(blocks)
        request.room += blocks // self._groups * self.block_size

    def is_due(self, request: Request, count: int) -> bool:
        """Returns whether the last `count` tokens up to `num_done` must be committed: they have filled a
        block."""
        return request.num_done % self.block_size < count

    def commit(self, request: Request, count: int) -> None:
        """Lets the blocks be found that the last `count` tokens up to `num_done` have filled."""
        if not self._prefix_cache:
            return
        size = self.block_size
        for index in range((request.num_done - count) // size, request.num_done // size):
            self._publish(request, index)

    def _publish(self, request: Request, index: int) -> None:
        """Lets block number `index` of the request be found, which is full and computed."""
        new = self.pool.publish(request.block_ids[index], request.block_key(index, self.block_size))
        if new and self._listener is not None:
            self._listener.stored(request, index)

    def release(self, request: Request) -> None:
        """Takes the request's blocks; those that can be found stay in the cache."""
        self.pool.release(self.blocks_of(request))
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
