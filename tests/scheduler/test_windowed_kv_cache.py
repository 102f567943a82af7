from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.scheduler.request import Request
from corepipe.scheduler.scheduler import Scheduler
from corepipe.scheduler.windowed_kv_cache import EMPTY, WindowedKVCache, blocks_of_all, most_blocks
from tests.scheduler.world import config, run


def request(prompt: list[int], **fields) -> Request:
    return Request("r", prompt, max_tokens=4, **fields)


def cache(windows: tuple[int | None, ...], blocks: int = 64, size: int = 4, **limits) -> WindowedKVCache:
    return WindowedKVCache(config(windows=windows, num_blocks=blocks, block_size=size, **limits))


def compute(kv: WindowedKVCache, owner: Request, count: int) -> None:
    """Computes the next `count` tokens, as the scheduler has them come back."""
    owner.num_computed += count
    kv.grow(owner, kv.missing(owner, owner.num_computed))
    owner.num_done += count
    if owner.num_done % kv.block_size < count:
        kv.commit(owner, count)


def column(owner: Request, kv: WindowedKVCache, group: int) -> list[bool]:
    """Returns which places of a group have a block."""
    return [block != EMPTY for block in owner.block_ids[group :: len(kv._windows)]]


def test_blocks_behind_a_window_are_given_back() -> None:
    kv = cache((None, 6))
    owner = request(list(range(40)))
    compute(kv, owner, 12)  # the next token sees from position 7 on
    assert column(owner, kv, 0) == [True] * 3
    assert column(owner, kv, 1) == [False, True, True]
    compute(kv, owner, 2)
    assert column(owner, kv, 1) == [False, True, True, True], "only when a block has been filled"
    compute(kv, owner, 3)  # position 17 sees from 12 on
    assert column(owner, kv, 1) == [False, False, False, True, True]
    assert owner.room == 20
    kv.pool.check([kv.blocks_of(owner)])
    kv.release(owner)
    assert (owner.block_ids, owner.room, kv.pool.held) == ([], 0, 0)


def test_a_block_is_not_given_back_while_a_batch_reads_it() -> None:
    """Chunks in a pipeline: what the second reads stays until it has come back, though the first has."""
    limits = config(windows=(4,), stages=2, max_num_batched_tokens=8, num_blocks=16)
    scheduler = Scheduler(limits)
    owner = request(list(range(30)))
    scheduler.add(owner)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert first is not None
    assert second is not None
    run(scheduler, first)
    assert owner.block_ids[:1] == [EMPTY]
    assert EMPTY not in owner.block_ids[1:], "position 8 sees from 5 on"
    run(scheduler, second)
    assert owner.block_ids[:3] == [EMPTY] * 3


def test_a_prefix_ends_where_every_group_has_what_the_next_token_sees() -> None:
    kv = cache((None, 6))
    first = request(list(range(33)))
    compute(kv, first, 33)
    again = request(list(range(40)))
    assert kv.take_prefix(again) == 32
    assert column(again, kv, 0) == [True] * 8
    assert column(again, kv, 1) == [False] * 6 + [True] * 2, "from position 27 on"
    kv.release(first)
    kv.pool.check([kv.blocks_of(again)])


def test_a_prefix_ends_before_what_a_window_has_lost() -> None:
    kv = cache((None, 6))
    first = request(list(range(33)))
    compute(kv, first, 33)
    lost = kv.pool.find((1, first.block_key(5, 4)))
    assert lost is not None
    del kv.pool._cached[lost], kv.pool._block_of[kv.pool._key_of.pop(lost)]
    kv.pool._free.append(lost)
    assert kv.cached_prefix(request(list(range(33)))) == 32, "which sees from position 27 on, in block 6"
    assert kv.cached_prefix(request(list(range(29)))) == 20, (
        "28 would see from 23 on, in block 5, as would 24"
    )


def test_without_a_group_that_keeps_all_a_prefix_needs_its_end_alone() -> None:
    kv = cache((6,), blocks=8, max_num_batched_tokens=4)
    first = request(list(range(80)))
    for _ in range(20):
        compute(kv, first, 4)
    assert kv.cached_prefix(request([*range(80), 0])) == 80
    assert kv.cached_prefix(request(list(range(25)))) == 0, "evicted by what came later"


