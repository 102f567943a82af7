"""vLLM's classes of KV events (0.33), and a reader that keeps the blocks that can be found by them."""

from __future__ import annotations

from typing import Any

import msgspec


class KVCacheEvent(msgspec.Struct, omit_defaults=True, tag=True, forbid_unknown_fields=True):
    """An event of vLLM's `distributed/kv_events.py`: maps with a `type`."""


class BlockStored(KVCacheEvent):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Reader:
    """The blocks that can be found, each as a salt and all tokens up to the block's end. Raises
    AssertionError for a block that is stored twice, removed without having been stored, or has an unknown
    parent."""

    def __init__(self) -> None:
        self._chains: dict[int | bytes, tuple[str, tuple[int, ...]]] = {}
        self._here: set[int | bytes] = set()
        self.stored = self.removed = 0

    def found(self) -> set[tuple[str, tuple[int, ...]]]:
        return {self._chains[one] for one in self._here}

    def read(self, batch: bytes) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """Takes a batch, and returns its events."""
        events = msgspec.msgpack.decode(batch, type=EventBatch).events
        for event in events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                assert self._here >= {*event.block_hashes}
                self._here -= {*event.block_hashes}
                self.removed += len(event.block_hashes)
            else:
                self._here.clear()
        return events

    def _store(self, event: BlockStored) -> None:
        salt, before = "", ()
        if event.parent_block_hash is not None:
            salt, before = self._chains[event.parent_block_hash]
        size = event.block_size
        assert len(event.token_ids) == size * len(event.block_hashes)
        extra = event.extra_keys or [None] * len(event.block_hashes)
        for at, (block, keys) in enumerate(zip(event.block_hashes, extra, strict=True)):
            salt = keys[0] if keys else salt
            before = (*before, *event.token_ids[at * size : (at + 1) * size])
            assert block not in self._here
            assert self._chains.setdefault(block, (salt, before)) == (salt, before)
            self._here.add(block)
            self.stored += 1
