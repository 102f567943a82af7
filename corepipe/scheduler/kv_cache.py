"""The KV blocks of requests, and the prefix cache over them.

A full block is known by a key: the SHA-256 of the key before it and of its token ids.  The first key
derives from the salt, so that only requests of the same salt share blocks.  A block can be found once it
is computed, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct

from corepipe.scheduler.block_pool import BlockPool
from corepipe.scheduler.request import Request


class KVCache:
    """`num_blocks` blocks of `block_size` tokens.

    `prefix_cache`: whether full blocks are found again; `max_cached`: how many that nobody holds are kept.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_cache: bool, max_cached: int | None = None
    ) -> None:
        self.pool = BlockPool(num_blocks, max_cached)
        self.block_size = block_size
        self._prefix_cache = prefix_cache
        self._ids = Struct(f"{block_size}q")
        self._keys: dict[Request, list[bytes]] = {}
        self.prefix_queries = 0
        self.prefix_hits = 0

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def missing(self, request: Request, tokens: int) -> int:
        """Blocks that the request lacks for its first `tokens` tokens."""
        return max(0, self.blocks_for(tokens) - len(request.block_ids))

    def cached_prefix(self, prompt: Sequence[int], salt: str) -> int:
        """Tokens of this prompt that a request would find in the cache; at least one is left to compute."""
        return len(self._find(prompt, salt, [])) * self.block_size

    def take_prefix(self, request: Request) -> int:
        """Gives a request without blocks the longest chain of full blocks in the cache; its tokens.

        At least one token is left to compute.  A request with `prompt_logits` takes none.
        """
        if request.prompt_logits:
            return 0
        keys = self._keys.setdefault(request, [])
        blocks = self._find(request.tokens, request.cache_salt, keys)
        self.pool.share(blocks)
        request.block_ids = blocks
        return len(blocks) * self.block_size

    def count_prefix(self, request: Request, hits: int) -> None:
        """Counts a prompt that was looked up, and the tokens of it that were found."""
        if self._prefix_cache and not request.prompt_logits:
            self.prefix_queries += len(request.tokens)
            self.prefix_hits += hits

    def grow(self, request: Request, blocks: int) -> None:
        """Gives the request so many more blocks; the pool must have them."""
        request.block_ids += self.pool.allocate(blocks)

    def commit(self, request: Request, count: int) -> None:
        """Lets the blocks be found that the last `count` tokens up to `num_done` have filled."""
        first = (request.num_done - count) // self.block_size
        end = request.num_done // self.block_size
        if first == end or not self._prefix_cache:
            return
        keys = self._keys.setdefault(request, [])
        for index in range(first, end):
            key = self._key(request.tokens, request.cache_salt, keys, index)
            self.pool.publish(request.block_ids[index], key)

    def release(self, request: Request) -> None:
        """Takes the request's blocks; those that can be found stay in the cache."""
        self.pool.release(request.block_ids)
        request.block_ids = []

    def forget(self, request: Request) -> None:
        """Releases the blocks of a request that has ended."""
        self.release(request)
        self._keys.pop(request, None)

    def _find(self, tokens: Sequence[int], salt: str, keys: list[bytes]) -> list[int]:
        """The longest chain of cached blocks that leaves a token to compute; adds the keys it needs."""
        blocks: list[int] = []
        if self._prefix_cache:
            for index in range((len(tokens) - 1) // self.block_size):
                block = self.pool.find(self._key(tokens, salt, keys, index))
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def _key(self, tokens: Sequence[int], salt: str, keys: list[bytes], index: int) -> bytes:
        """The key of block `index`; `keys` holds those that are known, in order, and gets this one."""
        if index == len(keys):
            parent = keys[-1] if keys else sha256(salt.encode()).digest()
            start = index * self.block_size
            keys.append(sha256(parent + self._ids.pack(*tokens[start : start + self.block_size])).digest())
        return keys[index]
