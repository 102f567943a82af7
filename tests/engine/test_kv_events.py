"""Events of prefix caches, read back as a gateway reads them: by vLLM's schema, into the blocks that can be
found."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from corepipe.engine.loop.kv_events import CacheEvents, CacheLog
from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.request import Request
from corepipe.scheduler.windowed_kv_cache import WindowedKVCache
from tests.engine.kv_reader import EventBatch, Reader
from tests.scheduler.world import config

SIZE = 16


class Caches:
    """Replicas' caches at random work, and the events of it."""

    def __init__(self, seed: int, caches: list[KVCache]) -> None:
        self.random = random.Random(seed)
        self.caches = caches
        self.batches: list[bytes] = []
        log = CacheLog(SIZE)
        self.events = CacheEvents(log, self.batches.append)
        for number, cache in enumerate(caches):
            cache.listen(log.of_replica(number))
        self.running: list[tuple[KVCache, Request]] = []
        self.known: dict[bytes, tuple[str, tuple[int, ...]]] = {}

    def step(self) -> None:
        """Adds a request, goes on with one, or ends one."""
        acts = [self.begin, self.go_on, self.go_on, self.go_on, self.end]
        self.random.choice(acts if self.running else acts[:1])()

    def begin(self) -> None:
        cache, salt = self.random.choice(self.caches), self.random.choice(["", "", "s"])
        secret = self.random.choice(["", "of one key", "of another"])
        blocks = [self.random.choice([[token] * SIZE for token in range(3)]) for _ in range(8)]
        tokens = [token for block in blocks for token in block]
        request = Request(f"r{self.random.random()}", tokens, 1, cache_salt=secret + salt, told_salt=salt)
        for index in range(len(blocks)):
            key = request.block_key(index, SIZE)
            self.known[key] = salt, tuple(tokens[: (index + 1) * SIZE])
        request.num_done = cache.take_prefix(request)
        self.running.append((cache, request))

    def go_on(self) -> None:
        cache, request = self.random.choice(self.running)
        count = min(self.random.randint(1, 3 * SIZE), request.num_tokens - request.num_done)
        missing = cache.missing(request, request.num_done + count)
        if missing > cache.pool.available:
            self.drop(cache, request)  # as one that is preempted
            return
        cache.grow(request, missing)
        request.num_done += count
        cache.commit(request, count)

    def end(self) -> None:
        self.drop(*self.random.choice(self.running))

    def drop(self, cache: KVCache, request: Request) -> None:
        cache.release(request)
        self.running.remove((cache, request))

    def found(self) -> set[tuple[str, tuple[int, ...]]]:
        """Returns the blocks that the pools themselves find: a salt, and all tokens up to a block's end."""
        return {self.known[key] for cache in self.caches for key in keys(cache)}


def keys(cache: KVCache) -> Iterator[bytes]:
    found = cache.pool._block_of
    if not isinstance(cache, WindowedKVCache):
        yield from found
        return
    for group, key in found:
        if group == cache._whole[0] and all((one, key) in found for one in cache._whole):
            yield key


def plain(blocks: int) -> KVCache:
    return KVCache(config(num_blocks=blocks, block_size=SIZE, max_cached_blocks=blocks // 2))


def windowed(blocks: int) -> KVCache:
    windows = (None, 2 * SIZE, None)
    return WindowedKVCache(
        config(num_blocks=blocks, block_size=SIZE, max_num_batched_tokens=3 * SIZE, windows=windows)
    )


@pytest.mark.parametrize(
    ("caches", "operations"),
    [
        ([plain(24)], 10_000),
        ([plain(20), plain(31)], 100_000),
        ([windowed(60), windowed(90)], 20_000),
    ],
    ids=["one", "two", "windows"],
)
def test_events_read_back_are_what_the_pools_find(caches: list[KVCache], operations: int) -> None:
    """They agree at the end, and on the way."""
    work, reader = Caches(20261124, caches), Reader()
    for number in range(1, operations + 1):
        work.step()
        if number % 5 == 0:
            work.events.publish_new()
        if number % 500 == 0:
            work.events.publish_new()
            for batch in work.batches:
                reader.read(batch)
            work.batches.clear()
            assert reader.found() == work.found(), number
    assert reader.stored > operations / 10
    assert reader.removed > operations / 10


def stored_batch(**fields: object) -> bytes:
    batches: list[bytes] = []
    log = CacheLog(SIZE)
    cache = KVCache(config(num_blocks=8, block_size=SIZE))
    cache.listen(log.of_replica(0))
    events = CacheEvents(log, batches.append)
    request = Request("r", range(3 * SIZE), 1, **fields)
    cache.grow(request, 3)
    request.num_done = 3 * SIZE
    cache.commit(request, 3 * SIZE)
    events.publish_new()
    cache.release(request)
    cache.grow(Request("other", [0], 1), 8)
    events.publish_new()
    return batches


@pytest.mark.parametrize("salt", ["", "body"])
def test_events_are_of_vllms_schema(salt: str) -> None:
    """vLLM's classes read them, know every field, and would have written the same bytes."""
    batches = stored_batch(cache_salt="secret of a key " + salt, told_salt=salt)
    for batch in batches:
        read = msgspec.msgpack.decode(batch, type=EventBatch)
        assert msgspec.msgpack.encode(read) == batch
        assert b"secret" not in batch
    cleared, stored = msgspec.msgpack.decode(batches[0])[1]
    assert cleared == {"type": "AllBlocksCleared"}
    assert stored["token_ids"] == [*range(3 * SIZE)]
    assert (stored["parent_block_hash"], stored["block_size"], stored["medium"]) == (None, SIZE, "GPU")
    assert stored.get("extra_keys") == ([[salt], None, None] if salt else None)
    (removed,) = msgspec.msgpack.decode(batches[1])[1]
    assert removed == {"type": "BlockRemoved", "block_hashes": stored["block_hashes"][::-1], "medium": "GPU"}


def test_a_block_has_the_same_hash_for_every_key_and_another_for_every_salt() -> None:
    def hashes(**fields: str) -> list[int]:
        return msgspec.msgpack.decode(stored_batch(**fields)[0])[1][1]["block_hashes"]

    assert hashes(cache_salt="one") == hashes(cache_salt="another") == hashes()
    assert not {*hashes()} & {*hashes(cache_salt="onesalt", told_salt="salt")}
