from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.serving.supervision.journal import (
    LEAST_SECONDS,
    MOST_SECONDS,
    WINDOW_SECONDS,
    DrainRate,
    QueuedRequests,
    QueueLimits,
)


def drained(starts: list[float]) -> DrainRate:
    rate = DrainRate()
    for start in starts:
        rate.note(start)
    return rate


@pytest.mark.parametrize(
    ("per_second", "waiting", "seconds"),
    [(10, 50, 5), (10, 51, 6), (10, 1, LEAST_SECONDS), (1, 1000, MOST_SECONDS), (100, 1000, 10)],
)
def test_it_is_the_time_in_which_the_queue_drains(per_second: int, waiting: int, seconds: int) -> None:
    rate = drained([i / per_second for i in range(10 * per_second)])
    assert rate.retry_seconds(waiting, 10.0) == seconds


def test_a_queue_that_does_not_drain_is_no_place_to_come_back_to_soon() -> None:
    assert DrainRate().retry_seconds(1, 5.0) == MOST_SECONDS
    assert drained([1.0, 2.0]).retry_seconds(1, 3.0 + WINDOW_SECONDS) == MOST_SECONDS


@given(st.lists(st.floats(0, 100), max_size=50).map(sorted), st.integers(0, 10**6), st.floats(0, 50))
def test_it_stays_within_its_limits(starts: list[float], waiting: int, later: float) -> None:
    now = (starts[-1] if starts else 0.0) + later
    assert LEAST_SECONDS <= drained(starts).retry_seconds(waiting, now) <= MOST_SECONDS


def test_bounds_are_of_requests_and_of_tokens() -> None:
    bounds = QueueLimits(requests=3, tokens=100)
    assert bounds.refusal(QueuedRequests(2, 90), 10) is None
    assert "--max-num-queued-reqs" in str(bounds.refusal(QueuedRequests(3, 0), 1))
    assert "--max-num-queued-tokens" in str(bounds.refusal(QueuedRequests(2, 90), 11))
    assert bounds.times(2).refusal(QueuedRequests(5, 190), 10) is None


def test_an_empty_queue_leaves_a_long_prompt_to_the_engine() -> None:
    """The engine answers that the prompt can never fit, so that clients do not retry."""
    assert QueueLimits(requests=3, tokens=100).refusal(QueuedRequests(), 101) is None


@given(st.integers(1, 200), st.integers(1, 200), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_who_floods_leaves_room_for_others(requests: int, tokens: int, sizes: list[int]) -> None:
    """Owners send all they can, one after the other: each gets half of what was still free."""
    bounds, waiting = QueueLimits(requests, tokens), QueuedRequests()
    for size in sizes:
        own, free = QueuedRequests(), QueuedRequests(requests - waiting.requests, tokens - waiting.tokens)
        while bounds.refusal(waiting, size, own) is None:
            for load in (own, waiting):
                load.requests += 1
                load.tokens += size
        assert own.requests <= max(1, (free.requests + 1) // 2)
        assert own.tokens <= max(size, (free.tokens + size) // 2)
        assert own.requests or not free.requests or size > free.tokens


def test_a_lone_owner_has_the_queue() -> None:
    assert QueueLimits(3, 100).refusal(QueuedRequests(2, 90), 10, None) is None
    assert "other keys" in str(QueueLimits(3, 100).refusal(QueuedRequests(2, 20), 10, QueuedRequests(2, 20)))
    assert "other keys" in str(QueueLimits(30, 100).refusal(QueuedRequests(1, 60), 40, QueuedRequests(1, 60)))