@given(st.data())
def test_the_longest_prefix_of_all(data: st.DataObject) -> None:
    """Against a search of all ends: where nothing has been evicted, every group accepts what was computed."""
    windows = data.draw(st.lists(st.one_of(st.none(), st.integers(1, 30)), min_size=1, max_size=3))
    size, blocks = data.draw(st.integers(1, 6)), data.draw(st.integers(40, 80))
    kv = cache(tuple(windows), blocks, size, max_cached_blocks=data.draw(st.integers(1, 80)))
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(3):
        owner = request([0] * rng.randint(1, 20) + [rng.randrange(2)] * rng.randint(1, 20))
        kv.take_prefix(owner)
        owner.num_computed = owner.num_done = owner.room
        while owner.num_done < owner.num_tokens:
            count = rng.randint(1, owner.num_tokens - owner.num_done)
            if kv.missing(owner, owner.num_done + count) > kv.pool.available:
                break
            compute(kv, owner, count)
        kv.release(owner)
    asked = request([0] * rng.randint(1, 25) + [1] * rng.randint(1, 20))

    def accepted(rows: int) -> bool:
        seen = [range(0 if w is None else max(0, rows * size - w + 1) // size, rows) for w in windows]
        return all(
            kv.pool.find((group, asked.block_key(row, size))) is not None
            for group, rows_seen in enumerate(seen)
            for row in rows_seen
        )

    for row in range((asked.num_tokens - 1) // size):  # keys are made in order
        asked.block_key(row, size)
    longest = max(rows for rows in range((asked.num_tokens - 1) // size + 1) if accepted(rows))
    assert kv.cached_prefix(asked) == longest * size


def test_who_wants_prompt_logits_takes_nothing() -> None:
    kv = cache((None, 6))
    compute(kv, request(list(range(33))), 33)
    assert kv.take_prefix(request(list(range(33)), prompt_logits=True)) == 0


@given(st.integers(1, 50), st.integers(1, 9), st.integers(1, 20), st.integers(1, 120))
def test_a_window_needs_no_more_than_is_said(window: int, size: int, chunk: int, tokens: int) -> None:
    """The bound is reached in some case."""
    kv = cache((window,), blocks=200, size=size)
    owner, most = request([0] * tokens), 0
    while owner.num_done < tokens:
        count = min(chunk, tokens - owner.num_done)
        grown = kv.missing(owner, owner.num_done + count)
        most = max(most, len(kv.blocks_of(owner)) + grown)
        compute(kv, owner, count)
    assert most <= blocks_of_all((window,), tokens, chunk, size)
    if chunk == 1 and tokens >= window + size:
        assert most == most_blocks(window, 1, size)


def test_a_long_request_fits_behind_its_windows() -> None:
    """124 positions are 31 blocks a group; a window of 9 and chunks of 8 take at most 5."""
    prompt = [1] * 60
    for windows, blocks in (((9,), 5), ((9, None), 5 + 31)):
        limits = config(windows=windows, num_blocks=blocks, max_num_batched_tokens=8)
        scheduler = Scheduler(limits)
        scheduler.add(Request("r", prompt, max_tokens=65))
        while (batch := scheduler.schedule()) is not None:
            run(scheduler, batch)
            scheduler.check()
        assert not scheduler.has_unfinished()
        assert (scheduler.preemptions, scheduler.blocks_held) == (0, 0)
        with pytest.raises(ValueError, match=f"there are num_blocks = {blocks - 1}"):
            Scheduler(config(**{**limits_of(windows), "num_blocks": blocks - 1})).add(
                Request("r", prompt, max_tokens=65)
            )


def limits_of(windows: tuple[int | None, ...]) -> dict[str, object]:
    return {"windows": windows, "max_num_batched_tokens": 8}


@pytest.mark.parametrize("windows", [(), (0,), (None, -1)])
def test_what_is_no_window(windows: tuple[int | None, ...]) -> None:
    with pytest.raises(ValueError, match="windows must be at least 1, of at least one group"):
        config(windows=windows)
