from __future__ import annotations

from hashlib import sha256
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.scheduler.kv_cache import KVCache
from corepipe.scheduler.request import Request
from corepipe.scheduler.scheduler import Scheduler
from tests.scheduler.world import config, run
from tests.scheduler.world import spans as spans_of


def request(prompt: list[int], **fields) -> Request:
    return Request("r", prompt, max_tokens=4, **fields)


def compute(kv: KVCache, owner: Request, count: int) -> None:
    """Computes the next `count` tokens."""
    owner.num_computed += count
    kv.grow(owner, kv.missing(owner, owner.num_computed))
    owner.num_done += count
    kv.commit(owner, count)


def test_a_block_is_found_once_it_is_full_and_done():
    kv = KVCache(config(num_blocks=8, block_size=4))
    owner, prompt = request(list(range(9))), list(range(9))
    assert kv.cached_prefix(request(prompt)) == 0
    compute(kv, owner, 3)
    assert kv.cached_prefix(request(prompt)) == 0
    compute(kv, owner, 2)
    assert kv.cached_prefix(request(prompt)) == 4
    owner.num_computed += 4
    kv.grow(owner, kv.missing(owner, 9))
    assert kv.cached_prefix(request(prompt)) == 4
    owner.num_done += 4
    kv.commit(owner, 4)
    assert kv.cached_prefix(request(prompt)) == 8


def test_who_wants_prompt_logits_takes_nothing_but_gives():
    kv = KVCache(config(num_blocks=8, block_size=4))
    first, second = (request(list(range(10)), prompt_logits=True) for _ in range(2))
    compute(kv, first, 10)
    assert kv.take_prefix(second) == 0
    assert kv.take_prefix(request(list(range(10)))) == 8
    kv.count_prefix(second, 0)
    assert kv.prefix_queries == 0


def test_keys_are_computed_once_a_request(monkeypatch):
    hashed = []

    def counting(data: bytes):
        hashed.append(data)
        return sha256(data)

    monkeypatch.setattr("corepipe.scheduler.request.sha256", counting)
    kv = KVCache(config(num_blocks=8, block_size=4))
    owner = request(list(range(13)))
    assert kv.take_prefix(owner) == 0
    compute(kv, owner, 13)
    kv.release(owner)
    owner.num_computed = owner.num_done = 0
    assert kv.take_prefix(owner) == 12
    assert len(hashed) == 1 + 3  # the salt and three full blocks


@given(st.integers(1, 9), st.lists(st.integers(0, 1), min_size=1, max_size=30), st.data())
def test_cached_prefix_is_the_longest_common_run_of_full_blocks(block_size, prompt, data):
    kv = KVCache(config(num_blocks=64, block_size=block_size))
    compute(kv, request(prompt), len(prompt))
    other = data.draw(st.one_of(st.just(prompt), st.lists(st.integers(0, 1), min_size=1, max_size=30)))
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, other, strict=False)))
    assert kv.cached_prefix(request(other)) == min(common, len(other) - 1) // block_size * block_size


@pytest.mark.parametrize("span", [None, 6])
def test_states_are_at_the_ends_of_blocks(span: int | None) -> None:
    with pytest.raises(ValueError, match=f"state_span must be a multiple of block_size, not {span}"):
        config(num_states=3, state_span=span)


def test_a_hybrids_prefix_ends_where_a_state_stayed() -> None:
    """Places of 8 tokens, blocks of 4: of 22 tokens five blocks are full, and two states are behind such."""
    scheduler = Scheduler(config(num_states=4, state_span=8, num_blocks=32))
    scheduler.add(Request("first", list(range(22)), max_tokens=1))
    spans = []
    while (batch := scheduler.schedule()) is not None:
        spans += [(chunk.start, chunk.count) for chunk in batch.chunks]
        run(scheduler, batch)
    assert spans == [(0, 8), (8, 8), (16, 6)]
    assert scheduler.blocks_cached == 5
    asked = Request("again", list(range(22)), max_tokens=1)
    assert scheduler.cached_prefix(asked) == 16
    scheduler.add(asked)
    assert spans_of(scheduler.schedule()) == [("again", 16, 6)]
    assert asked.num_cached == 16
    scheduler.check()
