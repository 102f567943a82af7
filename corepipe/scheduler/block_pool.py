"""Paged KV blocks: who holds which, and which of the rest still have contents worth finding."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence

from corepipe.scheduler.prefix_index import PrefixIndex


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
