from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.scheduler.request import Request
from corepipe.scheduler.scheduler import Scheduler
from corepipe.scheduler.windowed_kv_cache import WindowedKVCache, blocks_of_all, most_blocks
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
