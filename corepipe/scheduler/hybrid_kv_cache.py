"""The KV blocks and the states of models some of whose layers are recurrent."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.prefix_index import PrefixIndex
from corepipe.scheduler.request import Request
from corepipe.scheduler.snapshot_kv_cache import States, held


class HybridKVCache(KVCache):
    """Blocks of keys and values as of any model, and states, of which a request has one at a time.

    A request's table has rows of a KV block, and of the state after its positions; what has been given back
    of states stays in the table and is never read.  Several rows have one state, as many as there are
    blocks from one place where states stay to the next.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        span = config.state_span or config.max_model_len
        self.states = States(config.num_states, span, config.max_cached_states)
        self._rows = span // config.block_size

    def announce(self, index: PrefixIndex, bit: int) -> bool:  # noqa: ARG002 -- it depends on states, too
        return False

    def missing(self, request: Request, tokens: int) -> int:
        return max(0, self.blocks_for(tokens) - len(self.blocks_of(request)))

    def has_room(self, request: Request, tokens: int) -> bool:
        enters = tokens > len(request.state_ids) * self.states.span
        return super().has_room(request, tokens) and (not enters or self.states.has_room(request.state_ids))

    def has_room_to_start(self, request: Request) -> bool:
        return super().has_room_to_start(request) and self.states.has_room(request.state_ids)

    def blocks_of(self, request: Request) -> list[int]:
        return request.block_ids[::2]

    def find_prefix(self, request: Request) -> list[int]:
        """The KV blocks of the longest prefix after which there is a state, and that."""
        rows = super().find_prefix(request)
        for end in range(len(rows) // self._rows * self._rows, 0, -self._rows):
            state = self.states.pool.find(request.block_key(end - 1, self.block_size))
            if state is not None:
                return [*rows[:end], state]
        return []

    def cached_prefix(self, request: Request) -> int:
        return max(0, len(self.find_prefix(request)) - 1) * self.block_size

    def take_prefix(self, request: Request) -> int:
        if request.prompt_logits:
            return 0
        *blocks, state = self.find_prefix(request) or [0]
        if blocks:
            self.pool.share(blocks)
            request.state_ids = self.states.take(len(blocks) // self._rows, state)
        request.block_ids = [*chain.from_iterable((block, state) for block in blocks)]
        request.room = len(blocks) * self.block_size
        return request.room

    def grow(self, request: Request, blocks: int) -> None:
        table, states = request.block_ids, request.state_ids
        for block in self.pool.allocate(blocks):
            if len(table) == 2 * self._rows * len(states):
                self.states.enter(states)
            table += block, states[-1]
        request.room += blocks * self.block_size

    def is_due(self, request: Request, count: int) -> bool:
        """Returns whether the tokens have filled a block, or begun one: then the state before is read no
        more."""
        return request.num_done % self.block_size <= count

    def commit(self, request: Request, count: int) -> None:
        """Publishes blocks that are full and states at the ends of places, and gives back what has been
        read."""
        super().commit(request, count)
        self.states.settle(request.state_ids, request.num_done)

    def _publish(self, request: Request, index: int) -> None:
        key = request.block_key(index, self.block_size)
        if self.pool.publish(request.block_ids[2 * index], key) and self._listener is not None:
            self._listener.stored(request, index)
        place, more = divmod(index + 1, self._rows)
        if not more:
            self.states.publish(request.state_ids, place - 1, key)

    def release(self, request: Request) -> None:
        super().release(request)
        self.states.release(request.state_ids)
        request.state_ids = []

    def check(self, holders: Iterable[Request]) -> None:
        holders = list(holders)
        super().check(holders)
        self.states.pool.check([held(request.state_ids) for request in holders])
