"""The contents of an engine's prefix caches, as events in vLLM's form: for gateways that route by prefix.

The fields are those of vLLM's `kv_events.py`; its events are maps, and a batch of them is an array.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable

import msgspec

from corepipe.scheduler.request import Request

ExtraKeys = tuple[str, ...]
MEDIUM = "GPU"
"""vLLM's word for the device's own memory."""


class _Event(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One event; `type` is its class."""


class BlockStored(_Event, frozen=True, kw_only=True):
    """Reports that a chain of full blocks can be found, the first after `parent_block_hash` (None: it begins
    a sequence).

    extra_keys: for each block what its hash has beside tokens: the name of the LoRA adapter, and for a
    sequence's first block the body's salt.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None
    medium: str
    lora_name: str | None
    extra_keys: list[ExtraKeys | None] | None = None


class BlockRemoved(_Event, frozen=True, kw_only=True):
    """Reports that blocks cannot be found any more."""

    block_hashes: list[int]
    medium: str


class AllBlocksCleared(_Event, frozen=True):
    """Reports that nothing can be found: an engine has begun."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    """Events in their order; `ts` in seconds since 1970."""

    ts: float
    events: list[Event]
    data_parallel_rank: int


class CacheLog:
    """The events of all replicas' caches as of one: a block that any of them can find for any client is
    stored.

    A block is reported under 64 bits of a hash of its tokens and the body's salt; the part that separates API
    keys is not in it. So a block that several replicas or keys have is stored once, and removed with the
    last.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[Event] = [AllBlocksCleared()]
        self._published: dict[tuple[int, Hashable], int] = {}
        self._holders: Counter[int] = Counter()

    def of_replica(self, number: int) -> ReplicaLog:
        """Returns the listener to the cache of replica `number`."""
        return ReplicaLog(self, number)

    def take(self) -> list[Event]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        return events

    def stored(self, replica: int, request: Request, index: int) -> None:
        """See `CacheListener`."""
        size = self._block_size
        block_hash = _hash(request.told_key(index, size))
        self._published[replica, request.block_key(index, size)] = block_hash
        self._holders[block_hash] += 1
        if self._holders[block_hash] > 1:
            return
        parent = _hash(request.told_key(index - 1, size)) if index else None
        extra = _extra_keys(request, index)
        tokens = request.tokens[index * size : (index + 1) * size]
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockStored) and last.block_hashes[-1] == parent:
            last.block_hashes.append(block_hash)
            last.token_ids.extend(tokens)
            if last.extra_keys is not None:
                last.extra_keys.append(extra)
            return
        self._events.append(
            BlockStored(
                block_hashes=[block_hash],
                parent_block_hash=parent,
                token_ids=tokens,
                block_size=size,
                lora_id=None,
                medium=MEDIUM,
                lora_name=request.adapter_name or None,
                extra_keys=None if extra is None else [extra],
            )
        )

    def removed(self, replica: int, key: Hashable) -> None:
        """See `CacheListener`."""
        block_hash = self._published.pop((replica, key))
        self._holders[block_hash] -= 1
        if self._holders[block_hash]:
            return
        del self._holders[block_hash]
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved):
            last.block_hashes.append(block_hash)
        else:
            self._events.append(BlockRemoved(block_hashes=[block_hash], medium=MEDIUM))


class ReplicaLog:
    """One replica's part of a CacheLog; implements `CacheListener`."""

    def __init__(self, log: CacheLog, number: int) -> None:
        self._log = log
        self._number = number

    def stored(self, request: Request, index: int) -> None:
        self._log.stored(self._number, request, index)

    def removed(self, key: Hashable) -> None:
        self._log.removed(self._number, key)


class CacheEvents:
    """A CacheLog whose events go to a publisher: `publish` takes encoded batches, and does not wait."""

    def __init__(self, log: CacheLog, publish: Callable[[bytes], None]) -> None:
        self.log = log
        self._publish = publish
        self._encode = msgspec.msgpack.Encoder().encode

    def publish_new(self) -> None:
        """Publishes the events since the last call, if there are any."""
        if events := self.log.take():
            self._publish(self._encode(EventBatch(time.time(), events, 0)))


def _extra_keys(request: Request, index: int) -> ExtraKeys | None:
    """Returns what the hash of a block has beside tokens, in vLLM's order; None where it has nothing."""
    salt = "" if index else request.told_salt
    return tuple(filter(None, (request.adapter_name, salt))) or None


def _hash(key: bytes) -> int:
    return int.from_bytes(key[:8])
